"""A command line of devhost in this process: for what it says, not for how the process ends."""

import os
import subprocess

from click.testing import CliRunner

from devhost.cli import main

_CHANGES_DEFAULTS = ("DEVHOST_", "_DEVHOST", "NO_COLOR", "FORCE_COLOR")

Done = subprocess.CompletedProcess[str]


def called(*args: object, stdin: str = "", **variables: str) -> Done:
    """Run devhost to its end; it is quicker than a process by the imports."""
    command = [*map(str, args)]
    unset = dict.fromkeys(name for name in os.environ if name.startswith(_CHANGES_DEFAULTS))
    done = CliRunner().invoke(
        main, command, input=stdin, env={**unset, **variables}, prog_name="devhost"
    )
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(command, done.exit_code, done.stdout, done.stderr)

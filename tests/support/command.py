"""A command line of devhost, in this process or in one of its own."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

from click.testing import CliRunner

from devhost.cli import main

PROGRAM: Final = (sys.executable, "-m", "devhost")
_CHANGES_DEFAULTS = ("DEVHOST_", "_DEVHOST", "NO_COLOR", "FORCE_COLOR")

Done = subprocess.CompletedProcess[str]


def called(*args: object, stdin: str = "", **variables: str) -> Done:
    """Run devhost to its end in this process, for what it says, not for how the process ends."""
    command = [*map(str, args)]
    unset = dict.fromkeys(name for name in os.environ if name.startswith(_CHANGES_DEFAULTS))
    done = CliRunner().invoke(
        main, command, input=stdin, env={**unset, **variables}, prog_name="devhost"
    )
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return Done(command, done.exit_code, done.stdout, done.stderr)


def process(*args: object, stdin: str = "", **variables: str) -> Done:
    """Run devhost to its end in a process."""
    return subprocess.run(
        [*PROGRAM, *map(str, args)],
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=250,
        env=environment(**variables),
    )


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without what would change devhost's defaults."""
    kept = {k: value for k, value in os.environ.items() if not k.startswith(_CHANGES_DEFAULTS)}
    return kept | variables


def alive(pid: int) -> bool:
    """Return whether a process runs and is no zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"

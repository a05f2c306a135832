"""The command line: a module for each command."""

import os
from typing import Any

# Before grpc is imported: its C core writes to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from devhost import __version__
from devhost.cli import (
    devices_command,
    init_command,
    plan_command,
    run_command,
    status_command,
    try_command,
    validate_command,
)
from devhost.model.names import printable


class _Main(click.Group):
    def list_commands(self, _ctx: click.Context) -> list[str]:
        """Return them in the order in which they are added, which is that of use."""
        return list(self.commands)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # it quotes arguments, such as names of files
            error.message = printable(error.message)  # type: ignore[misc]
            raise


@click.group(cls=_Main, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="devhost")
def main() -> None:
    """Kubernetes device plugin for many resources, configured by one YAML file.

    Exit status: 0 success, 1 failure (such as an invalid configuration), 2 usage error.

    Completion: eval "$(_DEVHOST_COMPLETE=bash_source devhost)" (or zsh_source, fish_source).
    """


for _command in (
    run_command.command,
    validate_command.command,
    plan_command.command,
    try_command.command,
    devices_command.command,
    init_command.command,
    init_command.convert,
    status_command.command,
    validate_command.schema,
):
    main.add_command(_command)

"""The command line; the module of a command is imported when the command is used."""

import importlib
import os
from typing import Any

# Before grpc is imported: its C core writes to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from devhost import __version__

_COMMANDS = {
    "run": "Serve the resources of a configuration to kubelet.",
    "validate": "Check configuration files without reading the host.",
    "plan": "Show what this host would advertise (dry run).",
    "try": "Serve the resources to an embedded stand-in kubelet.",
    "devices": "Show the devices of this host, and how to select them.",
    "init": "Write a configuration for the devices of this host.",
    "convert": "Convert what other plugins or pods have into a configuration.",
    "capture": "Write what devhost reads of this host into an archive.",
    "status": "Show the state of a running devhost.",
    "deviceclasses": "Print the DeviceClasses that DRA needs for a configuration.",
    "schema": "Print the JSON Schema of configuration files.",
}


class _LazyGroup(click.Group):
    """Imports the module of a command when the command is used."""

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        file = {"schema": "validate", "convert": "init"}.get(name, name)
        module = importlib.import_module(f"devhost.cli.{file}_command")
        command: click.Command = getattr(module, "command" if file == name else name)
        return command

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except click.UsageError as error:  # it quotes arguments, such as names of files
            from devhost.model.names import printable

            error.message = printable(error.message)  # type: ignore[misc]
            raise

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(
    cls=_LazyGroup,
    commands={name: click.Command(name) for name in _COMMANDS},  # click proposes them
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.version_option(__version__, prog_name="devhost")
def main() -> None:
    """Kubernetes device plugin for many resources, configured by one YAML file.

    Exit status: 0 success, 1 failure (such as an invalid configuration), 2 usage error.

    Completion: eval "$(_DEVHOST_COMPLETE=bash_source devhost)" (or zsh_source, fish_source).
    """

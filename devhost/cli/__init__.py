"""The command line: one file a command, no logic."""

import importlib
import os

# Before anything imports grpc: its C core writes lines of its own to stderr.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import click

from devhost import __version__
from devhost.cli import lean

_COMMANDS = {
    "run": "Serve the resources of a configuration to the kubelet.",
    "validate": "Check configurations without touching the host.",
    "plan": "Show what this host would advertise (a dry run).",
    "try": "Run the real host against an embedded stand-in kubelet.",
    "status": "Show a running devhost.",
    "schema": "Print the configuration's JSON Schema.",
}


class _Lazy(click.Group):
    """Imports a command's module only when the command is used."""

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, _ctx: click.Context, name: str) -> click.Command | None:
        if name not in _COMMANDS:
            return None
        with lean.imports():
            module = importlib.import_module(f"devhost.cli.{name}_command")
        command: click.Command = module.command
        return command

    def format_commands(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(_COMMANDS.items()))


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="devhost")
def main() -> None:
    """Serve many device resources to Kubernetes from one YAML file.

    Exit status: 0 yes, 1 no (an invalid configuration, something not well), 2 usage.

    Completion: eval "$(_DEVHOST_COMPLETE=bash_source devhost)" (or zsh_source, fish_source).
    """

"""Options and output of the commands that write a configuration: `init` and `convert`."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from devhost.cli import completion
from devhost.cli import output as printer

_Command = TypeVar("_Command", bound=Callable[..., Any])


def _domain(_context: click.Context, _option: click.Parameter, domain: str | None) -> str | None:
    """Refuse what cannot be the domain of a resource."""
    from devhost.model.names import resource_name_problem

    if domain is not None and (problem := resource_name_problem(f"{domain}/x")):
        raise click.BadParameter(problem)
    return domain


def draft_options(command: _Command) -> _Command:
    """Add ``--domain``, ``-o`` and ``--force``."""
    for option in (
        click.option("--force", is_flag=True, help="Overwrite the file of -o."),
        click.option(
            "-o",
            "--output",
            default="-",
            show_default="standard output",
            metavar="FILE",
            shell_complete=completion.files,
            help="File to write.",
        ),
        click.option("--domain", callback=_domain, help="Domain of the resource names."),
    ):
        command = option(command)
    return command


def check_output(output: str, *, force: bool) -> None:
    """Exit with status 1 if the file exists and may not be overwritten."""
    if output != "-" and not force and os.path.lexists(output):
        printer.fail(f"{output} exists; overwrite it with --force")


def write(text: str, output: str, *, force: bool) -> None:
    """Write a configuration; exit with status 1 on failure."""
    if output == "-":
        for line in text.splitlines():
            printer.echo(line)
        return
    try:
        with Path(output).open("w" if force else "x", encoding="utf-8") as stream:
            stream.write(text)
    except OSError as error:
        printer.fail(f"{output}: {error.strerror}")


def note_next(output: str, root: str) -> None:
    """Print what to do next."""
    file = "FILE" if output == "-" else output
    printer.note(f"next: devhost plan {file}{f' --root {root}' if root != '/' else ''}")

"""``devhost convert``."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from devhost.cli import completion, draft_options, options, problems
from devhost.cli import output as printer

if TYPE_CHECKING:
    from devhost.drafts.conversion import Conversion
    from devhost.drafts.foreign import Foreign
    from devhost.errors import Problem


@click.command(
    "convert",
    epilog="Exit status: 0 success, 1 nothing to convert, or with --strict a setting that was not "
    "carried over, 2 usage error.",
)
@click.argument(
    "files", nargs=-1, required=True, metavar="FILE...", shell_complete=completion.files
)
@draft_options.draft_options
@click.option(
    "--dev",
    multiple=True,
    metavar="NAME",
    help="A path below /dev that nodes have, such as ttyUSB0: smarter-device-manager makes a "
    "resource of each. In addition to those of this host. Repeatable.",
)
@click.option("--strict", is_flag=True, help="Fail if a setting is not carried over.")
@options.root_option
def command(
    files: tuple[str, ...],
    domain: str | None,
    output: str,
    force: bool,
    dev: tuple[str, ...],
    strict: bool,
    root: str,
) -> None:
    """Convert settings of generic-device-plugin or smarter-device-manager.

    FILE is their configuration, or what contains it: a manifest, a ConfigMap, values of a chart;
    '-' is standard input. Resources keep their names, so that pods need no change.
    """
    draft_options.check_output(output, force=force)
    found = [one for file in files for one in _found(file)]
    below = [one.removeprefix("/dev/") for one in dev]
    header = f"Converted by `devhost convert` from {', '.join(files)}."
    result = _converted(found, header, options.real_root(root), below, domain)
    warnings = _warnings(result.text, "<converted>" if output == "-" else output)
    for one in result.lost:
        printer.note(f"not carried over: {one}")
    if not result.converted:
        printer.fail("nothing was converted")
    draft_options.write(result.text, output, force=force)
    problems.print_problems(warnings)
    lost = len(result.lost)
    printer.note(
        f"{result.converted} resource{'s' * (result.converted != 1)} converted, "
        f"{lost} setting{'s' * (lost != 1)} not carried over"
    )
    draft_options.note_next(output, root)
    sys.exit(1 if strict and lost else 0)


def _converted(
    found: "Sequence[Foreign]", header: str, root: str, dev: Sequence[str], domain: str | None
) -> "Conversion":
    """Return the conversion; exit with status 1 if the host cannot be read."""
    from devhost.drafts.conversion import converted
    from devhost.hostfs.files import HostFiles

    try:
        return converted(found, (header,), HostFiles(root), dev, domain)
    except OSError as error:
        printer.fail(f"/dev: {error.strerror or error}")


def _warnings(text: str, file: str) -> "list[Problem]":
    """Return what needs a flag; exit with status 1 if the result is not valid."""
    from devhost.loading.loader import loads

    loaded = loads(text, file)
    if loaded.config is None:  # what is wrong in it is wrong in the original
        problems.print_problems(loaded.problems)
        printer.fail("the result would be no valid configuration; nothing was written")
    return [one for one in loaded.problems if "--allow-" in one.message]


def _found(file: str) -> "list[Foreign]":
    """Return the settings of other plugins in a file; exit with status 1 if there are none."""
    from devhost.drafts import foreign
    from devhost.loading.loaded import read
    from devhost.loading.syntax import TreeError, decoded

    try:
        found = foreign.found(decoded(read(file)))
    except OSError as error:
        printer.fail(f"{file}: cannot be read: {error.strerror or error}")
    except TreeError as error:
        printer.fail(f"{file}:{error.line}:{error.column}: {error}")
    if not found:
        printer.fail(
            f"{file}: no devices of generic-device-plugin or smarter-device-manager; if they are "
            "in the templates of a chart, use the output of `helm template` or `kubectl get "
            "daemonset NAME -o yaml`"
        )
    return found

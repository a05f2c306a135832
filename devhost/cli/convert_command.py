"""``devhost convert``."""

import sys
from typing import TYPE_CHECKING

import click

from devhost.cli import draft_options, options
from devhost.cli import output as printer

if TYPE_CHECKING:
    from devhost.drafts.foreign import Found


@click.command(
    "convert",
    epilog="Exit status: 0 success, 1 nothing to convert, or with --strict a setting that was not "
    "carried over, 2 usage error.",
)
@click.argument("files", nargs=-1, required=True, type=click.Path(), metavar="FILE...")
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
    from devhost.drafts.conversion import converted
    from devhost.hostfs.files import HostFiles
    from devhost.loading.loader import loads

    draft_options.check_output(output, force=force)
    found = [one for file in files for one in _found(file)]
    header = (f"Converted by `devhost convert` from {', '.join(files)}.",)
    below = [one.removeprefix("/dev/") for one in dev]
    try:
        result = converted(found, header, HostFiles(options.real_root(root)), below, domain)
    except OSError as error:
        printer.fail(f"/dev: {error.strerror or error}")
    loaded = loads(result.text, output if output != "-" else "<converted>")
    if loaded.config is None:  # what is wrong in it is wrong in the original
        printer.print_problems(loaded.problems)
        printer.fail("the result would be no valid configuration; nothing was written")
    for one in result.lost:
        printer.note(f"not carried over: {one}")
    if not result.converted:
        printer.fail("nothing was converted")
    draft_options.write(result.text, output, force=force)
    printer.print_problems(one for one in loaded.problems if "--allow-" in one.message)
    lost = len(result.lost)
    printer.note(
        f"{result.converted} resource{'s' * (result.converted != 1)} converted, "
        f"{lost} setting{'s' * (lost != 1)} not carried over"
    )
    draft_options.note_next(output)
    sys.exit(1 if strict and lost else 0)


def _found(file: str) -> "list[Found]":
    """Return the settings of other plugins in a file; exit with status 1 if there are none."""
    import yaml

    from devhost.drafts import foreign
    from devhost.loading.loader import SIZE_MAX, read

    try:
        raw = read(file)
        if len(raw) > SIZE_MAX:
            printer.fail(f"{file}: larger than {SIZE_MAX >> 10} KiB")
        found = foreign.found(raw.decode("utf-8-sig"))
    except OSError as error:
        printer.fail(f"{file}: cannot be read: {error.strerror or error}")
    except UnicodeDecodeError:
        printer.fail(f"{file}: not UTF-8")
    except yaml.YAMLError as error:
        printer.fail(f"{file}: {' '.join(str(error).split())}")
    if not found:
        printer.fail(
            f"{file}: no devices of generic-device-plugin or smarter-device-manager; if they are "
            "in the templates of a chart, use the output of `helm template` or `kubectl get "
            "daemonset NAME -o yaml`"
        )
    return found

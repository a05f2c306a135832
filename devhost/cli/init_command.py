"""``devhost init`` and ``devhost convert``: they write a configuration."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from devhost.cli import options
from devhost.cli import output as printer
from devhost.cli.devices_command import meant
from devhost.model.names import printable

if TYPE_CHECKING:
    from devhost.drafts.draft import DraftEntry


def _domain(_context: click.Context, _option: click.Parameter, domain: str | None) -> str | None:
    """Refuse what cannot be the domain of a resource."""
    from devhost.model.names import resource_name_problem

    if domain is not None and (problem := resource_name_problem(f"{domain}/x")):
        raise click.BadParameter(problem)
    return domain


draft_options = options.together(
    click.option("--domain", callback=_domain, help="Domain of the resource names."),
    click.option(
        "-o",
        "--output",
        default="-",
        show_default="standard output",
        type=options.FILE,
        help="File to write.",
    ),
    click.option("--force", is_flag=True, help="Overwrite the file of -o."),
    click.option("--values", is_flag=True, help="Write values of the chart: below `config`."),
)


def write(text: str, output: str, *, force: bool) -> None:
    """Write a configuration; exit with status 1 on failure, or if it may not be overwritten."""
    if output == "-":
        for line in text.splitlines():
            printer.echo(line)
        return
    try:
        with Path(output).open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        printer.fail(f"{output} exists; overwrite it with --force")
    except OSError as error:
        printer.fail(f"{output}: {error.strerror}")


def note_next(output: str, root: str = "/") -> None:
    """Print what to do next."""
    file = "FILE" if output == "-" else output
    printer.note(f"next: devhost plan {file}{f' --root {root}' if root != '/' else ''}")


@click.command("init", epilog="Exit status: 0 success, 1 no such device, or FILE exists.")
@click.argument("what", nargs=-1, metavar="[WHAT...]")
@draft_options
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take every device that is found.")
@options.root_option
def command(
    what: tuple[str, ...],
    domain: str | None,
    output: str,
    force: bool,
    values: bool,
    yes: bool,
    root: str,
) -> None:
    """Write a configuration for the devices of this host.

    WHAT are devices as `devhost devices` shows them: ttyUSB0, 1-2, 0403:6001. Without it, all that
    containers may want: serial adapters, cameras, GPUs, sound cards, /dev/kvm and the like; not
    disks, network interfaces, keyboards. On a terminal, asks for each. Equal devices are one
    resource.

    Example: `devhost init ttyUSB0 --domain example.com -o first.yaml`
    """
    from devhost.discovery.machine import Machine
    from devhost.drafts import host_draft
    from devhost.drafts.entries import DOMAIN
    from devhost.hostfs.files import HostFiles

    files = HostFiles(root)
    try:
        machine = Machine(files)
        chosen = [device for one in what for device in meant(machine, one)] if what else None
        found = host_draft.offers(files, domain or DOMAIN, chosen)
    except OSError as error:
        printer.fail(str(error))
    if not (yes or what) and sys.stdin.isatty() and sys.stderr.isatty():
        found = [one for one in found if _is_wanted(one)]
    write(host_draft.text(found, domain or DOMAIN, values=values), output, force=force)
    offered = sum(one.active for one in found)
    left = len(found) - offered
    more = f"; {left} more would be refused, and {'are' if left > 1 else 'is'} commented out"
    printer.note(f"{offered} resource{'s' * (offered != 1)}{more if left else ''}")
    note_next(output, root)


def _is_wanted(one: "DraftEntry") -> bool:
    for comment in one.comments:
        printer.note(printable(comment))
    return click.confirm("Include it?", default=True, err=True)


@click.command(
    "convert",
    epilog="Exit status: 0 success, 1 nothing to convert, or a setting was not carried over (what "
    "was is written), 2 usage error.",
)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=options.FILE)
@draft_options
@options.root_option
def convert(
    files: tuple[str, ...], domain: str | None, output: str, force: bool, values: bool, root: str
) -> None:
    """Convert settings of generic-device-plugin or smarter-device-manager.

    FILE is the configuration, or what contains it: a manifest, a ConfigMap, values of a chart;
    '-' is standard input. Resources keep their names, so that pods need no change. A pattern of
    smarter-device-manager means what it matches below /dev of this host.

    Example: `devhost convert daemonset.yaml -o first.yaml`
    """
    from devhost.drafts import conversion, draft
    from devhost.hostfs.files import HostFiles
    from devhost.loading.loader import read
    from devhost.loading.syntax import TreeError, decoded

    devices = []
    try:
        for file in files:
            devices += (found := conversion.found(decoded(read(file))))
            if not found:
                printer.fail(
                    f"{file}: no devices of generic-device-plugin or smarter-device-manager; if "
                    "they are in the templates of a chart, use the output of `helm template` or "
                    "`kubectl get daemonset NAME -o yaml`"
                )
        entries = conversion.converted(devices, domain, HostFiles(root))
    except OSError as error:
        printer.fail(f"{file}: cannot be read: {error.strerror or error}")
    except TreeError as error:
        printer.fail(f"{file}:{error.line}:{error.column}: {error}")
    except ValueError as error:
        printer.fail(str(error))
    lost = [comment for one in entries for comment in one.comments]
    for one in lost:
        printer.note(one)
    if len(lost) == len(entries):
        printer.fail("nothing was converted")
    header = f"Converted by `devhost convert` from {', '.join(files)}."
    write(draft.text([header], entries, values=values), output, force=force)
    count = len(entries) - len(lost)
    printer.note(f"{count} resource{'s' * (count != 1)} converted, {len(lost)} not carried over")
    note_next(output)
    sys.exit(1 if lost else 0)

"""``devhost init`` and ``devhost convert``, which write a configuration."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from devhost.cli import options
from devhost.cli import output as printer
from devhost.cli.devices_command import find_devices, kinds_option, load_kinds
from devhost.model.names import resource_name_problem

if TYPE_CHECKING:
    from devhost.drafts.draft import DraftEntry


def _domain_problem(domain: str | None) -> str | None:
    return None if domain is None else resource_name_problem(f"{domain}/name")


draft_options = options.together(
    click.option(
        "--domain", callback=options.refuses(_domain_problem), help="Domain of the resource names."
    ),
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


def _write(text: str, summary: str, output: str, flags: str = "", *, force: bool) -> None:
    """Write a configuration to a file or standard output; tell standard error what to do next.

    Exits with status 1 if the file cannot be written, or exists and may not be overwritten.
    """
    if output == "-":
        printer.echo(*text.splitlines())
    else:
        try:
            with Path(output).open("w" if force else "x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            printer.fail(f"{output} exists; overwrite it with --force")
        except OSError as error:
            printer.fail(f"{output}: {error.strerror}")
    printer.note(summary)
    name = "FILE" if output == "-" else output
    printer.note(f"next: devhost plan {name} {flags}".rstrip())


@click.command("init", epilog="Exit status: 0 success, 1 no such device, or FILE exists.")
@click.argument("names", nargs=-1, metavar="[WHAT...]")
@draft_options
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take every device that is found.")
@kinds_option
@options.host_files_option
def command(
    names: tuple[str, ...],
    domain: str | None,
    output: str,
    force: bool,
    values: bool,
    yes: bool,
    kinds: str | None,
    root: str,
    cdi_dirs: tuple[str, ...],
) -> None:
    """Write a configuration for the devices of this host.

    WHAT are devices as `devhost devices` shows them: ttyUSB0, 1-2, 0403:6001. Without it, all that
    containers may want: serial adapters, cameras, GPUs, sound cards, /dev/kvm and the like; not
    disks, network interfaces, keyboards. On a terminal, asks for each. Equal devices are one
    resource.

    Example: `devhost init ttyUSB0 --domain example.com -o first.yaml`
    """
    from devhost.drafts import draft, host_draft
    from devhost.drafts.machine import Machine
    from devhost.hostfs.files import HostFiles

    rows = load_kinds(kinds)
    try:
        machine = Machine(HostFiles(root, cdi_dirs=cdi_dirs))
        chosen = [device for name in names for device in find_devices(machine, name)]
        listed = chosen if names else None
        entries = host_draft.build_host_entries(machine, domain or draft.DOMAIN, listed, rows)
    except OSError as error:
        printer.fail(str(error))
    if not (yes or names) and sys.stdin.isatty() and sys.stderr.isatty():
        resources = [entry for entry in entries if entry.resource]
        entries = [*_choose(resources), *entries[len(resources) :]]
    offered = sum(entry.active for entry in entries)
    summary = f"{offered} resource{'s' * (offered != 1)}"
    if left := sum(bool(entry.resource) for entry in entries) - offered:
        summary += f"; {left} more {'are' if left > 1 else 'is'} commented out, with the reason"
    text = host_draft.render(entries, domain or draft.DOMAIN, values=values)
    flags = draft.needed_rights(entries).flags()
    root = click.get_current_context().meta.get(options.ARCHIVE, root)
    flags += f" --root {root}" if root != "/" else ""
    _write(text, summary, output, flags.lstrip(), force=force)


def _choose(entries: "Sequence[DraftEntry]") -> "list[DraftEntry]":
    """Return the entries that a person takes."""
    chosen: list[DraftEntry] = []
    for number, entry in enumerate(entries):
        for comment in entry.comments:
            printer.note(comment)
        answers = click.Choice(("yes", "no", "all", "quit", *"ynaq"), case_sensitive=False)
        question = "Include it? [yes,no,all,quit]"
        answer = click.prompt(
            question, "yes", type=answers, show_choices=False, show_default=False, err=True
        )
        match answer[0]:
            case "a":
                return [*chosen, *entries[number:]]
            case "q":
                return chosen
            case "y":
                chosen.append(entry)
    return chosen


_NO_DEVICES: Final = (
    "no devices of another plugin, and no pod that has devices by path; if they are in templates "
    "of a chart, use the output of `helm template` or `kubectl get daemonset NAME -o yaml`"
)


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
    """Convert what other plugins or pods have into a configuration.

    FILE is a configuration of generic-device-plugin, MicroShift or smarter-device-manager, or what
    contains it: a manifest, a ConfigMap, values of a chart; or pods and values with `hostPath`
    below /dev, a file of Docker Compose, udev rules of Akri. '-' is standard input. Settings and
    the DaemonSet that reads them may be in several files. Resources keep their names, so that
    pods need no change; with --values, a DaemonSet with a nodeSelector is a profile. Directories,
    and what patterns of smarter-device-manager match, are looked up below /dev of this host.

    Example: `devhost convert daemonset.yaml configmap.yaml -o first.yaml`
    """
    from devhost.config.foreign_words import explain_file
    from devhost.config.loader import read
    from devhost.config.yaml_errors import TreeError, decode
    from devhost.drafts import draft
    from devhost.drafts.conversion import Conversion
    from devhost.hostfs.files import HostFiles

    conversion = Conversion(HostFiles(root), domain, by_node=values)
    try:
        for file in files:
            text = decode(read(file))
            if not conversion.read(text):
                printer.fail(f"{file}: {explain_file(text) or _NO_DEVICES}")
        profiles, notes = conversion.finish()
    except OSError as error:
        printer.fail(f"{file}: cannot be read: {error.strerror or error}")
    except TreeError as error:
        printer.fail(f"{file}:{error.line}:{error.column}: {error}")
    except ValueError as error:
        printer.fail(str(error))
    everywhere, *of_nodes = profiles
    entries = [entry for profile in profiles for entry in profile.entries]
    for comment in [*notes, *(comment for entry in entries for comment in entry.comments)]:
        printer.note(comment)
    lost = sum(not entry.resource for entry in entries)
    if lost == len(entries):
        printer.fail("nothing was converted" if lost else f"{', '.join(files)}: {_NO_DEVICES}")
    count = len(entries) - lost
    summary = f"{count} resource{'s' * (count != 1)} converted, {lost} not carried over"
    header = [f"Converted by `devhost convert` from {', '.join(files)}.", *notes]
    text = draft.render(header, everywhere.entries, values=values, profiles=of_nodes)
    _write(text, summary, output, draft.needed_rights(entries).flags(), force=force)
    sys.exit(1 if lost else 0)

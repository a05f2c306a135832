"""``devhost init``."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from devhost.cli import draft_options, options
from devhost.cli import output as printer
from devhost.cli.devices_command import meant
from devhost.model.names import printable

if TYPE_CHECKING:
    from devhost.drafts.draft import DraftEntry
    from devhost.hostfs.files import HostFiles


@click.command("init", epilog="Exit status: 0 success, 1 no such device, or FILE exists.")
@click.argument("what", nargs=-1, metavar="[WHAT...]")
@draft_options.draft_options
@click.option("-y", "--yes", is_flag=True, help="Ask nothing: take every device that is found.")
@options.root_option
def command(
    what: tuple[str, ...],
    domain: str | None,
    output: str,
    force: bool,
    yes: bool,
    root: str,
) -> None:
    """Write a configuration for the devices of this host.

    WHAT are devices as `devhost devices` shows them: ttyUSB0, 1-2, 0403:6001. Without it, all that
    containers may want: serial adapters, cameras, GPUs, sound cards, /dev/kvm and the like; not
    disks, network interfaces, keyboards. On a terminal, asks for each. Equal devices are one
    resource.
    """
    from devhost.drafts import host
    from devhost.hostfs.files import HostFiles

    draft_options.check_output(output, force=force)
    files = HostFiles(options.real_root(root))
    try:
        found = host.refused(_entries(files, what), files)
    except OSError as error:
        printer.fail(str(error))
    if not (yes or what) and sys.stdin.isatty() and sys.stderr.isatty():
        found = [one for one in found if _is_wanted(one)]
    draft_options.write(host.text(found, domain or host.DOMAIN), output, force=force)
    offered = sum(one.active for one in found)
    left = len(found) - offered
    more = f"; {left} more would be refused, and {'are' if left > 1 else 'is'} commented out"
    printer.note(f"{offered} resource{'s' * (offered != 1)}{more if left else ''}")
    draft_options.note_next(output, root)


def _entries(files: "HostFiles", what: Sequence[str]) -> "list[DraftEntry]":
    """Return entries for what is meant; exit with status 1 if there is no such device."""
    from devhost.discovery.machine import Machine
    from devhost.drafts.host import entries

    if not what:
        return entries(files)
    machine = Machine(files)
    return entries(files, [device for one in what for device in meant(machine, one)])


def _is_wanted(one: "DraftEntry") -> bool:
    for comment in one.comments:
        printer.note(printable(comment))
    return click.confirm("Include it?", default=True, err=True)

"""``devhost devices``."""

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from devhost.cli import options
from devhost.cli import output as printer

if TYPE_CHECKING:
    from devhost.drafts.kinds import Rows
    from devhost.drafts.machine import DescribedNode, Machine

kinds_option = click.option(
    "--kinds",
    type=options.FILE,
    help="File with more kinds of devices, as `devhost init` has them.",
)


@click.command(
    "devices",
    epilog="Exit status: 0 success, 1 no /sys, or no such subsystem or device, 2 usage error.",
)
@click.argument("name", metavar="[WHAT]", required=False)
@click.option(
    "--subsystem",
    "subsystems",
    multiple=True,
    metavar="NAME",
    help="Only the devices of a subsystem, such as usb, pci, tty or block.",
)
@click.option(
    "--all",
    "everything",
    is_flag=True,
    help="Also hubs, bridges, and what has no node or is for the host.",
)
@kinds_option
@options.host_files_option
@options.output_option(
    *("text", "json", "yaml"),
    text="Output format; yaml: an entry of `resources` that offers exactly this device.",
)
def command(
    name: str | None,
    subsystems: tuple[str, ...],
    everything: bool,
    kinds: str | None,
    root: str,
    cdi_dirs: tuple[str, ...],
    output: str,
) -> None:
    """Show the devices of this host, or one in full.

    WHAT is a node or a link to it (ttyUSB0, /dev/serial/by-id/NAME), a USB name (1-2), a PCI
    address (00:14.0) or a number (0403:6001).

    Example: `devhost devices ttyUSB0 -o yaml`
    """
    from devhost.drafts.draft import DOMAIN, entry_lines
    from devhost.drafts.host_draft import build_host_entries
    from devhost.drafts.machine import Machine
    from devhost.hostfs.files import HostFiles

    if output == "yaml" and name is None:
        raise click.UsageError("-o yaml needs a device")
    try:
        machine = Machine(HostFiles(root, cdi_dirs=cdi_dirs))
    except OSError as error:
        printer.fail(str(error))
    if machine.problem is not None:
        printer.fail(machine.problem)
    if name is None:
        _list(machine, subsystems, output, everything=everything)
        return
    devices = find_devices(machine, name)
    if output == "yaml":
        for entry in build_host_entries(machine, DOMAIN, devices, load_kinds(kinds)):
            printer.echo(*entry_lines(entry, with_rights=True))
    elif output == "json":
        printer.print_json([_as_json(machine, device) for device in devices])
    else:
        for number, device in enumerate(devices):
            if number:
                printer.echo("")
            printer.echo(*_lines(machine, device))


def find_devices(machine: "Machine", name: str) -> "list[DescribedNode]":
    """Return the devices of a name or number; exit with status 1 if there are none."""
    devices = machine.find(name)
    if not devices:
        printer.fail(f"no device {name}; `devhost devices --all` lists what there is")
    return devices


def load_kinds(file: str | None) -> "Rows":
    """Return the kinds of devices, with those of a file; exit with status 1 if it is invalid."""
    from devhost.drafts import kinds
    from devhost.errors import ConfigError

    try:
        return kinds.rows() if file is None else kinds.load(file)
    except ConfigError as error:
        printer.print_problems(error.problems)
        sys.exit(1)
    except OSError as error:
        printer.fail(f"{file}: cannot be read: {error.strerror or error}")


def _list(machine: "Machine", subsystems: Sequence[str], output: str, *, everything: bool) -> None:
    from devhost.drafts.machine import CDI, OTHER_CLASS

    for problem in filter(None, (machine.subsystem(name).missing for name in subsystems)):
        printer.fail(problem)
    shown_tables = subsystems or ("usb", "pci", OTHER_CLASS, CDI)
    tables = {name: list(machine.rows(name)) for name in shown_tables}
    if output == "json":
        printer.print_json({name: [row for row, _ in rows] for name, rows in tables.items()})
        return
    for number, (name, rows) in enumerate(tables.items()):
        shown = [row for row, is_hidden in rows if everything or not is_hidden]
        if name in (OTHER_CLASS, CDI) and not rows:
            continue
        if number:
            printer.echo("")
        if shown:
            headings = [column.upper() for column in shown[0]]
            printer.print_table(headings, [[*map(_cell, row.values())] for row in shown])
        left = len(rows) - len(shown)
        if left or not shown:
            printer.echo(f"{name}: {f'{left} left out (--all).' if left else 'none.'}")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(path.removeprefix("/dev/") for path in value)
    return "-" if value in (None, "") else str(value)


def _lines(machine: "Machine", device: "DescribedNode") -> Iterator[str]:
    node, state, owner = device.node, device.state, device.owner
    title = (node.path or node.name) if node else owner.name if owner else ""
    if state is not None and state.number is not None:
        number, (user, group) = ":".join(map(str, state.number)), machine.owner_ids(state)
        title += f" ({state.kind.value} {number}, {state.mode:04o}, user {user}, group {group})"
    yield title
    values = {
        **device.variables,
        "nodes": ", ".join(node.file or node.name for node in device.nodes),
        "above it": ", ".join(f"{name} ({subsystem})" for name, subsystem in device.parents),
    }
    yield from (f"  {name:<17}  {value}" for name, value in values.items() if value)


def _as_json(machine: "Machine", device: "DescribedNode") -> dict[str, Any]:
    state = device.state
    user, group = machine.owner_ids(state) if state else (None, None)
    return {
        "node": device.node and device.node.path,
        "number": list(state.number) if state and state.number else None,
        "mode": f"{state.mode:04o}" if state else None,
        "uid": user,
        "gid": group,
        "variables": dict(device.variables),
        "nodes": [node.path or node.name for node in device.nodes],
        "parents": [{"name": name, "subsystem": subsystem} for name, subsystem in device.parents],
    }

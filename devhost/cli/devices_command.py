"""``devhost devices``."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click

from devhost.cli import options
from devhost.cli import output as printer
from devhost.model.names import printable

if TYPE_CHECKING:
    from devhost.discovery.machine import Described, DeviceRow, Machine


_SUBSYSTEMS = (
    ("usb", "USB devices."),
    ("pci", "PCI functions."),
    ("tty", "Serial ports."),
    ("block", "Disks."),
)


def _subsystem_options(command: Callable[..., None]) -> Callable[..., None]:
    any_of_them = click.option(
        "--subsystem", "subsystems", multiple=True, metavar="NAME", help="Any subsystem."
    )
    command = any_of_them(command)
    for name, text in reversed(_SUBSYSTEMS):
        flag = click.option(f"--{name}", "subsystems", flag_value=name, multiple=True, help=text)
        command = flag(command)
    return command


@click.command(
    "devices",
    epilog="Exit status: 0 success, 1 there is no /sys or no such device, 2 usage error.",
)
@click.argument("what", required=False)
@_subsystem_options
@click.option("--all", "everything", is_flag=True, help="Also hubs, bridges and what has no node.")
@options.root_option
@click.option(
    "-o",
    "--output",
    type=click.Choice(["text", "json", "yaml"]),
    default="text",
    show_default=True,
    help="Output format; yaml: an entry of `resources` that offers exactly this device.",
)
def command(
    what: str | None,
    subsystems: tuple[str, ...],
    everything: bool,
    root: str,
    output: str,
) -> None:
    """Show the devices of this host, or one in full.

    WHAT is a node or a link to it (ttyUSB0, /dev/serial/by-id/NAME), a USB name (1-2), a PCI
    address (00:14.0) or a number (0403:6001).
    """
    from devhost.discovery.machine import Machine
    from devhost.hostfs.files import HostFiles

    if output == "yaml" and what is None:
        raise click.UsageError("-o yaml needs a device")
    machine = Machine(HostFiles(options.real_root(root)))
    if machine.problem is not None:
        printer.fail(machine.problem)
    if what is None:
        _list(machine, subsystems, output, everything=everything)
        return
    _show(machine, meant(machine, what), output)


def meant(machine: "Machine", what: str) -> "list[Described]":
    """Return the devices that a person means; exit with status 1 if there is none."""
    found = machine.find(what)
    if not found:
        printer.fail(f"no device {printable(what)}; `devhost devices --all` lists what there is")
    return found


def _show(machine: "Machine", found: "Sequence[Described]", output: str) -> None:
    match output:
        case "json":
            printer.print_json([_as_json(one) for one in found])
        case "yaml":
            from devhost.discovery.entries import EntryWriter
            from devhost.drafts.draft import resource_lines

            for entry in EntryWriter(machine).of(found):
                for line in resource_lines(entry):
                    printer.echo(line)
        case _:
            for number, one in enumerate(found):
                if number:
                    printer.echo()
                _print(one)


def _list(machine: "Machine", subsystems: Sequence[str], output: str, *, everything: bool) -> None:
    tables: dict[str, list[DeviceRow]] = {}
    for one in subsystems or ("usb", "pci"):
        read = {"usb": machine.usb_rows, "pci": machine.pci_rows}.get(one)
        tables[one] = list(read() if read else machine.subsystem_rows(one))
    if output == "json":
        shown = {name: [dict(row.values) for row in rows] for name, rows in tables.items()}
        printer.print_json(shown)
        return
    for number, (name, rows) in enumerate(tables.items()):
        some = [row for row in rows if everything or (row.plain and _counts(row, subsystems))]
        if number:
            printer.echo()
        if some:
            headings = list(some[0].values)
            printer.print_table(headings, [list(row.values.values()) for row in some])
        hidden = len(rows) - len(some)
        if hidden or not some:
            left = f"{hidden} left out (--all)." if hidden else "none."
            printer.echo(f"{name}: {left}")


def _counts(row: "DeviceRow", subsystems: Sequence[str]) -> bool:
    """Whether a function is worth a line where nobody has asked for PCI."""
    return bool(subsystems) or "PCI" not in row.values or row.values["NODES"] != "-"


def _print(one: "Described") -> None:
    node, state = one.node, one.state
    title = f"/dev/{node.file}" if node and node.file else node.name if node else ""
    if node is None and one.owner is not None:
        title = one.owner.syspath.rpartition("/")[2]
    if state is not None and state.number is not None:
        title += f" ({state.kind.value} {state.number[0]}:{state.number[1]}, {one.permissions})"
    printer.echo(title)
    for name, value in one.variables.items():
        printer.wrapped(f"{name:<17}  {printable(value)}", "  ", " " * 21)
    if one.nodes:
        names = ", ".join(n.file or n.name for n in one.nodes)
        printer.wrapped(f"{'nodes':<17}  {names}", "  ", " " * 21)
    above = ", ".join(f"{name} ({subsystem})" for name, subsystem in one.parents)
    if above:
        printer.wrapped(f"{'above it':<17}  {above}", "  ", " " * 21)


def _as_json(one: "Described") -> dict[str, Any]:
    return {
        "node": f"/dev/{one.node.file}" if one.node and one.node.file else None,
        "number": list(one.state.number) if one.state and one.state.number else None,
        "mode": f"{one.state.mode:04o}" if one.state else None,
        "uid": one.permissions.uid if one.permissions else None,
        "gid": one.permissions.gid if one.permissions else None,
        "variables": dict(one.variables),
        "nodes": [f"/dev/{n.file}" if n.file else n.name for n in one.nodes],
        "parents": [{"name": name, "subsystem": subsystem} for name, subsystem in one.parents],
    }

"""``devhost devices``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from devhost.cli import options
from devhost.cli import output as printer
from devhost.model.names import printable

if TYPE_CHECKING:
    from devhost.discovery.machine import DescribedNode, Machine


@click.command(
    "devices",
    epilog="Exit status: 0 success, 1 no /sys, or no such subsystem or device, 2 usage error.",
)
@click.argument("what", required=False)
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
@options.root_option
@options.output_option(
    *("text", "json", "yaml"),
    text="Output format; yaml: an entry of `resources` that offers exactly this device.",
)
def command(
    what: str | None, subsystems: tuple[str, ...], everything: bool, root: str, output: str
) -> None:
    """Show the devices of this host, or one in full.

    WHAT is a node or a link to it (ttyUSB0, /dev/serial/by-id/NAME), a USB name (1-2), a PCI
    address (00:14.0) or a number (0403:6001).

    Example: `devhost devices ttyUSB0 -o yaml`
    """
    from devhost.discovery.machine import Machine
    from devhost.hostfs.files import HostFiles

    if output == "yaml" and what is None:
        raise click.UsageError("-o yaml needs a device")
    machine = Machine(HostFiles(root))
    if machine.problem is not None:
        printer.fail(machine.problem)
    if what is None:
        _list(machine, subsystems, output, everything=everything)
        return
    _show(machine, meant(machine, what), output)


def meant(machine: "Machine", what: str) -> "list[DescribedNode]":
    """Return the devices that a person means; exit with status 1 if there is none."""
    found = machine.find(what)
    if not found:
        printer.fail(f"no device {printable(what)}; `devhost devices --all` lists what there is")
    return found


def _show(machine: "Machine", found: "Sequence[DescribedNode]", output: str) -> None:
    if output == "json":
        printer.print_json([_as_json(machine, one) for one in found])
    elif output == "yaml":
        from devhost.drafts.draft import resource_lines
        from devhost.drafts.entries import entries

        for entry in entries(machine, found):
            for line in resource_lines(entry.resource):
                printer.echo(line)
    else:
        for number, one in enumerate(found):
            if number:
                printer.echo()
            _print(machine, one)


def _list(machine: "Machine", subsystems: Sequence[str], output: str, *, everything: bool) -> None:
    from devhost.discovery.machine import OTHER

    for absent in filter(None, (machine.subsystem(one).missing for one in subsystems)):
        printer.fail(absent)
    tables = {one: list(machine.rows(one)) for one in subsystems or ("usb", "pci", OTHER)}
    if output == "json":
        printer.print_json({name: [row for row, _ in rows] for name, rows in tables.items()})
        return
    for number, (name, rows) in enumerate(tables.items()):
        some = [row for row, hidden in rows if everything or not hidden]
        if name == OTHER and not rows:
            continue
        if number:
            printer.echo()
        if some:
            headings = [one.upper() for one in some[0]]
            printer.print_table(headings, [[*map(_cell, row.values())] for row in some])
        left = len(rows) - len(some)
        if left or not some:
            printer.echo(f"{name}: {f'{left} left out (--all).' if left else 'none.'}")


def _cell(value: Any) -> str:
    if isinstance(value, list):
        value = ", ".join(one.removeprefix("/dev/") for one in value)
    return "-" if value in (None, "") else str(value)


def _print(machine: "Machine", one: "DescribedNode") -> None:
    node, state = one.node, one.state
    title = (node.path or node.name) if node else one.owner.name if one.owner else ""
    if state is not None and state.number is not None:
        number, (user, group) = ":".join(map(str, state.number)), machine.owner_ids(state)
        title += f" ({state.kind.value} {number}, {state.mode:04o}, user {user}, group {group})"
    printer.echo(title)
    lines = {
        **one.variables,
        "nodes": ", ".join(n.file or n.name for n in one.nodes),
        "above it": ", ".join(f"{name} ({subsystem})" for name, subsystem in one.parents),
    }
    for name, value in lines.items():
        if value:
            printer.echo(f"  {name:<17}  {value}")


def _as_json(machine: "Machine", one: "DescribedNode") -> dict[str, Any]:
    user, group = machine.owner_ids(one.state) if one.state else (None, None)
    return {
        "node": one.node and one.node.path,
        "number": list(one.state.number) if one.state and one.state.number else None,
        "mode": f"{one.state.mode:04o}" if one.state else None,
        "uid": user,
        "gid": group,
        "variables": dict(one.variables),
        "nodes": [n.path or n.name for n in one.nodes],
        "parents": [{"name": name, "subsystem": subsystem} for name, subsystem in one.parents],
    }

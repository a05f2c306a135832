"""A first configuration for a host: the devices that containers may want, with comments."""

import itertools
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from devhost.devices.dry_run import ResourceReport
from devhost.drafts import draft, kinds
from devhost.drafts.draft import DOMAIN, DraftEntry
from devhost.drafts.entries import DraftDevice, device_of_node, devices_of_kind, write_entries
from devhost.drafts.machine import DescribedNode, Machine, describe, is_hidden
from devhost.drafts.rights import Rights

_NVIDIA: Final = "10de:"  # the vendor of PCI functions whose nodes the kernel does not know
_LEFT_OUT: Final = "Left out, with the command that writes an entry:"
# Nodes for programs of their own, also where others of the same device have an entry.
_SEPARATE: Final = ("cec", "gnss", "gpio", "hidraw", "iio", "lirc", "pps", "tty", "usbmisc", "wwan")


def build_host_entries(
    machine: Machine,
    domain: str,
    chosen: Iterable[DescribedNode] | None = None,
    rows: kinds.Rows | None = None,
) -> list[DraftEntry]:
    """Return entries for the devices that containers may want, or for the chosen ones. Blocks.

    Those that would offer nothing are commented out. Unless devices are chosen, the last entry is a
    comment that says which ones have none. Raises `OSError` if the host cannot be read.
    """
    host_devices = [
        part
        for kind, device in kinds.find_devices(machine.files, rows or kinds.rows())
        for part in devices_of_kind(machine, kind, device)
    ]
    if chosen is None:
        devices = [device for device in host_devices if device.kind.row.init == "always"]
        entries = [*_vendor_entries(machine, domain)]
        entries += write_entries(machine, _not_described(devices, machine), domain, named=False)
    else:
        devices = [device for node in chosen for device in _devices_of(node, host_devices, machine)]
        entries = write_entries(machine, devices, domain, named=True)
    reports = iter(draft.report_entries(entries, machine.files))
    entries = [_judge(entry, next(reports)) if entry.active else entry for entry in entries]
    if chosen is None and (left := _left_out(machine, host_devices, devices)):
        entries.append(DraftEntry({}, (_LEFT_OUT, *left), active=False))
    return entries


def _left_out(
    machine: Machine, host_devices: Sequence[DraftDevice], devices: Sequence[DraftDevice]
) -> list[str]:
    """Return what has no entry, and the command that adds it: a line for devices that are alike."""
    of_kinds = {node.syspath for device in host_devices for node in device.nodes}
    offered = {node.syspath for device in devices for node in device.nodes}
    owners = {device.owner.syspath for device in devices if device.owner is not None}
    left = defaultdict[str, list[str]](list)  # by what it is
    for owner in machine.bus_devices:
        nodes = machine.nodes(owner.syspath)
        if owner.syspath not in owners:
            if not is_hidden(owner, nodes):
                left[f"{owner.prefix[:3].upper()} {describe(owner)}"].append(owner.name)
        elif owner.syspath not in offered:  # who has the USB node of a device has all of it
            for node in nodes:
                if node.syspath not in offered and node.subsystem in _SEPARATE:
                    left[f"{node.subsystem} of {describe(owner)}"].append(node.file or node.name)
    for node, is_left_out in machine.other_nodes():
        is_shown = not is_left_out or node.syspath in of_kinds
        if is_shown and node.syspath not in offered:
            driver = machine.sysfs.driver(node.syspath) or "the kernel"
            left[f"{node.subsystem} of {driver}"].append(node.file or node.name)
    return [f"{kind}: `devhost init {' '.join(names)}`" for kind, names in left.items()]


def _vendor_entries(machine: Machine, domain: str) -> Iterator[DraftEntry]:
    """Yield an entry for each kind of devices that a vendor describes in CDI specs."""
    for kind, devices in itertools.groupby(machine.vendor_devices, lambda pair: pair[0]):
        comment = f"CDI {kind}: {', '.join(device.names[0] for _, device in devices)}"
        resource = {"name": f"{domain}/{kind.replace('/', '-')}", "sources": [{"cdi": kind}]}
        rights = Rights((("cdi", f"{kind}=*"),))
        yield DraftEntry(resource, (comment,), rights=rights)


def _not_described(devices: Iterable[DraftDevice], machine: Machine) -> Iterator[DraftDevice]:
    """Yield the devices that no vendor describes: containers need more of those than nodes."""
    described = {path for _, device in machine.vendor_devices for path in device.nodes}
    has_nvidia = any(kind.startswith("nvidia.com/") for kind, _ in machine.vendor_devices)
    for device in devices:
        is_known = has_nvidia and device.number.startswith(_NVIDIA)
        if not is_known and described.isdisjoint(node.path for node in device.nodes):
            yield device


def _devices_of(
    node: DescribedNode, host_devices: Sequence[DraftDevice], machine: Machine
) -> Iterator[DraftDevice]:
    """Yield what is of a kind and is exactly what a person has named, or else what was named."""
    unit, file = node.owner.syspath if node.owner else "", node.node.file if node.node else None
    if node.node is not None and node.node.syspath != unit:
        unit = ""  # a node of it
    of_kinds = [
        device
        for device in host_devices
        if (unit and device.owner is not None and device.owner.syspath == unit)
        or (
            file
            and not device.is_part
            and [kernel_node.file for kernel_node in device.nodes] == [file]
        )
    ]
    yield from of_kinds or [device_of_node(machine, node)]


def _judge(entry: DraftEntry, report: ResourceReport) -> DraftEntry:
    """Return the entry, commented out with the reason if it would offer no healthy device."""
    snapshot = report.snapshot
    devices = snapshot.devices.values()
    if any(device.healthy for device in devices):
        return entry
    reasons = [snapshot.error, *(device.reason for device in devices)]
    reasons += [skipped.reason for skipped in snapshot.skipped]
    reason = next(filter(None, reasons), "nothing is found")
    return replace(entry, comments=(*entry.comments, f"Not offered: {reason}"), active=False)


def render(entries: Sequence[DraftEntry], domain: str, *, values: bool = False) -> str:
    """Return a configuration with these entries."""
    header = (
        "Written by `devhost init`. A pod requests a resource by its name, below "
        "`resources.limits` of a container."
    )
    if domain == DOMAIN:
        header += f" {DOMAIN} stands for a domain of yours."
    if not any(entry.resource for entry in entries):
        header += " Nothing was found on this host."
    return draft.render([header], entries, values=values)

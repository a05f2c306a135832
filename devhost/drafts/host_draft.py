"""A first configuration for a host: the devices that containers may want, with comments."""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.devices.dry_run import ResourceReport, report
from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.drafts.entries import DOMAIN, build_entries
from devhost.drafts.machine import OTHER_CLASS, DescribedNode, Machine
from devhost.hostfs.device_classes import HOST_CLASSES, PROGRAM_CLASSES
from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import KernelNode, SysfsDevice

_HID: Final = "03"
_USB_HOST: Final = "0c03"
_SHARED: Final = {
    "/dev/kvm": "Virtual machines.",
    "/dev/fuse": "File systems in a container.",
    "/dev/net/tun": "Network tunnels in a container.",
}
_REPLICAS: Final = 100
_NVIDIA: Final = {
    "sources": [{"dev": "nvidia(?P<minor>[0-9]+)"}],
    "allocate": {"devices": [], "env": {"NVIDIA_VISIBLE_DEVICES": "${minor}"}},
}


def build_host_entries(
    files: HostFiles, domain: str, chosen: Sequence[DescribedNode] | None = None
) -> list[DraftEntry]:
    """Return entries for the devices that containers may want, or for the chosen ones. Blocks.

    Those that would offer nothing without a flag are commented out.
    """
    machine = Machine(files)
    if chosen is None:
        devices = () if machine.problem else _devices_for_containers(machine)
        taken = ("nvidia", *map(posixpath.basename, _SHARED))
        entries = build_entries(machine, devices, domain, taken)
        if any(function.facts["driver"] == "nvidia" for function in machine.pci_functions):
            comment = "NVIDIA GPUs, for pods with the runtime class of NVIDIA's container runtime."
            entries.append(DraftEntry({"name": f"{domain}/nvidia", **_NVIDIA}, (comment,)))
        entries += [_shared(path, domain) for path in _SHARED if files.stat(path) is not None]
    else:
        entries = build_entries(machine, chosen, domain)
    config = loads(draft.render((), entries)).require()
    reports = iter(report(config, files, Policy(enforced=True), ""))
    return [_judge(entry, next(reports)) if entry.active else entry for entry in entries]


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
    """Return a configuration with these entries; without any, one to begin with."""
    header = (
        "Written by `devhost init`. A pod requests a resource by its name, below "
        "`resources.limits` of a container."
    )
    if domain == DOMAIN:
        header += f" {DOMAIN} stands for a domain of yours."
    if not entries:
        header += " Nothing was found on this host: remove `[]`, and the # before what you need."
        entries = [replace(_shared(path, domain), active=False) for path in _SHARED]
    return draft.render([header], entries, values=values)


def _devices_for_containers(machine: Machine) -> Iterator[DescribedNode]:
    for usb in machine.usb_devices:
        if not usb.is_hub_or_bridge and _is_usb_for_containers(machine, usb):
            (device,) = machine.find(usb.name)
            yield replace(device, nodes=_nodes_for_containers(device.nodes))
    for function in machine.pci_functions:
        nodes = _nodes_for_containers(machine.nodes(function.syspath))
        facts = function.facts
        if nodes and not (facts["class"].startswith(_USB_HOST) or facts["driver"] == "nvidia"):
            names = (node.name for node in nodes if node.name.startswith("renderD"))
            yield replace(machine.find(next(names, function.name))[0], nodes=nodes)
    for row, _ in machine.rows(OTHER_CLASS):
        if row["subsystem"] in PROGRAM_CLASSES and not row["node"].startswith("/dev/dri/card"):
            yield from machine.find(row["node"])


def _nodes_for_containers(nodes: Iterable[KernelNode]) -> tuple[KernelNode, ...]:
    """Return the nodes for containers: no card that only displays, such as that of a BMC."""
    nodes = tuple(node for node in nodes if node.subsystem not in HOST_CLASSES)
    renders = any(node.name.startswith("renderD") for node in nodes)
    return tuple(node for node in nodes if renders or node.subsystem != "drm")


def _is_usb_for_containers(machine: Machine, device: SysfsDevice) -> bool:
    # Keyboards, mice and the like.
    if all(interface.facts["class"].startswith(_HID) for interface in device.interfaces):
        return False
    if nodes := machine.nodes(device.syspath):
        return bool(_nodes_for_containers(nodes))
    # Without nodes it is for libusb, if no driver of the kernel has it.
    return not any(interface.facts["driver"] for interface in device.interfaces)


def _shared(path: str, domain: str) -> DraftEntry:
    name = f"{domain}/{posixpath.basename(path)}"
    resource = {"name": name, "sources": [path], "replicas": _REPLICAS}
    return DraftEntry(resource, (f"{_SHARED[path]} Up to {_REPLICAS} containers share {path}.",))

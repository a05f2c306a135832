"""A first configuration for a host: its devices that containers may want, each with a comment."""

import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import ResourceReport, report
from devhost.discovery.machine import OTHER, DescribedNode, Machine
from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.drafts.entries import DOMAIN, entries
from devhost.hostfs.device_classes import HOST_CLASSES, PROGRAM_CLASSES
from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import KernelNode, SysfsDevice
from devhost.loading.loader import loads

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


def offers(
    files: HostFiles, domain: str, chosen: Sequence[DescribedNode] | None = None
) -> list[DraftEntry]:
    """Return entries for the devices that containers may want, or for the chosen ones. Blocks.

    Those that would offer nothing without a flag are commented out.
    """
    machine = Machine(files)
    if chosen is None:
        some = () if machine.problem else _interesting(machine)
        found = entries(machine, some, domain, ("nvidia", *map(posixpath.basename, _SHARED)))
        if any(one.facts["driver"] == "nvidia" for one in machine.pci_functions):
            comment = "NVIDIA GPUs, for pods with the runtime class of NVIDIA's container runtime."
            found.append(DraftEntry({"name": f"{domain}/nvidia", **_NVIDIA}, (comment,)))
        found += [_shared(path, domain) for path in _SHARED if files.stat(path) is not None]
    else:
        found = entries(machine, chosen, domain)
    policy = Policy(enforced=True)
    reports = report(loads(draft.text((), found)).require(), files, policy, "")
    reasons = (_reason(one) for one in reports)
    return [
        replace(one, comments=(*one.comments, f"Not offered: {reason}"), active=False)
        if reason
        else one
        for one, reason in zip(found, reasons, strict=True)
    ]


def _reason(found: ResourceReport) -> str | None:
    """Return why a resource has no healthy device, ``None`` if it has one."""
    devices = found.snapshot.devices.values()
    if any(one.healthy for one in devices):
        return None
    why = (*(one.reason for one in devices), *(one.reason for one in found.snapshot.skipped))
    return next(filter(None, (found.snapshot.error, *why)), "nothing is found")


def text(found: Iterable[DraftEntry], domain: str, *, values: bool = False) -> str:
    """Return a configuration with these entries, or one to begin with."""
    header = (
        "Written by `devhost init`. A pod requests a resource by its name, below "
        "`resources.limits` of a container."
    )
    if domain == DOMAIN:
        header += f" {DOMAIN} stands for a domain of yours."
    entries = list(found)
    if not entries:
        header += " Nothing was found on this host: remove `[]`, and the # before what you need."
        entries = [replace(_shared(path, domain), active=False) for path in _SHARED]
    return draft.text([header], entries, values=values)


def _interesting(machine: Machine) -> Iterator[DescribedNode]:
    for usb in machine.usb_devices:
        if not usb.is_hub_or_bridge and _is_wanted_usb(machine, usb):
            (found,) = machine.find(usb.name)
            yield replace(found, nodes=_wanted(found.nodes))
    for function in machine.pci_functions:
        nodes = _wanted(machine.nodes(function.syspath))
        facts = function.facts
        if nodes and not (facts["class"].startswith(_USB_HOST) or facts["driver"] == "nvidia"):
            render = next((one.name for one in nodes if one.name.startswith("renderD")), None)
            yield replace(machine.find(render or function.name)[0], nodes=nodes)
    for row, _ in machine.rows(OTHER):
        if row["subsystem"] in PROGRAM_CLASSES and not row["node"].startswith("/dev/dri/card"):
            yield from machine.find(row["node"])


def _wanted(nodes: Iterable[KernelNode]) -> tuple[KernelNode, ...]:
    """Return the nodes for containers: no card that only displays, such as that of a BMC."""
    found = tuple(one for one in nodes if one.subsystem not in HOST_CLASSES)
    renders = any(one.name.startswith("renderD") for one in found)
    return tuple(one for one in found if renders or one.subsystem != "drm")


def _is_wanted_usb(machine: Machine, device: SysfsDevice) -> bool:
    # Keyboards, mice and the like.
    if all(one.facts["class"].startswith(_HID) for one in device.interfaces):
        return False
    if nodes := machine.nodes(device.syspath):
        return bool(_wanted(nodes))
    # Without nodes it is for libusb, if no driver of the kernel has it.
    return not any(one.facts["driver"] for one in device.interfaces)


def _shared(path: str, domain: str) -> DraftEntry:
    name = f"{domain}/{posixpath.basename(path)}"
    resource = {"name": name, "sources": [path], "replicas": _REPLICAS}
    return DraftEntry(resource, (f"{_SHARED[path]} Up to {_REPLICAS} containers share {path}.",))

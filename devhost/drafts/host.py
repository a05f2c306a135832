"""A first configuration for a host: its devices that containers may want, each with a comment."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import ResourceReport, report
from devhost.discovery.hardware import SysfsDevice
from devhost.discovery.machine import Described, Machine
from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.drafts.entries import DOMAIN, entries
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads

# What the host needs for itself, and what says nothing without the rest.
_OWN: Final = frozenset(
    {
        *("block", "bsg", "graphics", "hwmon", "i2c-dev", "input", "mei", "net", "nvme"),
        *("nvme-generic", "ptp", "rtc", "scsi_generic", "watchdog"),
    }
)
_HID: Final = "03"
_USB_HOST: Final = "0c03"
# Of the devices that are on no bus of their own, those that are made for programs.
_CLASSES: Final = (
    *("accel", "cec", "counter", "dma_heap", "drm", "gnss", "gpio", "i2c-dev", "iio", "lirc"),
    *("pps", "spidev", "tpmrm", "uacce", "video4linux"),
)
_SHARED: Final = {
    "/dev/kvm": "Virtual machines.",
    "/dev/fuse": "File systems in a container.",
    "/dev/net/tun": "Network tunnels in a container.",
}
_REPLICAS: Final = 100


def offers(
    files: HostFiles, domain: str, chosen: Sequence[Described] | None = None
) -> list[DraftEntry]:
    """Return entries for the devices that containers may want, or for the chosen ones. Blocks.

    Those that would offer nothing without a flag are commented out.
    """
    machine = Machine(files)
    if chosen is None:
        found = [] if machine.problem else entries(machine, _interesting(machine), domain)
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


def text(found: Iterable[DraftEntry], domain: str) -> str:
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
    return draft.text([header], entries)


def _interesting(machine: Machine) -> Iterator[Described]:
    for usb in machine.usb_devices:
        if not usb.is_between and _is_wanted_usb(machine, usb):
            (found,) = machine.find(usb.name)
            yield replace(found, nodes=tuple(n for n in found.nodes if n.subsystem not in _OWN))
    for function in machine.pci_functions:
        nodes = [one for one in machine.nodes(function.syspath) if one.subsystem not in _OWN]
        if nodes and not function.facts["class"].startswith(_USB_HOST):
            render = next((one.name for one in nodes if one.name.startswith("renderD")), None)
            yield machine.find(render or function.name)[0]
    for subsystem in _CLASSES:
        for row, _ in machine.rows(subsystem):
            for one in machine.find(row["NODE"]) if row["NODE"] != "-" else ():
                if one.owner is None:
                    yield one


def _is_wanted_usb(machine: Machine, device: SysfsDevice) -> bool:
    interfaces = list(device.interfaces)
    # Keyboards, mice and the like.
    if all(one.facts["class"].startswith(_HID) for one in interfaces):
        return False
    if nodes := machine.nodes(device.syspath):
        return any(node.subsystem not in _OWN for node in nodes)
    # Without nodes it is for libusb, if no driver of the kernel has it.
    return not any(one.facts["driver"] for one in interfaces)


def _shared(path: str, domain: str) -> DraftEntry:
    name = f"{domain}/{path.rpartition('/')[2]}"
    resource = {"name": name, "sources": [path], "replicas": _REPLICAS}
    return DraftEntry(resource, (f"{_SHARED[path]} Up to {_REPLICAS} containers share {path}.",))

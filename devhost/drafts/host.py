"""A first configuration for a host: its devices that containers may want, each with a comment."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from devhost.allocation.policy import Policy
from devhost.discovery.entries import EntryWriter, numbered
from devhost.discovery.hardware import SysfsDevice
from devhost.discovery.machine import Described, Machine, class_name
from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.report import ResourceReport, report

DOMAIN: Final = "example.com"
# What the host needs for itself, and what says nothing without the rest.
_OWN: Final = frozenset(
    {
        *("block", "bsg", "graphics", "hwmon", "i2c-dev", "input", "mei", "net", "nvme"),
        *("nvme-generic", "ptp", "rtc", "scsi_generic", "watchdog"),
    }
)
_HID: Final = "03"
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
_ONE_OF_EQUALS: Final = frozenset({"serial", "port", "address"})  # options
_POLICY: Final = Policy(enforced=True)
_INDEX: Final = re.compile(r"resources\[([0-9]+)\]")


def entries(files: HostFiles, chosen: Sequence[Described] | None = None) -> list[DraftEntry]:
    """Return entries for the devices of a host that containers may want, or for others. Blocks.

    Raises:
        OSError: The host's devices cannot be listed.
    """
    machine = Machine(files)
    if chosen is None:
        chosen = [] if machine.problem else list(_interesting(machine))
        shared = [path for path in _SHARED if files.stat(path) is not None]
    else:
        shared = []
    found = [*_merged(machine, chosen), *map(_shared, shared)]
    return [
        replace(one, resource=resource)
        for one, resource in zip(found, numbered(one.resource for one in found), strict=True)
    ]


def refused(found: Sequence[DraftEntry], files: HostFiles) -> list[DraftEntry]:
    """Return entries, of which those are commented out that would offer nothing. Blocks."""
    reasons: dict[str, str] = {}
    loaded = loads(draft.text((), found), policy=_POLICY)
    for problem in loaded.problems:
        if problem.severity == "error" and (index := _INDEX.match(problem.path)):
            reasons.setdefault(found[int(index[1])].resource["name"], problem.message)
    good = [one for one in found if one.resource["name"] not in reasons]
    for one in report(loads(draft.text((), good)).require(), files, _POLICY, ""):
        if reason := _reason(one):
            reasons[one.resource.name] = reason
    return [
        replace(one, comments=(*one.comments, f"Not offered: {reasons[name]}"), active=False)
        if (name := one.resource["name"]) in reasons
        else one
        for one in found
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
        entries = [replace(_shared(path), active=False) for path in _SHARED]
    return draft.text(
        [header],
        [
            replace(one, resource={**one.resource, "name": f"{domain}/{name}"})
            for one in entries
            for name in [one.resource["name"].partition("/")[2]]
        ],
    )


def _interesting(machine: Machine) -> Iterator[Described]:
    for usb in machine.usb_devices():
        if not usb.is_between and _is_wanted_usb(machine, usb):
            (found,) = machine.find(usb.name)
            yield replace(found, nodes=tuple(n for n in found.nodes if n.subsystem not in _OWN))
    for function in machine.pci_functions():
        nodes = machine.nodes(function.syspath)
        usb_host = function.facts["class"].startswith("0c03")
        if usb_host or not {one.subsystem for one in nodes} - _OWN:
            continue
        render = next((one.name for one in nodes if one.name.startswith("renderD")), None)
        yield machine.find(render or function.name)[0]
    for subsystem in _CLASSES:
        for row in machine.subsystem_rows(subsystem):
            for one in machine.find(row.values["NODE"]) if row.values["NODE"] != "-" else ():
                if one.owner is None:
                    yield one


def _is_wanted_usb(machine: Machine, device: SysfsDevice) -> bool:
    interfaces = list(device.interfaces())
    # Keyboards, mice and the like.
    if all(one.facts["class"].startswith(_HID) for one in interfaces):
        return False
    if nodes := machine.nodes(device.syspath):
        return any(node.subsystem not in _OWN for node in nodes)
    # Without nodes it is for libusb, if no driver of the kernel has it.
    return not any(one.facts["driver"] for one in interfaces)


def _merged(machine: Machine, found: Sequence[Described]) -> list[DraftEntry]:
    """Return one entry for devices that differ in their serial number or place alone."""
    writer, result = EntryWriter(machine), dict[str, DraftEntry]()
    for one in found:
        resource, title = writer.entry(one), _title(one)
        equal = _without(resource)
        if (before := result.get(equal)) is not None:
            sources = [*before.resource["sources"], *resource["sources"]]
            resource = {**before.resource, "sources": sources}
            result[equal] = DraftEntry(resource, (*before.comments, title))
        else:
            result[equal] = DraftEntry(resource, (title,))
    return list(result.values())


def _without(resource: dict[str, Any]) -> str:
    """Return an entry without what tells its device from equal ones, as text."""
    (source,) = resource["sources"]
    if isinstance(source, dict) and isinstance(options := next(iter(source.values())), dict):
        source = {key: value for key, value in options.items() if key not in _ONE_OF_EQUALS}
    return repr({**resource, "sources": source})


def _title(found: Described) -> str:
    owner, node = found.owner, found.node
    facts = owner.facts if owner is not None else {}
    if owner is not None and owner.prefix == "usb.":
        name = f"{facts['manufacturer']} {facts['product']}".strip() or "device"
        title = f"USB {owner.name}: {name} ({facts['device']})"
    elif owner is not None:
        title = f"PCI {owner.name}: {class_name(facts['class'])} ({facts['device']})"
    else:
        title = f"{found.variables.get('subsystem')} {node.name if node else ''}".strip()
    nodes = found.nodes if owner is not None else (node,)
    shown = [f"/dev/{one.file}" for one in nodes if one is not None and one.file]
    return f"{title}. Now {', '.join(shown)}." if shown else f"{title}."


def _shared(path: str) -> DraftEntry:
    name = f"{DOMAIN}/{path.rpartition('/')[2]}"
    resource = {"name": name, "sources": [path], "replicas": _REPLICAS}
    return DraftEntry(resource, (f"{_SHARED[path]} Up to {_REPLICAS} containers share {path}.",))

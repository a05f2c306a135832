"""A first configuration for a host: its devices that containers may want, each with a comment."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, Final

from devhost.allocation.policy import Policy
from devhost.discovery.entries import EntryWriter, numbered
from devhost.discovery.machine import Described, Machine
from devhost.discovery.pci import PciFunction
from devhost.discovery.usb import UsbDevice
from devhost.drafts import draft
from devhost.drafts.draft import DraftEntry
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.loading.loader import loads
from devhost.model.hardware import USB_NODE
from devhost.report import report

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
_SHARED: Final = (
    ("kvm", "/dev/kvm", "Virtual machines."),
    ("fuse", "/dev/fuse", "File systems in a container."),
    ("tun", "/dev/net/tun", "Network tunnels in a container."),
)
_REPLICAS: Final = 100
_POLICY: Final = Policy(enforced=True)


@immutable
class Proposal:
    """A device of the host, as a resource.

    Attributes:
        title: What it is.
        entry: The resource; not active where it would be refused.
    """

    title: str
    entry: DraftEntry


def proposals(files: HostFiles, chosen: Sequence[Described] | None = None) -> list[Proposal]:
    """Return the devices of a host that containers may want. Blocks.

    Args:
        files: The host's files.
        chosen: Devices to offer in their place.

    Raises:
        OSError: The host's devices cannot be listed.
    """
    machine = Machine(files)
    found = [] if machine.problem and chosen is None else list(chosen or _interesting(machine))
    result = [one for described in found if (one := _proposal(machine, described, files, chosen))]
    if chosen is None:
        result += [
            Proposal(path, _shared(name, path, text, active=True))
            for name, path, text in _SHARED
            if files.stat(path) is not None
        ]
    return _checked(result, files)


def text(found: Sequence[Proposal], domain: str) -> str:
    """Return a configuration with what was found, or one to begin with."""
    header = [
        "Written by `devhost init`. A pod requests a resource by its name, below",
        "`resources.limits` of a container.",
    ]
    if domain == DOMAIN:
        header.append(f"{DOMAIN} stands for a domain of yours.")
    entries = [one.entry for one in found]
    if not entries:
        header.append(
            "Nothing was found on this host: remove `[]`, and the # before what you need."
        )
        entries = [_shared(name, path, what, active=False) for name, path, what in _SHARED]
    named = [replace(one, resource=_renamed(one.resource, domain)) for one in entries]
    return draft.text([" ".join(header)], named)


def _interesting(machine: Machine) -> Iterator[Described]:
    for usb in machine.usb_devices():
        if not usb.is_hub and _is_wanted_usb(machine, usb):
            yield machine.find(usb.name)[0]
    for function in machine.pci_functions():
        subsystems = {node.subsystem for node in machine.nodes(function.syspath)}
        if not function.code.startswith("0c03") and subsystems - _OWN:
            yield machine.find(function.address)[0]
    for subsystem in _CLASSES:
        for row in machine.subsystem_rows(subsystem):
            for one in machine.find(row.values["NODE"]) if row.values["NODE"] != "-" else ():
                if one.owner is None:
                    yield one


def _is_wanted_usb(machine: Machine, device: UsbDevice) -> bool:
    nodes = machine.nodes(device.syspath)
    if nodes:
        return any(node.subsystem not in _OWN for node in nodes)
    # Without nodes it is for libusb, if no driver of the kernel has it.
    return not any(one.driver for one in device.interfaces())


def _proposal(
    machine: Machine, found: Described, files: HostFiles, chosen: Sequence[Described] | None
) -> Proposal | None:
    """Return the best entry for a device: the first that offers it, or why none does."""
    title = _title(machine, found)
    reason = ""
    alternatives = list(_alternatives(machine, found, exactly=chosen is not None))
    for described, resource in alternatives:
        problem = _problem(resource, described, files)
        if problem is None:
            more = _hints(described)
            name = {"name": alternatives[0][1]["name"]}
            return Proposal(title, DraftEntry({**resource, **name}, (title, *more)))
        reason = reason or problem
    if chosen is None and isinstance(found.owner, UsbDevice) and _is_keyboard(found.owner):
        return None
    return _refused(title, alternatives[0][1], reason)


def _is_keyboard(device: UsbDevice) -> bool:
    """Whether it is a keyboard, a mouse or the like: only human interface devices."""
    return all(one.code.startswith(_HID) for one in device.interfaces())


def _refused(title: str, resource: dict[str, Any], reason: str) -> Proposal:
    return Proposal(title, DraftEntry(resource, (title, f"Not offered: {reason}"), active=False))


def _alternatives(
    machine: Machine, found: Described, *, exactly: bool
) -> Iterator[tuple[Described, dict[str, Any]]]:
    """Yield entries for a device, the best one first."""
    resource = EntryWriter(machine).entry(found)
    if found.node is not None and found.node.subsystem != USB_NODE and exactly:
        yield found, resource
        return
    nodes = [one for node in found.nodes for one in machine.find(node.file or node.name)]
    if isinstance(found.owner, PciFunction):
        nodes.sort(key=lambda one: not (one.node and one.node.name.startswith("renderD")))
        options = resource["sources"][0]["pci"]
        if str(options["node"]).startswith("sound/"):
            resource["sources"] = [{"pci": {**options, "node": "sound"}}]
        elif nodes and nodes[0].node and nodes[0].node.subsystem == "drm":
            yield nodes[0], EntryWriter(machine).entry(nodes[0])
    yield found, resource
    for one in nodes:
        yield one, EntryWriter(machine).entry(one)
    if found.owner is None and found.node is not None:
        options = {"subsystem": found.node.subsystem, "name": found.node.name}
        yield found, {"name": resource["name"], "sources": [{"sysfs": options}]}


def _problem(resource: dict[str, Any], described: Described, files: HostFiles) -> str | None:
    """Return why an entry does not offer exactly one device, that one."""
    loaded = loads(draft.text((), [DraftEntry(resource)]), policy=_POLICY)
    if loaded.config is None:
        return loaded.problems[0].message
    config = loaded.config
    (found,) = report(config, files, _POLICY, "")
    devices = list(found.snapshot.devices.values())
    if not devices:
        skipped = [one.reason for one in found.snapshot.skipped]
        return found.snapshot.error or (skipped[0] if skipped else "nothing is found")
    if len(devices) > 1:
        return f"{len(devices)} devices are found"
    names = {node.variables.get("name") for node in devices[0].nodes}
    if described.node and described.owner is None and described.node.name not in names:
        return "another device is found"
    return devices[0].reason if not devices[0].healthy else None


def _title(machine: Machine, found: Described) -> str:
    owner, node = found.owner, found.node
    if isinstance(owner, UsbDevice):
        texts = (owner.text("manufacturer"), owner.text("product"))
        title = f"USB {owner.name}: {' '.join(filter(None, texts)) or 'device'} ({owner.number})"
        if serial := owner.text("serial"):
            title += f", serial number {serial}"
    elif isinstance(owner, PciFunction):
        row = next(r for r in machine.pci_rows() if r.values["PCI"] == owner.address)
        title = f"PCI {owner.address}: {row.values['CLASS']} ({owner.number})"
        title += f", driver {owner.driver}" if owner.driver else ""
    else:
        title = f"{found.variables.get('subsystem')} {node.name if node else ''}".strip()
        if driver := found.variables.get("driver"):
            title += f", driver {driver}"
    shown = [f"/dev/{one.file}" for one in found.nodes if one.file]
    if owner is None and node is not None and node.file:
        shown = [f"/dev/{node.file}"]
    return f"{title}. Now {', '.join(shown)}." if shown else f"{title}."


def _hints(found: Described) -> Iterator[str]:
    if found.node is not None and found.node.subsystem == "drm":
        yield "To share it between pods: `replicas: 4`."


def _shared(name: str, path: str, what: str, *, active: bool) -> DraftEntry:
    resource = {"name": f"{DOMAIN}/{name}", "sources": [path], "replicas": _REPLICAS}
    return DraftEntry(resource, (f"{what} Up to {_REPLICAS} containers share {path}.",), active)


def _checked(found: Sequence[Proposal], files: HostFiles) -> list[Proposal]:
    """Return proposals with different names; what an earlier one offers is commented out."""
    resources = numbered(one.entry.resource for one in found)
    result = [
        replace(one, entry=replace(one.entry, resource=resource))
        for one, resource in zip(found, resources, strict=True)
    ]
    active = [one.entry for one in result if one.entry.active]
    if not active:
        return result
    reports = report(loads(draft.text((), active)).require(), files, _POLICY, "")
    none = {one.resource.name for one in reports if not one.snapshot.devices}
    return [
        one
        if one.entry.resource["name"] not in none
        else _refused(one.title, dict(one.entry.resource), "an earlier resource has its nodes")
        for one in result
    ]


def _renamed(resource: Any, domain: str) -> dict[str, Any]:
    return {**resource, "name": f"{domain}/{resource['name'].partition('/')[2]}"}

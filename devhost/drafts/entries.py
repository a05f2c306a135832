"""Entries of a configuration for devices of a host, as `devices -o yaml` and `init` write them.

An entry has the options that tell its device from the others of the host, also after a replug and
when the kernel counts in another order.
"""

import glob
import itertools
import posixpath
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from devhost.drafts.draft import DraftEntry
from devhost.drafts.machine import DescribedNode, Machine, class_name
from devhost.hostfs.sysfs import PLACES, KernelNode, SysfsDevice, ancestor_devices
from devhost.model.hardware_sources import USB_NODE
from devhost.model.pattern import matches_any
from devhost.sources.matcher import Matcher

DOMAIN: Final = "example.com"
_SERIAL_MIN: Final = 4
_COUNTED: Final = re.compile(r"0*1|0123456789.*|12345678.*")  # numbers that nobody has set
_COUNTER: Final = re.compile("(?<!^v)(?<!^i)[0-9]+")  # but the 4 and the 2 of v4l and i2c
# Names in which only the first number is counted: the second is of a part of the device.
_PARTS: Final = re.compile(r"(?:(?:pcm|hw|midi)C|nvme|ng|mmcblk)[0-9].*|spi[0-9]+\.[0-9]+")
_LETTERED: Final = re.compile("(?:sd|hd|vd|xvd)[a-z]+[0-9]*")
_OPENED_BY_PATH: Final = ("tty", "video4linux", "hidraw", "usbmisc")  # which a setting names
_KINDS: Final = {"tty": "serial", "video4linux": "video"}
# What a container has below /dev of its own: a device may give itself such a name.
_OWN_NODES: Final = (
    *("console", "core", "fd", "full", "mqueue", "null", "ptmx", "pts", "random", "shm"),
    *("stderr", "stdin", "stdout", "tty", "urandom", "zero"),
)
_ONE_OF_EQUALS: Final = ("serial", "port", "address")
_RTL_SDR: Final = "dvb_usb_rtl28xxu"  # the driver for television of sticks that receive anything
_UNSTABLE: Final = (
    "Not offered: only a name that the kernel counts tells it from others, and after a reboot "
    "another device may have that name."
)

_Options = dict[str, Any]


@dataclass
class _Draft:
    """A resource that is being written.

    Attributes:
        nodes: What a container gets of each device.
        identity: What makes a device's ID: `id` or `group`.
        is_stable: Whether nothing that the kernel counts selects its devices.
    """

    name: str
    sources: list[Any]
    nodes: Sequence[KernelNode] = ()
    identity: _Options = field(default_factory=dict)
    is_stable: bool = True
    titles: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        """What it has in common with those that differ in serial number or place alone."""
        (source,) = self.sources
        options = next(iter(source.values())) if isinstance(source, dict) else source
        if isinstance(options, dict):
            options = {key: options[key] for key in options if key not in _ONE_OF_EQUALS}
        return repr((self.name, options, self.identity, self.is_stable))


def build_entries(
    machine: Machine,
    devices: Iterable[DescribedNode],
    domain: str = DOMAIN,
    taken: Iterable[str] = (),
) -> list[DraftEntry]:
    """Return resources that offer exactly these devices, with names that are not taken. Blocks.

    Devices that differ in their serial number or place alone are one resource. What only a name
    that the kernel counts would select is commented out.
    """
    equal: dict[str, _Draft] = {}
    for device in devices:
        draft = _draft(machine, device)
        first = equal.setdefault(draft.kind, draft)
        first.sources += draft.sources if first is not draft else []
        first.titles.append(device.title)
    used, entries = {*taken, *_OWN_NODES}, list[DraftEntry]()
    for draft in equal.values():
        names = (f"{draft.name}-{number}" for number in itertools.count(2))
        name = next(name for name in itertools.chain([draft.name], names) if name not in used)
        used.add(name)
        resource = {"name": f"{domain}/{name}", "sources": draft.sources, **draft.identity}
        if (path := _container_path(machine, name, draft)) is not None:
            rule = {"hostPath": "${path}", "containerPath": path}
            resource["allocate"] = {"devices": [rule]}
            resource |= {} if "${index}" in path else {"maxDevices": 1}
        reasons = () if draft.is_stable else (_UNSTABLE,)
        entries.append(DraftEntry(resource, (*draft.titles, *reasons), draft.is_stable))
    return entries


def _container_path(machine: Machine, name: str, draft: _Draft) -> str | None:
    """Return a path that stays the same whatever the kernel counts, where programs need that."""
    nodes = [node for node in draft.nodes if node.file]
    if not nodes or any(node.subsystem not in _OPENED_BY_PATH for node in nodes):
        return None
    path = f"/dev/{name}" + ("${index}" if len(draft.sources) > 1 else "")
    if len(nodes) == 1:
        return path
    interfaces = {machine.sysfs.interface(node.syspath) for node in nodes} - {None}
    return f"{path}-${{usb.interface}}" if len(interfaces) == len(nodes) else None


def _is_sdr(device: DescribedNode) -> bool:
    """Whether a device is an RTL-SDR, whose programs open its USB node, and the kernel has it."""
    interfaces = device.owner.interfaces if device.owner is not None else ()
    return any(interface.facts["driver"] == _RTL_SDR for interface in interfaces)


def _draft(machine: Machine, device: DescribedNode) -> _Draft:
    """Return a resource that offers exactly this device."""
    owner, node = device.owner, device.node
    if node is not None and node.subsystem == "block" and (link := device.variables.get("byId")):
        return _Draft(_slug(posixpath.basename(link)), [glob.escape(link)])
    if owner is not None and owner.prefix == "usb.":
        return _usb_draft(machine, device, owner)
    if owner is not None and (choice := _pci_node(device)) is not None:
        name = class_name(owner.facts["class"])
        name = owner.facts["driver"] if name == owner.facts["class"] else name
        options = {**_pci_options(machine, owner), "node": choice}
        return _Draft(_slug(name), [{"pci": options}], (node,) if node else device.nodes)
    if node is None:
        raise ValueError("what has no node is a device on a bus")
    if not node.subsystem:  # sysfs does not know it
        return _Draft(_slug(node.name), [node.path], is_stable=not _is_counted(node.name))
    kind = _KINDS.get(node.subsystem, node.subsystem)
    name = _slug(kind if _is_counted(node.name) else node.name)
    identity = {"id": "${place}"}
    if "place" not in device.variables:
        identity = {"group": name} if _is_counted(node.name) else {}
    options, is_stable = _sysfs_options(machine, node)
    return _Draft(name, [{"sysfs": options}], (node,), identity, is_stable)


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "device"


def _usb_draft(machine: Machine, device: DescribedNode, owner: SysfsDevice) -> _Draft:
    node, options = device.node, _usb_options(machine, owner)
    nodes, is_stable = device.nodes, True
    if node is not None and node.subsystem != USB_NODE:
        nodes = (node,)
        choice, is_stable = _usb_node(machine, device, node)
        options |= choice
    elif nodes and not _is_sdr(device):
        subsystems = _subsystems(nodes)
        options["node"] = _few(subsystems)
        nodes = tuple(node for node in nodes if node.subsystem in subsystems)
    else:
        nodes = ()
    identity = {"id": "${usb.serial}"} if "serial" in options else {}
    name = _slug(owner.facts["product"] or owner.facts["device"])
    return _Draft(name, [{"usb": options}], nodes, identity, is_stable)


def _usb_options(machine: Machine, owner: SysfsDevice) -> _Options:
    number, serial = owner.facts["device"], owner.facts["serial"]
    options = {"device": number, **({"class": "hub"} if owner.is_hub_or_bridge else {})}
    twins = [device for device in machine.usb_devices if device.facts["device"] == number]
    good = len(serial) >= _SERIAL_MIN and len(set(serial)) > 1 and not _COUNTED.fullmatch(serial)
    if good and sum(device.facts["serial"] == serial for device in twins) == 1:
        options["serial"] = glob.escape(serial)
    elif len(twins) > 1 and owner.place:
        options["port"] = glob.escape(owner.place)
    return options


def _usb_node(machine: Machine, device: DescribedNode, node: KernelNode) -> tuple[_Options, bool]:
    """Return the options that choose a node of a USB device, and whether they last."""
    options: _Options = {}
    alike = [twin for twin in device.nodes if twin.subsystem == node.subsystem]
    if len(alike) > 1 and "usb.interface" in device.variables:
        options["interface"] = int(device.variables["usb.interface"])
        interface = machine.sysfs.interface(node.syspath)
        alike = [twin for twin in alike if machine.sysfs.interface(twin.syspath) == interface]
    if len(alike) == 1:
        return {**options, "node": node.subsystem}, True
    name = _name_glob(node.name, [twin.name for twin in alike])
    index = machine.sysfs.text(f"{node.syspath}/index")
    if name is None and index:
        return {**options, "node": {"subsystem": node.subsystem, "attr": {"index": index}}}, True
    choice = f"{node.subsystem}/{name or glob.escape(node.name)}"
    return {**options, "node": choice}, name is not None


def _pci_options(machine: Machine, owner: SysfsDevice) -> _Options:
    number = owner.facts["device"]
    options = {"device": number, **({"class": "bridge"} if owner.is_hub_or_bridge else {})}
    if sum(function.facts["device"] == number for function in machine.pci_functions) > 1:
        options["address"] = owner.name
    return options


def _pci_node(device: DescribedNode) -> str | list[str] | None:
    """Return the `node` of a PCI function; ``None`` where only its place distinguishes it."""
    if (node := device.node) is None:
        return _few(_subsystems(device.nodes)) if device.nodes else "none"
    alike = [twin for twin in device.nodes if twin.subsystem == node.subsystem]
    if len(alike) <= 1:  # none: the head of a disk with several paths is below no function
        return node.subsystem
    name = _name_glob(node.name, [twin.name for twin in alike])
    return f"{node.subsystem}/{name}" if name is not None else None


def _sysfs_options(machine: Machine, node: KernelNode) -> tuple[Any, bool]:
    """Return the fewest options that match one device of a subsystem, and whether they last.

    The devices above it tell it; its own name, often counted, is the last resort.
    """
    reading = machine.subsystem(node.subsystem)
    if len(reading.members) == 1:
        return node.subsystem, True
    members = [SysfsDevice(path, reading.sysfs) for path in reading.members.values()]
    above: list[str] = []  # the names between the device and the nearest one at a place
    candidates: list[list[str]] = []
    for path in ancestor_devices(node.syspath, reading.sysfs):
        name = glob.escape(posixpath.basename(path))
        if reading.sysfs.link_name(f"{path}/subsystem") in PLACES:
            candidates = [[name], *([_COUNTER.sub("*", low, count=1), name] for low in above)]
            break
        above.append(name)
    for names in candidates:
        matcher = Matcher({}, parents=tuple(Matcher({"name": (name,)}) for name in names))
        if [device.syspath for device in members if not matcher.mismatches(device)] == [
            node.syspath
        ]:
            parents = [{"name": name} for name in names]
            parent = parents if len(parents) > 1 else parents[0]
            return {"subsystem": node.subsystem, "parent": parent}, True
    shorter = _name_glob(node.name, reading.members)
    options = {"subsystem": node.subsystem, "name": shorter or glob.escape(node.name)}
    return options, shorter is not None


def _few(subsystems: list[str]) -> str | list[str]:
    return subsystems[0] if len(subsystems) == 1 else subsystems


def _subsystems(nodes: Sequence[KernelNode]) -> list[str]:
    """Return the subsystems of a device's nodes, without those that are a second way to it."""
    present = list(dict.fromkeys(node.subsystem for node in nodes))
    if "vfio" in present:
        return ["vfio"]
    second = ("input", "usbmisc") if "hidraw" in present else ("input",)
    return [subsystem for subsystem in present if subsystem not in second] or present


def _name_glob(name: str, names: Iterable[str]) -> str | None:
    """Return a glob without what the kernel counts that matches only one of some names."""
    literal = glob.escape(name)
    shorter = _COUNTER.sub("*", literal, count=1 if _PARTS.fullmatch(name) else 0)
    is_alone = [other for other in names if matches_any(other, (shorter,))] == [name]
    return shorter if is_alone and not _LETTERED.fullmatch(name) else None


def _is_counted(name: str) -> bool:
    return bool(_COUNTER.search(name) or _LETTERED.fullmatch(name))

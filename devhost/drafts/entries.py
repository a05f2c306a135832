"""Entries of a configuration for devices of a host, as `devices -o yaml` and `init` write them.

An entry has the options that tell its device from the others of the host, also after a replug and
when the kernel counts in another order.
"""

import fnmatch
import glob
import itertools
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from devhost.drafts.draft import DraftEntry
from devhost.drafts.machine import DescribedNode, Machine, class_name
from devhost.hostfs.sysfs import PLACES, KernelNode, SysfsDevice, ancestor_devices
from devhost.model.hardware_sources import USB_NODE
from devhost.sources.matcher import Matcher

DOMAIN: Final = "example.com"
_SERIAL_MIN: Final = 4
_COUNTED: Final = re.compile(r"0*1|0123456789.*|12345678.*")  # numbers that nobody has set
_COUNTER: Final = re.compile("[0-9]+")
_ONE_OF_EQUALS: Final = ("serial", "port", "address")
_RTL_SDR: Final = "dvb_usb_rtl28xxu"  # the driver for television of sticks that receive anything

_Options = dict[str, Any]


def build_entries(
    machine: Machine,
    devices: Iterable[DescribedNode],
    domain: str = DOMAIN,
    taken: Iterable[str] = (),
) -> list[DraftEntry]:
    """Return resources that offer exactly these devices, with names that are not taken. Blocks.

    Devices that differ in their serial number or place alone are one resource.
    """
    equal: dict[str, tuple[_Options, list[str]]] = {}  # a resource, and the titles of its devices
    for device in devices:
        resource = _resource(machine, device)
        (source,) = resource["sources"]
        options = next(iter(source.values())) if isinstance(source, dict) else source
        if isinstance(options, dict):
            options = {key: options[key] for key in options if key not in _ONE_OF_EQUALS}
        first, titles = equal.setdefault(repr({**resource, "sources": options}), (resource, []))
        first["sources"] += [source] if titles else []
        titles.append(device.title)
    used = {f"{domain}/{name}" for name in taken}
    for resource, _ in equal.values():
        name = f"{domain}/{resource['name']}"
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        resource["name"] = next(name for name in names if name not in used)
        used.add(resource["name"])
    return [DraftEntry(resource, tuple(titles)) for resource, titles in equal.values()]


def _is_sdr(device: DescribedNode) -> bool:
    """Whether a device is an RTL-SDR, whose programs open its USB node, and the kernel has it."""
    interfaces = device.owner.interfaces if device.owner is not None else ()
    return any(interface.facts["driver"] == _RTL_SDR for interface in interfaces)


def _resource(machine: Machine, device: DescribedNode) -> _Options:
    """Return a resource that offers exactly this device."""
    owner, node = device.owner, device.node
    id_: _Options = {}
    source: Any
    if owner is not None and owner.prefix == "usb.":
        name = owner.facts["product"] or owner.facts["device"]
        options = _usb_options(machine, owner) | _usb_node(machine, device)
        id_ = {"id": "${usb.serial}"} if "serial" in options else {}
        source = {"usb": options}
    elif owner is not None and (choice := _pci_node(device)) is not None:
        name = class_name(owner.facts["class"])
        name = owner.facts["driver"] if name == owner.facts["class"] else name
        source = {"pci": {**_pci_options(machine, owner), "node": choice}}
    elif node is not None:
        name, source = node.name, node.path
        if node.subsystem:  # else sysfs does not know it
            id_ = {"id": "${place}"} if "place" in device.variables else {}
            source = {"sysfs": _sysfs_options(machine, node)}
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "device"
    return {"name": slug, "sources": [source], **id_}


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


def _usb_node(machine: Machine, device: DescribedNode) -> _Options:
    """Return the options that choose the node of a USB device."""
    node = device.node
    if node is None or node.subsystem == USB_NODE:
        has_nodes = device.nodes and not _is_sdr(device)
        return {"node": _subsystems(device.nodes)} if has_nodes else {}
    options: _Options = {}
    alike = [twin for twin in device.nodes if twin.subsystem == node.subsystem]
    if len(alike) > 1 and "usb.interface" in device.variables:
        options["interface"] = int(device.variables["usb.interface"])
        interface = machine.sysfs.interface(node.syspath)
        alike = [twin for twin in alike if machine.sysfs.interface(twin.syspath) == interface]
    choice: Any = node.subsystem
    if len(alike) > 1:
        name = _name_glob(node.name, [twin.name for twin in alike])
        choice = f"{node.subsystem}/{name}"
        index = machine.sysfs.text(f"{node.syspath}/index")
        if index and name == node.name:
            choice = {"subsystem": node.subsystem, "attr": {"index": index}}
    return {**options, "node": choice}


def _pci_options(machine: Machine, owner: SysfsDevice) -> _Options:
    number = owner.facts["device"]
    options = {"device": number, **({"class": "bridge"} if owner.is_hub_or_bridge else {})}
    if sum(function.facts["device"] == number for function in machine.pci_functions) > 1:
        options["address"] = owner.name
    return options


def _pci_node(device: DescribedNode) -> str | list[str] | None:
    """Return the `node` of a PCI function; ``None`` where only its place distinguishes it."""
    if (node := device.node) is None:
        return _subsystems(device.nodes) if device.nodes else "none"
    alike = [twin for twin in device.nodes if twin.subsystem == node.subsystem]
    if len(alike) <= 1:  # none: the head of a disk with several paths is below no function
        return node.subsystem
    name = _name_glob(node.name, [twin.name for twin in alike])
    counted = name == node.name and _COUNTER.search(name)
    return None if counted else f"{node.subsystem}/{name}"


def _sysfs_options(machine: Machine, node: KernelNode) -> Any:
    """Return the fewest options that match one device of a subsystem, by the devices above it.

    The name of the device is the last resort, because it is often counted.
    """
    reading = machine.subsystem(node.subsystem)
    if len(reading.members) == 1:
        return node.subsystem
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
            return {"subsystem": node.subsystem, "parent": parent}
    return {"subsystem": node.subsystem, "name": _name_glob(node.name, reading.members)}


def _subsystems(nodes: Sequence[KernelNode]) -> str | list[str]:
    """Return the subsystems of a device's nodes, without those that are a second way to it."""
    present = list(dict.fromkeys(node.subsystem for node in nodes))
    if "vfio" in present:
        return "vfio"
    second = ("input", "usbmisc") if "hidraw" in present else ("input",)
    chosen = [subsystem for subsystem in present if subsystem not in second] or present
    return chosen[0] if len(chosen) == 1 else chosen


def _name_glob(name: str, names: Iterable[str]) -> str:
    """Return a glob that matches only one of some names, if possible without the numbers in it."""
    literal = glob.escape(name)
    for count in (0, 1):  # all numbers, or the first
        shorter = _COUNTER.sub("*", literal, count=count)
        if fnmatch.filter(names, shorter) == [name]:
            return shorter
    return literal

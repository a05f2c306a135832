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

from devhost.discovery.machine import DescribedNode, Machine, class_name
from devhost.discovery.sources.matcher import Matcher
from devhost.drafts.draft import DraftEntry
from devhost.hostfs.sysfs import PLACES, KernelNode, SysfsDevice, ancestor_devices
from devhost.model.hardware_sources import USB_NODE

DOMAIN: Final = "example.com"
_SERIAL_MIN: Final = 4
_COUNTED: Final = re.compile(r"0*1|0123456789.*|12345678.*")  # numbers that nobody has set
_COUNTER: Final = re.compile("[0-9]+")
_ONE_OF_EQUALS: Final = ("serial", "port", "address")
_RTL_SDR: Final = "dvb_usb_rtl28xxu"  # the driver for television of sticks that receive anything

_Options = dict[str, Any]


def entries(
    machine: Machine,
    found: Iterable[DescribedNode],
    domain: str = DOMAIN,
    taken: Iterable[str] = (),
) -> list[DraftEntry]:
    """Return resources that offer exactly these devices, under a name each. Blocks.

    Devices that differ in their serial number or place alone are one resource.
    """
    equal: dict[str, tuple[_Options, list[DescribedNode]]] = {}
    for one in found:
        resource = _resource(machine, one)
        (source,) = resource["sources"]
        options = next(iter(source.values())) if isinstance(source, dict) else source
        if isinstance(options, dict):
            options = {key: options[key] for key in options if key not in _ONE_OF_EQUALS}
        before, devices = equal.setdefault(repr({**resource, "sources": options}), (resource, []))
        before["sources"] += [source] if devices else []
        devices.append(one)
    used = {f"{domain}/{name}" for name in taken}
    for resource, _ in equal.values():
        name = f"{domain}/{resource['name']}"
        names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
        resource["name"] = next(one for one in names if one not in used)
        used.add(resource["name"])
    return [
        DraftEntry(resource, tuple(one.title for one in devices))
        for resource, devices in equal.values()
    ]


def _is_sdr(found: DescribedNode) -> bool:
    """Whether a device is an RTL-SDR, whose programs open its USB node, and the kernel has it."""
    parts = found.owner.interfaces if found.owner is not None else ()
    return any(one.facts["driver"] == _RTL_SDR for one in parts)


def _resource(machine: Machine, found: DescribedNode) -> _Options:
    """Return a resource that offers exactly this device."""
    owner, node = found.owner, found.node
    more: _Options = {}
    source: Any
    if owner is not None and owner.prefix == "usb.":
        name = owner.facts["product"] or owner.facts["device"]
        options = _usb_options(machine, owner) | _usb_node(machine, found)
        more = {"id": "${usb.serial}"} if "serial" in options else {}
        source = {"usb": options}
    elif owner is not None and (choice := _pci_node(found)) is not None:
        name = class_name(owner.facts["class"])
        name = owner.facts["driver"] if name == owner.facts["class"] else name
        source = {"pci": {**_pci_options(machine, owner), "node": choice}}
    elif node is not None:
        name, source = node.name, node.path
        if node.subsystem:  # else sysfs does not know it
            more = {"id": "${place}"} if "place" in found.variables else {}
            source = {"sysfs": _sysfs_options(machine, node)}
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-") or "device"
    return {"name": slug, "sources": [source], **more}


def _usb_options(machine: Machine, owner: SysfsDevice) -> _Options:
    number, serial = owner.facts["device"], owner.facts["serial"]
    options = {"device": number, **({"class": "hub"} if owner.is_hub_or_bridge else {})}
    twins = [one for one in machine.usb_devices if one.facts["device"] == number]
    good = len(serial) >= _SERIAL_MIN and len(set(serial)) > 1 and not _COUNTED.fullmatch(serial)
    if good and sum(one.facts["serial"] == serial for one in twins) == 1:
        options["serial"] = glob.escape(serial)
    elif len(twins) > 1 and owner.place:
        options["port"] = glob.escape(owner.place)
    return options


def _usb_node(machine: Machine, found: DescribedNode) -> _Options:
    """Return which node of a USB device is meant."""
    node = found.node
    if node is None or node.subsystem == USB_NODE:
        has_nodes = found.nodes and not _is_sdr(found)
        return {"node": _subsystems(found.nodes)} if has_nodes else {}
    options: _Options = {}
    alike = [one for one in found.nodes if one.subsystem == node.subsystem]
    if len(alike) > 1 and "usb.interface" in found.variables:
        options["interface"] = int(found.variables["usb.interface"])
        at = machine.sysfs.interface(node.syspath)
        alike = [one for one in alike if machine.sysfs.interface(one.syspath) == at]
    choice: Any = node.subsystem
    if len(alike) > 1:
        name = _name_glob(node.name, [one.name for one in alike])
        choice = f"{node.subsystem}/{name}"
        index = machine.sysfs.text(f"{node.syspath}/index")
        if index and name == node.name:
            choice = {"subsystem": node.subsystem, "attr": {"index": index}}
    return {**options, "node": choice}


def _pci_options(machine: Machine, owner: SysfsDevice) -> _Options:
    number = owner.facts["device"]
    options = {"device": number, **({"class": "bridge"} if owner.is_hub_or_bridge else {})}
    if sum(one.facts["device"] == number for one in machine.pci_functions) > 1:
        options["address"] = owner.name
    return options


def _pci_node(found: DescribedNode) -> str | list[str] | None:
    """Return which node of a PCI function is meant; ``None`` where only its place tells it."""
    if (node := found.node) is None:
        return _subsystems(found.nodes) if found.nodes else "none"
    alike = [one for one in found.nodes if one.subsystem == node.subsystem]
    if len(alike) <= 1:  # none: the head of a disk with several paths is below no function
        return node.subsystem
    name = _name_glob(node.name, [one.name for one in alike])
    counted = name == node.name and _COUNTER.search(name)
    return None if counted else f"{node.subsystem}/{name}"


def _sysfs_options(machine: Machine, node: KernelNode) -> Any:
    """Return the fewest options that match one device of a subsystem, by what is above it.

    Its own name is the last resort: it is often counted.
    """
    reading = machine.subsystem(node.subsystem)
    if len(reading.members) == 1:
        return node.subsystem
    every = [SysfsDevice(one, reading.sysfs) for one in reading.members.values()]
    above: list[str] = []  # the nearest whose name says where it is, and what is below it
    tried: list[list[str]] = []
    for path in ancestor_devices(node.syspath, reading.sysfs):
        name = glob.escape(posixpath.basename(path))
        if reading.sysfs.linked(f"{path}/subsystem") in PLACES:
            tried = [[name], *([_COUNTER.sub("*", one, count=1), name] for one in above)]
            break
        above.append(name)
    for parents in tried:
        wanted = Matcher({}, parents=tuple(Matcher({"name": (one,)}) for one in parents))
        if [one.syspath for one in every if not wanted.mismatches(one)] == [node.syspath]:
            some = [{"name": one} for one in parents]
            return {"subsystem": node.subsystem, "parent": some if len(some) > 1 else some[0]}
    return {"subsystem": node.subsystem, "name": _name_glob(node.name, reading.members)}


def _subsystems(nodes: Sequence[KernelNode]) -> str | list[str]:
    """Return what a source names to have all nodes of a device, without what is a second way."""
    found = list(dict.fromkeys(one.subsystem for one in nodes))
    if "vfio" in found:
        return "vfio"
    again = ("input", "usbmisc") if "hidraw" in found else ("input",)
    plain = [one for one in found if one not in again] or found
    return plain[0] if len(plain) == 1 else plain


def _name_glob(name: str, names: Iterable[str]) -> str:
    """Return a glob that matches only one of some names, if possible without what is counted."""
    literal = glob.escape(name)
    for count in (0, 1):  # all numbers in it, or the first
        shorter = _COUNTER.sub("*", literal, count=count)
        if [one for one in names if fnmatch.fnmatchcase(one, shorter)] == [name]:
            return shorter
    return literal

"""SourceOptions of sources that tell a device from the others of a host, also after a replug.

They are numbers, serial numbers and places, and a name that the kernel counts only where nothing
else distinguishes it.
"""

import glob
import posixpath
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from devhost.drafts.machine import DescribedNode, Machine
from devhost.hostfs.kernel_devices import KernelNode, SysfsDevice
from devhost.hostfs.sysfs import PLACES, SysfsTree, ancestor_devices
from devhost.model.hardware_sources import USB_NODE, Sysfs
from devhost.sources.matcher import Matcher

SourceOptions = dict[str, Any]

_SERIAL_MIN: Final = 4
_COUNTED: Final = re.compile(r"0*1|0123456789.*|12345678.*")  # numbers that nobody has set
_COUNTER: Final = re.compile("(?<!^v)(?<!^i)[0-9]+")  # but the 4 and the 2 of v4l and i2c
# Names in which only the first number is counted: the second is of a part of the device.
_PARTS: Final = re.compile(r"(?:(?:pcm|hw|midi)C|nvme|ng|mmcblk)[0-9].*|spi[0-9]+\.[0-9]+")
_LETTERED: Final = re.compile("(?:sd|hd|vd|xvd)[a-z]+[0-9]*")
_NODE_NUMBERS: Final = ("index", "device/port_number")  # of equal nodes of a device: files


def bus_options(
    machine: Machine, owners: Sequence[SysfsDevice], numbers: str | list[str]
) -> SourceOptions:
    """Return what tells devices on a bus from the others of the host with these numbers."""
    options, is_usb = SourceOptions(device=numbers), owners[0].prefix == "usb."
    if owners[0].is_hub_or_bridge:
        options["class"] = "hub" if is_usb else "bridge"
    same_bus = (twin for twin in machine.bus_devices if twin.prefix == owners[0].prefix)
    twins = [twin for twin in same_bus if twin.facts["device"] in numbers]
    if not is_usb:
        distinct = {"address": few([owner.name for owner in owners])}
        return options | (distinct if len(twins) > len(owners) else {})
    places = {owner.syspath for owner in owners}
    rest = [twin for twin in twins if twin.syspath not in places]
    product, serials = owners[0].facts["product"], [owner.facts["serial"] for owner in owners]
    everyones = [twin.facts["serial"] for twin in twins]
    if all(is_good_serial(serial) and everyones.count(serial) == 1 for serial in serials):
        options["serial"] = few([*map(glob.escape, serials)])
    elif rest and product and product not in {twin.facts["product"] for twin in rest}:
        options["product"] = glob.escape(product)
    elif rest and all(owner.place for owner in owners):
        options["port"] = few([glob.escape(owner.place) for owner in owners])
    return options


def bus_nodes(
    machine: Machine, device: DescribedNode
) -> tuple[SourceOptions, tuple[KernelNode, ...], bool]:
    """Return the options that choose nodes of a device on a bus, these, and whether they last."""
    node, nodes, sysfs = device.node, device.nodes, machine.sysfs
    if node is None or node.subsystem == USB_NODE:
        subsystems = _subsystems(nodes)
        if not subsystems:
            return ({}, (node,), True) if node is not None else ({"node": "none"}, (), True)
        chosen = tuple(node for node in nodes if node.subsystem in subsystems)
        return {"node": few(subsystems)}, chosen, True
    options, subsystem = SourceOptions(), node.subsystem
    alike = [twin.syspath for twin in nodes if twin.subsystem == subsystem]
    if len(alike) > 1 and "usb.interface" in device.variables:
        options["interface"] = int(device.variables["usb.interface"])
        interface = sysfs.interface(node.syspath)
        alike = [path for path in alike if sysfs.interface(path) == interface]
    numbers = {file: sysfs.attribute(node.syspath, file) for file in _NODE_NUMBERS}
    candidates: list[Any] = [
        subsystem,
        *(f"{subsystem}/{name}" for name in _lasting_names(node)),
        *(
            {"subsystem": subsystem, "attr": {file: number}}
            for file, number in numbers.items()
            if number
        ),
    ]
    rivals = alike or [
        node.syspath
    ]  # none: the head of a disk with several paths is below no function
    choice = _first_alone(candidates, node, rivals, sysfs)
    by_name = f"{subsystem}/{glob.escape(node.name)}"
    return {**options, "node": choice or by_name}, (node,), choice is not None


def sysfs_options(machine: Machine, node: KernelNode) -> tuple[Any, bool]:
    """Return the fewest options that match one device of a subsystem, and whether they last.

    The devices above it tell it; its own name, often counted, is the last resort.
    """
    listing, above = machine.subsystem(node.subsystem), list[str]()
    options = {"subsystem": node.subsystem}
    candidates: list[Any] = [node.subsystem]
    for path in ancestor_devices(node.syspath, listing.sysfs):
        name = glob.escape(posixpath.basename(path))
        if listing.sysfs.link_name(f"{path}/subsystem") in PLACES:
            for names in ([name], *([_COUNTER.sub("*", low, count=1), name] for low in above)):
                parent = {"parent": few([{"name": name} for name in names])}
                candidates += [
                    {**options, **parent},
                    {**options, "name": _uncounted(node.name), **parent},
                ]
            break
        above.append(name)
    candidates += [{**options, "name": name} for name in _lasting_names(node)]
    choice = _first_alone(candidates, node, listing.members.values(), listing.sysfs)
    return choice or {**options, "name": glob.escape(node.name)}, choice is not None


def _first_alone(
    candidates: Iterable[Any], node: KernelNode, rivals: Iterable[str], sysfs: SysfsTree
) -> Any:
    """Return the first of the choices of nodes that matches a node and no rival; or ``None``."""
    devices = [SysfsDevice(path, sysfs) for path in rivals]
    for choice in candidates:
        subsystem, _, name = choice.partition("/") if isinstance(choice, str) else ("", "", "")
        options = {"subsystem": subsystem, "name": name or "*"} if subsystem else choice
        matcher = Matcher.of_device(Sysfs.model_validate(options))
        matching = (device.syspath for device in devices if not matcher.mismatches(device))
        if [*matching] == [node.syspath]:
            return choice
    return None


def _lasting_names(node: KernelNode) -> list[str]:
    """Return a glob of a name without what the kernel counts; none for a disk's letters."""
    return [] if _LETTERED.fullmatch(node.name) else [_uncounted(node.name)]


def _subsystems(nodes: Sequence[KernelNode]) -> list[str]:
    """Return the subsystems of a device's nodes, without those that are a second way to it."""
    present = list(dict.fromkeys(node.subsystem for node in nodes))
    if "vfio" in present:
        return ["vfio"]
    second = ("input", "usbmisc") if "hidraw" in present else ("input",)
    return [subsystem for subsystem in present if subsystem not in second] or present


def is_good_serial(serial: str) -> bool:
    """Whether a serial number is one that somebody has set."""
    is_varied = len(serial) >= _SERIAL_MIN and len(set(serial)) > 1
    return is_varied and not _COUNTED.fullmatch(serial)


def is_counted(name: str) -> bool:
    """Whether the kernel counts a part of a name."""
    return bool(_COUNTER.search(name) or _LETTERED.fullmatch(name))


def _uncounted(name: str) -> str:
    """Return a glob of a name, without what the kernel counts."""
    return _COUNTER.sub("*", glob.escape(name), count=1 if _PARTS.fullmatch(name) else 0)


def few(values: list[Any]) -> Any:
    """Return the value of a list with a single one, as people write it, or the list."""
    return values[0] if len(values) == 1 else values

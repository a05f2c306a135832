"""USB devices, PCI functions and the devices of other subsystems: their facts, by option."""

import fnmatch
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from devhost.discovery.roots import Readings, Root
from devhost.discovery.sysfs import SubsystemReading, SubsystemRoot
from devhost.hostfs.sysfs import SysfsTree, ancestors, number_of
from devhost.model.hardware import ParentSelector, PciSelector, SysfsSelector, UsbSelector
from devhost.model.immutable import immutable
from devhost.model.values import key_of

USB: Final = SubsystemRoot("usb")
PCI: Final = SubsystemRoot("pci")
NET: Final = SubsystemRoot("net")
_INTERFACE: Final = frozenset({"class", "interface", "driver"})  # options of one USB interface
BETWEEN: Final = {"usb.": "09", "pci.": "06"}  # the classes of hubs and bridges
NOT_AUTHORIZED: Final = "it is not authorized (its `authorized` is 0)"
_NO_FILE: Final = "net"  # its members have a name that containers can use, but no file


@immutable
class Interface:
    """An interface of a USB device; its facts are by the options ``class`` and so on."""

    syspath: str
    facts: Mapping[str, str]


@immutable
class SysfsDevice:
    """A device in sysfs.

    Attributes:
        facts: What it has, by option and name of the variable; empty for nothing.
        id: Its default ID; empty where nothing says where it is plugged in.
        prefix: Of the names of its variables: ``usb.``, ``pci.`` or nothing.
        chosen: The interfaces whose nodes count; ``None`` for all nodes.
        group: The directory of the IOMMU group, where that is handed out as a whole.
    """

    syspath: str
    sysfs: SysfsTree
    facts: Mapping[str, str]
    id: str
    prefix: str = ""
    interfaces: tuple[Interface, ...] = ()
    chosen: tuple[Interface, ...] | None = None
    group: str | None = None

    @property
    def name(self) -> str:
        """The kernel's name."""
        return posixpath.basename(self.syspath)

    @property
    def place(self) -> str:
        """Where it is plugged in; empty where nothing says so. Blocks."""
        return (self.sysfs.place(self.syspath) or "") if self.id else ""

    @property
    def parts(self) -> tuple[Interface, ...]:
        """The interfaces that count."""
        return self.interfaces if self.chosen is None else self.chosen

    @property
    def is_between(self) -> bool:
        """Whether it is a hub or a bridge."""
        code = BETWEEN.get(self.prefix)
        return code is not None and self.facts["class"].startswith(code)

    @property
    def is_unauthorized(self) -> bool:
        """Whether it is a USB device without interfaces because nobody authorized it. Blocks."""
        return self.sysfs.text(f"{self.syspath}/authorized") == "0"

    def variables(self) -> dict[str, str]:
        """Return what it gives to templates, where it has a value."""
        return {f"{self.prefix}{name}": value for name, value in self.facts.items() if value}


def usb_devices(reading: SubsystemReading) -> Sequence[SysfsDevice]:
    """Return all USB devices. Blocks."""
    interfaces: dict[str, list[str]] = {}
    for name, syspath in reading.members.items():
        if ":" in name:
            interfaces.setdefault(name.partition(":")[0], []).append(syspath)
    return [
        usb_device(syspath, reading.sysfs, interfaces.get(name, ()))
        for name, syspath in reading.members.items()
        if ":" not in name and reading.sysfs.is_usb_device(syspath)
    ]


def usb_device(syspath: str, sysfs: SysfsTree, interfaces: Sequence[str] = ()) -> SysfsDevice:
    """Return a USB device; with the directories of its interfaces, these too. Blocks."""

    def text(*files: str, by: str = "") -> str:
        return by.join(sysfs.text(f"{syspath}/{file}") or "" for file in files)

    above = posixpath.dirname(syspath)
    there = sysfs.linked(f"{syspath}/subsystem") == "usb"  # else it is being removed
    port = (sysfs.place(syspath) or "") if there else ""
    facts = {
        "device": text("idVendor", "idProduct", by=":").lower(),
        "manufacturer": text("manufacturer"),
        "product": text("product"),
        "serial": text("serial"),
        "port": port,
        "class": text("bDeviceClass", "bDeviceSubClass", "bDeviceProtocol").lower(),
        "busnum": text("busnum"),
        "devnum": text("devnum"),
        "hub": (sysfs.place(above) or "") if sysfs.is_usb_device(above) else "",
        "name": posixpath.basename(syspath),
    }
    found = filter(None, (_interface(one, sysfs) for one in interfaces))
    ordered = sorted(found, key=lambda one: int(one.facts["interface"]))
    return SysfsDevice(syspath, sysfs, facts, port, "usb.", tuple(ordered))


def _interface(syspath: str, sysfs: SysfsTree) -> Interface | None:
    parts = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
    try:
        number = int(sysfs.text(f"{syspath}/bInterfaceNumber") or "", 16)
    except ValueError:
        return None
    facts = {
        "class": "".join(sysfs.text(f"{syspath}/{part}") or "" for part in parts).lower(),
        "interface": str(number),
        "driver": sysfs.linked(f"{syspath}/driver") or "",
    }
    return Interface(syspath, facts)


def pci_functions(reading: SubsystemReading) -> Sequence[SysfsDevice]:
    """Return all PCI functions. Blocks."""
    some = (one for one in reading.members.values() if reading.sysfs.is_pci_function(one))
    return [pci_function(one, reading.sysfs) for one in some]


def pci_function(syspath: str, sysfs: SysfsTree) -> SysfsDevice:
    """Return a PCI function. Blocks."""

    def number(*files: str) -> str:
        texts = (sysfs.text(f"{syspath}/{file}") or "" for file in files)
        return ":".join(text.removeprefix("0x").lower() for text in texts)

    address = posixpath.basename(syspath)
    facts = {
        "device": number("vendor", "device"),
        "subsystem": number("subsystem_vendor", "subsystem_device"),
        "class": number("class"),
        "driver": sysfs.linked(f"{syspath}/driver") or "",
        "address": address,
        "group": sysfs.linked(f"{syspath}/iommu_group") or "",
        "pf": sysfs.linked(f"{syspath}/physfn") or "",
        "vf": _index(syspath, sysfs),
    }
    return SysfsDevice(syspath, sysfs, facts, address, "pci.")


def _index(syspath: str, sysfs: SysfsTree) -> str:
    """Return which virtual function of a physical one it is, if it is one."""
    physical, count = sysfs.link(f"{syspath}/physfn"), 0
    while (link := sysfs.link(f"{physical}/virtfn{count}")) not in (None, syspath):
        count += 1
    return str(count) if link else ""


def sysfs_devices(reading: SubsystemReading) -> Sequence[SysfsDevice]:
    """Return the devices of any subsystem, without facts. Blocks."""
    return [SysfsDevice(path, reading.sysfs, {}, name) for name, path in reading.members.items()]


def device_above(syspath: str, sysfs: SysfsTree) -> SysfsDevice | None:
    """Return the USB device or PCI function that a device is, or is below. Blocks."""
    if (above := sysfs.owner(syspath)) is None:
        return None
    return (usb_device if sysfs.is_usb_device(above) else pci_function)(above, sysfs)


# ── what options match ──


def any_matches(globs: Iterable[str] | None, text: str | None) -> bool:
    """Whether one of the globs matches a text as a whole, or none is wanted; letter case counts."""
    if globs is None:
        return True
    return text is not None and any(fnmatch.fnmatchcase(text, glob) for glob in globs)


Wanted = Mapping[str, Sequence[Any]]
"""The options of a selector that are set."""


def wanted_by(selector: UsbSelector | PciSelector) -> Wanted:
    """Return the options of a selector that are set."""
    kind = UsbSelector if isinstance(selector, UsbSelector) else PciSelector
    found = {key_of(kind, name): getattr(selector, name) for name in kind.model_fields}
    return {option: value for option, value in found.items() if value is not None}


def bus_differs(device: SysfsDevice, wanted: Wanted, also: Iterable[str] = ()) -> dict[str, str]:
    """Return what a device has instead of what is wanted, by option (`Missed.differs`).

    The names of its physical function's network interfaces count `also`.
    """
    of_one = _INTERFACE & wanted.keys() if device.prefix == "usb." else frozenset()
    more = {"port": [device.name], "pf": also}
    found = {
        option: device.facts[option]
        for option, value in wanted.items()
        if option not in of_one
        and not _fits(option, value, device.facts[option])
        and not any(any_matches(value, one) for one in more.get(option, ()))
    }
    # Its own class satisfies options that say nothing else of interfaces.
    own = of_one == {"class"} and _fits("class", wanted["class"], device.facts["class"])
    if of_one and not (own or selected(device, wanted)):
        found |= _interfaces_differ(device, {one: wanted[one] for one in wanted if one in of_one})
    return found


def _fits(option: str, wanted: Sequence[Any], value: str) -> bool:
    match option:
        case "class":
            return value.startswith(tuple(wanted))
        case "interface":
            return int(value) in wanted
        case "driver" if not value:
            return "none" in wanted
        case "address" | "pf":  # as sysfs writes them: in lower case, and with the first domain
            wanted = [f"{domain}{one.lower()}" for one in wanted for domain in ("", "0000:")]
    return bool(value) and any_matches(wanted, value)


def selected(device: SysfsDevice, wanted: Wanted) -> tuple[Interface, ...]:
    """Return the interfaces of a USB device that satisfy all options about one."""
    of_one = wanted.keys() & _INTERFACE
    return tuple(
        one
        for one in device.interfaces
        if of_one and all(_fits(option, wanted[option], one.facts[option]) for option in of_one)
    )


def _interfaces_differ(device: SysfsDevice, wanted: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    some = device.interfaces
    if not some:
        why = NOT_AUTHORIZED if device.is_unauthorized else "it has no interfaces"
        return {"": why, **dict.fromkeys(wanted, "")}
    found = {
        option: ", ".join(dict.fromkeys(one.facts[option] for one in some if one.facts[option]))
        for option, value in wanted.items()
        if not any(_fits(option, value, one.facts[option]) for one in some)
    }
    return found or {"": "no one interface has all of class, interface and driver"}


def member_differs(syspath: str, selector: SysfsSelector, sysfs: SysfsTree) -> dict[str, str]:
    """Return what a device has instead of what a selector says; above it, the first parent."""
    driver = sysfs.driver(syspath) if selector.driver else None
    if found := _own_differs(syspath, selector, driver, sysfs):
        return found
    above = list(devices_above(syspath, sysfs)) if selector.parent else []
    for parent in selector.parent:
        subsystem = {one: sysfs.linked(f"{one}/subsystem") for one in above}
        some = (one for one in above if any_matches(parent.subsystem, subsystem[one]))
        if all(_own_differs(one, parent, sysfs.linked(f"{one}/driver"), sysfs) for one in some):
            return {"parent": ", ".join(map(posixpath.basename, above))}
    return {}


def devices_above(syspath: str, sysfs: SysfsTree) -> Iterator[str]:
    """Yield the devices above one, from below upwards."""
    above = ancestors(posixpath.dirname(syspath))
    return (path for path in above if sysfs.link(f"{path}/subsystem") is not None)


def _own_differs(
    syspath: str, selector: SysfsSelector | ParentSelector, driver: str | None, sysfs: SysfsTree
) -> dict[str, str]:
    """Return what a device itself has instead; attributes are read where the rest matches."""
    name = posixpath.basename(syspath)
    own = {"name": (selector.name, name), "driver": (selector.driver, driver)}
    if found := {one: it[1] or "" for one, it in own.items() if not any_matches(*it)}:
        return found
    keys = sysfs.uevent(syspath) if selector.uevent else {}
    checks = [(one, glob, sysfs.attribute(syspath, one)) for one, glob in selector.attr.items()]
    checks += [(one, glob, keys.get(one)) for one, glob in selector.uevent.items()]
    return {one: value or "" for one, glob, value in checks if not any_matches((glob,), value)}


# ── their nodes ──


@immutable
class KernelNode:
    """A device of the kernel that a container can be given: `file` is its path below /dev."""

    name: str
    subsystem: str
    syspath: str
    file: str | None = None
    number: tuple[int, int] | None = None

    @property
    def path(self) -> str | None:
        """Where it is."""
        return f"/dev/{self.file}" if self.file else None

    @classmethod
    def of(cls, subsystem: str, syspath: str, sysfs: SysfsTree) -> "KernelNode | None":
        """Return what a directory in sysfs is; ``None`` where it is no node. Blocks."""
        name = posixpath.basename(syspath)
        number = sysfs.text(f"{syspath}/dev")
        if number is None:  # whatever its uevent says: a device chooses some of that
            return cls(name, subsystem, syspath) if subsystem == _NO_FILE else None
        file = sysfs.uevent(syspath).get("DEVNAME")
        if file is None or not {"", ".", ".."}.isdisjoint(file.split("/")):
            return None
        try:
            found = number_of(number)
        except ValueError:
            return None
        return cls(name, subsystem, syspath, file, found)


def described(node: KernelNode, sysfs: SysfsTree) -> dict[str, str]:
    """Return the variables that every node found in sysfs has, where they have a value. Blocks."""
    parent = next(devices_above(node.syspath, sysfs), "")
    found = {
        "place": sysfs.place(node.syspath),
        "parent": posixpath.basename(parent),
        "driver": sysfs.driver(node.syspath),
    }
    at = sysfs.interface(node.syspath)
    if at is not None and (one := _interface(at, sysfs)) is not None:
        found["usb.interface"] = one.facts["interface"]
    return {name: value for name, value in found.items() if value}


def members(readings: Readings, root: Root) -> SubsystemReading:
    """Return the reading of a root that has the kernel's devices."""
    reading = readings[root]
    assert isinstance(reading, SubsystemReading), "of that root"  # noqa: S101
    return reading

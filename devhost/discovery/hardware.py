"""USB devices, PCI functions and the devices of other subsystems: their facts, by option."""

import fnmatch
import functools
import posixpath
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from devhost.discovery.match import Readings
from devhost.discovery.roots import Root
from devhost.discovery.sysfs import SubsystemReading, SubsystemRoot
from devhost.hostfs.mounts import number_of
from devhost.hostfs.sysfs import SysfsTree, ancestors
from devhost.immutable import immutable
from devhost.model.base import key_of
from devhost.model.hardware import ParentSelector, PciSelector, SysfsSelector, UsbSelector

USB: Final = SubsystemRoot("usb")
PCI: Final = SubsystemRoot("pci")
NET: Final = SubsystemRoot("net")
_INTERFACE: Final = frozenset({"class", "interface", "driver"})  # options of one USB interface
_BETWEEN: Final = {"usb.": "09", "pci.": "06"}  # the classes of hubs and bridges
NOT_AUTHORIZED: Final = "it is not authorized (its `authorized` is 0)"
_NO_FILE: Final = "net"  # its members have a name that containers can use, but no file


class Facts(Mapping[str, str]):
    """What a device has, by option and name of the variable; read when it is asked for.

    Args:
        read: What reads each; it returns an empty text for nothing.
    """

    def __init__(self, read: Mapping[str, Callable[[], str]]) -> None:
        self._read = read
        self._known: dict[str, str] = {}

    def __getitem__(self, name: str) -> str:
        if name not in self._known:
            self._known[name] = self._read[name]()
        return self._known[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read)

    def __len__(self) -> int:
        return len(self._read)


@immutable
class Interface:
    """An interface of a USB device; its facts are by the options ``class`` and so on."""

    name: str
    syspath: str
    facts: Mapping[str, str]


@immutable
class SysfsDevice:
    """A device in sysfs.

    Attributes:
        name: The kernel's name.
        syspath: Its directory.
        sysfs: Reads more of it.
        facts: What it has.
        prefix: Of the names of its variables: ``usb.``, ``pci.`` or nothing.
        id: Its default ID; empty where nothing says where it is plugged in.
        place: Where it is plugged in.
        unit: The directory of what is handed out as a whole: its own, or that of its IOMMU group.
        interfaces: Returns those of a USB device, in the order of their numbers.
    """

    name: str
    syspath: str
    sysfs: SysfsTree
    facts: Mapping[str, str]
    prefix: str
    id: str
    place: str
    unit: str
    interfaces: Callable[[], tuple[Interface, ...]] = tuple

    @property
    def is_between(self) -> bool:
        """Whether it is a hub or a bridge."""
        return self.facts["class"].startswith(_BETWEEN[self.prefix])

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
    """Return a USB device; the directories of its interfaces, where these are asked for. Blocks."""

    def text(*files: str) -> str:
        return "".join(sysfs.text(f"{syspath}/{file}") or "" for file in files)

    def every() -> tuple[Interface, ...]:
        found = filter(None, (_interface(one, sysfs) for one in interfaces))
        return tuple(sorted(found, key=lambda one: int(one.facts["interface"])))

    name, above = posixpath.basename(syspath), posixpath.dirname(syspath)
    there = sysfs.linked(f"{syspath}/subsystem") == "usb"  # else it is being removed
    port = (sysfs.place(syspath) or "") if there else ""
    facts = {
        "device": lambda: ":".join((text("idVendor"), text("idProduct"))).lower(),
        "manufacturer": lambda: text("manufacturer"),
        "product": lambda: text("product"),
        "serial": lambda: text("serial"),
        "port": lambda: port,
        "class": lambda: text("bDeviceClass", "bDeviceSubClass", "bDeviceProtocol").lower(),
        "busnum": lambda: text("busnum"),
        "devnum": lambda: text("devnum"),
        "hub": lambda: (sysfs.place(above) or "") if sysfs.is_usb_device(above) else "",
        "name": lambda: name,
    }
    return SysfsDevice(
        name, syspath, sysfs, Facts(facts), "usb.", port, port, syspath, functools.cache(every)
    )


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
    return Interface(posixpath.basename(syspath), syspath, facts)


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
        "device": lambda: number("vendor", "device"),
        "subsystem": lambda: number("subsystem_vendor", "subsystem_device"),
        "class": lambda: number("class"),
        "driver": lambda: sysfs.linked(f"{syspath}/driver") or "",
        "address": lambda: address,
        "group": lambda: sysfs.linked(f"{syspath}/iommu_group") or "",
        "pf": lambda: sysfs.linked(f"{syspath}/physfn") or "",
        "vf": lambda: _index(syspath, sysfs),
    }
    place = f"pci-{address}"
    return SysfsDevice(address, syspath, sysfs, Facts(facts), "pci.", address, place, syspath)


def _index(syspath: str, sysfs: SysfsTree) -> str:
    """Return which virtual function of a physical one it is, if it is one."""
    physical, count = sysfs.link(f"{syspath}/physfn"), 0
    while (link := sysfs.link(f"{physical}/virtfn{count}")) not in (None, syspath):
        count += 1
    return str(count) if link else ""


def member(syspath: str, sysfs: SysfsTree, attributes: Iterable[str] = ()) -> SysfsDevice:
    """Return a device of any subsystem, with attributes (``attr.FILE``) of it. Blocks."""
    name = posixpath.basename(syspath)
    found = {one: sysfs.attribute(syspath, one.removeprefix("attr.")) for one in attributes}
    facts = {one: value for one, value in found.items() if value is not None}
    place = sysfs.place(syspath) or ""
    return SysfsDevice(name, syspath, sysfs, facts, "", name, place, syspath)


def device_above(syspath: str, sysfs: SysfsTree) -> SysfsDevice | None:
    """Return the USB device or PCI function that a device is, or is below. Blocks."""
    if (above := sysfs.owner(syspath)) is None:
        return None
    return (usb_device if sysfs.is_usb_device(above) else pci_function)(above, sysfs)


# ── what options match ──


def any_matches(globs: Iterable[str], text: str | None) -> bool:
    """Whether one of the globs matches a text as a whole; upper and lower case count."""
    return text is not None and any(fnmatch.fnmatchcase(text, glob) for glob in globs)


def given(selector: UsbSelector | PciSelector) -> dict[str, Sequence[Any]]:
    """Return the options of a selector that are set."""
    kind = UsbSelector if isinstance(selector, UsbSelector) else PciSelector
    found = {key_of(kind, name): getattr(selector, name) for name in kind.model_fields}
    return {option: value for option, value in found.items() if value is not None}


def differs(
    device: SysfsDevice, wanted: Mapping[str, Sequence[Any]], also: Iterable[str] = ()
) -> dict[str, str]:
    """Return what a device has instead of what is wanted, by option (`Missed.differs`).

    Args:
        device: The device.
        wanted: The options, as of `given`.
        also: The names of its physical function's network interfaces.
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


def selected(device: SysfsDevice, wanted: Mapping[str, Sequence[Any]]) -> tuple[Interface, ...]:
    """Return the interfaces of a USB device that satisfy all options about one."""
    options = _INTERFACE & wanted.keys()
    return tuple(
        one
        for one in device.interfaces()
        if all(_fits(option, wanted[option], one.facts[option]) for option in options)
    )


def _interfaces_differ(device: SysfsDevice, wanted: Mapping[str, Sequence[Any]]) -> dict[str, str]:
    some = device.interfaces()
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
        if not any(_is_parent(path, parent, sysfs) for path in above):
            return {"parent": ", ".join(map(posixpath.basename, above))}
    return {}


def devices_above(syspath: str, sysfs: SysfsTree) -> Iterator[str]:
    """Yield the devices above one, from below upwards."""
    above = ancestors(posixpath.dirname(syspath))
    return (path for path in above if sysfs.link(f"{path}/subsystem") is not None)


def _is_parent(syspath: str, selector: ParentSelector, sysfs: SysfsTree) -> bool:
    subsystem = selector.subsystem
    if subsystem is not None and not any_matches(subsystem, sysfs.linked(f"{syspath}/subsystem")):
        return False
    return not _own_differs(syspath, selector, sysfs.linked(f"{syspath}/driver"), sysfs)


def _own_differs(
    syspath: str, selector: SysfsSelector | ParentSelector, driver: str | None, sysfs: SysfsTree
) -> dict[str, str]:
    """Return what a device itself has instead; attributes are read where the rest matches."""
    name = posixpath.basename(syspath)
    found = {}
    if selector.name is not None and not any_matches(selector.name, name):
        found["name"] = name
    if selector.driver is not None and not any_matches(selector.driver, driver):
        found["driver"] = driver or ""
    if found:
        return found
    keys = sysfs.uevent(syspath) if selector.uevent else {}
    checks = [(one, glob, sysfs.attribute(syspath, one)) for one, glob in selector.attr.items()]
    checks += [(one, glob, keys.get(one)) for one, glob in selector.uevent.items()]
    return {one: value or "" for one, glob, value in checks if not any_matches((glob,), value)}


# ── their nodes ──


@immutable
class KernelNode:
    """A device of the kernel that a container can be given.

    Attributes:
        name: The kernel's name.
        subsystem: Its subsystem.
        syspath: Its directory in sysfs.
        file: Its path below /dev; ``None`` where it has none.
        number: Its major and minor, as the kernel says.
    """

    name: str
    subsystem: str
    syspath: str
    file: str | None
    number: tuple[int, int] | None

    @classmethod
    def of(cls, subsystem: str, syspath: str, sysfs: SysfsTree) -> "KernelNode | None":
        """Return what a directory in sysfs is; ``None`` where it is no node. Blocks."""
        name = posixpath.basename(syspath)
        number = sysfs.text(f"{syspath}/dev")
        if number is None:  # whatever its uevent says: a device chooses some of that
            return cls(name, subsystem, syspath, None, None) if subsystem == _NO_FILE else None
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
        found["driver"] = one.facts["driver"] or found["driver"]
    return {name: value for name, value in found.items() if value}


def members(readings: Readings, root: Root) -> SubsystemReading:
    """Return the reading of a root that has the kernel's devices."""
    reading = readings[root]
    assert isinstance(reading, SubsystemReading), "of that root"  # noqa: S101
    return reading

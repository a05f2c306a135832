"""The kernel's devices, and their attributes, below the root's /sys.

A file that cannot be read counts as absent, because a device may go at any time. Nothing here opens
a device, wakes one up, or takes a lock of one. Of NVIDIA's driver there is a class that it does not
make.
"""

import errno
import os
import posixpath
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.hostfs.files import HostFiles
from devhost.hostfs.nvidia import NAME, NvidiaClass
from devhost.model import names

Number = tuple[int, int]

VALUE_MAX: Final = 4096  # bytes; an attribute has at most a page
_PCI: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_USB: Final = re.compile(r"usb[0-9]+|[0-9]+-[0-9.]+")
_PORT: Final = re.compile(r"[0-9]+-([0-9.]+(:[0-9]+\.[0-9]+)?)")  # of a device, or an interface
_INTERFACE: Final = re.compile(r".*/[0-9]+-[0-9.]+:[0-9]+\.[0-9]+")  # paths, as of root hubs
_ROOT_HUB: Final = re.compile(r".*/usb[0-9]+")
_NAMED: Final = ("platform", "acpi", "pnp")  # buses on which the name of a device is a place
_USB_TEXTS: Final = ("manufacturer", "product", "serial")
PLACES: Final = ("pci", *_NAMED)
HUBS_AND_BRIDGES: Final = {"usb.": "09", "pci.": "06"}  # the classes of hubs and bridges
_NO_FILE: Final = "net"  # its members have a name that containers can use, but no file


def number_of(text: str | None) -> Number | None:
    """Return a device's number, if a text is one."""
    major, _, minor = (text or "").partition(":")
    return (int(major), int(minor)) if major.isdecimal() and minor.isdecimal() else None


class SysfsFiles:
    """Reads files and links of /sys, each once. All methods block."""

    def __init__(self, files: HostFiles) -> None:
        self._files, self.nvidia = files, NvidiaClass(files)
        self._texts: dict[str, str | None] = {}
        self._links: dict[str, str | None] = {}

    def text(self, path: str) -> str | None:
        """Return a file's text, without blanks at its ends; ``None`` where it is no text."""
        if path not in self._texts:
            self._texts[path] = _text(self._read(path))
        return self._texts[path]

    def codes(self, device: str, *files: str, by: str = "") -> str:
        """Return the hexadecimal numbers in files of a device as one text."""
        numbers = (self.text(f"{device}/{file}") or "" for file in files)
        return by.join(numbers).replace("0x", "").lower()

    def attribute(self, device: str, file: str) -> str | None:
        """Return the text of a device's file that a configuration names.

        ``None`` where not every user may read it, or where a link on the way leaves /sys.
        """
        path = f"{device}/{file}"
        if "/" in file or self.link(path) is not None:
            path = self._files.resolve(path)
        try:
            public = os.stat(self._files.to_local(path)).st_mode & stat.S_IROTH
        except OSError:
            return None
        return self.text(path) if public and path.startswith("/sys/") else None

    def _read(self, path: str) -> bytes:
        try:
            with open(self._files.to_local(path), "rb", buffering=0) as file:  # noqa: PTH123 (a path takes longer)
                raw = file.read(VALUE_MAX + 1)
        except (OSError, ValueError):
            return self.nvidia.contents.get(path, b"")
        return raw if len(raw) <= VALUE_MAX else b""

    def link(self, path: str) -> str | None:
        """Return the host path that a link leads to; ``None`` where there is none."""
        if path not in self._links:
            try:
                target = os.readlink(self._files.to_local(path))
            except OSError:
                self._links[path] = self.nvidia.links.get(path)
            else:
                joined = posixpath.join(posixpath.dirname(path), target)
                self._links[path] = posixpath.normpath(joined)
        return self._links[path]

    def link_name(self, path: str) -> str | None:
        """Return the last part of the path that a link leads to."""
        target = self.link(path)
        return None if target is None else posixpath.basename(target)

    def uevent(self, device: str) -> Mapping[str, str]:
        """Return the values of a device's ``uevent`` by key, without the keys that are there twice.

        The name that a device gives itself may have line feeds, and after them other keys.
        """
        lines = (_text(line) for line in self._read(f"{device}/uevent").split(b"\n"))
        pairs = [line.partition("=")[::2] for line in lines if line]
        count = Counter(key for key, _ in pairs)
        return {key: value for key, value in pairs if count[key] == 1}

    def device_by_number(self, kind: str, number: Number) -> str | None:
        """Return the directory of a device by its number; ``kind`` is ``char`` or ``block``."""
        return self.link(f"/sys/dev/{kind}/{number[0]}:{number[1]}")

    def list(self, directory: str) -> list[str] | None:
        """Return the names in a directory; ``None`` where there is none, or an `OSError`."""
        paths = map(posixpath.split, self.nvidia.links)
        extra = [name for above, name in paths if above == directory]
        try:
            present = os.listdir(self._files.to_local(directory))  # noqa: PTH208
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return extra or None
            raise
        return names.natural({*present, *extra})

    def names(self, directory: str) -> Sequence[str]:
        """Return the names in a directory; none where a device is being unplugged."""
        try:
            return self.list(directory) or []
        except OSError:
            return []


class SysfsTree(SysfsFiles):
    """The tree of devices in /sys, by their directories. All methods block."""

    def driver(self, device: str) -> str | None:
        """Return the nearest driver, from a device upwards to the device on a bus that owns it."""
        owner = self.owner(device) or ""
        paths = (path for path in ancestors(device) if path.startswith(owner))
        return next(filter(None, (self.link_name(f"{path}/driver") for path in paths)), None)

    def numa_node(self, device: str) -> int | None:
        """Return the NUMA node of the nearest device, from a device upwards, that has one."""
        texts = (self.text(f"{path}/numa_node") for path in ancestors(device))
        text = next(filter(None, texts), "")
        return int(text) if text.isdecimal() else None  # -1: the firmware does not say

    def parts(self, device: str) -> Iterator[str]:
        """Yield the whole disks that a block device is on, itself or its own among them."""
        if self.text(f"{device}/partition") is not None:
            device = posixpath.dirname(device)
        slaves = self.names(f"{device}/slaves")
        if not slaves:
            yield device
        for slave in slaves:
            if (below := self.link(f"{device}/slaves/{slave}")) is not None:
                yield from self.parts(below)

    def place(self, device: str) -> str | None:
        """Return where a device is plugged in, in the form of udev's ID_PATH_WITH_USB_REVISION.

        ``pci-0000:00:14.0-usbv2-0:1.4:1.0-port0``: the outermost part first. Bus numbers are not
        part of it, as the order of controllers may change.
        """
        parts: list[str] = []
        path = device
        while path.startswith("/sys/devices/"):
            name = posixpath.basename(path)
            subsystem = self.link_name(f"{path}/subsystem")
            if subsystem == "usb-serial":
                port = self.text(f"{path}/port_number")
                parts += [] if port is None else [f"port{port}"]
            elif subsystem == "usb" and (match := _PORT.fullmatch(name)):
                hub = next(filter(_ROOT_HUB.fullmatch, ancestors(path)), "")
                release = (self.text(f"{hub}/version") or "2")[:1]
                parts.append(f"usbv{release}-0:{match[1]}")
                path = hub
            elif subsystem in _NAMED or (subsystem == "pci" and _PCI.fullmatch(name)):
                return "-".join((f"{subsystem}-{name}", *reversed(parts)))
            path = posixpath.dirname(path)
        return None

    def identity(self, device: str) -> tuple[str, str]:
        """Return what identifies a device without a file in one boot, and the place that it keeps.

        Devices of a class can be renamed, above all network interfaces: in their place are what
        carries them, and the port of it. Where nothing does, or several are in one place, the
        number of an interface distinguishes them, and after a boot their names.
        """
        directory, _, name = device.rpartition("/")
        number, port, place = self.text(f"{device}/ifindex"), self._port(device), device
        # That of a class below a device has nothing but these; any other has files, without ports.
        siblings = (
            f"{directory}/{sibling}" for sibling in self.names(directory) if sibling != name
        )
        if any(ancestor_devices(device, self)) and port not in map(self._port, siblings):
            place = f"{directory}{port}"
        return f"{directory} {number}" if number else place, place

    def _port(self, device: str) -> str:
        numbers = (self.text(f"{device}/{file}") for file in ("dev_port", "dev_id"))
        return "".join(f" {number}" for number in numbers if number)

    def owner(self, device: str) -> str | None:
        """Return the nearest USB device or PCI function, from a device upwards."""
        for path in ancestors(device):
            if self.is_usb_device(path) or self.is_pci_function(path):
                return path
        return None

    def interface(self, device: str) -> str | None:
        """Return the USB interface that a device is below, if any."""
        return next(filter(_INTERFACE.fullmatch, ancestors(device)), None)

    def is_usb_device(self, device: str) -> bool:
        """Whether a path is a USB device."""
        match = _USB.fullmatch(posixpath.basename(device))
        return match is not None and self.text(f"{device}/idVendor") is not None

    def is_pci_function(self, device: str) -> bool:
        """Whether a path is a PCI function."""
        match = _PCI.fullmatch(posixpath.basename(device))
        return match is not None and self.text(f"{device}/vendor") is not None


def sysfs_by_number(files: HostFiles) -> SysfsTree:
    """Return the tree that has devices by their numbers: a container's own /sys has the host's."""
    return SysfsTree(files if os.path.isdir(files.to_local("/sys/dev")) else HostFiles())


def ancestors(device: str) -> Iterator[str]:
    """Yield a directory below /sys/devices and those above it."""
    while device.startswith("/sys/devices/"):
        yield device
        device = posixpath.dirname(device)


def ancestor_devices(syspath: str, sysfs: SysfsTree) -> Iterator[str]:
    """Yield the devices above a device, from below upwards."""
    above = ancestors(posixpath.dirname(syspath))
    return (path for path in above if sysfs.link(f"{path}/subsystem") is not None)


def _text(raw: bytes) -> str | None:
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        return None
    return None if {"\n", "\t"} & set(text) or names.text_problem(text) else text or None


# ── devices and their facts ──


@dataclass(frozen=True, slots=True)
class SysfsDevice:
    """A device of the kernel.

    Attributes:
        facts: Values of a USB device, its interface or a PCI function by name; empty for no value.
        id: Its default ID; empty where the place in which it is plugged in is unknown.
        prefix: Of the names of its variables: ``usb.``, ``pci.`` or empty.
    """

    syspath: str
    sysfs: SysfsTree
    facts: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    prefix: str = ""
    interfaces: tuple["SysfsDevice", ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return posixpath.basename(self.syspath)

    @property
    def place(self) -> str:
        """The place in which it is plugged in; empty where that is unknown. Blocks."""
        return (self.sysfs.place(self.syspath) or "") if self.id else ""

    @property
    def is_hub_or_bridge(self) -> bool:
        """Whether it is a hub or a bridge."""
        return self.facts.get("class", "").startswith(HUBS_AND_BRIDGES.get(self.prefix, "-"))

    @property
    def variables(self) -> dict[str, str]:
        """The variables of templates that its facts are the values of."""
        return {f"{self.prefix}{name}": value for name, value in self.facts.items() if value}

    def fact(self, option: str) -> str:
        """Return the value for an option of a source; empty for no value. Blocks."""
        if option in self.facts:
            return self.facts[option]
        kind, _, name = option.partition(".")
        value: str | None = None
        match kind:
            case "name":
                value = self.name
            case "place":
                value = self.sysfs.place(self.syspath)
            case "driver":
                value = self.sysfs.driver(self.syspath)
            case "subsystem":
                value = self.sysfs.link_name(f"{self.syspath}/subsystem")
            case "attr":
                value = self.sysfs.attribute(self.syspath, name)
            case "uevent":
                value = self.sysfs.uevent(self.syspath).get(name)
        return value or ""


def bus_devices(paths: Iterable[str], sysfs: SysfsTree) -> list[SysfsDevice]:
    """Return the USB devices, with their interfaces, and the PCI functions. Blocks."""
    below: dict[str, list[str]] = {}
    for path in paths:
        below.setdefault(posixpath.dirname(path), []).append(path)
    devices = (bus_device(path, sysfs, below.get(path, ())) for path in paths)
    return [device for device in devices if device is not None]


def bus_device(syspath: str, sysfs: SysfsTree, below: Iterable[str] = ()) -> SysfsDevice | None:
    """Return the device on a bus in a directory, with its interfaces; ``None`` if there is none."""
    if sysfs.is_usb_device(syspath):
        return _usb_device(syspath, sysfs, below)
    return _pci_function(syspath, sysfs) if sysfs.is_pci_function(syspath) else None


def owning_device(syspath: str, sysfs: SysfsTree) -> SysfsDevice | None:
    """Return the USB device or PCI function that a device is, or is below. Blocks."""
    above = sysfs.owner(syspath)
    return bus_device(above, sysfs) if above is not None else None


def _usb_device(syspath: str, sysfs: SysfsTree, below: Iterable[str]) -> SysfsDevice:
    above = posixpath.dirname(syspath)
    is_present = sysfs.link_name(f"{syspath}/subsystem") == "usb"  # else it is being removed
    port = (sysfs.place(syspath) or "") if is_present else ""
    facts = {
        "device": sysfs.codes(syspath, "idVendor", "idProduct", by=":"),
        **{name: sysfs.text(f"{syspath}/{name}") or "" for name in _USB_TEXTS},
        "port": port,
        "class": sysfs.codes(syspath, "bDeviceClass", "bDeviceSubClass", "bDeviceProtocol"),
        "busnum": sysfs.text(f"{syspath}/busnum") or "",
        "devnum": sysfs.text(f"{syspath}/devnum") or "",
        "hub": (sysfs.place(above) or "") if sysfs.is_usb_device(above) else "",
        "name": posixpath.basename(syspath),
    }
    interfaces = filter(None, (_interface(path, sysfs) for path in below))
    ordered = sorted(interfaces, key=lambda interface: int(interface.facts["interface"]))
    return SysfsDevice(syspath, sysfs, facts, port, "usb.", tuple(ordered))


def _interface(syspath: str, sysfs: SysfsTree) -> SysfsDevice | None:
    parts = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
    try:
        number = int(sysfs.text(f"{syspath}/bInterfaceNumber") or "", 16)
    except ValueError:
        return None
    facts = {
        "class": sysfs.codes(syspath, *parts),
        "interface": str(number),
        "driver": sysfs.link_name(f"{syspath}/driver") or "",
    }
    return SysfsDevice(syspath, sysfs, facts)


def _pci_function(syspath: str, sysfs: SysfsTree) -> SysfsDevice:
    address = posixpath.basename(syspath)
    physical, link, count = sysfs.link(f"{syspath}/physfn"), None, 0
    while physical and (link := sysfs.link(f"{physical}/virtfn{count}")) not in (None, syspath):
        count += 1
    facts = {
        "device": sysfs.codes(syspath, "vendor", "device", by=":"),
        "subsystem": sysfs.codes(syspath, "subsystem_vendor", "subsystem_device", by=":"),
        "class": sysfs.codes(syspath, "class"),
        "driver": sysfs.link_name(f"{syspath}/driver") or "",
        "address": address,
        "group": sysfs.link_name(f"{syspath}/iommu_group") or "",
        "pf": sysfs.link_name(f"{syspath}/physfn") or "",
        "vf": str(count) if link else "",
        "uuid": "",
        "model": "",
        **sysfs.nvidia.facts.get(syspath, {}),
    }
    return SysfsDevice(syspath, sysfs, facts, address, "pci.")


# ── nodes ──


@dataclass(frozen=True, slots=True)
class KernelNode:
    """A device of the kernel that a container can be given: `file` is its path below /dev."""

    name: str
    subsystem: str
    syspath: str
    file: str | None = None
    number: Number | None = None

    @property
    def path(self) -> str | None:
        """Its path on the host; ``None`` if it has no file."""
        return f"/dev/{self.file}" if self.file else None

    @classmethod
    def of(cls, subsystem: str, syspath: str, sysfs: SysfsTree) -> "KernelNode | None":
        """Return the node of a directory in sysfs; ``None`` where it has none. Blocks."""
        name, number = posixpath.basename(syspath), number_of(sysfs.text(f"{syspath}/dev"))
        if number is None:  # whatever its uevent says: a device chooses some of that
            return cls(name, subsystem, syspath) if subsystem == _NO_FILE else None
        file = sysfs.uevent(syspath).get("DEVNAME", "")
        usable = {"", ".", ".."}.isdisjoint(file.split("/"))
        return cls(name, subsystem, syspath, file, number) if usable else None


def node_variables(node: KernelNode, sysfs: SysfsTree) -> dict[str, str]:
    """Return the variables that all nodes in sysfs have, without those of no value. Blocks."""
    parent = next(ancestor_devices(node.syspath, sysfs), "")
    variables = {
        "place": sysfs.place(node.syspath),
        "parent": posixpath.basename(parent),
        "driver": sysfs.driver(node.syspath),
        "syspath": node.syspath.removesuffix(f"/{NAME}/{node.name}"),  # what sysfs really has
    }
    path = sysfs.interface(node.syspath)
    if path is not None and (interface := _interface(path, sysfs)) is not None:
        variables["usb.interface"] = interface.facts["interface"]
    return {name: value for name, value in variables.items() if value}

"""The tree of the kernel's devices, and their attributes, below the root's /sys.

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
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from devhost.hostfs.files import HostFiles
from devhost.hostfs.nvidia import NvidiaClass
from devhost.model import names

Number = tuple[int, int]

VALUE_MAX: Final = 4096  # bytes; an attribute has at most a page
_PCI: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_USB: Final = re.compile(r"usb[0-9]+|[0-9]+-[0-9.]+")
_PORT: Final = re.compile(r"[0-9]+-([0-9.]+(:[0-9]+\.[0-9]+)?)")  # of a device, or an interface
_INTERFACE: Final = re.compile(r".*/[0-9]+-[0-9.]+:[0-9]+\.[0-9]+")  # paths, as of root hubs
_ROOT_HUB: Final = re.compile(r".*/usb[0-9]+")
_NAMED: Final = ("platform", "acpi", "pnp")  # buses on which the name of a device is a place
PLACES: Final = ("pci", *_NAMED)


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

"""What the kernel says of its devices, below the root's /sys.

A file that cannot be read counts as absent, because a device may go at any time. Nothing here opens
a device, wakes one up, or takes a lock of one.
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
from devhost.model import names

Number = tuple[int, int]

VALUE_MAX: Final = 4096  # bytes; an attribute has at most a page
_PCI: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_USB: Final = re.compile(r"[0-9]+-(?P<ports>[0-9.]+)(?P<interface>:[0-9]+\.[0-9]+)?")
_ROOT_HUB: Final = re.compile(r"usb[0-9]+")
_NAMED: Final = ("platform", "acpi", "pnp")  # buses whose names are places
PLACES: Final = ("pci", *_NAMED)


def number_of(text: str) -> Number:
    """Return a device's number; a text that is none is a `ValueError`."""
    major, _, minor = text.partition(":")
    return int(major), int(minor)


class SysfsTree:
    """Reads files and links of /sys, each once. All methods block."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._texts: dict[str, str | None] = {}
        self._links: dict[str, str | None] = {}

    def text(self, path: str) -> str | None:
        """Return what a file holds, without blanks at its ends; ``None`` where it is no text.

        A configuration may learn only what every user may read.
        """
        if path not in self._texts:
            self._texts[path] = self.private(path, public=True)
        return self._texts[path]

    def private(self, path: str, *, public: bool = False) -> str | None:
        """Return what a file holds, also one that not every user may read."""
        raw = self._read(path, public=public)
        return None if raw is None else _text(raw)

    def attribute(self, device: str, file: str) -> str | None:
        """Return what a file of a device holds; links on the way to it may not leave /sys."""
        path = f"{device}/{file}"
        if "/" in file or self.link(path) is not None:
            path = self._files.resolve(path)
        return self.text(path) if path.startswith("/sys/") else None

    def _read(self, path: str, *, public: bool = True) -> bytes | None:
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(self._files.to_local(path), flags)
        except (OSError, ValueError):
            return None
        try:
            if public and not os.fstat(descriptor).st_mode & stat.S_IROTH:
                return None
            raw = os.read(descriptor, VALUE_MAX + 1)
        except OSError:
            return None
        finally:
            os.close(descriptor)
        return None if len(raw) > VALUE_MAX else raw

    def link(self, path: str) -> str | None:
        """Return the host path that a link leads to; ``None`` where there is none."""
        if path not in self._links:
            try:
                target = os.readlink(self._files.to_local(path))
            except OSError:
                self._links[path] = None
            else:
                whole = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
                self._links[path] = whole
        return self._links[path]

    def linked(self, path: str) -> str | None:
        """Return the last part of where a link leads."""
        target = self.link(path)
        return None if target is None else posixpath.basename(target)

    def uevent(self, device: str) -> Mapping[str, str]:
        """Return the keys of a device's ``uevent``, but for those that are there twice.

        The name that a device gives itself may have line feeds, and after them other keys.
        """
        lines = (_text(line) for line in (self._read(f"{device}/uevent") or b"").split(b"\n"))
        pairs = [line.partition("=")[::2] for line in lines if line]
        count = Counter(key for key, _ in pairs)
        return {key: value for key, value in pairs if count[key] == 1}

    def of_number(self, kind: str, number: Number) -> str | None:
        """Return the directory of a device by its number; ``kind`` is ``char`` or ``block``."""
        return self.link(f"/sys/dev/{kind}/{number[0]}:{number[1]}")

    def driver(self, device: str) -> str | None:
        """Return the nearest driver, from a device upwards to the device on a bus that owns it."""
        for one in ancestors(device):
            driver = self.linked(f"{one}/driver")
            if driver or self.is_usb_device(one) or self.is_pci_function(one):
                return driver
        return None

    def numa(self, device: str) -> int | None:
        """Return the NUMA node that the nearest device, from one upwards, says it is on."""
        found = (self.text(f"{one}/numa_node") for one in ancestors(device))
        text = next(filter(None, found), "")
        return int(text) if text.isdecimal() else None  # -1: the firmware does not say

    def list(self, directory: str) -> list[str] | None:
        """Return the names in a directory; ``None`` where there is none, or an `OSError`."""
        try:
            return names.natural(os.listdir(self._files.to_local(directory)))  # noqa: PTH208
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    def names(self, directory: str) -> Sequence[str]:
        """Return the names in a directory; nothing of a device that is being unplugged."""
        try:
            return self.list(directory) or []
        except OSError:
            return []

    def parts(self, device: str) -> Iterator[str]:
        """Yield the devices that a block device is made of, or itself."""
        slaves = self.names(f"{device}/slaves")
        if not slaves:
            yield device
        for slave in slaves:
            if (below := self.link(f"{device}/slaves/{slave}")) is not None:
                yield from self.parts(below)

    def place(self, device: str) -> str | None:
        """Return where a device is plugged in, as udev's ID_PATH_WITH_USB_REVISION has it.

        ``pci-0000:00:14.0-usbv2-0:1.4:1.0-port0``: the outermost part first. Bus numbers are not
        part of it, as the order of controllers may change.
        """
        parts: list[str] = []
        path = device
        while path.startswith("/sys/devices/"):
            name = posixpath.basename(path)
            subsystem = self.linked(f"{path}/subsystem")
            if subsystem == "usb-serial":
                port = self.text(f"{path}/port_number")
                parts += [] if port is None else [f"port{port}"]
            elif subsystem == "usb" and (match := _USB.fullmatch(name)):
                hub = next((one for one in ancestors(path) if _is_root_hub(one)), None)
                if hub is None:
                    return None
                release = (self.text(f"{hub}/version") or "2")[:1]
                parts.append(f"usbv{release}-0:{match['ports']}{match['interface'] or ''}")
                path = hub
            elif subsystem in _NAMED or (subsystem == "pci" and _PCI.fullmatch(name)):
                return "-".join((f"{subsystem}-{name}", *reversed(parts)))
            path = posixpath.dirname(path)
        return None

    def owner(self, device: str) -> str | None:
        """Return the nearest USB device or PCI function, from a device upwards."""
        for one in ancestors(device):
            if self.is_usb_device(one) or self.is_pci_function(one):
                return one
        return None

    def interface(self, device: str) -> str | None:
        """Return the USB interface that a device is below, if any, up to its owner."""
        for path in ancestors(device):
            match = _USB.fullmatch(posixpath.basename(path))
            if self.is_usb_device(path) or (match and match["interface"]):
                return path if match and match["interface"] else None
        return None

    def is_usb_device(self, device: str) -> bool:
        """Whether a path is a USB device."""
        name = posixpath.basename(device)
        match = _USB.fullmatch(name)
        named = (match is not None and not match["interface"]) or _ROOT_HUB.fullmatch(name)
        return bool(named) and self.text(f"{device}/idVendor") is not None

    def is_pci_function(self, device: str) -> bool:
        """Whether a path is a PCI function."""
        named = _PCI.fullmatch(posixpath.basename(device))
        return named is not None and self.text(f"{device}/vendor") is not None


def sysfs_by_number(files: HostFiles) -> SysfsTree:
    """Return what knows devices by their numbers: a container's own /sys knows the host's too."""
    return SysfsTree(files if os.path.isdir(files.to_local("/sys/dev")) else HostFiles())


def ancestors(device: str) -> Iterator[str]:
    """Yield a directory below /sys/devices and those above it."""
    while device.startswith("/sys/devices/"):
        yield device
        device = posixpath.dirname(device)


def _is_root_hub(device: str) -> bool:
    return _ROOT_HUB.fullmatch(posixpath.basename(device)) is not None


def _text(raw: bytes) -> str | None:
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        return None
    return None if {"\n", "\t"} & set(text) or names.text_problem(text) else text

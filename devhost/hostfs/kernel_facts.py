"""What the kernel says of a device number: by sysfs, else by /proc/devices.

It reads links and attributes that take no device's lock, and opens no device.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import Number
from devhost.immutable import immutable

_DESCRIPTOR_MAX: Final = 4096  # HID_MAX_DESCRIPTOR_SIZE in linux/hid.h


@immutable
class KernelFacts:
    """What is known of a character device's number; all empty where nothing is.

    Attributes:
        subsystem: The class or bus (udev's SUBSYSTEM).
        name: The kernel's own name of the device; a node may have any other.
        region: What /proc/devices calls the major, if sysfs does not know the number.
        above: Of a terminal, the subsystems of the devices that it is part of.
        interfaces: Of a USB device, its class, and class, subclass and protocol of its interfaces
            (``03``, ``030101``), or ``net`` for those that are network interfaces of the host.
        report: Of a raw HID device, the report descriptor.
    """

    subsystem: str = ""
    name: str = ""
    region: str = ""
    above: tuple[str, ...] = ()
    interfaces: tuple[str, ...] = ()
    report: bytes = b""


class KernelFactsReader:
    """Reads facts, of each number once; a new one for each scan and each Allocate."""

    def __init__(self, files: HostFiles) -> None:
        # A container's own sysfs and /proc/devices show the same devices as the host's.
        seen = files.to_local("/sys")
        self._sys = seen if os.path.isdir(f"{seen}/dev/char") else "/sys"
        self._proc = files.to_local("/proc/devices")
        self._facts: dict[Number, KernelFacts] = {}
        self._regions: dict[int, str] = {}

    def of(self, number: Number) -> KernelFacts:
        """Return what is known of a character device. Blocks."""
        if number not in self._facts:
            self._facts[number] = self._read(number)
        return self._facts[number]

    def _read(self, number: Number) -> KernelFacts:
        directory = f"{self._sys}/dev/char"
        try:
            target = os.readlink(f"{directory}/{number[0]}:{number[1]}")
        except OSError:
            return KernelFacts(region=self._region(number[0]))
        place = os.path.normpath(target if target.startswith("/") else f"{directory}/{target}")
        subsystem = _subsystem(place)
        return KernelFacts(
            subsystem,
            _last(place),
            above=tuple(self._above(place)) if subsystem == "tty" else (),
            interfaces=tuple(_interfaces(place)) if subsystem == "usb" else (),
            report=_report(place) if subsystem == "hidraw" else b"",
        )

    def _above(self, place: str) -> Iterator[str]:
        while len(place := os.path.dirname(place)) > len(self._sys):
            if subsystem := _subsystem(place):
                yield subsystem

    def _region(self, major: int) -> str:
        if not self._regions:
            self._regions = dict(_regions(self._proc) or _regions("/proc/devices"))
        return self._regions.get(major, "")


def _last(path: str) -> str:
    return path.rpartition("/")[2]


def _subsystem(place: str) -> str:
    try:
        return _last(os.readlink(f"{place}/subsystem"))
    except OSError:
        return ""


def _interfaces(place: str) -> Iterator[str]:
    yield _attribute(f"{place}/bDeviceClass")
    own = f"{_last(place)}:"
    try:
        names = [name for name in os.listdir(place) if name.startswith(own)]  # noqa: PTH208 (names)
    except OSError:
        return
    for name in names:
        interface = f"{place}/{name}"
        if os.path.isdir(f"{interface}/net"):
            yield "net"
        parts = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
        yield "".join(_attribute(f"{interface}/{part}") for part in parts)


def _attribute(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""


def _report(place: str) -> bytes:
    # The node is DEVICE/hidraw/hidrawN.
    path = f"{os.path.dirname(os.path.dirname(place))}/report_descriptor"
    try:
        with Path(path).open("rb") as file:
            return file.read(_DESCRIPTOR_MAX)
    except OSError:
        return b""


def _regions(path: str) -> list[tuple[int, str]]:
    """Return the majors of character devices with their names."""
    try:
        text = Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return []
    lines = text.partition("Block devices:")[0].splitlines()
    found = (line.strip().partition(" ") for line in lines)
    return [(int(major), name) for major, _, name in found if major.isdecimal()]

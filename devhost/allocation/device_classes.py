"""The class of a device node: what a container that has it can do, by what the kernel says of it.

Never by its name: anybody who may create nodes chooses that. The class is the subsystem in sysfs,
and in the subsystem misc the kernel's own name of the device; ``docs/devices.md`` has a table.
"""

import posixpath
from pathlib import Path
from typing import Final

from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import Number
from devhost.hostfs.sysfs import ancestors, sysfs_by_number
from devhost.immutable import immutable

MEMORY: Final = "memory"
UNKNOWN: Final = "unknown"
# What containers may be given without a flag.
SAFE: Final = frozenset(
    {
        *("null", "tty-usb", "video4linux", "media", "cec", "lirc", "dvb", "sound"),
        *("drm", "kfd", "nvidia", "accel", "apex", "hailo_chardev", "uacce"),
        *("infiniband_verbs", "vfio", "vfio-dev", "gpio", "iio", "counter", "pps"),
        *("gnss", "wwan", "ppp"),
    }
)
SAFE_MISC: Final = frozenset({"kvm", "tun", "fuse", "vfio", "hw_random", "rdma_cm", "sgx_enclave"})
_MEM: Final = {**dict.fromkeys((3, 5, 7, 8, 9), "null"), 11: "kmsg"}
_MEM_MAJOR, _MISC_MAJOR = 1, 10
# Majors, and minors of misc, that Linux assigns for good: for NVIDIA's driver, which is not in
# sysfs, and for a --root without one.
_ASSIGNED: Final = {
    81: "video4linux",
    108: "ppp",
    116: "sound",
    166: "tty-usb",
    188: "tty-usb",
    189: "usb",
    195: "nvidia",
    226: "drm",
}
_ASSIGNED_MISC: Final = {183: "hw_random", 196: "vfio", 200: "tun", 229: "fuse", 232: "kvm"}


@immutable
class DeviceClass:
    """The class of a device node.

    Attributes:
        name: For ``--allow-device``.
        safe: Whether containers may be given it without a flag.
        usb_id: Of a raw USB node, ``vendor:product``.
    """

    name: str
    safe: bool = False
    usb_id: str = ""


class DeviceClasses:
    """Asks the kernel once for each number: a new one for each scan, Allocate, check and step.

    It reads links and attributes that take no device's lock, and opens no device.
    """

    def __init__(self, files: HostFiles) -> None:
        self._sysfs = sysfs_by_number(files)
        self._proc = files.to_local("/proc/devices")
        self._known: dict[Number, DeviceClass] = {}

    def of(self, number: Number) -> DeviceClass:
        """Return the class of a character device. Blocks."""
        if number not in self._known:
            self._known[number] = self._class(number)
        return self._known[number]

    def _class(self, number: Number) -> DeviceClass:
        major, minor = number
        if major == _MEM_MAJOR:  # whatever sysfs says
            return _class(_MEM.get(minor, MEMORY))
        place = self._sysfs.of_number("char", number)
        if place is None:
            return self._assigned(major, minor)
        name = posixpath.basename(place)
        match subsystem := self._sysfs.linked(f"{place}/subsystem"):
            case None:
                return self._assigned(major, minor)
            case "tty":
                return _class(self._terminal(place))
            case "misc":
                return _misc(name)
            case "usb":
                files = ("idVendor", "idProduct")
                vendor, product = (self._sysfs.text(f"{place}/{one}") for one in files)
                return DeviceClass("usb", usb_id=f"{vendor}:{product}" if vendor else "")
            case "vfio" | "vfio-dev" if name.startswith("noiommu"):
                return _class("vfio-noiommu")
        return _class(subsystem)

    def _terminal(self, place: str) -> str:
        every = ancestors(posixpath.dirname(place))
        above = {self._sysfs.linked(f"{one}/subsystem") for one in every}
        if "usb" in above:
            return "tty-usb"
        return "tty-serial" if any(above) else "tty"

    def _assigned(self, major: int, minor: int) -> DeviceClass:
        if major == _MISC_MAJOR:
            return _misc(_ASSIGNED_MISC.get(minor, UNKNOWN))
        if major in _ASSIGNED:
            return _class(_ASSIGNED[major])
        text = _text(self._proc) or _text("/proc/devices")
        for line in text.partition("Block devices:")[0].splitlines():
            number, _, driver = line.strip().partition(" ")
            if number == str(major) and driver.startswith("nvidia-"):
                return _class("nvidia" if driver == "nvidia-uvm" else driver)
        return _class(UNKNOWN)


def _class(name: str) -> DeviceClass:
    return DeviceClass(name, safe=name in SAFE)


def _misc(name: str) -> DeviceClass:
    return DeviceClass(name, safe=name in SAFE_MISC)


def _text(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return ""

"""The classes of device nodes: by what the kernel says of a node, what a container can do with it.

The class is the subsystem in sysfs, and in the subsystem misc the kernel's own name of the device.
Never the name of a node: anybody who may create nodes chooses that. ``docs/devices.md`` explains
the classes to users.
"""

import functools
import itertools
import posixpath
import re
from enum import Flag, auto
from typing import Final, NamedTuple

from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import read_lines
from devhost.hostfs.sysfs import Number, SysfsTree, ancestor_devices, sysfs_by_number
from devhost.model.immutable import immutable


class Use(Flag):
    """The uses of a class."""

    SAFE = auto()  # containers may be given it without a flag
    PROGRAM = auto()  # made for programs: listed and drafted also where it is on no bus
    HOST = auto()  # the host needs it for itself, or it is no use without the rest: not drafted
    MISC = auto()  # a device of the subsystem misc, by the kernel's name


SAFE, PROGRAM, HOST, MISC = Use


class ClassRow(NamedTuple):
    """One class.

    Attributes:
        paths: How the paths of its nodes begin below /dev. Hints may name such a path to people who
            have not asked for it.
        numbers: The majors, or the minors of misc and mem, that Linux assigns for good: for
            NVIDIA's driver, which is not in sysfs, and for a ``--root`` without one.
    """

    name: str
    use: Use = Use(0)
    paths: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


_ROWS: Final = (
    ClassRow("accel", SAFE | PROGRAM, ("accel",)),
    ClassRow("apex", SAFE, ("apex_",)),
    ClassRow("block", HOST),
    ClassRow("bsg", HOST),
    ClassRow("cec", SAFE | PROGRAM, ("cec",)),
    ClassRow("counter", SAFE | PROGRAM),
    ClassRow("dma_heap", PROGRAM),
    ClassRow("drm", SAFE | PROGRAM, ("dri",), (226,)),
    ClassRow("drm_dp_aux_dev", HOST),
    ClassRow("dvb", SAFE, ("dvb",)),
    ClassRow("fuse", SAFE | MISC, ("fuse",), (229,)),
    ClassRow("gnss", SAFE | PROGRAM),
    ClassRow("gpio", SAFE | PROGRAM, ("gpiochip",)),
    ClassRow("graphics", HOST),
    ClassRow("hailo_chardev", SAFE, ("hailo",)),
    ClassRow("hw_random", SAFE | MISC, (), (183,)),
    ClassRow("hwmon", HOST),
    ClassRow("i2c-dev", PROGRAM | HOST),
    ClassRow("iio", SAFE | PROGRAM, ("iio:device",)),
    ClassRow("infiniband_mad", HOST),
    ClassRow("infiniband_verbs", SAFE, ("infiniband",)),
    ClassRow("input", HOST),
    ClassRow("kfd", SAFE, ("kfd",)),
    ClassRow("kvm", SAFE | MISC, ("kvm",), (232,)),
    ClassRow("lirc", SAFE | PROGRAM, ("lirc",)),
    ClassRow("media", SAFE, ("media",)),
    ClassRow("mei", HOST),
    ClassRow("net", HOST),
    ClassRow("null", SAFE),
    ClassRow("nvidia", SAFE, ("nvidia",), (195,)),
    ClassRow("nvme", HOST),
    ClassRow("nvme-generic", HOST),
    ClassRow("ppp", SAFE, (), (108,)),
    ClassRow("pps", SAFE | PROGRAM),
    ClassRow("ptp", HOST),
    ClassRow("rdma_cm", SAFE | MISC),
    ClassRow("rtc", HOST),
    ClassRow("scsi_generic", HOST),
    ClassRow("sgx_enclave", SAFE | MISC),
    ClassRow("sound", SAFE, ("snd",), (116,)),
    ClassRow("spidev", PROGRAM),
    ClassRow("tpmrm", PROGRAM),
    ClassRow("tty-usb", SAFE, ("ttyUSB", "ttyACM", "serial"), (166, 188)),
    ClassRow("tun", SAFE | MISC, ("net/",), (200,)),
    ClassRow("uacce", SAFE | PROGRAM),
    ClassRow("usb", numbers=(189,)),
    ClassRow("vfio", SAFE, ("vfio",)),
    ClassRow("vfio", SAFE | MISC, (), (196,)),
    ClassRow("vfio-dev", SAFE),
    ClassRow("video4linux", SAFE | PROGRAM, ("video", "v4l"), (81,)),
    ClassRow("watchdog", HOST),
    ClassRow("wwan", SAFE),
)


SAFE_CLASSES: Final = frozenset(r.name for r in _ROWS if SAFE in r.use and MISC not in r.use)
SAFE_MISC: Final = frozenset(row.name for row in _ROWS if SAFE | MISC in row.use)
PROGRAM_CLASSES: Final = frozenset(row.name for row in _ROWS if PROGRAM in row.use)
HOST_CLASSES: Final = frozenset(row.name for row in _ROWS if HOST in row.use)
_PATHS: Final = tuple(path for row in _ROWS for path in row.paths)
_BY_MAJOR: Final = {n: r.name for r in _ROWS if MISC not in r.use for n in r.numbers}
_BY_MISC_MINOR: Final = {n: r.name for r in _ROWS if MISC in r.use for n in r.numbers}
_BY_MEM_MINOR: Final = {**dict.fromkeys((3, 5, 7, 8, 9), "null"), 11: "kmsg"}
_MEM_MAJOR, _MISC_MAJOR = 1, 10
# Names of the kernel that tell the class.
_BY_NAME: Final = {
    "memory": re.compile(r"/dev/(mem|kmem|port)"),
    "block": re.compile(
        r"/dev/((sd|hd|vd|xvd)[a-z]{1,2}\d*|(nvme\d+n|mmcblk)\d+(p\d+)?|"
        r"(loop|md|dm-|nbd|zram|sr|ram|pmem)\d+)"
    ),
}


@immutable
class DeviceClass:
    """The class of a device node; of a raw USB node also its ``vendor:product``."""

    name: str
    safe: bool = False  # without a flag
    usb_id: str = ""


BLOCK: Final = DeviceClass("block")
MEMORY: Final = DeviceClass("memory")
UNKNOWN: Final = DeviceClass("unknown")


def class_by_path(path: str) -> DeviceClass | None:
    """Return the class of a node that the kernel's name of it tells, before there is a host."""
    names = (name for name, pattern in _BY_NAME.items() if pattern.fullmatch(path))
    name = next(names, None)
    return DeviceClass(name) if name else None


def may_be_proposed(path: str) -> bool:
    """Return whether a hint may name a path below /dev: no flag is needed for such nodes."""
    return path.removeprefix("/dev/").startswith(_PATHS)


class DeviceClasses:
    """Finds the classes of device nodes by their numbers.

    It reads links and attributes that take no device's lock, each once, and opens no device.
    """

    def __init__(self, files: HostFiles) -> None:
        self._files = files

    @functools.cached_property
    def _sysfs(self) -> SysfsTree:
        return sysfs_by_number(self._files)

    def of(self, number: Number) -> DeviceClass:
        """Return the class of a character device. Blocks."""
        major, minor = number
        if major == _MEM_MAJOR:  # whatever sysfs says
            return _class(_BY_MEM_MINOR.get(minor, MEMORY.name))
        syspath = self._sysfs.device_by_number("char", number)
        subsystem = self._sysfs.link_name(f"{syspath}/subsystem") if syspath else None
        if syspath is None or subsystem is None:
            return self._assigned(major, minor)
        name = posixpath.basename(syspath)
        match subsystem:
            case "tty":
                ancestors = ancestor_devices(syspath, self._sysfs)
                above = {self._sysfs.link_name(f"{ancestor}/subsystem") for ancestor in ancestors}
                return _class("tty-usb" if "usb" in above else "tty-serial" if above else "tty")
            case "misc":
                return DeviceClass(name, safe=name in SAFE_MISC)
            case "usb":
                usb_id = self._sysfs.codes(syspath, "idVendor", "idProduct", by=":")
                return DeviceClass("usb", usb_id=usb_id.strip(":"))
            case "vfio" | "vfio-dev" if name.startswith("noiommu"):
                return DeviceClass("vfio-noiommu")
        return _class(subsystem)

    def _assigned(self, major: int, minor: int) -> DeviceClass:
        """Return the class of a device that is not in sysfs."""
        if major == _MISC_MAJOR:
            name = _BY_MISC_MINOR.get(minor, UNKNOWN.name)
            return DeviceClass(name, safe=name in SAFE_MISC)
        if major in _BY_MAJOR:
            return _class(_BY_MAJOR[major])
        proc = "/proc/devices"
        rows = read_lines(self._files.to_local(proc)) or read_lines(proc)
        for line in itertools.takewhile(lambda line: line != "Block devices:", rows):
            number, _, driver = line.strip().partition(" ")
            if number == str(major) and driver.startswith("nvidia-"):
                return _class("nvidia" if driver == "nvidia-uvm" else driver)
        return UNKNOWN


def _class(name: str) -> DeviceClass:
    return DeviceClass(name, safe=name in SAFE_CLASSES)

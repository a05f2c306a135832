"""The classes of device nodes: by what the kernel says of a node, what a container can do with it.

The class is the subsystem in sysfs, and in the subsystem misc the kernel's own name of the device.
Never the name of a node: anybody who may create nodes chooses that. ``docs/devices.md`` explains
the classes to users.
"""

import functools
import itertools
import posixpath
import re
from typing import Final, NamedTuple

from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import read_lines
from devhost.hostfs.sysfs import Number, SysfsTree, ancestor_devices, sysfs_by_number
from devhost.model.immutable import immutable


class ClassRow(NamedTuple):
    """One class. Of those that are not in the table nothing is known.

    Attributes:
        safe: Whether containers may be given it without a flag.
        for_programs: Whether it is made for programs: listed also where it is on no bus.
        for_host: Whether the host needs it, or it is no use without the rest: not in drafts.
        is_misc: Whether it is a device of the subsystem misc, by the kernel's name.
        paths: How the paths of its nodes begin below /dev. Hints may name such a path to people who
            have not asked for it.
        numbers: The majors, or the minors of misc, that Linux assigns for good: for NVIDIA's
            driver, which is not in sysfs, and for a ``--root`` without one.
    """

    name: str
    safe: bool = False
    for_programs: bool = False
    for_host: bool = False
    is_misc: bool = False
    paths: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()


_ROWS: Final = (
    ClassRow("accel", safe=True, for_programs=True, paths=("accel",)),
    ClassRow("apex", safe=True, paths=("apex_",)),
    ClassRow("block", for_host=True),
    ClassRow("bsg", for_host=True),
    ClassRow("cec", safe=True, for_programs=True, paths=("cec",)),
    ClassRow("counter", safe=True, for_programs=True),
    ClassRow("dma_heap", for_programs=True),
    ClassRow("drm", safe=True, for_programs=True, paths=("dri",), numbers=(226,)),
    ClassRow("drm_dp_aux_dev", for_host=True),
    ClassRow("dvb", safe=True, paths=("dvb",)),
    ClassRow("fuse", safe=True, is_misc=True, paths=("fuse",), numbers=(229,)),
    ClassRow("gnss", safe=True, for_programs=True),
    ClassRow("gpio", safe=True, for_programs=True, paths=("gpiochip",)),
    ClassRow("graphics", for_host=True),
    ClassRow("hailo_chardev", safe=True, paths=("hailo",)),
    ClassRow("hw_random", safe=True, is_misc=True, numbers=(183,)),
    ClassRow("hwmon", for_host=True),
    ClassRow("i2c-dev", for_programs=True, for_host=True),
    ClassRow("iio", safe=True, for_programs=True, paths=("iio:device",)),
    ClassRow("infiniband_mad", for_host=True),
    ClassRow("infiniband_verbs", safe=True, paths=("infiniband",)),
    ClassRow("input", for_host=True),
    ClassRow("kfd", safe=True, paths=("kfd",)),
    ClassRow("kvm", safe=True, is_misc=True, paths=("kvm",), numbers=(232,)),
    ClassRow("lirc", safe=True, for_programs=True, paths=("lirc",)),
    ClassRow("media", safe=True, paths=("media",)),
    ClassRow("mei", for_host=True),
    ClassRow("net", for_host=True),
    ClassRow("null", safe=True),
    ClassRow("nvidia", safe=True, paths=("nvidia",), numbers=(195,)),
    ClassRow("nvme", for_host=True),
    ClassRow("nvme-generic", for_host=True),
    ClassRow("ppp", safe=True, numbers=(108,)),
    ClassRow("pps", safe=True, for_programs=True),
    ClassRow("ptp", for_host=True),
    ClassRow("rdma_cm", safe=True, is_misc=True),
    ClassRow("rtc", for_host=True),
    ClassRow("scsi_generic", for_host=True),
    ClassRow("sgx_enclave", safe=True, is_misc=True),
    ClassRow("sound", safe=True, paths=("snd",), numbers=(116,)),
    ClassRow("spidev", for_programs=True),
    ClassRow("tpmrm", for_programs=True),
    ClassRow("tty-usb", safe=True, paths=("ttyUSB", "ttyACM", "serial"), numbers=(166, 188)),
    ClassRow("tun", safe=True, is_misc=True, paths=("net/",), numbers=(200,)),
    ClassRow("uacce", safe=True, for_programs=True),
    ClassRow("usb", numbers=(189,)),
    ClassRow("vfio", safe=True, paths=("vfio",)),
    ClassRow("vfio", safe=True, is_misc=True, numbers=(196,)),
    ClassRow("vfio-dev", safe=True),
    ClassRow("video4linux", safe=True, for_programs=True, paths=("video", "v4l"), numbers=(81,)),
    ClassRow("watchdog", for_host=True),
    ClassRow("wwan", safe=True),
)


SAFE_CLASSES: Final = frozenset(row.name for row in _ROWS if row.safe and not row.is_misc)
SAFE_MISC: Final = frozenset(row.name for row in _ROWS if row.safe and row.is_misc)
PROGRAM_CLASSES: Final = frozenset(row.name for row in _ROWS if row.for_programs)
HOST_CLASSES: Final = frozenset(row.name for row in _ROWS if row.for_host)
_PATHS: Final = tuple(path for row in _ROWS for path in row.paths)
_BY_MAJOR: Final = {n: row.name for row in _ROWS if not row.is_misc for n in row.numbers}
_BY_MISC_MINOR: Final = {n: row.name for row in _ROWS if row.is_misc for n in row.numbers}
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

"""The classes of device nodes: by what the kernel says of a node, what a container can do with it.

The class is the subsystem in sysfs, and in the subsystem misc the kernel's own name of the device.
Never the name of a node: anybody who may create nodes chooses that. ``docs/devices.md`` explains
the classes to users.
"""

import functools
import itertools
import posixpath
import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from devhost.hostfs.files import HostFiles
from devhost.hostfs.kernel_devices import owning_device
from devhost.hostfs.mounts import read_lines
from devhost.hostfs.sysfs import Number, SysfsTree, ancestor_devices, sysfs_by_number


class Row(NamedTuple):
    """One class. Of those that are not in the table nothing is known.

    Attributes:
        safe: Whether containers may be given it without a flag.
        programs: Whether it is made for programs: listed also where it is on no bus.
        misc: Whether it is a device of the subsystem misc, by the kernel's name.
        paths: How the paths of its nodes begin below /dev. Hints may name such a path to people who
            have not asked for it.
        numbers: The majors, or the minors of misc, that Linux assigns for good: for NVIDIA's
            driver, which is not in sysfs, and for a ``--root`` without one.
        counted: Names below /dev that the kernel numbers in the order of discovery, so that a
            reboot may give them to other devices: the first of each kind.
    """

    name: str
    safe: bool = False
    programs: bool = False
    misc: bool = False
    paths: str = ""
    numbers: tuple[int, ...] = ()
    counted: str = ""


_ROWS: Final = (
    Row("tty", counted="ttyUSB0 ttyACM0"),
    Row("tty-usb", safe=True, paths="ttyUSB ttyACM serial", numbers=(166, 188)),
    Row("gnss", safe=True, programs=True),
    Row("wwan", safe=True),
    Row("ppp", safe=True, numbers=(108,)),
    Row("hidraw", counted="hidraw0"),
    Row("input", counted="input/event0 input/js0 input/mouse0"),
    Row("usbmisc", counted="usb/lp0 cdc-wdm0"),
    Row("usb", numbers=(189,)),
    Row(
        "video4linux",
        safe=True,
        programs=True,
        paths="video v4l",
        numbers=(81,),
        counted="video0 v4l-subdev0",
    ),
    Row("media", safe=True, paths="media", counted="media0"),
    Row("dvb", safe=True, paths="dvb"),
    Row("cec", safe=True, programs=True, paths="cec"),
    Row("lirc", safe=True, programs=True, paths="lirc"),
    Row("sound", safe=True, paths="snd", numbers=(116,), counted="snd/controlC0 snd/pcmC0"),
    Row("gpio", safe=True, programs=True, paths="gpiochip", counted="gpiochip0"),
    Row("i2c-dev", programs=True, counted="i2c-0"),
    Row("spidev", programs=True),
    Row("iio", safe=True, programs=True, paths="iio:device", counted="iio:device0"),
    Row("counter", safe=True, programs=True),
    Row("pps", safe=True, programs=True),
    Row("hwmon", counted="hwmon0"),
    Row("bluetooth", counted="hci0"),
    Row("tpmrm", programs=True),
    Row(
        "drm",
        safe=True,
        programs=True,
        paths="dri",
        numbers=(226,),
        counted="dri/card0 dri/renderD128",
    ),
    Row("kfd", safe=True, paths="kfd"),
    Row("nvidia", safe=True, paths="nvidia", numbers=(195,)),
    Row("accel", safe=True, programs=True, paths="accel"),
    Row("apex", safe=True, paths="apex_"),
    Row("hailo_chardev", safe=True, paths="hailo"),
    Row("uacce", safe=True, programs=True),
    Row("dma_heap", programs=True),
    Row("nvme", counted="nvme0"),
    Row("block", counted="sda"),
    Row("scsi", counted="sr0 sg0 st0 nst0"),
    Row("tun", safe=True, misc=True, paths="net/", numbers=(200,)),
    Row("infiniband_verbs", safe=True, paths="infiniband"),
    Row("rdma_cm", safe=True, misc=True),
    Row("vfio", safe=True, paths="vfio"),
    Row("vfio", safe=True, misc=True, numbers=(196,)),
    Row("vfio-dev", safe=True),
    Row("kvm", safe=True, misc=True, paths="kvm", numbers=(232,)),
    Row("sgx_enclave", safe=True, misc=True),
    Row("fuse", safe=True, misc=True, paths="fuse", numbers=(229,)),
    Row("null", safe=True),
    Row("hw_random", safe=True, misc=True, numbers=(183,)),
)
SAFE_CLASSES: Final = frozenset(row.name for row in _ROWS if row.safe and not row.misc)
SAFE_MISC: Final = frozenset(row.name for row in _ROWS if row.safe and row.misc)
PROGRAM_CLASSES: Final = frozenset(row.name for row in _ROWS if row.programs)
ENUMERATED_NAMES: Final = {row.name: row.counted.split() for row in _ROWS if row.counted}
_PATHS: Final = tuple(path for row in _ROWS for path in row.paths.split())
_BY_MAJOR: Final = {n: row.name for row in _ROWS if not row.misc for n in row.numbers}
_BY_MISC_MINOR: Final = {n: row.name for row in _ROWS if row.misc for n in row.numbers}
_BY_MEM_MINOR: Final = {**dict.fromkeys((3, 5, 7, 8, 9), "null"), 11: "kmsg"}
_MEM_MAJOR, _MISC_MAJOR = 1, 10
_PCI_IDS: Final = ("pci:{address}", "pci:{device}")
# Names of the kernel below /dev that tell the class.
_BY_NAME: Final = {
    "memory": "mem|kmem|port",
    "block": r"(?:sd|hd|vd|xvd)[a-z]{1,2}\d*|(?:nvme\d+n|mmcblk)\d+(?:p\d+)?|"
    r"(?:loop|md|dm-|nbd|zram|sr|ram|pmem)\d+",
    "i2c-dev": r"i2c-\d+",
    "input": r"input(?:/(?:(?:event|js|mouse)?\d+|mice))?",
    "kmsg": "kmsg",
    "scsi_generic": r"sg\d+",
    "spidev": r"spidev\d+\.\d+",
    "tty": r"tty\d*|console",
    "uinput": "uinput",
    "usb": r"bus/usb(?:/\d+){0,2}",
    "usbmisc": r"usb/(?:lp|hiddev)\d+|(?:cdc-wdm|usbtmc)\d+",
    "watchdog": r"watchdog\d*",
    **{name: rf"{name}\d+" for name in ("hidraw", "ipmi", "mei", "nvme", "tpm", "tpmrm", "uio")},
}
_NAMES: Final = re.compile(f"/dev/(?:{'|'.join(f'({text})' for text in _BY_NAME.values())})")


@dataclass(frozen=True, slots=True)
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
    match = _NAMES.fullmatch(path)
    return DeviceClass([*_BY_NAME][match.lastindex - 1]) if match and match.lastindex else None


def misc_class(name: str) -> DeviceClass:
    """Return the class of a device of the subsystem misc, by the kernel's name."""
    return DeviceClass(name, safe=name in SAFE_MISC)


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
                return misc_class(name)
            case "usb":
                usb_id = self._sysfs.codes(syspath, "idVendor", "idProduct", by=":")
                return DeviceClass("usb", usb_id=usb_id.strip(":"))
            case "vfio" | "vfio-dev" if name.startswith("noiommu"):
                return DeviceClass("vfio-noiommu")
        return _class(subsystem)

    def ids(self, kind: str, number: Number) -> tuple[str, ...]:
        """Return the words for a ``char`` or ``block`` device that rights may have. Blocks."""
        syspath = self._sysfs.device_by_number(kind, number) or ""
        owner, place = owning_device(syspath, self._sysfs), self._sysfs.place(syspath)
        forms = ("usb:{device}:{serial}",) if owner and owner.prefix == "usb." else _PCI_IDS
        ids = (form.format(**owner.facts) for form in forms) if owner else ()
        return (*ids, f"place:{place}") if place else (*ids,)

    def _assigned(self, major: int, minor: int) -> DeviceClass:
        """Return the class of a device that is not in sysfs."""
        if major == _MISC_MAJOR:
            return misc_class(_BY_MISC_MINOR.get(minor, UNKNOWN.name))
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

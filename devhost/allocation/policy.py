"""What a configuration may ask for: editing it must not give control of the node.

Without flags, containers may be given only character devices below ``/dev`` of classes that are
known to be safe. Everything else needs a flag, and each flag adds to that.

The class of a device node is what a container that has it can do, by what the kernel says of it:
its subsystem in sysfs, and in the subsystem misc the kernel's own name of the device. Never by its
name: anybody who may create nodes chooses that. ``docs/devices.md`` has a table.
"""

import fnmatch
import functools
import itertools
import posixpath
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from devhost.hostfs.files import HostFiles, is_in_dev, is_wild
from devhost.hostfs.mounts import lines
from devhost.hostfs.sysfs import Number, SysfsTree, ancestor_devices, sysfs_by_number
from devhost.model import names
from devhost.model.allocation import Allocation, Target
from devhost.model.hardware_sources import vendor_product
from devhost.model.immutable import immutable

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
_MEMORY: Final = "memory"
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
# Names of the kernel that tell the class: to refuse such a node before there is a host.
_BY_NAME: Final = {
    _MEMORY: re.compile(r"/dev/(mem|kmem|port)"),
    "block": re.compile(
        r"/dev/((sd|hd|vd|xvd)[a-z]{1,2}\d*|(nvme\d+n|mmcblk)\d+(p\d+)?|"
        r"(loop|md|dm-|nbd|zram|sr|ram|pmem)\d+)"
    ),
}
_ANY_NODES: Final = ("/dev/any-name", "/dev/0/9")  # that a glob over all of /dev matches
_LINKS: Final = (("/var/run/", "/run/"), ("/var/lock/", "/run/lock/"))  # on most hosts
# By which the container runtimes of NVIDIA, AMD, Habana and Ascend add devices.
_RUNTIME_VARIABLES: Final = ("NVIDIA_*", "ASCEND_*", "*_VISIBLE_DEVICES")


@immutable
class DeviceClass:
    """The class of a device node; of a raw USB node also its ``vendor:product``."""

    name: str
    safe: bool = False  # without a flag
    usb_id: str = ""


BLOCK: Final = DeviceClass("block")
_UNKNOWN: Final = DeviceClass("unknown")


@immutable
class Policy:
    """What the process was started to allow.

    Attributes:
        allow_paths: Globs on resolved host paths of mounts, and of files that not everybody may
            read; ``*`` also matches ``/``.
        enforced: Whether asking for more is refused; otherwise it is a warning.
        by_name: Whether a file is also judged by names that tell the class of a node. Where there
            is a host, that device is refused when it is found, and the rest of the file holds.
        allow_devices: Classes of devices, ``vendor:product`` of raw USB nodes, and globs on
            resolved paths of device nodes.
        allow_resources: Names of resources that another device plugin may serve too.
        allow_cdi: Globs on fully qualified CDI names, and on variables by which a container
            runtime adds devices.
        allow_annotations: Globs on annotation keys.
        trusted: Whether code asks rather than a configuration: it may have any device node.
    """

    allow_paths: tuple[str, ...] = ()
    allow_exec: bool = False
    enforced: bool = False
    by_name: bool = True
    allow_devices: tuple[str, ...] = ()
    allow_resources: tuple[str, ...] = ()
    allow_cdi: tuple[str, ...] = ()
    allow_annotations: tuple[str, ...] = ()
    trusted: bool = False

    def allows_path(self, path: str) -> bool:
        """Say whether ``--allow-path`` names a resolved host path."""
        return _matches(path, self.allow_paths)

    @property
    def shown_paths(self) -> tuple[str, ...] | None:
        """Globs on what may be told although only some users may see it; ``None``: all may."""
        return self.allow_paths if self.enforced else None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What flags allow more than is likely meant."""
        return tuple(
            f"--allow-device '{glob}' covers all of /dev, and every disk with it: name the "
            "devices, such as '/dev/sd[b-z]'"
            for glob in self._node_globs
            if all(fnmatch.fnmatchcase(path, glob) for path in _ANY_NODES)
        )

    @property
    def allows_block(self) -> bool:
        """Whether any block device may be allowed."""
        return bool(self._node_globs or BLOCK.name in self.allow_devices)

    @property
    def _node_globs(self) -> tuple[str, ...]:
        return tuple(one for one in self.allow_devices if "/" in one)

    def path_problem(self, path: str, *, mount: bool) -> str | None:
        """Return why a host path may not be in a configuration as it is written, or ``None``.

        Where it leads is judged when that is known.
        """
        plain = posixpath.normpath(path)
        usual = next((to + plain[len(at) :] for at, to in _LINKS if plain.startswith(at)), plain)
        if not mount and (refusal := self.refused_by_name(plain)):
            return refusal
        globs = self.allow_paths if mount else ("/dev", "/dev/*", *self._node_globs)
        if _matches(plain, globs) or _matches(usual, globs):
            return None
        if mount:
            return f"mounts need --allow-path '{path}'"
        return f"{path} is not below /dev: it needs --allow-device '{path}'"

    def refused_by_name(self, path: str) -> str | None:
        """Return why a node may not be given whose class is known by its name, or ``None``."""
        plain = posixpath.normpath(path)
        for name, pattern in _BY_NAME.items():
            if pattern.fullmatch(plain) and (self.by_name or name == _MEMORY):
                return self.node_problem(plain, DeviceClass(name))
        return None

    def file_problem(self, realpath: str, *, mount: bool) -> str | None:
        """Return why a real path that is no device node may not be given to others, or ``None``.

        What is no ``mount`` is an argument of a command.
        """
        if self.allows_path(realpath):
            return None
        what = "mounts of" if mount else "files such as"
        return f"{what} {realpath} need --allow-path '{realpath}'"

    def node_problem(self, path: str, found: DeviceClass, use: str | None = None) -> str | None:
        """Return why a device node, by its real path, may not be given to a container, or ``None``.

        A block device may be in ``use`` by the host.
        """
        if self.trusted or (path in self.allow_devices and not is_wild(path)):
            return None
        if found.name == _MEMORY:
            return f"{path} is of class memory: it needs --allow-device '{path}', without wildcards"
        if use is not None:
            needed = f"it needs --allow-device '{path}', without wildcards"
            return f"{path} is in use by the host ({use}): {needed}"
        if _matches(path, self._node_globs):
            return None
        if not is_in_dev(path):
            return f"{path} is not below /dev: it needs --allow-device '{path}'"
        ids = (one.lower() for one in self.allow_devices if ":" in one)
        named = found.name in self.allow_devices or _matches(found.usb_id, ids)
        if found.safe or (named and found != _UNKNOWN):
            return None
        flag = f"'{path}'" if found in (_UNKNOWN, BLOCK) else found.usb_id or found.name
        return f"{path} is of class {found.name}: it needs --allow-device {flag}"

    def name_problem(self, target: Target, name: str) -> str | None:
        """Return why a variable, annotation or CDI device may not be given, or ``None``."""
        if target == "annotations" and not _matches(name, self.allow_annotations):
            return f"annotation {name} needs --allow-annotation '{name}'"
        if target == "cdi" and not _matches(name, self.allow_cdi):
            return f"CDI device {name} needs --allow-cdi '{name}'"
        adds_devices = target == "env" and _matches(name, _RUNTIME_VARIABLES)
        if adds_devices and not _matches(name, self.allow_cdi):
            return f"by {name} a container runtime adds devices: it needs --allow-cdi '{name}'"
        return None

    def names_problem(self, allocation: Allocation) -> list[str]:
        """Return why an answer may not be given, by the names in it."""
        used: tuple[tuple[Target, Iterable[str]], ...] = (
            ("env", allocation.envs),
            ("annotations", allocation.annotations),
            ("cdi", allocation.cdi_devices),
        )
        found = (self.name_problem(target, name) for target, keys in used for name in keys)
        return [reason for reason in found if reason]


class DeviceClasses:
    """Says of which class device nodes are, by their numbers.

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
            return _class(_MEM.get(minor, _MEMORY))
        place = self._sysfs.device_by_number("char", number)
        subsystem = self._sysfs.linked(f"{place}/subsystem") if place else None
        if place is None or subsystem is None:
            return self._assigned(major, minor)
        name = posixpath.basename(place)
        match subsystem:
            case "tty":
                every = ancestor_devices(place, self._sysfs)
                above = {self._sysfs.linked(f"{one}/subsystem") for one in every}
                return _class("tty-usb" if "usb" in above else "tty-serial" if above else "tty")
            case "misc":
                return DeviceClass(name, safe=name in SAFE_MISC)
            case "usb":
                number_of_kind = self._sysfs.codes(place, "idVendor", "idProduct", by=":")
                return DeviceClass("usb", usb_id=number_of_kind.strip(":"))
            case "vfio" | "vfio-dev" if name.startswith("noiommu"):
                return DeviceClass("vfio-noiommu")
        return _class(subsystem)

    def _assigned(self, major: int, minor: int) -> DeviceClass:
        """Return the class of a device that is not in sysfs."""
        if major == _MISC_MAJOR:
            name = _ASSIGNED_MISC.get(minor, _UNKNOWN.name)
            return DeviceClass(name, safe=name in SAFE_MISC)
        if major in _ASSIGNED:
            return _class(_ASSIGNED[major])
        proc = "/proc/devices"
        every = lines(self._files.to_local(proc)) or lines(proc)
        for line in itertools.takewhile(lambda line: line != "Block devices:", every):
            number, _, driver = line.strip().partition(" ")
            if number == str(major) and driver.startswith("nvidia-"):
                return _class("nvidia" if driver == "nvidia-uvm" else driver)
        return _UNKNOWN


def _class(name: str) -> DeviceClass:
    return DeviceClass(name, safe=name in SAFE)


def path_glob_problem(glob: str) -> str | None:
    """Return why a glob cannot match an absolute path, or ``None``."""
    return None if glob.startswith(("/", "*", "?", "[")) else f"{glob!r} does not begin with '/'"


def device_problem(text: str) -> str | None:
    """Return why a text is no class, ``vendor:product`` or glob on absolute paths, or ``None``."""
    if "/" in text:
        return path_glob_problem(text)
    if ":" in text:
        try:
            vendor_product(text)
        except ValueError as error:
            return str(error)
    elif is_wild(text):
        return f"{text!r} is not a class; a glob on paths begins with '/'"
    return None


# Why a value of a field is none.
VALUE_PROBLEMS: Final[Mapping[str, Callable[[str], str | None]]] = {
    "allow_paths": path_glob_problem,
    "allow_devices": device_problem,
    "allow_resources": names.resource_name_problem,
}


def _matches(text: str, globs: Iterable[str]) -> bool:
    return any(fnmatch.fnmatchcase(text, glob) for glob in globs)

"""What the kernel says of its devices, below the root's /sys.

Members of a subsystem are found by their links, never by walking directories: a device that is
being removed loses its links first. A file that cannot be read counts as absent, because a device
may go at any time; only a subsystem that cannot be listed is a failure. Nothing here opens a
device, wakes one up, or reads a directory below one.
"""

import errno
import os
import posixpath
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, cast

from devhost.discovery.nearest import closest
from devhost.discovery.roots import (
    NOT_DEVICES,
    BaseRoot,
    Reading,
    Root,
    WatchRoot,
    unusable,
)
from devhost.hostfs.files import HostFiles
from devhost.hostfs.tally import Tally
from devhost.immutable import immutable
from devhost.model import names

T = TypeVar("T")

_ALIKE: Final = 0.7  # how alike a subsystem is to be what was meant, from 0 to 1
VALUE_MAX: Final = 4096  # bytes; an attribute has at most a page
# In these directories, link by link, udev names what it knows by more than a number.
_BY: Final = ("by-id", "by-path")
_PCI: Final = re.compile(r"[0-9a-f]{4,}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_USB: Final = re.compile(r"[0-9]+-(?P<ports>[0-9.]+)(?P<interface>:[0-9]+\.[0-9]+)?")
_ROOT_HUB: Final = re.compile(r"usb[0-9]+")
# Native multipath: the path nvme2c2n1 has no node; the disk is its head nvme2n1.
_NVME_PATH: Final = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)")
_NAMED: Final = ("platform", "acpi", "pnp")  # buses whose names are places
PLACES: Final = ("pci", *_NAMED)


class SysfsTree:
    """Reads files and links of /sys, each once. All methods block."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._texts: dict[str, str | None] = {}
        self._links: dict[str, str | None] = {}
        self._places: dict[str, str | None] = {}
        self._uevents: dict[str, Mapping[str, str]] = {}

    def text(self, path: str) -> str | None:
        """Return what a file holds, without blanks at its ends; ``None`` where it is no text."""
        if path not in self._texts:
            raw = self._read(path)
            self._texts[path] = None if raw is None else _text(raw)
        return self._texts[path]

    def attribute(self, device: str, file: str) -> str | None:
        """Return what a file of a device holds; links on the way to it may not leave /sys."""
        path = f"{device}/{file}"
        if "/" in file or self.link(path) is not None:
            path = self._files.resolve(path)
        return self.text(path) if path.startswith("/sys/") else None

    def _read(self, path: str) -> bytes | None:
        try:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK
            descriptor = os.open(self._files.to_local(path), flags)
        except (OSError, ValueError):
            return None
        try:
            # A configuration chooses attributes, and may learn what every user may read.
            if not os.fstat(descriptor).st_mode & stat.S_IROTH:
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
        if device not in self._uevents:
            lines = (_text(line) for line in (self._read(f"{device}/uevent") or b"").split(b"\n"))
            pairs = [line.partition("=")[::2] for line in lines if line and "=" in line]
            count = Counter(key for key, _ in pairs)
            self._uevents[device] = {key: value for key, value in pairs if count[key] == 1}
        return self._uevents[device]

    def list(self, directory: str) -> list[str] | None:
        """Return the names in a directory; ``None`` where there is none.

        Raises:
            OSError: It cannot be read.
        """
        try:
            return names.natural(os.listdir(self._files.to_local(directory)))  # noqa: PTH208
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.ENOTDIR):
                return None
            raise

    def place(self, device: str) -> str | None:
        """Return where a device is plugged in, as udev's ID_PATH_WITH_USB_REVISION has it.

        ``pci-0000:00:14.0-usbv2-0:1.4:1.0-port0``: the outermost part first. Bus numbers are not
        part of it, as the order of controllers may change.
        """
        if device not in self._places:
            self._places[device] = self._place(device)
        return self._places[device]

    def _place(self, device: str) -> str | None:
        parts: list[str] = []
        path = device
        ended = False
        while path.startswith("/sys/devices/") and not ended:
            name = posixpath.basename(path)
            subsystem = self.linked(f"{path}/subsystem")
            if subsystem == "usb-serial":
                port = self.text(f"{path}/port_number")
                parts += [] if port is None else [f"port{port}"]
            elif subsystem == "usb" and (match := _USB.fullmatch(name)):
                hub = _above(path, _ROOT_HUB)
                if hub is None:
                    return None
                release = (self.text(f"{hub}/version") or "2")[:1]
                parts.append(f"usbv{release}-0:{match['ports']}{match['interface'] or ''}")
                path = hub
            elif subsystem == "pci" and _PCI.fullmatch(name):
                parts.append(f"pci-{name}")
                ended = True
            elif subsystem in _NAMED:
                parts.append(f"{subsystem}-{name}")
                ended = True
            path = posixpath.dirname(path)
        return "-".join(reversed(parts)) if ended else None

    def owner(self, device: str) -> str | None:
        """Return the nearest USB device or PCI function, from a device upwards."""
        path = device
        while path.startswith("/sys/devices/"):
            if self.is_usb_device(path) or self.is_pci_function(path):
                return path
            path = posixpath.dirname(path)
        return None

    def interface(self, device: str) -> str | None:
        """Return the USB interface that a device is below, if any, up to its owner."""
        path = device
        while path.startswith("/sys/devices/") and not self.is_usb_device(path):
            if (match := _USB.fullmatch(posixpath.basename(path))) and match["interface"]:
                return path
            path = posixpath.dirname(path)
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


def _text(raw: bytes) -> str | None:
    try:
        text = raw.decode().strip()
    except UnicodeDecodeError:
        return None
    return None if unusable(text) else text


def _above(path: str, name: re.Pattern[str]) -> str | None:
    while path != "/":
        if name.fullmatch(posixpath.basename(path)):
            return path
        path = posixpath.dirname(path)
    return None


@immutable
class SubsystemRoot(BaseRoot):
    """The devices of a class or a bus."""

    subsystem: str

    @property
    def subsystems(self) -> frozenset[str]:
        """Its own."""
        return frozenset({self.subsystem})

    @property
    def base(self) -> str:
        """A name for messages."""
        return f"/sys/{self.subsystem}"

    def read(self, files: HostFiles, _tally: Tally | None = None) -> "SubsystemReading":
        """List the subsystem."""
        sysfs = SysfsTree(files)
        members: dict[str, str] = {}
        missing = True
        # gpio is both: nodes are of the bus, the class is an older interface.
        for directory in (f"/sys/class/{self.subsystem}", f"/sys/bus/{self.subsystem}/devices"):
            found = sysfs.list(directory)
            missing &= found is None
            for name in found or ():
                if (path := sysfs.link(f"{directory}/{name}")) is not None:
                    members[name] = path
        there = {name: members[name] for name in names.natural(members)}
        absent = _absent(self.subsystem, files) if missing else None
        return SubsystemReading(self, files, sysfs, there, missing=absent)


@immutable
class EventsRoot(BaseRoot):
    """Subsystems of which nothing is read: something of them may change what others select."""

    heard: frozenset[str]

    @property
    def subsystems(self) -> frozenset[str]:
        """All of them."""
        return self.heard

    @property
    def base(self) -> str:
        """A name for messages."""
        return "/sys"

    def read(self, files: HostFiles, _tally: Tally | None = None) -> Reading:
        """Read nothing."""
        return Reading(self, files)


@immutable
class NumbersRoot(BaseRoot):
    """All devices that have a number, of all subsystems."""

    @property
    def base(self) -> str:
        """The directory."""
        return "/sys/dev"

    def read(self, files: HostFiles, _tally: Tally | None = None) -> "SubsystemReading":
        """List them."""
        sysfs = SysfsTree(files)
        there: dict[str, str] = {}
        for kind in ("char", "block"):
            for number in sysfs.list(f"/sys/dev/{kind}") or ():
                if (path := sysfs.link(f"/sys/dev/{kind}/{number}")) is not None:
                    there[f"{kind} {number}"] = path
        return SubsystemReading(self, files, sysfs, there)


class SubsystemReading(Reading):
    """The devices of a class or a bus.

    Attributes:
        sysfs: Reads more of them, for all sources once.
        members: Their paths by their names, in natural order.
    """

    def __init__(
        self,
        root: Root,
        files: HostFiles,
        sysfs: SysfsTree,
        members: Mapping[str, str],
        missing: str | None = None,
    ) -> None:
        super().__init__(root, files, missing=missing)
        self.sysfs, self.members = sysfs, members
        self._owned: dict[str, list[tuple[str, str]]] | None = None
        self._made: dict[Callable[[SubsystemReading], object], object] = {}

    def once(self, make: Callable[["SubsystemReading"], T]) -> T:
        """Return what a function makes of it, which is done once for all sources. Blocks."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast("T", self._made[make])

    def below(self, owner: str) -> list[tuple[str, str]]:
        """Return the names and paths of what a USB device or PCI function owns. Blocks."""
        if self._owned is None:
            owned: dict[str, list[tuple[str, str]]] = {}
            for name, syspath in self.members.items():
                above, shown = self.sysfs.owner(syspath), syspath
                if match := _NVME_PATH.fullmatch(name):
                    name = f"{match[1]}{match[2]}"  # noqa: PLW2901
                    shown = self.members.get(name, syspath)
                if above is not None and self.sysfs.text(f"{shown}/partition") is None:
                    owned.setdefault(above, []).append((name, shown))
            self._owned = owned
        return self._owned.get(owner, [])


def _absent(subsystem: str, files: HostFiles) -> str:
    if not os.path.isdir(files.to_local("/sys/devices")):
        where = "/sys" if files.is_host else f"/sys below {files.root}"
        return f"there is no {where}: it is not mounted (the chart mounts the host's)"
    if subsystem in ("usb", "pci"):
        return f"this kernel has no {subsystem.upper()}"
    sysfs = SysfsTree(files)
    known = names.natural({*(sysfs.list("/sys/class") or ()), *(sysfs.list("/sys/bus") or ())})
    near = closest(subsystem, known, _ALIKE)
    hint = f"; did you mean {near}?" if near else ""
    return f"this kernel has no subsystem {subsystem}{hint}"


@immutable
class NodesRoot(BaseRoot):
    """The nodes of devices below /dev.

    Attributes:
        links: Whether udev's links to them are wanted: these come after a device's events, so
            that only the events of their directories tell.
    """

    links: bool = False

    @property
    def base(self) -> str:
        """The directory."""
        return "/dev"

    @property
    def watched(self) -> WatchRoot | None:
        """All of it for the links; what else is there follows from sysfs."""
        return WatchRoot("/dev", recursive=True) if self.links else None

    def read(self, files: HostFiles, tally: Tally | None = None) -> "NodesReading":
        """Read udev's links; nodes are read when a source asks for them."""
        found: dict[str, dict[str, str]] = {by: {} for by in _BY}
        looks = files.cached()
        for directory in (looks.entries("/dev", tally=tally) or ()) if self.links else ():
            above = f"/dev/{directory.name}"
            for by in _BY if directory.is_directory and above not in NOT_DEVICES else ():
                where = f"{above}/{by}"
                for link in names.natural(_names(looks.entries(where, tally=tally) or ())):
                    target = files.resolve(f"{where}/{link}")
                    before = found[by].get(target)
                    if before is None or ("-usbv" in before and "-usbv" not in link):
                        found[by][target] = f"{where}/{link}"
        return NodesReading(self, files, found)


def _names(entries: Iterable[object]) -> list[str]:
    return [entry.name for entry in entries if getattr(entry, "is_link", False)]  # type: ignore[attr-defined]


class NodesReading(Reading):
    """The nodes of devices below /dev.

    Attributes:
        links: By kind (``by-id``, ``by-path``): from a node to udev's link to it.
    """

    def __init__(
        self, root: NodesRoot, files: HostFiles, by: Mapping[str, Mapping[str, str]]
    ) -> None:
        super().__init__(root, files)
        self.by = by

"""The devices of a class or a bus, and the nodes below /dev, as parts of the host to read.

Members of a subsystem are found by their links, never by walking directories: a device that is
being removed loses its links first. Only a subsystem that cannot be listed is a failure.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, TypeVar, cast

from devhost.discovery.roots import NOT_DEVICES, BaseRoot, Reading, Root, WatchRoot
from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import SysfsTree
from devhost.hostfs.tally import Tally
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.spelling import did_you_mean

T = TypeVar("T")

# In these directories, link by link, udev names what it knows by more than a number.
_BY: Final = ("by-id", "by-path")
# Native multipath: the path nvme2c2n1 has no node; the disk is its head nvme2n1.
_NVME_PATH: Final = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)")


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
    known = (*(sysfs.list("/sys/class") or ()), *(sysfs.list("/sys/bus") or ()))
    return f"this kernel has no subsystem {subsystem}{did_you_mean(subsystem, known)}"


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

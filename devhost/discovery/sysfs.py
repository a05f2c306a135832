"""The devices of a class or a bus, and the nodes below /dev, as parts of the host to read.

Members of a subsystem are found by their links, never by walking directories: a device that is
being removed loses its links first. Only a subsystem that cannot be listed is a failure.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, TypeVar, cast

from devhost.allocation.policy import SAFE
from devhost.discovery.roots import NOT_DEVICES, Reading, Root, WatchRoot
from devhost.hostfs.files import CachedFiles, HostFiles, Tally
from devhost.hostfs.sysfs import SysfsTree
from devhost.model import names
from devhost.model.device import LINK_VARIABLES
from devhost.model.immutable import immutable
from devhost.model.spelling import did_you_mean

T = TypeVar("T")

# Native multipath: the path nvme2c2n1 has no node; the disk is its head nvme2n1.
_NVME_PATH: Final = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)")


@immutable
class SubsystemRoot(Root):
    """The devices of a class or a bus.

    Something of the other subsystems that are `heard` may change what is selected of this one.
    """

    subsystem: str
    heard: frozenset[str] = frozenset()

    @property
    def subsystems(self) -> frozenset[str]:
        """Its own, and the others."""
        return self.heard | {self.subsystem}

    def read(self, files: HostFiles, _tally: Tally | None = None) -> "SubsystemReading":
        """List the subsystem."""
        # gpio is both: nodes are of the bus, the class is an older interface.
        where = (f"/sys/class/{self.subsystem}", f"/sys/bus/{self.subsystem}/devices")
        sysfs = SysfsTree(files)
        there = [one for one in where if sysfs.list(one) is not None]
        members = {name: path for one in there for name, path in _members(sysfs, one)}
        missing = None if there else _absent(self.subsystem, files)
        ordered = {name: members[name] for name in names.natural(members)}
        return SubsystemReading(self, files, sysfs, ordered, missing)


@immutable
class NumbersRoot(Root):
    """All devices that have a number, of all subsystems."""

    def read(self, files: HostFiles, _tally: Tally | None = None) -> "SubsystemReading":
        """List them."""
        sysfs = SysfsTree(files)
        there = {
            f"{kind} {number}": path
            for kind in ("char", "block")
            for number, path in _members(sysfs, f"/sys/dev/{kind}")
        }
        return SubsystemReading(self, files, sysfs, there)


def _members(sysfs: SysfsTree, directory: str) -> Iterator[tuple[str, str]]:
    """Yield the links in a directory, and where they lead."""
    for name in sysfs.list(directory) or ():
        if (path := sysfs.link(f"{directory}/{name}")) is not None:
            yield name, path


class SubsystemReading(Reading):
    """The devices of a class or a bus: `members`, their paths by their names, in natural order.

    `sysfs` reads more of them, for all sources once.
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
        self._made: dict[Callable[[SubsystemReading], object], object] = {}

    def once(self, make: Callable[["SubsystemReading"], T]) -> T:
        """Return what a function makes of it, which is done once for all sources. Blocks."""
        if make not in self._made:
            self._made[make] = make(self)
        return cast("T", self._made[make])

    def below(self, owner: str) -> Iterable[tuple[str, str]]:
        """Return the names and paths of what a USB device or PCI function owns. Blocks."""
        return self.once(_by_owner).get(owner, ())


def _by_owner(reading: SubsystemReading) -> dict[str, list[tuple[str, str]]]:
    owned: dict[str, list[tuple[str, str]]] = {}
    for member, syspath in reading.members.items():
        above, name, shown = reading.sysfs.owner(syspath), member, syspath
        if match := _NVME_PATH.fullmatch(member):
            name = f"{match[1]}{match[2]}"
            shown = reading.members.get(name, syspath)
        if above is not None and reading.sysfs.text(f"{shown}/partition") is None:
            owned.setdefault(above, []).append((name, shown))
    return owned


def _absent(subsystem: str, files: HostFiles) -> str:
    if not os.path.isdir(files.to_local("/sys/devices")):
        where = "/sys" if files.is_host else f"/sys below {files.root}"
        return f"there is no {where}: it is not mounted (the chart mounts the host's)"
    sysfs = SysfsTree(files)
    there = {*(sysfs.list("/sys/class") or ()), *(sysfs.list("/sys/bus") or ())}
    hint = "" if subsystem in SAFE else did_you_mean(subsystem, there & {*SAFE, "tty"})
    return f"this kernel has no subsystem {subsystem}{hint}"


@immutable
class NodesRoot(Root):
    """The nodes of devices below /dev.

    Udev makes its `links` to them after a device's events: only those of their directories tell.
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
        reading, looks = NodesReading(self, files), CachedFiles(files)
        for directory in (looks.entries("/dev", tally=tally) or ()) if self.links else ():
            above = f"/dev/{directory.name}"
            if not directory.is_directory or above in NOT_DEVICES:
                continue
            for by in LINK_VARIABLES.values():
                entries = looks.entries(f"{above}/{by}", tally=tally) or ()
                for link in names.natural(one.name for one in entries if one.is_link):
                    path, found = f"{above}/{by}/{link}", reading.by[by]
                    target = files.resolve(path)
                    before = found.get(target)
                    if before is None or ("-usbv" in before and "-usbv" not in link):
                        found[target] = path
        return reading


class NodesReading(Reading):
    """The nodes of devices below /dev; `by` kind (``by-id``, ``by-path``), udev's links to them."""

    def __init__(self, root: NodesRoot, files: HostFiles) -> None:
        super().__init__(root, files)
        self.by: dict[str, dict[str, str]] = {by: {} for by in LINK_VARIABLES.values()}

    def links_to(self, path: str) -> dict[str, str]:
        """Return udev's links to a node, by the variables that templates have of them."""
        found = ((name, self.by[by].get(path)) for name, by in LINK_VARIABLES.items())
        return {name: link for name, link in found if link is not None}

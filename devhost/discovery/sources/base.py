"""The parts of the host that sources look at: each is read once for all sources that name it."""

import functools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from devhost.hostfs.device_classes import SAFE_CLASSES, may_be_proposed
from devhost.hostfs.files import CachedFiles, HostFiles, Tally, Walk, describe_read_error, is_wild
from devhost.hostfs.mounts import BlockUse
from devhost.hostfs.sysfs import SysfsDevice, SysfsTree, bus_devices
from devhost.model import names
from devhost.model.device import LINK_VARIABLES, NO_VARIABLES, FileState, Hardware
from devhost.model.immutable import immutable
from devhost.model.spelling import did_you_mean

# Filesystems that hold no devices to hand out, but may hold very many files that anybody may make.
# Only a source that names one of them as its directory looks into it.
NOT_DEVICES: Final = frozenset(
    f"/dev/{name}" for name in ("fd", "hugepages", "mqueue", "pts", "shm")
)
# Native multipath: the path nvme2c2n1 has no node; the disk is its head nvme2n1.
_NVME_PATH: Final = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)")


@immutable
class WatchedDirectory:
    """A host directory whose events report changes of a root."""

    path: str
    recursive: bool = False


class Location:
    """A part of the host; equal ones are the same part."""

    __slots__ = ()

    @property
    def base(self) -> str:
        """The host path, without a slash at its end, before the names that are read."""
        return ""

    @property
    def watched(self) -> WatchedDirectory | None:
        """The directory to watch, if any."""
        return None

    @property
    def subsystems(self) -> frozenset[str]:
        """The subsystems whose device events report changes of it."""
        return frozenset()

    def read(self, files: HostFiles, tally: Tally, /) -> "Listing":
        """Read it, and count what is read. Blocks.

        What is wrong with one entry, or below it, is no failure.
        """
        raise NotImplementedError


class Listing:
    """What one reading of a root has found.

    A name is read when the first source asks for it, once for all sources.

    Attributes:
        names: The paths below its base, in natural order; `links` are those that are links.
        unreadable: Why entries, or what is below them, cannot be read.
        beside: What is there instead of a single path.
        missing: Why there is nothing to read, where that is no failure.
    """

    def __init__(
        self,
        root: Location,
        files: HostFiles,
        found: Iterable[str] = (),
        *,
        links: Iterable[str] = (),
        unreadable: Mapping[str, str] | None = None,
        missing: str | None = None,
        failure: str | None = None,
        beside: Sequence[str] = (),
        looks: CachedFiles | None = None,
    ) -> None:
        self.root, self._files, self._looks = root, files, looks or CachedFiles(files)
        self._base = root.base
        self.names: Sequence[str] = names.natural(found)
        self.links = frozenset(links)
        self.unreadable = unreadable or {}
        self.beside = beside
        self.missing, self.failure = missing, failure
        self._states: dict[str, FileState | None] = {}

    @functools.cached_property
    def block_use(self) -> BlockUse:
        """What uses block devices."""
        return BlockUse(self._files)

    def path(self, name: str) -> str:
        """Return the host path of a name."""
        return f"{self._base}/{name}"

    def state(self, name: str, former: FileState | None = None) -> FileState | None:
        """Return what is at a name; ``None`` where it leads nowhere, or an `OSError`. Blocks.

        What is as it was before is the same object.
        """
        if name not in self._states:
            self._states[name] = self._looks.stat(self.path(name), former)
        return self._states[name]


@immutable
class DirectoryLocation(Location):
    """What matches a glob below a directory; wildcards match `hidden` names if that is set."""

    path: str
    glob: str = "*"
    hidden: bool = True

    @property
    def base(self) -> str:
        """The directory."""
        return self.path.rstrip("/")

    @property
    def watched(self) -> WatchedDirectory:
        """The directory, and where the glob leads further, all below it."""
        return WatchedDirectory(self.path, self.glob == "**" or "/" in self.glob)

    def read(self, files: HostFiles, tally: Tally) -> Listing:
        """Find what matches."""
        walk = Walk(files, self.base, self.glob, tally, hidden=self.hidden, leave_out=NOT_DEVICES)
        beside = [] if walk.matches else files.entries(self.path)
        return Listing(
            self,
            files,
            walk.matches,
            links=(name for name, is_link in walk.matches.items() if is_link),
            unreadable=walk.unreadable,
            missing=_absent(files, self.path) if beside is None else None,
            looks=walk.files,
            beside=[] if is_wild(self.glob) else [one.name for one in beside or ()],
        )


def read(root: Location, files: HostFiles, tally: Tally | None = None) -> Listing:
    """Read a root; where that fails, the listing says why. Blocks."""
    try:
        return root.read(files, tally or Tally())
    except OSError as error:
        return Listing(root, files, failure=describe_read_error(error))


def _absent(files: HostFiles, directory: str) -> str:
    """Say why there is no such directory."""
    if files.stat(directory) is not None:
        return f"{directory} is not a directory"
    hint = ""
    if directory.startswith("/dev/"):
        above, _, name = directory.rstrip("/").rpartition("/")
        beside = (one.name for one in files.entries(above) or ())
        hint = did_you_mean(name, (one for one in beside if may_be_proposed(f"{above}/{one}")))
    if files.is_host:
        return f"{directory} does not exist yet{hint}"
    why = "it is not there yet, or not mounted (the chart's hostPaths)"
    return f"{directory} does not exist below {files.root}: {why}{hint}"


def has_no_events(path: str) -> bool:
    """Whether there are no events at a path: the kernel makes up what is there."""
    return f"{path}/".startswith(("/sys/", "/proc/"))


Listings = Mapping[Location, Listing]


@immutable
class Candidate:
    """What a source finds, before it is judged.

    Attributes:
        path: The host path as matched; empty for a token.
        name: The device ID that the source gives by default.
        excluded: Why it is not to be offered, by the source's own options.
        at: What was read, and its name there; ``None`` for a token.
    """

    path: str
    name: str
    variables: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)
    excluded: str | None = None
    at: tuple[Listing, str] | None = None
    hardware: Hardware | None = None


@immutable
class Unmatched:
    """What a source has looked at and does not select.

    By option that it fails, `mismatches` says what it has instead; an empty key has a sentence.
    """

    name: str
    mismatches: Mapping[str, str]


# ── what the kernel says of devices, and their nodes below /dev ──


@immutable
class SubsystemLocation(Location):
    """The devices of a class or a bus.

    Something of the other subsystems that are `heard` may change what is selected of this one.
    They are found by their links, never by walking directories: a device that is being removed
    loses its links first. Only a subsystem that cannot be listed is a failure.
    """

    subsystem: str
    heard: frozenset[str] = frozenset()

    @property
    def subsystems(self) -> frozenset[str]:
        """Its own, and the others."""
        return self.heard | {self.subsystem}

    def read(self, files: HostFiles, _tally: Tally | None = None) -> "SubsystemListing":
        """List the subsystem."""
        # gpio is both: nodes are of the bus, the class is an older interface.
        where = (f"/sys/class/{self.subsystem}", f"/sys/bus/{self.subsystem}/devices")
        sysfs = SysfsTree(files)
        there = [one for one in where if sysfs.list(one) is not None]
        members = {name: path for one in there for name, path in _members(sysfs, one)}
        missing = None if there else _no_subsystem(self.subsystem, files)
        ordered = {name: members[name] for name in names.natural(members)}
        return SubsystemListing(self, files, sysfs, ordered, missing)


@immutable
class NumbersLocation(Location):
    """All devices that have a number, of all subsystems."""

    def read(self, files: HostFiles, _tally: Tally | None = None) -> "SubsystemListing":
        """List them."""
        sysfs = SysfsTree(files)
        there = {
            f"{kind} {number}": path
            for kind in ("char", "block")
            for number, path in _members(sysfs, f"/sys/dev/{kind}")
        }
        return SubsystemListing(self, files, sysfs, there)


def _members(sysfs: SysfsTree, directory: str) -> Iterator[tuple[str, str]]:
    """Yield the links in a directory, and where they lead."""
    for name in sysfs.list(directory) or ():
        if (path := sysfs.link(f"{directory}/{name}")) is not None:
            yield name, path


def _no_subsystem(subsystem: str, files: HostFiles) -> str:
    if not os.path.isdir(files.to_local("/sys/devices")):
        where = "/sys" if files.is_host else f"/sys below {files.root}"
        return f"there is no {where}: it is not mounted (the chart mounts the host's)"
    sysfs = SysfsTree(files)
    there = {*(sysfs.list("/sys/class") or ()), *(sysfs.list("/sys/bus") or ())}
    proposed = there & {*SAFE_CLASSES, "tty"} if subsystem not in SAFE_CLASSES else ()
    return f"this kernel has no subsystem {subsystem}{did_you_mean(subsystem, proposed)}"


class SubsystemListing(Listing):
    """The devices of a class or a bus: `members`, their paths by their names, in natural order.

    `sysfs` reads more of them, for all sources once. All methods block.
    """

    def __init__(
        self,
        root: Location,
        files: HostFiles,
        sysfs: SysfsTree,
        members: Mapping[str, str],
        missing: str | None = None,
    ) -> None:
        super().__init__(root, files, missing=missing)
        self.sysfs, self.members = sysfs, members

    @functools.cached_property
    def devices(self) -> Sequence[SysfsDevice]:
        """The USB devices and PCI functions."""
        return bus_devices(self.members.values(), self.sysfs)

    def below(self, owner: str) -> Sequence[str]:
        """Return what a USB device or PCI function owns."""
        return self._by_owner.get(owner, ())

    @functools.cached_property
    def _by_owner(self) -> Mapping[str, Sequence[str]]:
        owned: dict[str, list[str]] = {}
        for member, syspath in self.members.items():
            above, shown = self.sysfs.owner(syspath), syspath
            if match := _NVME_PATH.fullmatch(member):
                shown = self.members.get(f"{match[1]}{match[2]}", syspath)
            if above is not None and self.sysfs.text(f"{shown}/partition") is None:
                owned.setdefault(above, []).append(shown)
        return owned


@immutable
class NodesLocation(Location):
    """The nodes of devices below /dev.

    Udev makes its `links` to them after a device's events: only those of their directories tell.
    """

    links: bool = False

    @property
    def base(self) -> str:
        """The directory."""
        return "/dev"

    @property
    def watched(self) -> WatchedDirectory | None:
        """All of it for the links; what else is there follows from sysfs."""
        return WatchedDirectory("/dev", recursive=True) if self.links else None

    def read(self, files: HostFiles, tally: Tally | None = None) -> "NodesListing":
        """Read udev's links; nodes are read when a source asks for them."""
        listing, looks = NodesListing(self, files), CachedFiles(files)
        for directory in (looks.entries("/dev", tally=tally) or ()) if self.links else ():
            above = f"/dev/{directory.name}"
            if not directory.is_dir(follow_symlinks=False) or above in NOT_DEVICES:
                continue
            for variable, by in LINK_VARIABLES.items():
                entries = looks.entries(f"{above}/{by}", tally=tally) or ()
                for link in names.natural(one.name for one in entries if one.is_symlink()):
                    path = f"{above}/{by}/{link}"
                    listing.udev.setdefault(files.resolve(path), {}).setdefault(variable, path)
        return listing


class NodesListing(Listing):
    """The nodes of devices below /dev; `udev` has the first links to each node, by variable."""

    def __init__(self, root: NodesLocation, files: HostFiles) -> None:
        super().__init__(root, files)
        self.udev: dict[str, dict[str, str]] = {}

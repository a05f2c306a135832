"""The locations of the kernel's devices: subsystems below /sys, and their nodes below /dev."""

import functools
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.hostfs.files import CachedFiles, HostFiles, Tally
from devhost.hostfs.kernel_devices import SysfsDevice, bus_device
from devhost.hostfs.nvidia import NAME as NVIDIA
from devhost.hostfs.sysfs import SysfsTree
from devhost.model import names
from devhost.model.device_node import LINK_VARIABLES
from devhost.sources.base import NOT_DEVICES, Listing, Location, WatchedDirectory
from devhost.sources.file_sources import FileListing

# Native multipath: the path nvme2c2n1 has no node; the disk is its head nvme2n1.
_NVME_PATH: Final = re.compile(r"(nvme[0-9]+)c[0-9]+(n[0-9]+)")


@dataclass(frozen=True, slots=True)
class SubsystemLocation(Location):
    """The devices of a class or a bus.

    Events of the `extra_subsystems`, too, may change what is selected of this one. Devices are
    found by their links, never by walking directories: a device that is being removed loses its
    links first. Only a subsystem that cannot be listed is a failure.
    """

    subsystem: str
    extra_subsystems: frozenset[str] = frozenset()

    @property
    def subsystems(self) -> frozenset[str]:
        """Its own, and the extra ones; of NVIDIA's driver, only its functions have events."""
        return self.extra_subsystems | ({"pci"} if self.subsystem == NVIDIA else {self.subsystem})

    @property
    def watched(self) -> WatchedDirectory | None:
        """The directory in which a program makes NVIDIA's nodes, some time after any event."""
        return WatchedDirectory("/dev") if self.subsystem == NVIDIA else None

    def list(self, files: HostFiles, _tally: Tally | None = None) -> "SubsystemListing":
        """List the subsystem."""
        # gpio is both: nodes are of the bus, the class is an older interface.
        directories = (f"/sys/class/{self.subsystem}", f"/sys/bus/{self.subsystem}/devices")
        sysfs = SysfsTree(files)
        present = [path for path in directories if sysfs.list(path) is not None]
        members = {name: syspath for path in present for name, syspath in _links(sysfs, path)}
        missing = None if present else _explain_missing(self.subsystem, files)
        ordered = {name: members[name] for name in names.natural(members)}
        return SubsystemListing(members=ordered, sysfs=sysfs, missing=missing)


@dataclass(frozen=True, slots=True)
class NumbersLocation(Location):
    """All devices that have a number, of all subsystems."""

    def list(self, files: HostFiles, _tally: Tally | None = None) -> "SubsystemListing":
        """List them."""
        sysfs = SysfsTree(files)
        members = {
            f"{kind} {number}": syspath
            for kind in ("char", "block")
            for number, syspath in _links(sysfs, f"/sys/dev/{kind}")
        }
        return SubsystemListing(members=members, sysfs=sysfs)


def _links(sysfs: SysfsTree, directory: str) -> Iterator[tuple[str, str]]:
    """Yield the links in a directory, and where they lead."""
    for name in sysfs.list(directory) or ():
        if (syspath := sysfs.link(f"{directory}/{name}")) is not None:
            yield name, syspath


def _explain_missing(subsystem: str, files: HostFiles) -> str:
    if not os.path.isdir(files.to_local("/sys/devices")):
        where = "/sys" if files.is_host else f"/sys below {files.root}"
        return f"there is no {where}: it is not mounted (the chart mounts the host's)"
    return f"this kernel has no subsystem {subsystem}"


@dataclass(eq=False, kw_only=True)
class SubsystemListing(Listing):
    """The devices of a class or a bus. All methods block.

    Attributes:
        members: Their paths in sysfs by their names, in natural order.
        sysfs: Reads more of them, for all sources once.
    """

    members: Mapping[str, str]
    sysfs: SysfsTree

    @functools.cached_property
    def devices(self) -> Sequence[SysfsDevice]:
        """The USB devices and PCI functions."""
        devices = (bus_device(path, self.sysfs) for path in self.members.values())
        return [device for device in devices if device is not None]

    def below(self, owner: str) -> Sequence[str]:
        """Return the members that a USB device or PCI function owns."""
        return self._by_owner.get(owner, ())

    @functools.cached_property
    def _by_owner(self) -> Mapping[str, Sequence[str]]:
        owned: dict[str, list[str]] = {}
        for name, syspath in self.members.items():
            owner, node = self.sysfs.owner(syspath), syspath
            if match := _NVME_PATH.fullmatch(name):
                node = self.members.get(f"{match[1]}{match[2]}", syspath)
            if owner is not None and self.sysfs.text(f"{node}/partition") is None:
                owned.setdefault(owner, []).append(node)
        return owned


@dataclass(frozen=True, slots=True)
class NodesLocation(Location):
    """The nodes of devices below /dev.

    Udev makes its `links` to them after a device's events: only their directories report them.
    """

    links: bool = False

    @property
    def watched(self) -> WatchedDirectory | None:
        """All of it for the links; what else is there follows from sysfs."""
        return WatchedDirectory("/dev", recursive=True) if self.links else None

    def list(self, files: HostFiles, tally: Tally | None = None) -> "NodesListing":
        """List udev's links; nodes are read when a source asks for them."""
        listing, cache = NodesListing(files=files), CachedFiles(files)
        for directory in (cache.entries("/dev", tally=tally) or ()) if self.links else ():
            above = f"/dev/{directory.name}"
            if not directory.is_dir(follow_symlinks=False) or above in NOT_DEVICES:
                continue
            for variable, by in LINK_VARIABLES.items():
                entries = cache.entries(f"{above}/{by}", tally=tally) or ()
                links = names.natural(entry.name for entry in entries if entry.is_symlink())
                for path in (f"{above}/{by}/{link}" for link in links):
                    listing.udev.setdefault(files.resolve(path), {}).setdefault(variable, path)
        return listing


@dataclass(eq=False, kw_only=True)
class NodesListing(FileListing):
    """The nodes of devices below /dev; `udev` has the first links to each node, by variable."""

    udev: dict[str, dict[str, str]] = field(default_factory=dict)

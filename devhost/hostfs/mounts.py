"""The mounts, swaps and consoles in the kernel's files in procfs, and the devices that they use.

Lines end with a line feed, fields are separated by a space. These, tabs and backslashes are
escaped in the fields, and nothing else is: any other character that Python takes for white space
or for the end of a line may be part of a name.
"""

import functools
import os
import posixpath
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import Number, SysfsTree, ancestor_devices, number_of, sysfs_by_number

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")
_HIDING: Final = ("bcachefs", "btrfs", "zfs")  # their mounts have the number of no disk
_COMMANDS: Final = ("bsg", "nvme", "nvme-generic", "scsi_generic")  # for commands to disks
_OF_SYSTEM: Final = ("/", "/boot", "/boot/efi", "/usr", "/var")  # not always all on the disk of /


def read_mounts(path: str) -> Iterator[tuple[Number, str, str, str]]:
    """Yield the mounts in a file such as ``/proc/self/mountinfo``, none if it does not exist.

    A mount is the number of its filesystem, as its files have it, the mount point, the source and
    the type.
    """
    for line in read_lines(path):
        mount, _, filesystem = line.partition(" - ")
        fields = mount.split(" ")
        if len(fields) > 4 and (number := number_of(fields[2])) is not None:
            kind, source, *_ = [*filesystem.split(" "), ""]
            yield number, _unescaped(fields[4]), _unescaped(source), kind


def read_swaps(path: str) -> Iterator[str]:
    """Yield the paths in a file such as ``/proc/swaps``, none if it does not exist."""
    for line in read_lines(path)[1:]:
        if name := line.partition(" ")[0].partition("\t")[0]:
            yield _unescaped(name)


def read_lines(path: str) -> list[str]:
    """Return the lines of a file; none if it cannot be read."""
    try:
        return Path(path).read_bytes().decode("utf-8", "surrogateescape").split("\n")
    except OSError:
        return []


def _unescaped(field: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), field)


class HostUse:
    """The host's own use of its devices at one moment, read once, when it is needed."""

    def __init__(self, files: HostFiles) -> None:
        self._files, self._sysfs = files, sysfs_by_number(files)

    @functools.cached_property
    def used(self) -> frozenset[Number]:
        """The device numbers that are mounted or swapped on. Blocks."""
        return frozenset(filter(None, (*self._mounted(), *self._swapped()))).union(*self._joined())

    @functools.cached_property
    def _consoles(self) -> frozenset[str]:
        """The names and numbers of what the kernel's messages go to. Blocks."""
        active = self._sysfs.text("/sys/class/tty/console/active") or ""
        rows = [line.split() for line in self.lines("/proc/consoles", "/proc/consoles")]
        return frozenset(("console", *active.split(), *(row[at] for row in rows for at in (0, -1))))

    @functools.cached_property
    def _system(self) -> tuple[str, ...]:
        """The directories in sysfs of what the system's disks are parts of. Blocks."""
        points, sysfs = (*_OF_SYSTEM, self._files.root), self._sysfs
        numbers = set(filter(None, self._mounted(points)))
        numbers.update(*(joined for joined in self._joined() if numbers & joined))
        places = {sysfs.device_by_number("block", number) for number in numbers}
        disks = [disk for place in places if place for disk in sysfs.parts(place)]
        chains = [(*ancestor_devices(disk, sysfs), disk) for disk in disks]
        return tuple(f"{next(filter(sysfs.is_usb_device, chain), chain[0])}/" for chain in chains)

    @functools.cached_property
    def _hides_disks(self) -> bool:
        """Whether the system is on a filesystem that does not tell its disks. Blocks."""
        views = self._views("/proc/1/mountinfo", "/proc/self/mountinfo")
        return any(
            kind in _HIDING and point in _OF_SYSTEM and not _node_number(source, files, "/dev/")
            for path, files in views
            for _, point, source, kind in read_mounts(path)
        )

    def doubt(self, kind: str, number: Number) -> str | None:
        """Return why a disk, or a node for its commands, may be the system's. Blocks."""
        place = self._sysfs.device_by_number(kind, number) or ""
        is_disk = kind == "block" or self._sysfs.link_name(f"{place}/subsystem") in _COMMANDS
        if not is_disk or not self._hides_disks or place.startswith("/sys/devices/virtual/block/"):
            return None
        return "perhaps the system's disk, which its filesystem hides"

    def problem(self, kind: str, number: Number) -> str | None:
        """Return how the host uses a device, its disk or partitions; ``None``: not. Blocks."""
        sysfs = self._sysfs
        place = sysfs.device_by_number(kind, number) or f"/sys/dev/{kind}/{number[0]}:{number[1]}"
        if sysfs.link_name(f"{place}/subsystem") == "tty":
            names = {posixpath.basename(place), "{}:{}".format(*number)}
            return None if names.isdisjoint(self._consoles) else "a console"
        if any(f"{disk}/".startswith(self._system) for disk in sysfs.parts(place)):
            return "the system's disk"
        if kind == "char":
            return None
        relations = {place: ""}
        if sysfs.text(f"{place}/partition") is not None:
            relations[posixpath.dirname(place)] = "its disk"
        for name in sysfs.names(place):
            if sysfs.text(f"{place}/{name}/partition") is not None:
                relations[f"{place}/{name}"] = "its partition"
        for path, relation in relations.items():
            subject = f"{relation} {posixpath.basename(path)} is " if relation else ""
            if (number_of(sysfs.text(f"{path}/dev")) if relation else number) in self.used:
                return f"{subject}mounted or swapped on"
            if sysfs.names(f"{path}/holders"):
                return f"{subject}held by another block device"
        return None

    def lines(self, path: str, process_path: str) -> list[str]:
        """Return the lines of a file of /proc, and of this process's own. Blocks."""
        views = self._views(path, process_path)
        return [line for local, _ in views for line in read_lines(local) if line]

    def _views(self, path: str, process_path: str) -> Iterator[tuple[str, HostFiles]]:
        """Yield a file of /proc below the root, and this process's own, with the files they name.

        The latter counts too: where the host's /proc is not mounted, the bind mounts of a container
        still show the disks that they come from.
        """
        yield self._files.to_local(path), self._files
        if not self._files.is_copy:
            yield process_path, HostFiles()

    def _mounted(self, points: Sequence[str] = ()) -> Iterator[Number | None]:
        for path, files in self._views("/proc/1/mountinfo", "/proc/self/mountinfo"):
            for number, point, source, _ in read_mounts(path):
                if not points or point in points:
                    yield number
                    yield _node_number(source, files, "/dev/")

    def _swapped(self) -> Iterator[Number | None]:
        for path, files in self._views("/proc/swaps", "/proc/swaps"):
            for name in read_swaps(path):
                yield _node_number(name, files)

    def _joined(self) -> Iterator[frozenset[Number]]:
        """Yield the disks of each mounted btrfs, whose mount has the number of none of them."""
        files, top = self._files, "/sys/fs/btrfs"  # the chart does not mount it
        has_top = os.path.isdir(files.to_local(top)) or self._files.is_copy
        sysfs = SysfsTree(files if has_top else HostFiles())
        for devices in (f"{top}/{uuid}/devices" for uuid in sysfs.names(top)):
            links = (f"{devices}/{device}" for device in sysfs.names(devices))
            texts = (sysfs.text(f"{sysfs.link(link) or link}/dev") for link in links)
            yield frozenset(filter(None, map(number_of, texts)))


def _node_number(path: str, files: HostFiles, below: str = "/") -> Number | None:
    try:
        state = files.stat(path) if path.startswith(below) else None
    except OSError:
        return None
    return state.number if state else None

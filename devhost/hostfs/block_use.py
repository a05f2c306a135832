"""Which block devices the machine itself uses: mounted, swapped on, or held by another."""

import contextlib
import os
import posixpath
from collections.abc import Iterator

from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import Number, mounts, number_of, swapped
from devhost.hostfs.sysfs import SysfsTree, sysfs_by_number


class BlockUse:
    """What uses block devices at one moment: found out once, when it is asked for."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._used: frozenset[Number] | None = None

    def of(self, number: Number) -> str | None:
        """Return why a block device is in use; ``None`` if it is not. Blocks."""
        if self._used is None:
            self._used = in_use(self._files)
        return use_of(number, self._used, self._files)


def in_use(files: HostFiles) -> frozenset[Number]:
    """Return the device numbers that are mounted or swapped on."""
    return frozenset((*_mounted(files), *_swapped(files), *_joined(files)))


def use_of(number: Number, used: frozenset[Number], files: HostFiles) -> str | None:
    """Return why a block device is in use: itself, by a partition, or by its disk as a whole.

    ``None`` if it is not.
    """
    if number in used:
        return "mounted or swapped on"
    sysfs = sysfs_by_number(files)
    link = f"/sys/dev/block/{number[0]}:{number[1]}"
    place = sysfs.link(link) or link
    if _names(sysfs, f"{place}/holders"):
        return "held by another block device"
    is_partition = sysfs.private(f"{place}/partition") is not None
    disk = posixpath.dirname(place)
    others = {disk: "its disk"} if is_partition else {}
    for name in _names(sysfs, place):
        if sysfs.private(f"{place}/{name}/partition") is not None:
            others[f"{place}/{name}"] = "its partition"
    for other, what in others.items():
        name = posixpath.basename(other)
        if _number(sysfs, other) in used:
            return f"{what} {name} is mounted or swapped on"
        if _names(sysfs, f"{other}/holders"):
            return f"{what} {name} is held by another block device"
    return None


def _names(sysfs: SysfsTree, directory: str) -> list[str]:
    """Return what is there; nothing of a device that is being unplugged."""
    try:
        return sysfs.list(directory) or []
    except OSError:
        return []


def _number(sysfs: SysfsTree, place: str) -> Number | None:
    with contextlib.suppress(ValueError):
        return number_of(sysfs.private(f"{place}/dev") or "")
    return None


def _views(path: str, own: str, files: HostFiles) -> Iterator[tuple[str, HostFiles]]:
    """Yield a file of /proc below the root, and this process's own with the files that it names.

    The latter counts too: where the host's /proc is not mounted, the bind mounts of a container
    still show the disks that they come from.
    """
    yield files.to_local(path), files
    if not files.is_another_machine:
        yield own, HostFiles()


def _mounted(files: HostFiles) -> Iterator[Number]:
    for path, seen in _views("/proc/1/mountinfo", "/proc/self/mountinfo", files):
        for mount in mounts(path):
            yield mount.number
            if mount.source.startswith("/dev/"):
                yield from _node(mount.source, seen)


def _swapped(files: HostFiles) -> Iterator[Number]:
    for path, seen in _views("/proc/swaps", "/proc/swaps", files):
        for name in swapped(path):
            yield from _node(name, seen)


def _joined(files: HostFiles) -> Iterator[Number]:
    """Yield what a mounted btrfs consists of: its mount has no device's number, and names one."""
    top = "/sys/fs/btrfs"  # the chart does not mount it
    alone = os.path.isdir(files.to_local(top)) or files.is_another_machine
    sysfs = SysfsTree(files if alone else HostFiles())
    for uuid in _names(sysfs, top):
        for device in _names(sysfs, f"{top}/{uuid}/devices"):
            link = f"{top}/{uuid}/devices/{device}"
            if (number := _number(sysfs, sysfs.link(link) or link)) is not None:
                yield number


def _node(path: str, files: HostFiles) -> Iterator[Number]:
    with contextlib.suppress(OSError):
        state = files.stat(path)
        if state and state.number:
            yield state.number

"""Which block devices the machine itself uses: mounted, swapped on, or held by another."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import Number, mounts, number_of, swapped


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
    sysfs = _sysfs(files, "dev/block") / f"{number[0]}:{number[1]}"
    if _held(sysfs):
        return "held by another block device"
    for partition in _found(sysfs, "*/partition"):
        if _number(partition.parent) in used:
            return f"its partition {partition.parent.name} is mounted or swapped on"
        if _held(partition.parent):
            return f"its partition {partition.parent.name} is held by another block device"
    if (sysfs / "partition").exists():
        disk = sysfs.resolve().parent
        if _number(disk) in used:
            return f"its disk {disk.name} is mounted or swapped on"
        if _held(disk):
            return f"its disk {disk.name} is held by another block device"
    return None


def _sysfs(files: HostFiles, place: str) -> Path:
    below = Path(files.to_local(f"/sys/{place}"))
    alone = below.is_dir() or files.is_another_machine
    return below if alone else Path("/sys", place)


def _held(sysfs: Path) -> bool:
    try:
        return any((sysfs / "holders").iterdir())
    except OSError:
        return False


def _found(sysfs: Path, pattern: str) -> list[Path]:
    """Return what is there; nothing of a device that is being unplugged."""
    try:
        return list(sysfs.glob(pattern))
    except OSError:
        return []


def _number(sysfs: Path) -> Number | None:
    with contextlib.suppress(OSError, ValueError):
        return number_of((sysfs / "dev").read_text())
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
    for device in _found(_sysfs(files, "fs/btrfs"), "*/devices/*"):
        if (number := _number(device)) is not None:
            yield number


def _node(path: str, files: HostFiles) -> Iterator[Number]:
    with contextlib.suppress(OSError):
        state = files.stat(path)
        if state and state.number:
            yield state.number

"""Which block devices the machine itself uses: mounted, swapped on, or held by another."""

from collections.abc import Iterator
from pathlib import Path

from devhost.discovery.host_files import HostFiles

Number = tuple[int, int]


def in_use(files: HostFiles) -> frozenset[Number]:
    """Return the device numbers that are mounted or swapped on."""
    return frozenset(_mounted(files)) | frozenset(_swapped(files))


def use_of(number: Number, used: frozenset[Number], files: HostFiles) -> str | None:
    """Return why a block device is in use, itself or by a partition; ``None`` if it is not."""
    if number in used:
        return "mounted or swapped on"
    sysfs = _sysfs(files) / f"{number[0]}:{number[1]}"
    if _held(sysfs):
        return "held by another block device"
    for partition in sysfs.glob("*/partition"):
        numbers = (partition.parent / "dev").read_text().strip()
        if _number(numbers) in used:
            return f"its partition {partition.parent.name} is mounted or swapped on"
        if _held(partition.parent):
            return f"its partition {partition.parent.name} is held by another block device"
    return None


def _sysfs(files: HostFiles) -> Path:
    below = Path(files.here("/sys/dev/block"))
    return below if below.is_dir() else Path("/sys/dev/block")


def _held(sysfs: Path) -> bool:
    holders = sysfs / "holders"
    return holders.is_dir() and any(holders.iterdir())


def _mounted(files: HostFiles) -> Iterator[Number]:
    # This process's own view counts too: where the host's /proc is not mounted, the bind
    # mounts of a container still show the disks that they come from.
    views = [(files.here("/proc/1/mountinfo"), files), ("/proc/self/mountinfo", HostFiles())]
    for path, seen in views:
        for line in _lines(path):
            fields = line.split(" ")
            if len(fields) > 2:
                yield _number(fields[2])
            source = fields[fields.index("-") + 2] if "-" in fields else ""
            if source.startswith("/dev/"):
                yield from _node(source, seen)


def _swapped(files: HostFiles) -> Iterator[Number]:
    for path, seen in [(files.here("/proc/swaps"), files), ("/proc/swaps", HostFiles())]:
        for line in _lines(path)[1:]:
            yield from _node(line.split()[0], seen)


def _node(path: str, files: HostFiles) -> Iterator[Number]:
    state = files.look(path)
    if state and state.number:
        yield state.number


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(errors="replace").splitlines()
    except OSError:
        return []


def _number(text: str) -> Number:
    major, _, minor = text.partition(":")
    return int(major), int(minor)

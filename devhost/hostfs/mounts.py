"""What is mounted and swapped on, as the kernel tells it.

Its lines end with a line feed and have fields with a blank between them. These, tabs and
backslashes are escaped in the fields, and nothing else is: any other character that Python
takes for a blank or for the end of a line may be part of a name.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devhost.immutable import immutable

Number = tuple[int, int]

_POINT: Final = 4  # the field of a mount's own path
_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


def by_directory(path: str) -> dict[str, frozenset[str]]:
    """Return what is mounted where, as a file such as ``/proc/self/mountinfo`` tells.

    Returns:
        By directory: its entries on which something is mounted, each with the mount's number.
    """
    found: dict[str, set[str]] = {}
    for line in _lines(path):
        fields = line.split(" ", 5)
        if len(fields) > _POINT:
            directory, _, name = _unescaped(fields[_POINT]).rpartition("/")
            found.setdefault(directory or "/", set()).add(f"{name} {fields[0]}")
    return {directory: frozenset(entries) for directory, entries in found.items()}


@immutable
class Mount:
    """A mount.

    Attributes:
        number: The major and minor of its filesystem, as files there have it.
        point: Where it is mounted.
        kind: The kind of filesystem.
        source: What was named to be mounted.
        options: Of the filesystem, not of this mount of it.
    """

    number: Number
    point: str
    kind: str
    source: str
    options: tuple[str, ...]


def mounts(path: str) -> Iterator[Mount]:
    """Yield what a file such as ``/proc/self/mountinfo`` tells, if it is there."""
    for line in _lines(path):
        place, _, filesystem = line.partition(" - ")
        kind, source, options = [*filesystem.split(" ", 2), "", "", ""][:3]
        try:
            number, point = number_of(place.split(" ")[2]), _unescaped(place.split(" ")[4])
        except (IndexError, ValueError):
            continue
        yield Mount(number, point, kind, _unescaped(source), tuple(options.split(",")))


def swapped(path: str) -> Iterator[str]:
    """Yield the paths that a file such as ``/proc/swaps`` tells, if it is there."""
    for line in _lines(path)[1:]:
        if name := line.partition(" ")[0].partition("\t")[0]:
            yield _unescaped(name)


def number_of(text: str) -> Number:
    """Return a device's number.

    Raises:
        ValueError: It is none.
    """
    major, _, minor = text.partition(":")
    return int(major), int(minor)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_bytes().decode("utf-8", "surrogateescape").split("\n")
    except OSError:
        return []


def _unescaped(field: str) -> str:
    return _ESCAPED.sub(lambda found: chr(int(found[1], 8)), field)

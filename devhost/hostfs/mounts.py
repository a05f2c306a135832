"""What is mounted and swapped on, from the kernel's files in procfs.

Lines end with a line feed, fields are separated by a space. These, tabs and backslashes are
escaped in the fields, and nothing else is: any other character that Python takes for white space
or for the end of a line may be part of a name.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devhost.immutable import immutable

Number = tuple[int, int]

_ESCAPED: Final = re.compile(r"\\([0-7]{3})")


@immutable
class HostMount:
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


def mounts(path: str) -> Iterator[HostMount]:
    """Yield the mounts in a file such as ``/proc/self/mountinfo``, none if it does not exist."""
    for line in _lines(path):
        place, _, filesystem = line.partition(" - ")
        kind, source, options = [*filesystem.split(" ", 2), "", "", ""][:3]
        try:
            number, point = number_of(place.split(" ")[2]), _unescaped(place.split(" ")[4])
        except (IndexError, ValueError):
            continue
        yield HostMount(number, point, kind, _unescaped(source), tuple(options.split(",")))


def swapped(path: str) -> Iterator[str]:
    """Yield the paths in a file such as ``/proc/swaps``, none if it does not exist."""
    for line in _lines(path)[1:]:
        if name := line.partition(" ")[0].partition("\t")[0]:
            yield _unescaped(name)


def number_of(text: str) -> Number:
    """Return a device's number.

    Raises:
        ValueError: The text is not a number.
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

"""What of all that was read is a resource's: candidates, and what is not offered and why."""

import errno
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from devhost.discovery import wording
from devhost.discovery.file_sources import FileFinder, StaticFinder
from devhost.discovery.hardware_finder import HardwareFinder
from devhost.discovery.roots import Match, Reading, Readings, Root, read
from devhost.hostfs.files import HostFiles
from devhost.hostfs.walk import failure
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import FileKind, FileState, Hardware, Node, Skipped
from devhost.model.hardware import Pci, Sysfs, Usb
from devhost.model.immutable import immutable
from devhost.model.sources import Dev, Directory, Glob, Kind, Source, Static

Finder = FileFinder | StaticFinder | HardwareFinder

DANGLING: Final = "dangling link"
_DIRECTORY: Final = "a directory: name it in `types` to offer it"
IN_USE: Final = "in use: "
UNREADABLE: Final = "cannot be read: "
_TOO_LONG: Final = "its path is too long for the kernel"


@immutable
class Selection:
    """What a resource's sources find.

    Attributes:
        nodes: Candidates in the order of the sources, then in natural order of their names.
        failed: By source, why it could not be read.
        unreadable: By path, why it or what is below it could not be read.
        notes: What is not there yet.
        why_none: Says why nothing is found, where nothing is missing and no source finds anything;
            of a group, which needs a node of each, why a source finds nothing. Else `tuple`.
    """

    nodes: tuple[Node, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failed: Mapping[int, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    why_none: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)


def finder(kind: Kind, resource: Resource) -> Finder:
    """Return what finds the devices of a resource's source."""
    match kind:
        case Directory() | Glob() | Dev():
            return FileFinder(kind)
        case Static():
            return StaticFinder(kind)
        case Usb() | Pci() | Sysfs():
            return HardwareFinder(kind, resource.mentioned)


def roots_of(resource: Resource) -> tuple[Root, ...]:
    """Return what has to be read for a resource."""
    finders = (finder(source.kind, resource) for source in resource.sources)
    return tuple(dict.fromkeys(root for one in finders for root in one.roots))


def read_all(roots: Iterable[Root], files: HostFiles) -> Readings:
    """Read roots, one after the other. Blocks."""
    return {root: read(root, files) for root in roots}


def select(resource: Resource, readings: Readings) -> Selection:
    """Return what a resource's sources find among what was read of its roots.

    Blocks: it reads what is at the names. Never raises for what the host does.
    """
    nodes: list[Node] = []
    skipped: list[Skipped] = []
    failed: dict[int, str] = {}
    unreadable: dict[str, str] = {}
    notes: list[str] = []
    empty: list[tuple[Kind, Finder]] = []
    for index, source in enumerate(resource.sources):
        found = finder(source.kind, resource)
        some = [readings[root] for root in found.roots]
        if reason := next((reading.failure for reading in some if reading.failure), None):
            failed[index] = reason
            continue
        one = _Source(index, source)
        one.judge(found, some, readings)
        nodes += one.nodes
        skipped += one.skipped
        unreadable |= one.unreadable
        # Only a bus is missing: classes come with the first device of them.
        main = some[:1] if isinstance(source.kind, Usb | Pci | Sysfs) else some
        missing = next((reading.missing for reading in main if reading.missing), None)
        if missing and not (one.nodes or one.skipped):
            notes.append(missing)
        elif not (one.nodes or one.skipped or source.optional):
            empty.append((source.kind, found))
    if (nodes or skipped) and resource.group is None:
        empty = []
    return Selection(
        tuple(nodes),
        tuple(skipped),
        failed,
        unreadable,
        tuple(notes),
        functools.cache(lambda: _why_none(empty, readings)) if empty else tuple,
    )


def _why_none(empty: Iterable[tuple[Kind, Finder]], readings: Readings) -> tuple[str, ...]:
    return tuple(wording.why_none(kind, one.missed(readings)) for kind, one in empty)


class _Source:
    """Judges the matches of a source, as parts of a `Selection`."""

    def __init__(self, index: int, source: Source) -> None:
        kind = source.kind
        self._index, self._role = index, source.role
        self._types = kind.types if isinstance(kind, Directory | Glob | Dev) else None
        self._in_use = isinstance(kind, Static) or kind.in_use
        self.nodes: list[Node] = []
        self.skipped: list[Skipped] = []
        self.unreadable: dict[str, str] = {}
        self._refused_units: set[str] = set()

    def judge(self, found: Finder, some: Sequence[Reading], readings: Readings) -> None:
        """Judge all matches."""
        for reading in some:
            for name, reason in reading.unreadable.items():
                self._unreadable(reading.path(name), reason)
        for match in found.find(readings):
            if isinstance(match, Skipped):  # by the source
                self.skipped.append(match)
            else:
                self._judge(match)
        if self._refused_units:  # another node of a disk, such as its controller's, is the disk
            self.nodes = [
                node
                for node in self.nodes
                if node.hardware is None or node.hardware.unit not in self._refused_units
            ]

    def _judge(self, match: Match) -> None:
        hardware, state, other = match.hardware, None, None
        problem = _unusable(match.path, match.name) or match.excluded
        if match.at is not None and problem is None:
            reading, name = match.at
            try:
                state = reading.state(name)
                if hardware is not None:
                    other = _other(match.path, state, hardware)
                problem = None if other else self._problem(match, reading, state)
            except OSError as error:
                problem = _TOO_LONG
                if error.errno != errno.ENAMETOOLONG:
                    self._unreadable(match.path, failure(error))
        if problem is not None:
            if match.path not in self.unreadable:
                what = match.path or match.name
                self.skipped.append(Skipped(names.printable(what), problem))
            if hardware is not None:
                self._refused_units.add(hardware.unit)
            return
        path = match.path
        if state is not None and state.realpath == path:
            path = state.realpath  # one object for both
        role = self._role or (hardware.role if hardware else None)
        self.nodes.append(
            Node(path, state, self._index, match.name, match.variables, role, hardware, other)
        )

    def _unreadable(self, path: str, reason: str) -> None:
        self.unreadable[path] = reason
        self.skipped.append(Skipped(names.printable(path), f"{UNREADABLE}{reason}"))

    def _problem(self, match: Match, reading: Reading, state: FileState | None) -> str | None:
        """Return why what is there is no candidate."""
        if state is None:
            return DANGLING
        is_link = match.at is not None and match.at[1] in reading.links
        wrong = None if match.hardware else self._wrong_type(state, is_link=is_link)
        return wrong or self._busy(reading, state) or _unusable(state.realpath)

    def _wrong_type(self, state: FileState, *, is_link: bool) -> str | None:
        if self._types is None:
            return _DIRECTORY if state.kind is FileKind.DIRECTORY else None
        if state.kind.value in self._types or ("symlink" in self._types and is_link):
            return None
        return f"a {state.kind.value}, not {' or '.join(self._types)}"

    def _busy(self, reading: Reading, state: FileState) -> str | None:
        if self._in_use or state.kind is not FileKind.BLOCK or state.number is None:
            return None
        use = reading.block_use.of(state.number)
        return f"{IN_USE}{use}" if use else None


def _other(path: str, state: FileState | None, hardware: Hardware) -> str | None:
    """Return what is there instead of the node that the kernel has."""
    if state is None:
        return f"{path} is not there, but the kernel has it"
    if state.number != hardware.number:
        return f"{path} is {_number(state.number)}, the kernel's is {_number(hardware.number)}"
    return None


def _number(number: tuple[int, int] | None) -> str:
    return "no device node" if number is None else "{}:{}".format(*number)


def _unusable(*texts: str) -> str | None:
    """Say that a name cannot be handed out, whatever it is."""
    for text in texts:
        if "\n" in text or "\t" in text or names.text_problem(text):
            return "unusable name: it is not UTF-8, or has control characters"
    return None

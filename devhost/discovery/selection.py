"""What of all that was read is a resource's: candidates, and what is not offered and why."""

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final

from devhost.discovery import wording
from devhost.discovery.dev import DevFinder
from devhost.discovery.directory import DirectoryFinder
from devhost.discovery.glob import GlobFinder
from devhost.discovery.match import Finder, Match, Readings
from devhost.discovery.roots import (
    Reading,
    Root,
    failure,
    is_too_long,
    read,
    unusable,
)
from devhost.discovery.static import StaticFinder
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import FileKind, FileState, Hardware, Node, Skipped
from devhost.model.hardware import Pci, Sysfs, Usb
from devhost.model.sources import Dev, Directory, Glob, Kind, Source, Static

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
        skipped: What is not to be offered.
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

    @property
    def keys(self) -> frozenset[str]:
        """Which nodes are found (`Node.key`), without tokens."""
        return frozenset(node.key for node in self.nodes if node.state)


def finder(kind: Kind, resource: Resource) -> Finder:
    """Return what finds the devices of a kind of source.

    Args:
        kind: The source.
        resource: Its resource: some variables are read only if templates mention them.
    """
    match kind:
        case Directory():
            return DirectoryFinder(kind)
        case Glob():
            return GlobFinder(kind)
        case Dev():
            return DevFinder(kind)
        case Static():
            return StaticFinder(kind)
        case Usb() | Pci():  # loaded here: most files name no hardware, and its code takes 0.5 MiB
            from devhost.discovery.hardware_finder import BusFinder  # noqa: PLC0415 (as said)

            return BusFinder(kind, resource.mentioned)
        case Sysfs():
            from devhost.discovery.hardware_finder import SubsystemFinder  # noqa: PLC0415 (the same)

            return SubsystemFinder(kind, resource.mentioned)


def roots_of(resource: Resource) -> tuple[Root, ...]:
    """Return what has to be read for a resource."""
    finders = (finder(source.kind, resource) for source in resource.sources)
    return tuple(dict.fromkeys(root for one in finders for root in one.roots))


def read_all(roots: Iterable[Root], files: HostFiles) -> Readings:
    """Read roots, one after the other. Blocks."""
    return {root: read(root, files) for root in roots}


def select(
    resource: Resource,
    readings: Readings,
) -> Selection:
    """Return what a resource's sources find among what was read.

    Blocks: it reads what is at the names. Never raises for what the host does.

    Args:
        resource: The declaration.
        readings: Of all roots of the resource.
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
    """Judges the matches of a source.

    Attributes:
        nodes: Those that are candidates.
        skipped: Those that are not.
        unreadable: As `Selection.unreadable`.
    """

    def __init__(self, index: int, source: Source) -> None:
        kind = source.kind
        self._index, self._role = index, source.role
        self._types = kind.types if isinstance(kind, Directory | Glob | Dev) else None
        self._in_use = isinstance(kind, Static) or kind.in_use
        self.nodes: list[Node] = []
        self.skipped: list[Skipped] = []
        self.unreadable: dict[str, str] = {}
        self._in_use_units: set[str] = set()

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
        if self._in_use_units:  # another node of a disk, such as its controller's, is the disk
            self.nodes = [
                node
                for node in self.nodes
                if node.hardware is None or node.hardware.unit not in self._in_use_units
            ]

    def _judge(self, match: Match) -> None:
        if match.hardware is not None:
            self._judge_hardware(match, match.hardware)
            return
        problem, state = self._seen(match)
        if problem is not None:
            if match.path not in self.unreadable:
                self.skipped.append(Skipped(names.printable(match.path or match.name), problem))
            return
        path = match.path
        if state is not None and state.realpath == path:
            path = state.realpath  # one object for both
        self.nodes.append(Node(path, state, self._index, match.name, match.variables, self._role))

    def _seen(self, match: Match) -> tuple[str | None, FileState | None]:
        """Return why a match is no candidate, and what it is."""
        problem, state = unusable(match.path, match.name) or match.excluded, None
        if match.at is None or problem is not None:
            return problem, None
        try:
            problem, state = self._state(*match.at)
        except OSError as error:
            if is_too_long(error):
                return _TOO_LONG, None
            self._unreadable(match.path, failure(error))
            return f"{UNREADABLE}{failure(error)}", None
        return problem, state

    def _unreadable(self, path: str, reason: str) -> None:
        self.unreadable[path] = reason
        self.skipped.append(Skipped(names.printable(path), f"{UNREADABLE}{reason}"))

    def _judge_hardware(self, match: Match, hardware: Hardware) -> None:
        """Judge a node that the kernel has, whether or not its file is there."""
        problem, state = None, None
        if match.at is not None:
            reading, name = match.at
            state = reading.state(name)
            if state is None:
                problem = f"{match.path} is not there, but the kernel has it"
            elif state.number != hardware.number:
                problem = (
                    f"{match.path} is {_number(state.number)}, the kernel's is "
                    f"{_number(hardware.number)}"
                )
            elif busy := self._busy(reading, state):
                self.skipped.append(Skipped(names.printable(match.path), busy))
                self._in_use_units.add(hardware.unit)
                return
        role = self._role or hardware.role
        node = Node(
            match.path, state, self._index, match.name, match.variables, role, hardware, problem
        )
        self.nodes.append(node)

    def _state(self, reading: Reading, name: str) -> tuple[str | None, FileState | None]:
        """Return why it is no candidate, and what it is.

        Raises:
            OSError: The host cannot say.
        """
        state = reading.state(name)
        if state is None:
            return DANGLING, None
        problem = self._wrong_type(state, is_link=name in reading.links)
        return problem or self._busy(reading, state) or unusable(state.realpath), state

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


def _number(number: tuple[int, int] | None) -> str:
    return "no device node" if number is None else "{}:{}".format(*number)

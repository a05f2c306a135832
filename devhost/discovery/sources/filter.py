"""What of all that was read is a resource's: candidates, and what is not offered and why.

Each source finds matches among what was read; what is at them decides which are candidates. The
finders of files and tokens are here, that of devices that the kernel knows is `KernelSource`.
"""

import errno
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from devhost.discovery.sources import explain
from devhost.discovery.sources.base import (
    Candidate,
    DirectoryLocation,
    Listing,
    Listings,
    Location,
    Unmatched,
    read,
)
from devhost.discovery.sources.kernel import KernelSource
from devhost.hostfs.files import HostFiles, describe_read_error, is_wild, matches_glob
from devhost.model import names, pattern
from devhost.model.device import (
    NO_VARIABLES,
    Cause,
    FileKind,
    FileState,
    Hardware,
    Node,
    Skipped,
    Verdict,
)
from devhost.model.hardware_sources import Pci, Sysfs, Usb
from devhost.model.immutable import immutable
from devhost.model.sources import Dev, Directory, Glob, Source, Static

_DANGLING: Final = Verdict(Cause.DANGLING, "dangling link")
_DIRECTORY: Final = "a directory: name it in `types` to offer it"
_TOO_LONG: Final = Verdict(Cause.UNREADABLE, "its path is too long for the kernel")
_IN_PART: Final = "the pattern matches only a part of it"


@immutable
class Selection:
    """What sources find.

    Attributes:
        nodes: Candidates in the order of the sources, then in natural order of their names.
        failed_sources: By source, why it could not be read.
        unreadable: By path, why it or what is below it could not be read.
        notes: What is not there yet.
        explain_empty: Returns why nothing is found, where nothing is missing and no source finds
            anything; of a group, which needs a node of each, why a source finds nothing. Else
            `tuple`.
    """

    nodes: tuple[Node, ...] = ()
    skipped: tuple[Skipped, ...] = ()
    failed_sources: Mapping[int, str] = field(default_factory=dict)
    unreadable: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    explain_empty: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)


def list_all(roots: Iterable[Location], files: HostFiles) -> Listings:
    """Read roots, one after the other. Blocks."""
    return {root: read(root, files) for root in roots}


def select(
    selectors: Iterable["CompiledSource"], listings: Listings, *, grouped: bool
) -> Selection:
    """Return what a resource's sources find among what was read of its roots.

    Blocks: it reads what is at the names. Never raises for what the host does.
    """
    found = [one.select(listings) for one in selectors]
    if len(found) == 1:
        return found[0]
    nodes = tuple(node for one in found for node in one.nodes)
    skipped = tuple(skip for one in found for skip in one.skipped)
    empty = [one.explain_empty for one in found if one.explain_empty is not tuple]
    if (nodes or skipped) and not grouped:
        empty = []
    return Selection(
        nodes,
        skipped,
        {index: reason for one in found for index, reason in one.failed_sources.items()},
        {path: reason for one in found for path, reason in one.unreadable.items()},
        tuple(note for one in found for note in one.notes),
        (lambda: tuple(text for why in empty for text in why())) if empty else tuple,
    )


class CompiledSource:
    """One source of a resource, compiled: it judges what its finder finds.

    The `finder` says which `locations` it reads, what it finds there, and what it has missed.
    """

    def __init__(self, index: int, source: Source, mentioned: frozenset[str]) -> None:
        self.kind = kind = source.kind
        self._index, self._role, self._optional = index, source.role, source.optional
        self._types = kind.types if isinstance(kind, Directory | Glob | Dev) else None
        self._in_use = isinstance(kind, Static) or kind.in_use
        # Only a bus can be missing: classes come with the first device of them.
        self._all_needed = not isinstance(kind, Usb | Pci | Sysfs)
        self._known: Mapping[str, Node] = {}  # what was found last, by path
        self.source: FileSource | StaticSource | KernelSource
        match kind:
            case Directory() | Glob() | Dev():
                self.source = FileSource(kind)
            case Static():
                self.source = StaticSource(kind)
            case Usb() | Pci() | Sysfs():
                self.source = KernelSource(kind, mentioned)
        self.locations = self.source.locations

    def unmatched(self, listings: Listings) -> Iterable[Unmatched]:
        """Return what the source has not matched. Blocks."""
        return self.source.unmatched(listings)

    def select(self, listings: Listings) -> Selection:
        """Return what the source finds. Blocks."""
        some = [listings[root] for root in self.locations]
        if reason := next((one.failure for one in some if one.failure), None):
            return Selection(failed_sources={self._index: reason})
        judging = CandidateFilter(self._index, self._role, self._types, in_use=self._in_use)
        judging.judge(some, self.source.find(listings, self._known))
        self._known = {node.path: node for node in judging.nodes}
        notes: tuple[str, ...] = ()
        explain_empty: Callable[[], tuple[str, ...]] = tuple
        if not (judging.nodes or judging.skipped):
            main = some if self._all_needed else some[:1]
            notes = tuple(one.missing for one in main if one.missing)[:1]
            if not notes and not self._optional:
                explain_empty = functools.cache(
                    lambda: (explain.explain_empty(self.kind, self.source.unmatched(listings)),)
                )
        return Selection(
            tuple(judging.nodes),
            tuple(judging.skipped),
            unreadable=judging.unreadable,
            notes=notes,
            explain_empty=explain_empty,
        )


class CandidateFilter:
    """Judges the matches of a source, as parts of a `Selection`."""

    def __init__(
        self, index: int, role: str | None, types: Sequence[str] | None, *, in_use: bool
    ) -> None:
        self._index, self._role, self._types, self._in_use = index, role, types, in_use
        self._kinds = {FileKind(one) for one in types or () if one != "symlink"}
        self.nodes: list[Node] = []
        self.skipped: list[Skipped] = []
        self.unreadable: dict[str, str] = {}
        self._refused_units: set[str] = set()

    def judge(self, some: Iterable[Listing], found: Iterable[Candidate | Node | Skipped]) -> None:
        """Judge all matches."""
        for listing in some:
            for name, reason in listing.unreadable.items():
                self._unreadable(listing.path(name), reason)
        for match in found:
            if isinstance(match, Node):  # as it was
                self.nodes.append(match)
            elif isinstance(match, Skipped):  # by the source
                self.skipped.append(match)
            else:
                self._judge(match)
        if self._refused_units:  # another node of a disk, such as its controller's, is the disk
            self.nodes = [
                node
                for node in self.nodes
                if node.hardware is None or node.hardware.unit not in self._refused_units
            ]

    def _judge(self, match: Candidate) -> None:
        hardware, state, other = match.hardware, None, None
        problem = _unusable(f"{match.path}{match.name}")
        if problem is None and match.excluded is not None:
            problem = Verdict(Cause.EXCLUDED, match.excluded)
        if match.at is not None and problem is None:
            listing, name = match.at
            try:
                state = listing.state(name)
                if hardware is not None:
                    other = _other(match.path, state, hardware)
                problem = None if other else self._problem(match, listing, state)
            except OSError as error:
                problem = _TOO_LONG
                if error.errno != errno.ENAMETOOLONG:
                    self._unreadable(match.path, describe_read_error(error))
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
        text = f"cannot be read: {reason}"
        self.skipped.append(Skipped.because(Cause.UNREADABLE, names.printable(path), text))

    def _problem(
        self, match: Candidate, listing: Listing, state: FileState | None
    ) -> Verdict | None:
        """Return why what is there is no candidate."""
        if state is None:
            return _DANGLING
        is_link = match.at is not None and match.at[1] in listing.links
        wrong = None if match.hardware else self._wrong_type(state, is_link=is_link)
        return wrong or self._busy(listing, state) or _unusable(state.realpath)

    def _wrong_type(self, state: FileState, *, is_link: bool) -> Verdict | None:
        if self._types is None:
            is_directory = state.kind is FileKind.DIRECTORY
            return Verdict(Cause.WRONG_TYPE, _DIRECTORY) if is_directory else None
        if state.kind in self._kinds or ("symlink" in self._types and is_link):
            return None
        text = f"a {state.kind.value}, not {' or '.join(self._types)}"
        return Verdict(Cause.WRONG_TYPE, text)

    def _busy(self, listing: Listing, state: FileState) -> Verdict | None:
        if self._in_use or state.kind is not FileKind.BLOCK or state.number is None:
            return None
        use = listing.block_use.of(state.number)
        return Verdict(Cause.IN_USE, f"in use: {use}") if use else None


def _other(path: str, state: FileState | None, hardware: Hardware) -> str | None:
    """Return what is there instead of the node that the kernel has."""
    if state is None:
        return f"{path} is not there, but the kernel has it"
    if state.number != hardware.number:
        return f"{path} is {_number(state.number)}, the kernel's is {_number(hardware.number)}"
    return None


def _number(number: tuple[int, int] | None) -> str:
    return "no device node" if number is None else "{}:{}".format(*number)


def _unusable(text: str) -> Verdict | None:
    """Return why a name cannot be handed out, whatever it is."""
    if text.isprintable() or not ({"\n", "\t"} & set(text) or names.text_problem(text)):
        return None
    return Verdict(Cause.BAD_NAME, "unusable name: it is not UTF-8, or has control characters")


# ── files and tokens ──

Look = tuple[DirectoryLocation, str | None]
"""What is read, and a glob, or pattern, of the names there; ``None`` for all."""


class FileSource:
    """Finds files by their paths."""

    def __init__(self, options: Directory | Glob | Dev) -> None:
        self.options = options
        self._looks = _looks(options)
        self.locations = tuple(dict.fromkeys(root for root, _ in self._looks))
        included = options.include if isinstance(options, Directory) else None
        self._excludes = bool(options.exclude) or included is not None

    def find(self, listings: Listings, known: Mapping[str, Node]) -> Iterable[Candidate | Node]:
        """Return each path once, of the first pattern that matches it, in natural order.

        What is as it was is the same node again.
        """
        found = self._each(listings, known)
        if len(self._looks) == 1:  # it is in order
            return found
        return sorted(found, key=lambda match: (names.natural_key(match.name), match.name))

    def _each(self, listings: Listings, known: Mapping[str, Node]) -> Iterator[Candidate | Node]:
        seen: set[str] = set()
        for root, wanted in self._looks:
            listing = listings[root]
            for name in listing.names:
                path = listing.path(name)
                if path in seen:
                    continue
                former = known.get(path)
                if former is not None and _is_as_it_was(former, listing, name):
                    seen.add(path)
                    yield former
                elif (variables := self._variables(name, wanted)) is not None:
                    seen.add(path)
                    excluded = self._excluded(path, name) if self._excludes else None
                    yield Candidate(path, name, variables, excluded, (listing, name))

    def _variables(self, name: str, wanted: str | None) -> Mapping[str, str] | None:
        """Return what a name that matches gives to templates."""
        if wanted is None:
            return NO_VARIABLES
        if isinstance(self.options, Dev):
            return pattern.fullmatch(wanted, name)
        return NO_VARIABLES if matches_glob(name, wanted) else None

    def _excluded(self, path: str, name: str) -> str | None:
        options, last = self.options, path.rpartition("/")[2]
        if isinstance(options, Directory):
            path = last
            if options.include is not None and not pattern.fits(path, last, options.include):
                return "not included"
        elif isinstance(options, Dev):
            path = name
        return "excluded" if pattern.fits(path, last, options.exclude) else None

    def unmatched(self, listings: Listings) -> Iterator[Unmatched]:
        """Yield what else is where it looks."""
        matched = {match.path for match in self._each(listings, {})}
        seen = (listings[root] for root in self.locations)
        paths = {one.path(name): name for one in seen for name in (*one.names, *one.beside)}
        for path, name in paths.items():
            if path not in matched:
                yield self._missed(path, name)

    def _missed(self, path: str, name: str) -> Unmatched:
        match self.options:
            case Directory():
                return Unmatched(name, {"": "its name begins with a dot"})
            case Dev(pattern=text):
                in_part = pattern.is_in(text, name)
                return Unmatched(path, {"": _IN_PART} if in_part else {"pattern": path})
        return Unmatched(path, {"paths": path})


def _is_as_it_was(node: Node, listing: Listing, name: str) -> bool:
    """Whether what is at a name is what it was; whether a disk is in use cannot be seen there."""
    try:
        state = listing.state(name, node.state)
    except OSError:
        return False
    return state is not None and state is node.state and state.kind is not FileKind.BLOCK


def _looks(options: Directory | Glob | Dev) -> list[Look]:
    """Return where a source looks, and for what."""
    match options:
        case Directory(path=path, recursive=recursive, include=include):
            hidden = any(glob.startswith((".", "[.]")) for glob in include or ())
            if recursive:
                return [(DirectoryLocation(path, "**", hidden), None)]
            return [(DirectoryLocation(path), None if hidden else "*")]
        case Glob(paths=paths):
            return [_look(path.rstrip("/") or "/") for path in paths]
        case Dev(pattern=text):
            return [(DirectoryLocation("/dev", "**", text.startswith(r"\.")), text)]


def _look(path: str) -> Look:
    """Return where a glob looks: in a directory, which others may read too, if it can."""
    parts = path.split("/")
    wild = (index for index, part in enumerate(parts) if is_wild(part))
    index = next(wild, len(parts) - 1)
    directory, rest = "/".join(parts[:index]) or "/", "/".join(parts[index:])
    if "/" in rest or rest == "**" or not is_wild(rest):
        return DirectoryLocation(directory, rest, hidden=False), None
    return DirectoryLocation(directory), rest


@immutable
class StaticSource:
    """Yields the tokens that the configuration declares."""

    options: Static
    locations: tuple[Location, ...] = ()

    def find(self, _readings: Listings, _known: Mapping[str, Node]) -> Iterator[Candidate]:
        """Yield each token."""
        ids = self.options.ids
        texts = names.natural(ids) if ids is not None else map(str, range(self.options.count or 0))
        return (Candidate("", text) for text in texts)

    def unmatched(self, _readings: Listings) -> Iterator[Unmatched]:
        """Nothing is looked at."""
        return iter(())

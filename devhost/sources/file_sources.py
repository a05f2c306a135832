"""The sources ``directory``, ``glob`` and ``dev``: files, by their paths."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.hostfs.device_classes import may_be_proposed
from devhost.hostfs.files import CachedFiles, HostFiles, Tally, is_wild
from devhost.hostfs.mounts import HostUse
from devhost.hostfs.walk import Walk
from devhost.model import names, pattern
from devhost.model.device_node import NO_VARIABLES, FileKind, FileState, Node
from devhost.model.sources import Dev, Directory, Glob
from devhost.model.spelling import did_you_mean
from devhost.sources.base import (
    NOT_DEVICES,
    Candidate,
    Listing,
    Listings,
    Location,
    NodeSource,
    Unmatched,
    WatchedDirectory,
)

_IN_PART: Final = "the pattern matches only a part of it"


@dataclass(eq=False, kw_only=True)
class FileListing(Listing):
    """Files of the host: each is read when the first source asks, once for all sources.

    Attributes:
        base: The directory, without a slash at its end.
        names: The paths below it, in natural order.
        links: The whole paths of those that are links.
        siblings: The entries that are there instead of a single path.
    """

    files: HostFiles
    base: str = ""
    names: Sequence[str] = ()
    links: frozenset[str] = frozenset()
    siblings: Sequence[str] = ()
    _states: dict[str, FileState | None] = field(default_factory=dict)

    @functools.cached_property
    def _cached_files(self) -> CachedFiles:
        return CachedFiles(self.files)

    @functools.cached_property
    def host_use(self) -> HostUse:
        """The use that the host itself makes of its disks and ports."""
        return HostUse(self.files)

    def state(self, path: str, previous: FileState | None = None) -> FileState | None:
        """Return what is at a path; ``None`` where it leads nowhere. Blocks.

        A file that is as it was before is the same object.

        Raises:
            OSError: It cannot be read.
        """
        if path not in self._states:
            self._states[path] = self._cached_files.stat(path, previous)
        return self._states[path]


@dataclass(frozen=True, slots=True)
class DirectoryLocation(Location):
    """The paths below a directory that match a glob; wildcards match `hidden` names if set."""

    path: str  # without a slash at its end
    glob: str = "*"
    hidden: bool = True

    @property
    def watched(self) -> WatchedDirectory | None:
        """The directory, and where the glob leads further, all below it.

        ``None`` where the kernel makes up what is there, of which there are no events.
        """
        if f"{self.path}/".startswith(("/sys/", "/proc/")):
            return None
        return WatchedDirectory(self.path or "/", self.glob == "**" or "/" in self.glob)

    def list(self, files: HostFiles, tally: Tally) -> FileListing:
        """List what matches."""
        walk = Walk(files, self.path, self.glob, tally, hidden=self.hidden, leave_out=NOT_DEVICES)
        entries = () if walk.matches else files.entries(self.path or "/")
        missing = _explain_missing(files, self.path) if entries is None else None
        siblings = [] if is_wild(self.glob) else [entry.name for entry in entries or ()]
        links = (name for name, is_link in walk.matches.items() if is_link)
        return FileListing(
            missing=missing,
            unreadable={f"{self.path}/{name}": why for name, why in walk.unreadable.items()},
            files=files,
            base=self.path,
            names=names.natural(walk.matches),
            links=frozenset(f"{self.path}/{name}" for name in links),
            siblings=names.natural(siblings),
        )


def _explain_missing(files: HostFiles, directory: str) -> str:
    if files.stat(directory) is not None:
        return f"{directory} is not a directory"
    hint = ""
    if directory.startswith("/dev/"):
        above, _, name = directory.rpartition("/")
        siblings = (entry.name for entry in files.entries(above) or ())
        hint = did_you_mean(
            name, (sibling for sibling in siblings if may_be_proposed(f"{above}/{sibling}"))
        )
    if files.is_host or directory.startswith("/dev/"):  # the chart mounts all of /dev
        return f"{directory} does not exist yet{hint}"
    why = "it is not there yet, or not mounted (the chart's hostPaths)"
    return f"{directory} does not exist below {files.root}: {why}"


Lookup = tuple[DirectoryLocation, str | None]
"""A location, and a glob, or pattern, of the names there; ``None`` for all."""


class FileSource(NodeSource):
    """Finds files by their paths."""

    def __init__(self, options: Directory | Glob | Dev) -> None:
        self.options = options
        self._lookups = _lookups(options)
        self.locations = tuple(dict.fromkeys(location for location, _ in self._lookups))

    def find(self, listings: Listings, previous: Mapping[str, Node]) -> Iterable[Candidate | Node]:
        """Return each path once, of the first pattern that matches it."""
        matches = self._matches(listings, previous)
        return sorted(matches, key=lambda match: names.natural_key(match.name))

    def _matches(
        self, listings: Listings, previous: Mapping[str, Node]
    ) -> Iterator[Candidate | Node]:
        seen: set[str] = set()
        for location, wanted in self._lookups:
            listing: FileListing = listings[location]
            for name in listing.names:
                path = f"{listing.base}/{name}"
                if path in seen:
                    continue
                node = previous.get(path)
                if node is not None and _is_unchanged(node, listing):
                    seen.add(path)
                    yield node
                elif (variables := self._variables(name, wanted)) is not None:
                    seen.add(path)
                    exclusion = self._exclusion(path, name)
                    yield Candidate(path, name, variables, exclusion, listing)

    def _variables(self, name: str, wanted: str | None) -> Mapping[str, str] | None:
        """Return what a name that matches gives to templates."""
        if wanted is None:
            return NO_VARIABLES
        if isinstance(self.options, Dev):
            return pattern.fullmatch(wanted, name)
        return NO_VARIABLES if pattern.matches_name(name, wanted) else None

    def _exclusion(self, path: str, name: str) -> str | None:
        options, last = self.options, path.rpartition("/")[2]
        if isinstance(options, Directory):
            path = last
            if options.include is not None and not pattern.matches_name_or_path(
                path, last, options.include
            ):
                return "not included"
        elif isinstance(options, Dev):
            path = name
        return "excluded" if pattern.matches_name_or_path(path, last, options.exclude) else None

    def unmatched(self, listings: Listings) -> Iterator[Unmatched]:
        """Yield the other paths where it looks."""
        matched = {match.path for match in self._matches(listings, {})}
        paths = {
            f"{location.path}/{name}": name
            for location, _ in self._lookups
            for name in (*listings[location].names, *listings[location].siblings)
        }
        for path, name in paths.items():
            if path not in matched:
                yield self._unmatched(path, name)

    def _unmatched(self, path: str, name: str) -> Unmatched:
        match self.options:
            case Directory():
                return Unmatched(name, {"": "its name begins with a dot"})
            case Dev(pattern=text):
                in_part = pattern.matches_part(text, name)
                return Unmatched(path, {"": _IN_PART} if in_part else {"pattern": path})
        return Unmatched(path, {"paths": path})


def _is_unchanged(node: Node, listing: FileListing) -> bool:
    """Return whether a node is as it was; whether a disk is in use cannot be seen there."""
    try:
        state = listing.state(node.path, node.state)
    except OSError:
        return False
    return state is not None and state is node.state and state.kind is not FileKind.BLOCK


def _lookups(options: Directory | Glob | Dev) -> list[Lookup]:
    """Return where a source looks, and for what."""
    match options:
        case Directory(path=path, recursive=recursive, include=include):
            hidden = any(glob.startswith((".", "[.]")) for glob in include or ())
            if recursive:
                return [(DirectoryLocation(path.rstrip("/"), "**", hidden), None)]
            return [(DirectoryLocation(path.rstrip("/")), None if hidden else "*")]
        case Glob(paths=paths):
            return [_glob_lookup(path.rstrip("/")) for path in paths]
        case Dev(pattern=text):
            return [(DirectoryLocation("/dev", "**", text.startswith(r"\.")), text)]


def _glob_lookup(path: str) -> Lookup:
    """Return where a glob looks: in a directory, which others may read too, if it can."""
    parts = path.split("/")
    wild = (index for index, part in enumerate(parts) if is_wild(part))
    index = next(wild, len(parts) - 1)
    directory, rest = "/".join(parts[:index]), "/".join(parts[index:])
    if "/" in rest or rest == "**" or not is_wild(rest):
        return DirectoryLocation(directory, rest, hidden=False), None
    return DirectoryLocation(directory), rest

"""The source ``glob``: each path that matches is a device."""

import fnmatch
from collections.abc import Iterable, Iterator

from devhost.discovery.match import Match, Missed, Readings
from devhost.discovery.roots import (
    NOT_DEVICES,
    BaseRoot,
    DirectoryRoot,
    Reading,
    Root,
    WatchRoot,
    absent,
    failure,
)
from devhost.hostfs.files import DirectoryEntry, HostFiles
from devhost.hostfs.tally import Tally, TooManyEntriesError
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.sources import Glob


@immutable
class PatternRoot(BaseRoot):
    """The paths that match a glob pattern with wildcards between its slashes, or with none."""

    text: str

    @property
    def base(self) -> str:
        """The directory in front of the wildcards."""
        return _literal_prefix(self.text)

    @property
    def watched(self) -> WatchRoot:
        """The directory in front of the wildcards, and all below it."""
        below = self.text[len(self.base) + 1 :]
        return WatchRoot(self.base or "/", below == "**" or "/" in below)

    def read(self, files: HostFiles, tally: Tally) -> Reading:
        """Find what matches."""
        base = self.base
        walk = _Walk(files, base, tally)
        found = dict.fromkeys(path[len(base) + 1 :] for path in walk.expand(self.text))
        links = [name for name in found if walk.looks.is_link(f"{base}/{name}")]
        unreadable = {path[len(base) + 1 :]: reason for path, reason in walk.unreadable.items()}
        if found:
            return Reading(self, files, found, links=links, unreadable=unreadable)
        entries = files.entries(base or "/")
        missing = absent(files, base or "/") if entries is None else None
        beside = [] if _is_wild(self.text) else [one.name for one in entries or ()]
        return Reading(self, files, unreadable=unreadable, missing=missing, beside=beside)


@immutable
class GlobFinder:
    """Finds the paths that match glob patterns."""

    options: Glob

    @property
    def _paths(self) -> tuple[str, ...]:
        return tuple(text.rstrip("/") or "/" for text in self.options.paths)

    @property
    def roots(self) -> tuple[Root, ...]:
        """Return a directory for each pattern, or what matches the pattern."""
        return tuple(dict.fromkeys(map(_root, self._paths)))

    def find(self, readings: Readings) -> Iterable[Match]:
        """Return each path once, of the first pattern that matches it, in natural order."""
        found = self._each(readings)
        if len(self._paths) == 1:  # it is in order
            return found
        return sorted(found, key=lambda match: (names.natural_key(match.name), match.name))

    def _each(self, readings: Readings) -> Iterator[Match]:
        seen: set[str] = set()
        for text in self._paths:
            reading = readings[_root(text)]
            for name in _matching(reading, text):
                path = reading.path(name)
                if path not in seen:
                    seen.add(path)
                    yield self._match(reading, name)

    def _match(self, reading: Reading, name: str) -> Match:
        path = reading.path(name)
        excluded = "excluded" if self._excluded(path) else None
        default = name.lstrip("/") or path.rpartition("/")[2]
        return Match(path, default, excluded=excluded, at=(reading, name))

    def _excluded(self, path: str) -> bool:
        return any(
            fnmatch.fnmatchcase(path if "/" in text else path.rpartition("/")[2], text)
            for text in self.options.exclude
        )

    def missed(self, readings: Readings) -> Iterator[Missed]:
        """Yield the other entries of the directories in front of the wildcards."""
        matched = {match.path for match in self._each(readings)}
        some = (readings[root] for root in self.roots)
        paths = dict.fromkeys(
            reading.path(name) for reading in some for name in (*reading.names, *reading.beside)
        )
        return (Missed(path, {"paths": path}) for path in paths if path not in matched)


def _root(text: str) -> Root:
    """Return where a pattern is looked for: in a directory if only its last part is wild."""
    prefix = _literal_prefix(text)
    rest = text[len(prefix) + 1 :]
    if "/" in rest or rest == "**" or not _is_wild(rest):
        return PatternRoot(text)
    return DirectoryRoot(prefix or "/")


def _matching(reading: Reading, text: str) -> list[str]:
    if isinstance(reading.root, PatternRoot):
        return list(reading.names)
    wanted = text.rpartition("/")[2]
    return [name for name in reading.names if _fits(name, wanted)]


def _is_wild(part: str) -> bool:
    return any(character in part for character in "*?[")


def _literal_prefix(text: str) -> str:
    """Return the directory in front of the first component with a wildcard."""
    parts = text.split("/")
    for index, part in enumerate(parts):
        if _is_wild(part):
            return "/".join(parts[:index])
    return "/".join(parts[:-1])


class _Walk:
    """Finds the paths that match; not by recursion: a tree may be deeper than that can go.

    Attributes:
        looks: What it reads with.
        unreadable: By path, why it or what is below it cannot be read.
    """

    def __init__(self, files: HostFiles, base: str, tally: Tally) -> None:
        self.looks, self._base, self._tally = files.cached(), base, tally
        self._read: set[str] = set()
        self.unreadable: dict[str, str] = {}

    def expand(self, text: str) -> Iterator[str]:
        """Yield the paths.

        Raises:
            OSError: The directory in front of the wildcards cannot be read, or there is too much.
        """
        parts = tuple(text[len(self._base) + 1 :].split("/"))
        if parts[-1] == "**":
            parts = (*parts, "*")
        pending, known = [(self._base, parts)], {(self._base, len(parts))}
        while pending:
            base, (part, *rest) = pending.pop()
            for name, further in self._matching(base, part, tuple(rest)):
                path = f"{base}/{name}" if name else base
                if name and further and _is_wild(part) and path in NOT_DEVICES:
                    continue
                if not further:
                    if self._exists(path):
                        yield path
                elif (path, len(further)) not in known:
                    self._tally.add(path, "")
                    known.add((path, len(further)))
                    pending.append((path, further))

    def _matching(
        self, base: str, part: str, rest: tuple[str, ...]
    ) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield what a part of the pattern matches in a directory, and what has to follow it."""
        if part == "**":
            yield "", rest
            for entry in self._entries(base):
                if entry.is_directory and not entry.name.startswith("."):
                    yield entry.name, ("**", *rest)
        elif _is_wild(part):
            yield from ((one.name, rest) for one in self._entries(base) if _fits(one.name, part))
        else:
            yield part, rest

    def _entries(self, directory: str) -> list[DirectoryEntry]:
        # Each is counted once, however often a pattern leads there.
        tally = Tally(lambda _: None) if directory in self._read else self._tally
        self._read.add(directory)
        try:
            found = self.looks.entries(directory or "/", below=self._base, tally=tally)
        except TooManyEntriesError:
            raise
        except OSError as error:
            if directory == self._base:
                raise
            self.unreadable[directory] = failure(error)
            return []
        return found or []

    def _exists(self, path: str) -> bool:
        try:
            return self.looks.exists(path)
        except OSError as error:
            self.unreadable[path] = failure(error)
            return False


def _fits(name: str, part: str) -> bool:
    hidden = name.startswith(".") and not part.startswith(".")
    return not hidden and fnmatch.fnmatchcase(name, part)

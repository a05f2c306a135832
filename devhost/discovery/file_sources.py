"""The sources of files and tokens: ``directory``, ``glob``, ``dev`` and ``static``."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from devhost.discovery.roots import DirectoryRoot, Match, Missed, Readings, Root
from devhost.hostfs.walk import fits, is_wild
from devhost.model import names, pattern
from devhost.model.device import NO_VARIABLES
from devhost.model.immutable import immutable
from devhost.model.sources import Dev, Directory, Glob, Static

_IN_PART: Final = "the pattern matches only a part of it"

Look = tuple[DirectoryRoot, str | None]
"""What is read, and a glob, or pattern, of the names there; ``None`` for all."""


@immutable
class FileFinder:
    """Finds files by their paths."""

    options: Directory | Glob | Dev

    @property
    def _looks(self) -> list[Look]:
        match self.options:
            case Directory(path=path, recursive=recursive, include=include):
                hidden = any(glob.startswith((".", "[.]")) for glob in include or ())
                if recursive:
                    return [(DirectoryRoot(path, "**", hidden), None)]
                return [(DirectoryRoot(path), None if hidden else "*")]
            case Glob(paths=paths):
                return [_look(path.rstrip("/") or "/") for path in paths]
            case Dev(pattern=text):
                return [(DirectoryRoot("/dev", "**", text.startswith(r"\.")), text)]

    @property
    def roots(self) -> tuple[DirectoryRoot, ...]:
        """Return where it looks."""
        return tuple(dict.fromkeys(root for root, _ in self._looks))

    def find(self, readings: Readings) -> Iterable[Match]:
        """Return each path once, of the first pattern that matches it, in natural order."""
        looks = self._looks
        found = self._each(looks, readings)
        if len(looks) == 1:  # it is in order
            return found
        return sorted(found, key=lambda match: (names.natural_key(match.name), match.name))

    def _each(self, looks: Iterable[Look], readings: Readings) -> Iterator[Match]:
        seen: set[str] = set()
        for root, wanted in looks:
            reading = readings[root]
            for name in reading.names:
                variables, path = self._variables(name, wanted), reading.path(name)
                if variables is not None and path not in seen:
                    seen.add(path)
                    excluded = self._excluded(path, name)
                    yield Match(path, name, variables, excluded, (reading, name))

    def _variables(self, name: str, wanted: str | None) -> Mapping[str, str] | None:
        """Return what a name that matches gives to templates."""
        if wanted is None:
            return NO_VARIABLES
        if isinstance(self.options, Dev):
            return pattern.fullmatch(wanted, name)
        return NO_VARIABLES if fits(name, wanted) else None

    def _excluded(self, path: str, name: str) -> str | None:
        options, last = self.options, path.rpartition("/")[2]
        if isinstance(options, Directory):
            path = last
            if options.include is not None and not pattern.fits(path, last, options.include):
                return "not included"
        elif isinstance(options, Dev):
            path = name
        return "excluded" if pattern.fits(path, last, options.exclude) else None

    def missed(self, readings: Readings) -> Iterator[Missed]:
        """Yield what else is where it looks."""
        looks = self._looks
        matched = {match.path for match in self._each(looks, readings)}
        seen = (readings[root] for root in self.roots)
        paths = {one.path(name): name for one in seen for name in (*one.names, *one.beside)}
        for path, name in paths.items():
            if path not in matched:
                yield self._missed(path, name)

    def _missed(self, path: str, name: str) -> Missed:
        match self.options:
            case Directory():
                return Missed(name, {"": "its name begins with a dot"})
            case Dev(pattern=text):
                in_part = pattern.is_in(text, name)
                return Missed(path, {"": _IN_PART} if in_part else {"pattern": path})
        return Missed(path, {"paths": path})


def _look(path: str) -> Look:
    """Return where a glob looks: in a directory, which others may read too, if it can."""
    parts = path.split("/")
    wild = (index for index, part in enumerate(parts) if is_wild(part))
    index = next(wild, len(parts) - 1)
    directory, rest = "/".join(parts[:index]) or "/", "/".join(parts[index:])
    if "/" in rest or rest == "**" or not is_wild(rest):
        return DirectoryRoot(directory, rest, hidden=False), None
    return DirectoryRoot(directory), rest


@immutable
class StaticFinder:
    """Yields the tokens that the configuration declares."""

    options: Static

    @property
    def roots(self) -> tuple[Root, ...]:
        """Nothing is read."""
        return ()

    def find(self, _readings: Readings) -> Iterator[Match]:
        """Yield each token."""
        ids = self.options.ids
        texts = names.natural(ids) if ids is not None else map(str, range(self.options.count or 0))
        return (Match("", text) for text in texts)

    def missed(self, _readings: Readings) -> Iterator[Missed]:
        """Nothing is looked at."""
        return iter(())

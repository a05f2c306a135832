"""The source ``directory``: each entry is a device."""

import fnmatch
from collections.abc import Iterator, Sequence

from devhost.discovery.match import Match, Missed, Readings
from devhost.discovery.roots import DirectoryRoot
from devhost.immutable import immutable
from devhost.model.sources import Directory


@immutable
class DirectoryFinder:
    """Finds the entries of a directory."""

    options: Directory

    @property
    def roots(self) -> tuple[DirectoryRoot]:
        """Return the directory."""
        options = self.options
        return (DirectoryRoot(options.path, options.recursive, options.recursive and self._hidden),)

    def find(self, readings: Readings) -> Iterator[Match]:
        """Yield each entry, or with ``recursive`` everything below."""
        reading, hidden = readings[self.roots[0]], self._hidden
        for name in reading.names:
            if hidden or not name.startswith("."):
                path, excluded = reading.path(name), self._excluded(name.rpartition("/")[2])
                yield Match(path, name, excluded=excluded, at=(reading, name))

    def _excluded(self, name: str) -> str | None:
        include = self.options.include
        if include is not None and not _fits(name, include):
            return "not included"
        return "excluded" if _fits(name, self.options.exclude) else None

    @property
    def _hidden(self) -> bool:
        """Whether names that begin with a dot count."""
        return any(glob.startswith((".", "[.]")) for glob in self.options.include or ())

    def missed(self, readings: Readings) -> Iterator[Missed]:
        """Yield the hidden entries."""
        for name in readings[self.roots[0]].names if not self._hidden else ():
            if name.startswith("."):
                yield Missed(name, {"": "its name begins with a dot"})


def _fits(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)

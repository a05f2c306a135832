"""The source ``directory``: each entry is a device."""

import fnmatch
from collections.abc import Iterator, Sequence

from devhost.discovery.match import Match, Readings
from devhost.discovery.roots import DirectoryRoot, contents
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

    @property
    def summary(self) -> str:
        """The source in words."""
        return f"directory {self.options.path}"

    def looked(self, readings: Readings) -> str:
        """Say how many entries there are."""
        return contents(readings[self.roots[0]], self.options.path)

    def left(self, readings: Readings) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the hidden entries."""
        if not self._hidden:
            for name in readings[self.roots[0]].names:
                if name.startswith("."):
                    yield name, ("its name begins with a dot",)

    def unmatched(self, readings: Readings) -> str:
        """Say that the directory is empty, or that its entries are hidden."""
        found = contents(readings[self.roots[0]], self.options.path)
        return found if found.endswith("empty") else f"{found}, none without a leading dot"


def _fits(name: str, globs: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(name, glob) for glob in globs)

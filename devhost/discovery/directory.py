"""The source ``directory``: each entry is a device."""

from collections.abc import Iterator

from devhost.discovery.match import Match, WatchRoot, absent, contents
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model import pattern
from devhost.model.sources import Directory


@immutable
class DirectoryFinder:
    """Finds the entries of a directory."""

    options: Directory

    def find(self, files: HostFiles) -> Iterator[Match]:
        """Yield each entry, or with ``recursive`` everything below."""
        hidden = self._hidden
        if self.options.recursive:
            names = files.walk(self.options.path, hidden=hidden)
        else:
            names = (entry.name for entry in files.entries(self.options.path) or ())
        for name in names:
            if hidden or not name.startswith("."):
                yield self._match(name)

    @property
    def by_path(self) -> bool:
        """Whether `one` can tell."""
        return True

    def one(self, path: str) -> Match | None:
        """Return the candidate at a path."""
        name = path.removeprefix(self._base + "/")
        parts = name.split("/")
        if len(parts) > 1 and not self.options.recursive:
            return None
        if not self._hidden and any(part.startswith(".") for part in parts):
            return None
        return self._match(name)

    @property
    def _base(self) -> str:
        return self.options.path.rstrip("/")

    @property
    def _hidden(self) -> bool:
        """Whether names that begin with a dot count."""
        return any(text.startswith((r"\.", "[.]")) for text in self.options.include or ())

    def _match(self, name: str) -> Match:
        return Match(f"{self._base}/{name}", name, excluded=self._excluded(name))

    def _excluded(self, name: str) -> str | None:
        last = name.rpartition("/")[2]
        include = self.options.include
        if include is not None and not any(
            pattern.fullmatch(text, last) is not None for text in include
        ):
            return "not included"
        if any(pattern.fullmatch(text, last) is not None for text in self.options.exclude):
            return "excluded"
        return None

    def missing(self, files: HostFiles) -> str | None:
        """Say that the directory is not there."""
        return absent(files, self.options.path)

    def unmatched(self, files: HostFiles) -> str:
        """Say that the directory is empty, or that its entries are hidden."""
        found = contents(files, self.options.path)
        return found if found.endswith("empty") else f"{found}, none without a leading dot"

    def watch_roots(self) -> tuple[WatchRoot, ...]:
        """Return the directory."""
        return (WatchRoot(self.options.path, self.options.recursive),)

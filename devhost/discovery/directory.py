"""The source ``directory``: each entry is a device."""

from collections.abc import Iterator
from dataclasses import dataclass

from devhost import pattern
from devhost.discovery.host_files import HostFiles
from devhost.discovery.match import Match, WatchRoot, absent
from devhost.model.sources import Directory


@dataclass(frozen=True, slots=True)
class DirectoryFinder:
    """Finds the entries of a directory."""

    options: Directory

    def find(self, files: HostFiles) -> Iterator[Match]:
        """Yield each entry, or with ``recursive`` everything below."""
        base = self.options.path.rstrip("/")
        hidden = any(text.startswith((r"\.", "[.]")) for text in self.options.include or ())
        if self.options.recursive:
            names = files.walk(self.options.path, hidden=hidden)
        else:
            names = (entry.name for entry in files.entries(self.options.path) or ())
        for name in names:
            if not name.startswith(".") or hidden:
                yield Match(f"{base}/{name}", name, excluded=self._excluded(name))

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

    def watch_roots(self) -> tuple[WatchRoot, ...]:
        """Return the directory."""
        return (WatchRoot(self.options.path, self.options.recursive),)

"""The source ``static``: tokens and slots, nothing physical."""

from collections.abc import Iterator

from devhost.discovery.match import Match, WatchRoot
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model.sources import Static


@immutable
class StaticFinder:
    """Yields what the configuration declares."""

    options: Static

    def find(self, _files: HostFiles) -> Iterator[Match]:
        """Yield each token."""
        ids = self.options.ids
        for name in ids if ids is not None else map(str, range(self.options.count or 0)):
            yield Match("", name)

    @property
    def by_path(self) -> bool:
        """Tokens have no paths."""
        return True

    def one(self, _path: str) -> Match | None:
        """No path leads to one."""
        return None

    def missing(self, _files: HostFiles) -> str | None:
        """Nothing can be missing."""
        return None

    def unmatched(self, _files: HostFiles) -> str:
        """Say that none are declared."""
        return "static declares no devices"

    def watch_roots(self) -> tuple[WatchRoot, ...]:
        """There is nothing to watch."""
        return ()

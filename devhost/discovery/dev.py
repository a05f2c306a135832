"""The source ``dev``: each device node below /dev whose path there matches."""

from collections.abc import Iterator
from typing import Final

from devhost.discovery.match import Match, WatchRoot, absent, contents
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model import pattern
from devhost.model.sources import Dev

# Filesystems below /dev that hold no devices to hand out, but may hold very many files.
_NOT_DEVICES: Final = frozenset({"fd", "hugepages", "mqueue", "pts", "shm"})


@immutable
class DevFinder:
    """Finds device nodes by a pattern on their path below /dev."""

    options: Dev

    def find(self, files: HostFiles) -> Iterator[Match]:
        """Yield each matching path with the pattern's named groups."""
        for name in files.walk("/dev", hidden=self._hidden, leave_out=_NOT_DEVICES):
            if (match := self._match(name)) is not None:
                yield match

    @property
    def by_path(self) -> bool:
        """Whether `one` can tell."""
        return True

    def one(self, path: str) -> Match | None:
        """Return the candidate at a path."""
        name = path.removeprefix("/dev/")
        parts = name.split("/")
        if len(parts) > 1 and parts[0] in _NOT_DEVICES:
            return None
        if not self._hidden and any(part.startswith(".") for part in parts):
            return None
        return self._match(name)

    @property
    def _hidden(self) -> bool:
        """Whether names that begin with a dot count."""
        return self.options.pattern.startswith(r"\.")

    def _match(self, name: str) -> Match | None:
        groups = pattern.fullmatch(self.options.pattern, name)
        if groups is None:
            return None
        excluded = any(pattern.fullmatch(text, name) is not None for text in self.options.exclude)
        return Match(f"/dev/{name}", name, groups, "excluded" if excluded else None)

    def missing(self, files: HostFiles) -> str | None:
        """Say that /dev is not there."""
        return absent(files, "/dev")

    def unmatched(self, files: HostFiles) -> str:
        """Say that no path matches."""
        return f"{contents(files, '/dev')}, nothing below it matches {self.options.pattern}"

    def watch_roots(self) -> tuple[WatchRoot, ...]:
        """Return /dev and all below."""
        return (WatchRoot("/dev", recursive=True),)

"""The source ``dev``: each device node below /dev whose path there matches."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from devhost import pattern
from devhost.discovery.host_files import HostFiles
from devhost.discovery.match import Match, WatchRoot, absent
from devhost.model.sources import Dev

# Filesystems below /dev that hold no devices to hand out, but may hold very many files.
_NOT_DEVICES: Final = frozenset({"fd", "hugepages", "mqueue", "pts", "shm"})


@dataclass(frozen=True, slots=True)
class DevFinder:
    """Finds device nodes by a pattern on their path below /dev."""

    options: Dev

    def find(self, files: HostFiles) -> Iterator[Match]:
        """Yield each matching path with the pattern's named groups."""
        hidden = self.options.pattern.startswith(r"\.")
        for name in files.walk("/dev", hidden=hidden, leave_out=_NOT_DEVICES):
            groups = pattern.fullmatch(self.options.pattern, name)
            if groups is None:
                continue
            excluded = any(
                pattern.fullmatch(text, name) is not None for text in self.options.exclude
            )
            yield Match(f"/dev/{name}", name, groups, "excluded" if excluded else None)

    def missing(self, files: HostFiles) -> str | None:
        """Say that /dev is not there."""
        return absent(files, "/dev")

    def watch_roots(self) -> tuple[WatchRoot, ...]:
        """Return /dev and all below."""
        return (WatchRoot("/dev", recursive=True),)

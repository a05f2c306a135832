"""The source ``dev``: each device node below /dev whose path there matches."""

import fnmatch
from collections.abc import Iterator
from typing import Final

from devhost.discovery.match import Match, Missed, Readings
from devhost.discovery.roots import DirectoryRoot, Reading
from devhost.immutable import immutable
from devhost.model import pattern
from devhost.model.sources import Dev

_IN_PART: Final = "the pattern matches only a part of it"


@immutable
class DevFinder:
    """Finds device nodes by a pattern on their path below /dev."""

    options: Dev

    @property
    def roots(self) -> tuple[DirectoryRoot]:
        """Return /dev and all below."""
        hidden = self.options.pattern.startswith(r"\.")
        return (DirectoryRoot("/dev", recursive=True, hidden=hidden),)

    def find(self, readings: Readings) -> Iterator[Match]:
        """Yield each matching path with the pattern's named groups."""
        reading = readings[self.roots[0]]
        for name in reading.names:
            if (match := self._match(reading, name)) is not None:
                yield match

    def _match(self, reading: Reading, name: str) -> Match | None:
        groups = pattern.fullmatch(self.options.pattern, name)
        if groups is None:
            return None
        last = name.rpartition("/")[2]
        excluded = any(
            fnmatch.fnmatchcase(name if "/" in glob else last, glob)
            for glob in self.options.exclude
        )
        reason = "excluded" if excluded else None
        return Match(f"/dev/{name}", name, groups, reason, (reading, name))

    def missed(self, readings: Readings) -> Iterator[Missed]:
        """Yield the other paths."""
        text = self.options.pattern
        for name in readings[self.roots[0]].names:
            if pattern.fullmatch(text, name) is None:
                in_part = pattern.is_in(text, name)
                path = f"/dev/{name}"
                yield Missed(path, {"": _IN_PART} if in_part else {"pattern": path})

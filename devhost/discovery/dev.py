"""The source ``dev``: each device node below /dev whose path there matches."""

import fnmatch
from collections.abc import Iterator

from devhost.discovery.match import Match, Readings
from devhost.discovery.nearest import nearest
from devhost.discovery.roots import DirectoryRoot, Reading, contents
from devhost.immutable import immutable
from devhost.model import pattern
from devhost.model.sources import Dev


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

    @property
    def summary(self) -> str:
        """The source in words."""
        return f"dev {self.options.pattern}"

    def looked(self, readings: Readings) -> str:
        """Say how much there is below /dev."""
        return f"{len(readings[self.roots[0]].names)} paths below /dev"

    def left(self, readings: Readings) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the paths of which the pattern matches a part."""
        text = self.options.pattern
        for name in readings[self.roots[0]].names:
            if pattern.fullmatch(text, name) is None and pattern.is_in(text, name):
                yield name, ("only a part of it matches",)

    def unmatched(self, readings: Readings) -> str:
        """Say that no path matches, and what comes nearest."""
        reading = readings[self.roots[0]]
        found = f"{contents(reading, '/dev')}, nothing below it matches {self.options.pattern}"
        part = next(self.left(readings), None)
        if part is not None:
            return f"{found}; the pattern has to match the whole path, such as {part[0]}"
        return found + nearest(self.options.pattern, reading.names)

"""The source ``dev``: each device node below /dev whose path there matches."""

from collections.abc import Iterator

from devhost.discovery.match import Match, Readings
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

    @property
    def by_path_alone(self) -> bool:
        """What is at a path depends on nothing else."""
        return True

    def find(self, readings: Readings) -> Iterator[Match]:
        """Yield each matching path with the pattern's named groups."""
        reading = readings[self.roots[0]]
        for name in reading.in_order(reading.between(self.options.pattern)):
            if (match := self._match(reading, name)) is not None:
                yield match

    def _match(self, reading: Reading, name: str) -> Match | None:
        groups = pattern.fullmatch(self.options.pattern, name)
        if groups is None:
            return None
        excluded = any(pattern.fullmatch(text, name) is not None for text in self.options.exclude)
        reason = "excluded" if excluded else None
        return Match(f"/dev/{name}", name, groups, reason, (reading, name))

    def unmatched(self, readings: Readings) -> str:
        """Say that no path matches."""
        found = contents(readings[self.roots[0]], "/dev")
        return f"{found}, nothing below it matches {self.options.pattern}"

"""The source ``directory``: each entry is a device."""

from collections.abc import Iterable, Iterator

from devhost.discovery.match import Match, Readings
from devhost.discovery.roots import DirectoryRoot, Reading, contents
from devhost.immutable import immutable
from devhost.model import pattern
from devhost.model.device import Skipped
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

    @property
    def by_path_alone(self) -> bool:
        """What is at a path depends on nothing else."""
        return True

    def find(self, readings: Readings) -> Iterator[Match | Skipped]:
        """Yield each entry, or with ``recursive`` everything below."""
        reading = readings[self.roots[0]]
        found = [name for name in reading.names if self._hidden or not name.startswith(".")]
        include = self.options.include
        if include is not None and not self.options.recursive:
            some = {name for text in include for name in reading.between(text)}
            yield from (self._match(reading, name) for name in found if name in some)
            left = [name for name in found if name not in some]
            in_part = set() if some else self._in_part(left)
            yield from reading.skipped((one for one in left if one in in_part), _IN_PART)
            yield from reading.skipped((one for one in left if one not in in_part), _NOT_INCLUDED)
        else:
            yield from (self._match(reading, name) for name in found)

    @property
    def _hidden(self) -> bool:
        """Whether names that begin with a dot count."""
        return any(text.startswith((r"\.", "[.]")) for text in self.options.include or ())

    def _in_part(self, some: Iterable[str]) -> set[str]:
        """Return the names of which a pattern matches a part."""
        texts = self.options.include or ()
        return {name for name in some if any(pattern.is_in(text, name) for text in texts)}

    def _match(self, reading: Reading, name: str) -> Match:
        excluded = self._excluded(name)
        return Match(reading.path(name), name, excluded=excluded, at=(reading, name))

    def _excluded(self, name: str) -> str | None:
        last = name.rpartition("/")[2]
        include = self.options.include
        if include is not None and not any(
            pattern.fullmatch(text, last) is not None for text in include
        ):
            return _NOT_INCLUDED
        if any(pattern.fullmatch(text, last) is not None for text in self.options.exclude):
            return "excluded"
        return None

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


_NOT_INCLUDED = "not included"
_IN_PART = "not included: the pattern matches only a part of its name"

"""What a source finds among what was read, before it is judged."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Final, Protocol

from devhost.discovery.roots import Reading, Root
from devhost.immutable import immutable
from devhost.model.device import Hardware, Skipped, no_variables

NO_INTERFACE: Final = "no interface has the class, interface and driver that are asked for"
LETTERS: Final = "upper and lower case count"  # why something does not match that looks alike


@immutable
class Match:
    """What may be a candidate.

    Attributes:
        path: The host path as matched; empty for a token.
        name: The device ID that the source gives by default.
        variables: The pattern's named groups.
        excluded: Why it is not to be offered, by the source's own options.
        at: What was read, and its name there; ``None`` for a token.
        hardware: What the kernel says of it, where it was found there.
    """

    path: str
    name: str
    variables: Mapping[str, str] = field(default_factory=no_variables)
    excluded: str | None = None
    at: tuple[Reading, str] | None = None
    hardware: Hardware | None = None


Readings = Mapping[Root, Reading]


class Finder(Protocol):
    """One kind of source."""

    @property
    def roots(self) -> Sequence[Root]:
        """The parts of the host to read."""
        ...

    def find(self, readings: Readings) -> Iterable[Match | Skipped]:
        """Yield every match, and what is skipped without a look."""
        ...

    @property
    def summary(self) -> str:
        """The source in words."""
        ...

    def looked(self, readings: Readings) -> str:
        """Say how many things were looked at."""
        ...

    def left(self, readings: Readings) -> Iterable[tuple[str, tuple[str, ...]]]:
        """Yield what does not match, and why; not what is not worth a line."""
        ...

    def unmatched(self, readings: Readings) -> str:
        """Say why nothing is found where nothing is missing."""
        ...


def distance(left: tuple[str, tuple[str, ...]]) -> tuple[int, bool, bool]:
    """Return how far from a match something is: the nearest comes first.

    What differs in its interfaces alone is what was named.
    """
    _, reasons = left
    named = reasons[0].startswith(NO_INTERFACE)
    return len(reasons), not reasons[0].endswith(LETTERS), not named

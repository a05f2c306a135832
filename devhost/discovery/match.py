"""What a source finds among what was read, before it is judged."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from devhost.discovery.roots import Reading, Root
from devhost.immutable import immutable
from devhost.model.device import Hardware, Skipped, no_variables


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

    def missed(self, readings: Readings) -> "Iterable[Missed]":
        """Yield what was looked at and is not selected; reads no more than `find` has read."""
        ...


@immutable
class Missed:
    """What a source has looked at and does not select.

    Attributes:
        name: What it is called.
        differs: By option that it fails, what it has instead, empty for nothing. An empty key has a
            sentence that says it in full.
    """

    name: str
    differs: Mapping[str, str]

"""What a source finds among what was read, before it is judged."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from typing import Protocol

from devhost.discovery.roots import Reading, Root
from devhost.immutable import immutable
from devhost.model.device import Skipped


@immutable
class Match:
    """What may be a candidate.

    Attributes:
        path: The host path as matched; empty for a token.
        name: The device ID that the source gives by default.
        variables: The pattern's named groups.
        excluded: Why it is not to be offered, by the source's own options.
        at: What was read, and its name there; ``None`` for a token.
    """

    path: str
    name: str
    variables: Mapping[str, str] = field(default_factory=dict)
    excluded: str | None = None
    at: tuple[Reading, str] | None = None


Readings = Mapping[Root, Reading]


class Finder(Protocol):
    """One kind of source."""

    @property
    def roots(self) -> Sequence[Root]:
        """The parts of the host to read."""
        ...

    @property
    def by_path_alone(self) -> bool:
        """Whether what is at a path depends on nothing else."""
        ...

    def find(self, readings: Readings) -> Iterable[Match | Skipped]:
        """Yield every match, and what is skipped without a look."""
        ...

    def unmatched(self, readings: Readings) -> str:
        """Say why nothing is found where nothing is missing."""
        ...

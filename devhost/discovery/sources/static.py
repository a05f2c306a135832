"""The source ``static``: tokens that the configuration declares."""

from collections.abc import Iterator, Mapping

from devhost.discovery.sources import explain
from devhost.discovery.sources.base import Candidate, Listings, Location, Unmatched
from devhost.model import names
from devhost.model.device import Node
from devhost.model.immutable import immutable
from devhost.model.sources import Static


@immutable
class StaticSource:
    """Yields tokens; it looks nowhere."""

    options: Static
    locations: tuple[Location, ...] = ()

    def find(self, _listings: Listings, _previous: Mapping[str, Node]) -> Iterator[Candidate]:
        """Yield each token."""
        ids = self.options.ids
        texts = names.natural(ids) if ids is not None else map(str, range(self.options.count or 0))
        return (Candidate("", text) for text in texts)

    def unmatched(self, _listings: Listings) -> tuple[Unmatched, ...]:
        """Return nothing: it looks at nothing."""
        return ()

    def explain_empty(self, _listings: Listings) -> str:
        """Return that there are no tokens."""
        return explain.explain_empty(self.options, ())

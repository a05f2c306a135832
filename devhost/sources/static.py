"""The source ``static``: tokens that the configuration declares."""

from collections.abc import Iterator, Mapping

from devhost.model import names
from devhost.model.device_node import Node
from devhost.model.sources import Static
from devhost.sources.base import Candidate, Listings, NodeSource


class StaticSource(NodeSource):
    """Yields tokens; it looks nowhere."""

    def __init__(self, options: Static) -> None:
        self._options = options

    def find(self, _listings: Listings, _previous: Mapping[str, Node]) -> Iterator[Candidate]:
        """Yield each token."""
        ids, count = self._options.ids, self._options.count or 0
        texts = names.natural(ids) if ids is not None else map(str, range(count))
        return (Candidate("", text) for text in texts)

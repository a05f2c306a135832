"""The source ``static``: tokens and slots, nothing physical."""

from collections.abc import Iterator

from devhost.discovery.match import Match, Missed, Readings
from devhost.discovery.roots import Root
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.sources import Static


@immutable
class StaticFinder:
    """Yields what the configuration declares."""

    options: Static

    @property
    def roots(self) -> tuple[Root, ...]:
        """Nothing is read."""
        return ()

    def find(self, _readings: Readings) -> Iterator[Match]:
        """Yield each token."""
        ids = self.options.ids
        texts = names.natural(ids) if ids is not None else map(str, range(self.options.count or 0))
        return (Match("", text) for text in texts)

    def missed(self, _readings: Readings) -> Iterator[Missed]:
        """Nothing is looked at."""
        return iter(())

"""The source ``static``: tokens and slots, nothing physical."""

from collections.abc import Iterator

from devhost.discovery.match import Match, Readings
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

    @property
    def summary(self) -> str:
        """The source in words."""
        return "static"

    def looked(self, _readings: Readings) -> str:
        """Nothing is looked at."""
        return "declared in the configuration"

    def left(self, _readings: Readings) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Nothing is left."""
        return iter(())

    def unmatched(self, _readings: Readings) -> str:
        """Say that none are declared."""
        return "static declares no devices"

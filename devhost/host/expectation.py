"""How many devices a resource should have: a declared number, or as many as it had lately; pure."""

import hashlib
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Final

from devhost.immutable import immutable
from devhost.model.config import Resource

ACCEPTED_AFTER_S: Final = 24 * 3600.0
# The options that decide which devices are found. When one of them changes, so may the number.
_FINDING: Final = ("sources", "id", "group", "max_devices", "overlap")


@immutable
class Expectation:
    """What is expected of one resource, and what it has.

    Attributes:
        finding: A hash of the options that decide which devices are found.
        found: How many devices there are.
        elsewhere: How many nodes that it finds are left to other resources.
        minimum: `Resource.min_devices`.
        before: Each higher number of devices it had, and when last (seconds since 1970).
    """

    finding: str = ""
    found: int = 0
    elsewhere: int = 0
    minimum: int | None = None
    before: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, resource: Resource, found: int, elsewhere: int = 0) -> "Expectation":
        """Return what is expected of a resource of which nothing else is known."""
        options = repr([getattr(resource, option) for option in _FINDING])
        finding = hashlib.sha256(options.encode()).hexdigest()[:16]
        return cls(finding, found, elsewhere, resource.min_devices)

    def then(self, later: "Expectation", now: float) -> "Expectation":
        """Return a later expectation that also knows of this one.

        Fewer devices are missing for a day, unless an edit explains them: another declaration
        of what is found, or another resource that has some of them now.
        """
        if later.finding != self.finding:
            return later
        given = max(0, later.elsewhere - self.elsewhere)
        had = {**self.lately(now), self.found: now, **later.lately(now)}
        before = {n - given: at for n, at in had.items() if n - given > later.found}
        return replace(later, before=before)

    def expected(self, now: float) -> int:
        """Return how many devices there should be."""
        if self.minimum is not None:
            return self.minimum
        return max([self.found, *self.lately(now)])

    def missing(self, now: float) -> int:
        """Return how many of them are not there."""
        return max(0, self.expected(now) - self.found)

    def lately(self, now: float) -> dict[int, float]:
        """Return `before` without what is accepted by now."""
        # A clock that was wrong may have left a time of the future.
        return {n: at for n, at in self.before.items() if abs(now - at) < ACCEPTED_AFTER_S}

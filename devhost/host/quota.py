"""How many device IDs each resource may offer, of those that the process may have."""

from collections.abc import Callable, Mapping
from typing import Final

from devhost import limits

# The part of the IDs left by declarations that is divided evenly, which a directory that fills up
# cannot take from others. The rest goes to the first that need it.
_SHARE: Final = 0.5


class Quota:
    """One per process."""

    def __init__(self) -> None:
        self._declared: Mapping[str, int] = {}
        self._used: dict[str, int] = {}
        self._cut: dict[str, Callable[[], None]] = {}
        self._each = 0
        self._taken = 0  # by all together: what each is granted, or has, if that is more

    def declare(self, declared: Mapping[str, int]) -> None:
        """Set how many IDs each resource has at least by its declaration."""
        left = max(limits.DEVICE_IDS_MAX - sum(declared.values()), 0)
        self._declared, self._each = declared, int(left * _SHARE / max(len(declared), 1))
        self._taken = sum(map(self._taken_by, declared.keys() | self._used.keys()))
        self._tell()

    def most(self, resource: str) -> int:
        """Return how many IDs a resource may offer now; never less than it does."""
        free = limits.DEVICE_IDS_MAX - self._taken
        return max(self._used.get(resource, 0), self._taken_by(resource) + free)

    def use(self, resource: str, ids: int, again: Callable[[], None] | None = None) -> None:
        """Record how many IDs a resource has.

        Args:
            resource: Its name.
            ids: Their number.
            again: Called when there may be more room, for one that could use it.
        """
        former = self._used.get(resource, 0)
        self._set(resource, ids)
        if ids < former:
            self._tell()
        if again is not None:
            self._cut[resource] = again

    def end(self, resource: str) -> None:
        """Forget a resource that has ended."""
        self._set(resource, 0)
        del self._used[resource]
        self._tell()

    def _set(self, resource: str, ids: int) -> None:
        self._taken -= self._taken_by(resource)
        self._used[resource] = ids
        self._taken += self._taken_by(resource)
        self._cut.pop(resource, None)

    def _taken_by(self, resource: str) -> int:
        declared, used = self._declared.get(resource), self._used.get(resource, 0)
        return used if declared is None else max(used, declared + self._each)

    def _tell(self) -> None:
        for again in tuple(self._cut.values()):
            again()

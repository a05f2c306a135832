"""What has happened, in plain numbers.

Prometheus' library takes megabytes, and kilobytes for each series: it is imported when
somebody asks (`devhost.observe.metrics`), not in each process that might be asked.
"""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.observe.recorder import Recorder

# The kubelet gives up waiting for nothing; we do after 5 s.
_ALLOCATION_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DISCOVERY_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Durations:
    """How often something took how long.

    Attributes:
        bounds: Upper bounds of seconds, ascending.
        counts: How often it took at most so long but longer than the bound before; at the end,
            how often longer than all bounds.
        total: Of all seconds.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Note one."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class Happened:
    """What has happened to one resource.

    Attributes:
        allocations: Allocate calls, by how they ended.
        registrations: Registrations, by whether the kubelet completed them.
        allocation_durations: Of the Allocate calls.
        discovery_durations: Of looks at the host.
        discovery_errors: Looks at the host in which a source could not be read.
    """

    allocations: dict[str, int]
    registrations: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    allocation_durations: Durations = field(default_factory=lambda: Durations(_ALLOCATION_BOUNDS))
    discovery_durations: Durations = field(default_factory=lambda: Durations(_DISCOVERY_BOUNDS))
    discovery_errors: int = 0


class Tally(Recorder):
    """Counts what happens in a process.

    Args:
        results: How an Allocate may end.

    Attributes:
        of: What has happened, by resource.
    """

    def __init__(self, results: Iterable[str]) -> None:
        self._results = tuple(results)
        self.of: dict[str, Happened] = {}

    def registration(self, resource: str, *, ok: bool) -> None:
        """Count a registration."""
        self._at(resource).registrations[ok] += 1

    def allocated(self, resource: str, result: str, seconds: float) -> None:
        """Count an Allocate."""
        happened = self._at(resource)
        happened.allocations[result] = happened.allocations.get(result, 0) + 1
        happened.allocation_durations.add(seconds)

    def looked(self, resource: str, seconds: float, *, failed: bool) -> None:
        """Count a look at the host."""
        happened = self._at(resource)
        happened.discovery_durations.add(seconds)
        happened.discovery_errors += failed

    def keep(self, resources: Collection[str]) -> None:
        """Forget all others; what has not happened to these is 0 from now on."""
        self.of = {name: self._at(name) for name in resources}

    def _at(self, resource: str) -> Happened:
        if resource not in self.of:
            self.of[resource] = Happened(dict.fromkeys(self._results, 0))
        return self.of[resource]

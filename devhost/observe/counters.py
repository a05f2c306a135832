"""Counters, as plain numbers: an object for each series would take kilobytes."""

from bisect import bisect_left
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.observe.recorder import Recorder

# Allocate has no deadline in kubelet; devhost gives up after 5 s.
_ALLOCATION_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DISCOVERY_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Durations:
    """A histogram of durations.

    Attributes:
        bounds: The upper bounds of the buckets in seconds, ascending.
        counts: The number of durations in each bucket, and in a last one for longer durations.
        total: The sum of all durations.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def add(self, seconds: float) -> None:
        """Add one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds


@dataclass(slots=True)
class ResourceCounters:
    """The counters of one resource.

    Attributes:
        allocations: Allocate calls, by result.
        registrations: Registrations, by success.
        allocation_durations: The durations of Allocate calls.
        discovery_durations: The durations of scans.
        discovery_errors: Scans in which a source could not be read.
    """

    allocations: dict[str, int]
    registrations: dict[bool, int] = field(default_factory=lambda: {True: 0, False: 0})
    allocation_durations: Durations = field(default_factory=lambda: Durations(_ALLOCATION_BOUNDS))
    discovery_durations: Durations = field(default_factory=lambda: Durations(_DISCOVERY_BOUNDS))
    discovery_errors: int = 0


class Counters(Recorder):
    """Counts the events of a process.

    Args:
        results: The possible results of Allocate.

    Attributes:
        by_resource: The counters of each resource.
    """

    def __init__(self, results: Iterable[str]) -> None:
        self._results = tuple(results)
        self.by_resource: dict[str, ResourceCounters] = {}

    def registration(self, resource: str, *, ok: bool) -> None:
        """Count a registration."""
        self._at(resource).registrations[ok] += 1

    def allocated(self, resource: str, result: str, seconds: float) -> None:
        """Count an Allocate call."""
        counters = self._at(resource)
        counters.allocations[result] = counters.allocations.get(result, 0) + 1
        counters.allocation_durations.add(seconds)

    def scanned(self, resource: str, seconds: float, *, failed: bool) -> None:
        """Count a scan."""
        counters = self._at(resource)
        counters.discovery_durations.add(seconds)
        counters.discovery_errors += failed

    def keep(self, resources: Collection[str]) -> None:
        """Keep only the counters of these resources; new resources start at 0."""
        self.by_resource = {name: self._at(name) for name in resources}

    def _at(self, resource: str) -> ResourceCounters:
        if resource not in self.by_resource:
            self.by_resource[resource] = ResourceCounters(dict.fromkeys(self._results, 0))
        return self.by_resource[resource]

"""The metrics for Prometheus: what is counted here, and what a host says when it is scraped."""

from collections.abc import Callable, Collection, Iterable
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LABEL: Final = "resource_name"
# Allocate has no deadline in kubelet; devhost gives up after 5 s.
_ALLOCATION_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DISCOVERY_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of a process. All methods belong to the event loop.

    Args:
        results: The possible results of Allocate.
    """

    def __init__(self, results: Iterable[str]) -> None:
        self._results = tuple(results)
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._known: set[str] = set()
        self._registrations = Counter(
            "devhost_registrations",
            "Registrations with kubelet, by result.",
            (LABEL, "result"),
            registry=self._registry,
        )
        self._allocations = Counter(
            "devhost_allocations",
            "Allocate calls by kubelet, by result.",
            (LABEL, "result"),
            registry=self._registry,
        )
        self._allocation_seconds = Histogram(
            "devhost_allocation_duration_seconds",
            "Duration of Allocate calls.",
            (LABEL,),
            buckets=_ALLOCATION_BOUNDS,
            registry=self._registry,
        )
        self._discovery_seconds = Histogram(
            "devhost_discovery_duration_seconds",
            "Duration of scans of the host.",
            (LABEL,),
            buckets=_DISCOVERY_BOUNDS,
            registry=self._registry,
        )
        self._discovery_errors = Counter(
            "devhost_discovery_errors",
            "Scans of the host in which a source could not be read.",
            (LABEL,),
            registry=self._registry,
        )

    def registration(self, resource: str, *, ok: bool) -> None:
        """Count a registration."""
        self._known.add(resource)
        self._registrations.labels(resource, result(ok=ok)).inc()

    def allocated(self, resource: str, result: str, seconds: float) -> None:
        """Count an Allocate call, with one of `devhost.kubelet.servicer.RESULTS`."""
        self._known.add(resource)
        self._allocations.labels(resource, result).inc()
        self._allocation_seconds.labels(resource).observe(seconds)

    def scanned(self, resource: str, seconds: float, *, failed: bool) -> None:
        """Count a scan, and whether a source could not be read."""
        self._known.add(resource)
        self._discovery_seconds.labels(resource).observe(seconds)
        self._discovery_errors.labels(resource).inc(failed)

    def keep(self, resources: Collection[str]) -> None:
        """Keep only the series of these resources.

        Each has all of its series from the start: Prometheus sees no increase in a series that
        begins at 1.
        """
        for name in resources:
            for ok in (True, False):
                self._registrations.labels(name, result(ok=ok))
            for one in self._results:
                self._allocations.labels(name, one)
            self._allocation_seconds.labels(name)
            self._discovery_seconds.labels(name)
            self._discovery_errors.labels(name)
        for name in self._known - set(resources):
            for metric in (
                self._registrations,
                self._allocations,
                self._allocation_seconds,
                self._discovery_seconds,
                self._discovery_errors,
            ):
                metric.remove_by_labels({LABEL: name})
        self._known = set(resources)

    def expose(self, families: Callable[[], Iterable[Metric]]) -> None:
        """Add metrics that are made at each scrape."""
        self._registry.register(_Families(families))

    def text(self) -> bytes:
        """Return all metrics in the text format 0.0.4."""
        return generate_latest(self._registry)


class _Families(Collector):
    def __init__(self, families: Callable[[], Iterable[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families()

    def describe(self) -> Iterable[Metric]:
        return ()  # or they would be made once more, to compare their names


def result(*, ok: bool) -> str:
    """Return the value of the label ``result``."""
    return "ok" if ok else "error"

"""The metrics for Prometheus."""

from collections.abc import Sequence
from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)

from devhost.model.device import Snapshot

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_RESOURCE: Final = "resource_name"
REGISTRATION_RESULTS: Final = {True: "ok", False: "error"}
_ALLOCATE_RESULTS: Final = ("ok", "refused", "timeout", "error", "cancelled")
# Allocate has no deadline in kubelet; devhost gives up after 5 s.
_ALLOCATION_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DISCOVERY_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics:
    """The metrics of a process. All methods belong to the event loop."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (_RESOURCE, *labels), registry=self.registry)

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(name, text, (_RESOURCE,), registry=self.registry, buckets=bounds)

        self.registrations = counter(
            "devhost_registrations", "Registrations with kubelet, by result.", "result"
        )
        self.allocations = counter(
            "devhost_allocations", "Allocate calls by kubelet, by result.", "result"
        )
        self.allocation_seconds = histogram(
            "devhost_allocation_duration_seconds", "Duration of Allocate calls.", _ALLOCATION_BOUNDS
        )
        self.discovery_seconds = histogram(
            "devhost_discovery_duration_seconds",
            "Duration of scans of the host.",
            _DISCOVERY_BOUNDS,
        )
        self.discovery_errors = counter(
            "devhost_discovery_errors", "Scans of the host in which a source could not be read."
        )
        self._plain = self.allocation_seconds, self.discovery_seconds, self.discovery_errors

    def add_resource(self, resource: str) -> None:
        """Begin all series of a resource: Prometheus sees no increase in one that begins at 1."""
        for result in REGISTRATION_RESULTS.values():
            self.registrations.labels(resource, result)
        for result in _ALLOCATE_RESULTS:
            self.allocations.labels(resource, result)
        for metric in self._plain:
            metric.labels(resource)

    def remove_resource(self, resource: str) -> None:
        """End the series of a resource."""
        for metric in (*self._plain, self.registrations, self.allocations):
            metric.remove_by_labels({_RESOURCE: resource})

    def observe_scan(self, resource: str, snapshot: Snapshot, seconds: float) -> None:
        """Count a scan that has ended."""
        self.discovery_seconds.labels(resource).observe(seconds)
        self.discovery_errors.labels(resource).inc(snapshot.error is not None)

    def text(self) -> bytes:
        """Return all metrics in the text format 0.0.4."""
        return generate_latest(self.registry)

"""The metrics for Prometheus."""

import platform
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devhost import __version__
from devhost.model.device import Snapshot
from devhost.model.names import printable
from devhost.model.resource_state import State
from devhost.observe import logs

if TYPE_CHECKING:
    from devhost.host.host import Host
    from devhost.host.resource import ServedResource

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_RESOURCE: Final = "resource_name"
REGISTRATION_RESULTS: Final = {True: "ok", False: "error"}
# Read from a host at each scrape: the labels, and the text.
_GAUGES: Final = {
    "devhost_build_info": ("version python", "The version of devhost and of Python."),
    "devhost_devices": ("resource_name health", "Distinct devices that are there, by health."),
    "devhost_devices_expected": ("resource_name", "minDevices, or the most so far."),
    "devhost_devices_missing": ("resource_name", "Expected devices that are not there."),
    "devhost_devices_in_use": ("resource_name", "Distinct devices that pods have."),
    "devhost_registered": ("resource_name", "Whether kubelet has the resource (1 or 0)."),
    "devhost_streams": ("resource_name", "Open ListAndWatch calls."),
    "devhost_resource_state": ("resource_name state", "1 for the current state, 0 for all others."),
    "devhost_config_last_reload_successful": ("", "Whether the file is in use as it is (1 or 0)."),
    "devhost_config_last_reload_success_timestamp_seconds": (
        "",
        "When the configuration in use was applied.",
    ),
    "devhost_config_hash_info": ("hash", "The hash of the configuration in use."),
    "devhost_device_allocated": (
        "resource_name device_id namespace pod",
        "Devices that pods have; the value is always 1.",
    ),
}
_COUNTERS: Final = {
    "devhost_list_updates": ("resource_name", "Device lists sent to kubelet."),
    "devhost_config_reloads": ("result", "Changes of the configuration file, by result."),
    "devhost_kubelet_restarts": ("", "Restarts of kubelet that registrations have shown."),
    "devhost_cdi_spec_writes": ("", "CDI spec files written."),
    "devhost_log_lines_dropped": ("", "Log lines dropped: the log was not read fast enough."),
    "devhost_uevent_overruns": ("", "Times that device events of the kernel were lost."),
}
_Sample = tuple[str, tuple[str, ...], float]  # name, values of the labels, value
# Allocate has no deadline in kubelet; devhost gives up after 5 s.
_ALLOCATION_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DISCOVERY_BOUNDS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)

disable_created_metrics()  # type: ignore[no-untyped-call]


class Metrics(Collector):
    """The metrics of a process. All methods belong to the event loop."""

    def __init__(self, results: Iterable[str]) -> None:
        self._results = tuple(results)
        self._host: Host | None = None
        self._devices = False
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._registry.register(self)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, (_RESOURCE, *labels), registry=self._registry)

        def histogram(name: str, text: str, bounds: Sequence[float]) -> Histogram:
            return Histogram(name, text, (_RESOURCE,), registry=self._registry, buckets=bounds)

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
        for result in self._results:
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

    def expose(self, host: "Host", *, devices: bool) -> None:
        """Add the metrics of a host, with `devices` also which pod holds which device."""
        self._host, self._devices = host, devices

    def collect(self) -> Iterable[Metric]:
        """Return the metrics of the host."""
        return _families(self._host, devices=self._devices) if self._host else ()

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, which would be made once more only to compare their names."""
        return ()

    def text(self) -> bytes:
        """Return all metrics in the text format 0.0.4."""
        return generate_latest(self._registry)


def _families(host: "Host", *, devices: bool) -> Iterable[Metric]:
    families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
    for name, (labels, text) in _GAUGES.items():
        families[name] = GaugeMetricFamily(name, text, labels=labels.split())
    for name, (labels, text) in _COUNTERS.items():
        families[name] = CounterMetricFamily(name, text, labels=labels.split())
    for name, values, value in _samples(host, devices=devices):
        families[name].add_metric(values, value)
    return [family for family in families.values() if family.samples]


def _samples(host: "Host", *, devices: bool) -> Iterator[_Sample]:
    yield "devhost_build_info", (__version__, platform.python_version()), 1
    for served in host.resources:
        yield from _resource_samples(served)
        if host.parts.holders.available:
            in_use = {offered.device for offered in host.parts.holders.pods_by_id(served.name)}
            yield "devhost_devices_in_use", (served.name,), len(in_use)
    if host.source is not None:
        config = host.source.status
        yield "devhost_config_reloads", (REGISTRATION_RESULTS[True],), config.reloads
        yield "devhost_config_reloads", (REGISTRATION_RESULTS[False],), config.failures
        yield "devhost_config_last_reload_successful", (), not config.problems
        applied = config.applied.timestamp()
        yield "devhost_config_last_reload_success_timestamp_seconds", (), applied
        yield "devhost_config_hash_info", (config.hash,), 1
    yield "devhost_kubelet_restarts", (), host.parts.backends.restarts
    yield "devhost_cdi_spec_writes", (), host.parts.cdi_files.writes
    yield "devhost_log_lines_dropped", (), logs.dropped_lines()
    yield "devhost_uevent_overruns", (), host.parts.reconciler.locations.uevents.overruns
    for served in host.resources if devices else ():
        for offered, pods in host.parts.holders.pods_by_id(served.name).items():
            for namespace, _, pod in (name.partition("/") for name in pods):
                values = (served.name, offered.id, namespace, pod)  # as kubelet has them
                yield "devhost_device_allocated", tuple(map(printable, values)), 1


def _resource_samples(served: "ServedResource") -> Iterator[_Sample]:
    name, devices, count = served.name, served.devices.offered.present_devices, served.devices.count
    if not served.draining:
        healthy = sum(device.healthy for device in devices)
        yield "devhost_devices", (name, "Healthy"), healthy
        yield "devhost_devices", (name, "Unhealthy"), len(devices) - healthy
    yield "devhost_devices_expected", (name,), count.expected
    yield "devhost_devices_missing", (name,), count.missing
    yield "devhost_registered", (name,), served.registered
    published = served.publication.status
    yield "devhost_streams", (name,), published.streams
    yield "devhost_list_updates", (name,), published.lists_sent
    for state in State:
        yield "devhost_resource_state", (name, state.value), served.status.state is state

"""The metrics: events are counted as they come, states are read off the host at each scrape."""

import contextlib
import platform
from collections.abc import Callable, Iterable, Iterator
from typing import Final

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

from devhost.model.state import State
from devhost.observe.facts import ConfigFacts, Facts, Held, ResourceFacts
from devhost.observe.recorder import Recorder

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# The kubelet gives up waiting for nothing; we do after 5 s.
_ALLOCATION_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_DISCOVERY_BUCKETS: Final = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics(Recorder):
    """Counts what happens in a process, and says it to Prometheus.

    Args:
        results: How an Allocate may end.
    """

    def __init__(self, results: Iterable[str]) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call] # a timestamp beside each counter, which nobody reads
        self._registry = registry = CollectorRegistry()
        self._registrations = Counter(
            "devhost_registrations",
            "Registrations with the kubelet, by how they ended.",
            ["resource_name", "result"],
            registry=registry,
        )
        self._allocations = Counter(
            "devhost_allocations",
            "Allocate calls of the kubelet, by how they ended.",
            ["resource_name", "result"],
            registry=registry,
        )
        self._allocation_duration = Histogram(
            "devhost_allocation_duration_seconds",
            "How long Allocate calls took.",
            ["resource_name"],
            buckets=_ALLOCATION_BUCKETS,
            registry=registry,
        )
        self._discovery_duration = Histogram(
            "devhost_discovery_duration_seconds",
            "How long looks at the host took.",
            ["resource_name"],
            buckets=_DISCOVERY_BUCKETS,
            registry=registry,
        )
        self._discovery_errors = Counter(
            "devhost_discovery_errors",
            "Looks at the host in which a source could not be read.",
            ["resource_name"],
            registry=registry,
        )
        ProcessCollector(registry=registry)
        self._results = tuple(results)
        self._seen: set[str] = set()

    # ── what happens ──

    def registration(self, resource: str, *, ok: bool) -> None:
        """Count a registration."""
        self._begin(resource)
        self._registrations.labels(resource, _result(ok=ok)).inc()

    def allocated(self, resource: str, result: str, seconds: float) -> None:
        """Count an Allocate."""
        self._begin(resource)
        self._allocations.labels(resource, result).inc()
        self._allocation_duration.labels(resource).observe(seconds)

    def looked(self, resource: str, seconds: float, *, failed: bool) -> None:
        """Count a look at the host."""
        self._begin(resource)
        self._discovery_duration.labels(resource).observe(seconds)
        self._discovery_errors.labels(resource).inc(failed)

    def _begin(self, resource: str) -> None:
        """Begin each series at 0: of one that begins at 1, Prometheus sees no increase."""
        if resource not in self._seen:
            self._seen.add(resource)
            for metric, labels in self._series(resource):
                metric.labels(*labels)

    def _forget(self, resource: str) -> None:
        self._seen.discard(resource)
        for metric, labels in self._series(resource):
            with contextlib.suppress(KeyError):
                metric.remove(*labels)

    def _series(self, resource: str) -> Iterator[tuple[Counter | Histogram, tuple[str, ...]]]:
        for ok in (True, False):
            yield self._registrations, (resource, _result(ok=ok))
        for result in self._results:
            yield self._allocations, (resource, result)
        yield self._allocation_duration, (resource,)
        yield self._discovery_duration, (resource,)
        yield self._discovery_errors, (resource,)

    # ── what is so ──

    def text(self, facts: Facts) -> bytes:
        """Return all metrics; a resource that is served no more loses its series."""
        served = {one.name for one in facts.resources}
        for gone in self._seen - served:
            self._forget(gone)
        for name in served:
            self._begin(name)
        return generate_latest(_Together(self._registry, lambda: _families(facts)))


class _Together(Collector):
    def __init__(self, registry: CollectorRegistry, more: Callable[[], Iterable[Metric]]) -> None:
        self._registry, self._more = registry, more

    def collect(self) -> Iterator[Metric]:
        yield from self._more()
        yield from self._registry.collect()


def _result(*, ok: bool) -> str:
    return "ok" if ok else "error"


def _families(facts: Facts) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "devhost_build_info", "Which devhost this is.", labels=["version", "python"]
    )
    build.add_metric([facts.version, platform.python_version()], 1)
    yield build
    yield from _resource_families(facts.resources)
    if facts.config is not None:
        yield from _config_families(facts.config)
    yield CounterMetricFamily(
        "devhost_kubelet_restarts",
        "How often something was registered with another kubelet than before.",
        value=facts.kubelet_restarts,
    )
    yield CounterMetricFamily(
        "devhost_cdi_spec_writes",
        "How often a CDI spec file was written.",
        value=facts.cdi_spec_writes,
    )
    if facts.held is not None:
        yield _held_family(facts.held)


def _resource_families(resources: Iterable[ResourceFacts]) -> Iterator[Metric]:
    label = ["resource_name"]
    devices = GaugeMetricFamily(
        "devhost_devices", "Distinct devices by health.", labels=[*label, "health"]
    )
    registered = GaugeMetricFamily(
        "devhost_registered", "Whether the kubelet has the resource (1 or 0).", labels=label
    )
    streams = GaugeMetricFamily("devhost_streams", "Open ListAndWatch calls.", labels=label)
    updates = CounterMetricFamily(
        "devhost_list_updates", "Device lists sent to the kubelet.", labels=label
    )
    states = GaugeMetricFamily(
        "devhost_resource_state",
        "What the resource is doing: 1 for its state, 0 for all others.",
        labels=[*label, "state"],
    )
    for one in resources:
        devices.add_metric([one.name, "Healthy"], one.healthy)
        devices.add_metric([one.name, "Unhealthy"], one.unhealthy)
        registered.add_metric([one.name], one.registered)
        streams.add_metric([one.name], one.streams)
        updates.add_metric([one.name], one.list_updates)
        for state in State:
            states.add_metric([one.name, state], one.state is state)
    yield from (devices, registered, streams, updates, states)


def _config_families(config: ConfigFacts) -> Iterator[Metric]:
    reloads = CounterMetricFamily(
        "devhost_config_reloads",
        "New contents of the configuration file, by whether they could be used.",
        labels=["result"],
    )
    reloads.add_metric([_result(ok=True)], config.reloads)
    reloads.add_metric([_result(ok=False)], config.failures)
    yield reloads
    yield GaugeMetricFamily(
        "devhost_config_last_reload_successful",
        "Whether the present content of the configuration file is in force (1 or 0).",
        value=config.usable,
    )
    yield GaugeMetricFamily(
        "devhost_config_last_reload_success_timestamp_seconds",
        "When the configuration in force came into force.",
        value=config.applied,
    )
    shown = GaugeMetricFamily(
        "devhost_config_hash_info", "Which configuration is in force.", labels=["hash"]
    )
    shown.add_metric([config.hash], 1)
    yield shown


def _held_family(held: Iterable[Held]) -> Metric:
    family = GaugeMetricFamily(
        "devhost_device_allocated",
        "Which pod holds which device.",
        labels=["resource_name", "device_id", "namespace", "pod"],
    )
    for one in held:
        family.add_metric([one.resource, one.device_id, one.namespace, one.pod], 1)
    return family

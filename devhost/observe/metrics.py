"""The metrics for Prometheus: the counters, and the current state of the host."""

import math
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from devhost.model.names import printable
from devhost.model.state import State
from devhost.observe.counters import Counters, Durations, ResourceCounters
from devhost.observe.metric_values import ConfigMetrics, DeviceHolder, HostMetrics, ResourceMetrics

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL: Final = "resource_name"


def text(counters: Counters, host: HostMetrics) -> bytes:
    """Return all metrics; resources that are no longer served have no series.

    Every resource has all of its series from the start, with the value 0: Prometheus sees no
    increase in a series that begins at 1.
    """
    counters.keep([one.name for one in host.resources])
    return generate_latest(_Collected(lambda: _all(counters, host)))


class _Collected(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def _all(counters: Counters, host: HostMetrics) -> Iterator[Metric]:
    yield from _state_families(host)
    yield from _counter_families(counters.by_resource)
    yield from ProcessCollector(registry=None).collect()


def _counter_families(by_resource: Mapping[str, ResourceCounters]) -> Iterator[Metric]:
    registrations = CounterMetricFamily(
        "devhost_registrations",
        "Registrations with kubelet, by result.",
        labels=[_LABEL, "result"],
    )
    allocations = CounterMetricFamily(
        "devhost_allocations",
        "Allocate calls by kubelet, by result.",
        labels=[_LABEL, "result"],
    )
    allocation_durations = HistogramMetricFamily(
        "devhost_allocation_duration_seconds", "Duration of Allocate calls.", labels=[_LABEL]
    )
    discovery_durations = HistogramMetricFamily(
        "devhost_discovery_duration_seconds", "Duration of scans of the host.", labels=[_LABEL]
    )
    discovery_errors = CounterMetricFamily(
        "devhost_discovery_errors",
        "Scans of the host in which a source could not be read.",
        labels=[_LABEL],
    )
    for name, one in by_resource.items():
        for ok, count in one.registrations.items():
            registrations.add_metric([name, _result(ok=ok)], count)
        for result, count in one.allocations.items():
            allocations.add_metric([name, result], count)
        _add(allocation_durations, name, one.allocation_durations)
        _add(discovery_durations, name, one.discovery_durations)
        discovery_errors.add_metric([name], one.discovery_errors)
    yield from (registrations, allocations, allocation_durations)
    yield from (discovery_durations, discovery_errors)


def _add(family: HistogramMetricFamily, name: str, durations: Durations) -> None:
    bounds = [floatToGoString(bound) for bound in (*durations.bounds, math.inf)]  # type: ignore[no-untyped-call]
    buckets = list(zip(bounds, accumulate(durations.counts), strict=True))
    family.add_metric([name], buckets, durations.total)


def _result(*, ok: bool) -> str:
    return "ok" if ok else "error"


def _state_families(host: HostMetrics) -> Iterator[Metric]:
    build = GaugeMetricFamily(
        "devhost_build_info", "The version of devhost and of Python.", labels=["version", "python"]
    )
    build.add_metric([host.version, platform.python_version()], 1)
    yield build
    yield from _resource_families(host.resources)
    if host.config is not None:
        yield from _config_families(host.config)
    yield CounterMetricFamily(
        "devhost_kubelet_restarts",
        "Restarts of kubelet that registrations have shown.",
        value=host.kubelet_restarts,
    )
    yield CounterMetricFamily(
        "devhost_cdi_spec_writes",
        "CDI spec files written.",
        value=host.cdi_spec_writes,
    )
    yield CounterMetricFamily(
        "devhost_log_lines_dropped",
        "Log lines dropped because the log was not read fast enough.",
        value=host.log_lines_dropped,
    )
    yield CounterMetricFamily(
        "devhost_uevent_overruns",
        "Times that device events of the kernel were lost; everything was read again.",
        value=host.uevent_overruns,
    )
    if host.holders is not None:
        yield _holder_family(host.holders)


def _resource_families(resources: Iterable[ResourceMetrics]) -> Iterator[Metric]:
    label = [_LABEL]
    devices = GaugeMetricFamily(
        "devhost_devices", "Distinct devices by health.", labels=[*label, "health"]
    )
    expected = GaugeMetricFamily(
        "devhost_devices_expected",
        "Devices that should be there: minDevices, or the maximum of the last 24 hours.",
        labels=label,
    )
    missing = GaugeMetricFamily(
        "devhost_devices_missing", "Expected devices that are not there.", labels=label
    )
    registered = GaugeMetricFamily(
        "devhost_registered",
        "Whether the resource is registered with kubelet (1 or 0).",
        labels=label,
    )
    streams = GaugeMetricFamily("devhost_streams", "Open ListAndWatch calls.", labels=label)
    updates = CounterMetricFamily(
        "devhost_list_updates", "Device lists sent to kubelet.", labels=label
    )
    states = GaugeMetricFamily(
        "devhost_resource_state",
        "The state of the resource: 1 for the current state, 0 for all others.",
        labels=[*label, "state"],
    )
    for one in resources:
        devices.add_metric([one.name, "Healthy"], one.healthy)
        devices.add_metric([one.name, "Unhealthy"], one.unhealthy)
        expected.add_metric([one.name], one.expected)
        missing.add_metric([one.name], one.missing)
        registered.add_metric([one.name], one.registered)
        streams.add_metric([one.name], one.streams)
        updates.add_metric([one.name], one.list_updates)
        for state in State:
            states.add_metric([one.name, state], one.state is state)
    yield from (devices, expected, missing, registered, streams, updates, states)


def _config_families(config: ConfigMetrics) -> Iterator[Metric]:
    reloads = CounterMetricFamily(
        "devhost_config_reloads",
        "Changes of the configuration file, by result.",
        labels=["result"],
    )
    reloads.add_metric([_result(ok=True)], config.reloads)
    reloads.add_metric([_result(ok=False)], config.failures)
    yield reloads
    yield GaugeMetricFamily(
        "devhost_config_last_reload_successful",
        "Whether the current content of the configuration file is in use (1 or 0).",
        value=config.usable,
    )
    yield GaugeMetricFamily(
        "devhost_config_last_reload_success_timestamp_seconds",
        "When the configuration in use was applied.",
        value=config.applied,
    )
    shown = GaugeMetricFamily(
        "devhost_config_hash_info", "The hash of the configuration in use.", labels=["hash"]
    )
    shown.add_metric([config.hash], 1)
    yield shown


def _holder_family(holders: Iterable[DeviceHolder]) -> Metric:
    family = GaugeMetricFamily(
        "devhost_device_allocated",
        "Devices that pods have; the value is always 1.",
        labels=[_LABEL, "device_id", "namespace", "pod"],
    )
    for one in holders:
        labels = (one.resource, one.device_id, one.namespace, one.pod)  # as kubelet has them
        family.add_metric([printable(label) for label in labels], 1)
    return family

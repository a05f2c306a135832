"""The metrics, for Prometheus: what has happened, and what is so at this moment."""

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

from devhost.model.state import State
from devhost.observe.facts import ConfigFacts, Facts, Held, ResourceFacts
from devhost.observe.tally import Durations, Happened, Tally

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL: Final = "resource_name"


def text(tally: Tally, facts: Facts) -> bytes:
    """Return all metrics; a resource that is served no more loses its series.

    Each of the others has all of its series, at 0 if need be: of one that begins at 1,
    Prometheus sees no increase.
    """
    tally.keep([one.name for one in facts.resources])
    return generate_latest(_Collected(lambda: _all(tally, facts)))


class _Collected(Collector):
    def __init__(self, families: Callable[[], Iterator[Metric]]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        return self._families()


def _all(tally: Tally, facts: Facts) -> Iterator[Metric]:
    yield from _families(facts)
    yield from _happened_families(tally.of)
    yield from ProcessCollector(registry=None).collect()


def _happened_families(of: Mapping[str, Happened]) -> Iterator[Metric]:
    registrations = CounterMetricFamily(
        "devhost_registrations",
        "Registrations with the kubelet, by how they ended.",
        labels=[_LABEL, "result"],
    )
    allocations = CounterMetricFamily(
        "devhost_allocations",
        "Allocate calls of the kubelet, by how they ended.",
        labels=[_LABEL, "result"],
    )
    allocation_durations = HistogramMetricFamily(
        "devhost_allocation_duration_seconds", "How long Allocate calls took.", labels=[_LABEL]
    )
    discovery_durations = HistogramMetricFamily(
        "devhost_discovery_duration_seconds", "How long looks at the host took.", labels=[_LABEL]
    )
    discovery_errors = CounterMetricFamily(
        "devhost_discovery_errors",
        "Looks at the host in which a source could not be read.",
        labels=[_LABEL],
    )
    for name, one in of.items():
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
    yield CounterMetricFamily(
        "devhost_log_lines_dropped",
        "Log lines that were dropped because the log was not read fast enough.",
        value=facts.log_lines_dropped,
    )
    if facts.held is not None:
        yield _held_family(facts.held)


def _resource_families(resources: Iterable[ResourceFacts]) -> Iterator[Metric]:
    label = [_LABEL]
    devices = GaugeMetricFamily(
        "devhost_devices", "Distinct devices by health.", labels=[*label, "health"]
    )
    expected = GaugeMetricFamily(
        "devhost_devices_expected",
        "Devices that should be there: minDevices, or the most of the last 24 hours.",
        labels=label,
    )
    missing = GaugeMetricFamily(
        "devhost_devices_missing", "Expected devices that are not there.", labels=label
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
        expected.add_metric([one.name], one.expected)
        missing.add_metric([one.name], one.missing)
        registered.add_metric([one.name], one.registered)
        streams.add_metric([one.name], one.streams)
        updates.add_metric([one.name], one.list_updates)
        for state in State:
            states.add_metric([one.name, state], one.state is state)
    yield from (devices, expected, missing, registered, streams, updates, states)


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
        labels=[_LABEL, "device_id", "namespace", "pod"],
    )
    for one in held:
        family.add_metric([one.resource, one.device_id, one.namespace, one.pod], 1)
    return family

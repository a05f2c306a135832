"""The metrics for Prometheus: the counters, and the current state of the host."""

import platform
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Final

from devhost.model.names import printable
from devhost.model.state import State
from devhost.observe.counters import Counters, ResourceCounters
from devhost.observe.exposition import Family, single
from devhost.observe.metric_values import ConfigMetrics, DeviceHolder, HostMetrics, ResourceMetrics
from devhost.observe.process_metrics import process_families

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL: Final = "resource_name"


def text(counters: Counters, host: HostMetrics) -> bytes:
    """Return all metrics; resources that are no longer served have no series.

    Every resource has all of its series from the start, with the value 0: Prometheus sees no
    increase in a series that begins at 1.
    """
    counters.keep([one.name for one in host.resources])
    counted = _counter_families(counters.by_resource)
    families = chain(_state_families(host), counted, process_families())
    return "".join(chain.from_iterable(families)).encode()


def _counter_families(by_resource: Mapping[str, ResourceCounters]) -> Iterator[Family]:
    registrations = Family(
        "counter",
        "devhost_registrations_total",
        "Registrations with kubelet, by result.",
        _LABEL,
        "result",
    )
    allocations = Family(
        "counter",
        "devhost_allocations_total",
        "Allocate calls by kubelet, by result.",
        _LABEL,
        "result",
    )
    allocation_durations = Family(
        "histogram", "devhost_allocation_duration_seconds", "Duration of Allocate calls.", _LABEL
    )
    discovery_durations = Family(
        "histogram", "devhost_discovery_duration_seconds", "Duration of scans of the host.", _LABEL
    )
    discovery_errors = Family(
        "counter",
        "devhost_discovery_errors_total",
        "Scans of the host in which a source could not be read.",
        _LABEL,
    )
    for name, one in by_resource.items():
        for ok, count in one.registrations.items():
            registrations.add(count, name, _result(ok=ok))
        for result, count in one.allocations.items():
            allocations.add(count, name, result)
        for family, durations in (
            (allocation_durations, one.allocation_durations),
            (discovery_durations, one.discovery_durations),
        ):
            family.add_histogram(durations.bounds, durations.counts, durations.total, name)
        discovery_errors.add(one.discovery_errors, name)
    yield from (registrations, allocations, allocation_durations)
    yield from (discovery_durations, discovery_errors)


def _result(*, ok: bool) -> str:
    return "ok" if ok else "error"


def _state_families(host: HostMetrics) -> Iterator[Family]:
    build = Family(
        "gauge", "devhost_build_info", "The version of devhost and of Python.", "version", "python"
    )
    build.add(1, host.version, platform.python_version())
    yield build
    yield from _resource_families(host.resources)
    if host.config is not None:
        yield from _config_families(host.config)
    yield single(
        "counter",
        "devhost_kubelet_restarts_total",
        "Restarts of kubelet that registrations have shown.",
        host.kubelet_restarts,
    )
    yield single(
        "counter", "devhost_cdi_spec_writes_total", "CDI spec files written.", host.cdi_spec_writes
    )
    yield single(
        "counter",
        "devhost_log_lines_dropped_total",
        "Log lines dropped because the log was not read fast enough.",
        host.log_lines_dropped,
    )
    yield single(
        "counter",
        "devhost_uevent_overruns_total",
        "Times that device events of the kernel were lost; everything was read again.",
        host.uevent_overruns,
    )
    if host.holders is not None:
        yield _holder_family(host.holders)


def _resource_families(resources: Iterable[ResourceMetrics]) -> Iterator[Family]:
    devices = Family("gauge", "devhost_devices", "Distinct devices by health.", _LABEL, "health")
    expected = Family(
        "gauge",
        "devhost_devices_expected",
        "Devices that should be there: minDevices, or the most since the file changed.",
        _LABEL,
    )
    missing = Family(
        "gauge", "devhost_devices_missing", "Expected devices that are not there.", _LABEL
    )
    registered = Family(
        "gauge",
        "devhost_registered",
        "Whether the resource is registered with kubelet (1 or 0).",
        _LABEL,
    )
    streams = Family("gauge", "devhost_streams", "Open ListAndWatch calls.", _LABEL)
    updates = Family(
        "counter", "devhost_list_updates_total", "Device lists sent to kubelet.", _LABEL
    )
    states = Family(
        "gauge",
        "devhost_resource_state",
        "The state of the resource: 1 for the current state, 0 for all others.",
        _LABEL,
        "state",
    )
    for one in resources:
        devices.add(one.healthy, one.name, "Healthy")
        devices.add(one.unhealthy, one.name, "Unhealthy")
        expected.add(one.expected, one.name)
        missing.add(one.missing, one.name)
        registered.add(one.registered, one.name)
        streams.add(one.streams, one.name)
        updates.add(one.list_updates, one.name)
        for state in State:
            states.add(one.state is state, one.name, state)
    yield from (devices, expected, missing, registered, streams, updates, states)


def _config_families(config: ConfigMetrics) -> Iterator[Family]:
    reloads = Family(
        "counter",
        "devhost_config_reloads_total",
        "Changes of the configuration file, by result.",
        "result",
    )
    reloads.add(config.reloads, _result(ok=True))
    reloads.add(config.failures, _result(ok=False))
    yield reloads
    yield single(
        "gauge",
        "devhost_config_last_reload_successful",
        "Whether the current content of the configuration file is in use (1 or 0).",
        config.usable,
    )
    yield single(
        "gauge",
        "devhost_config_last_reload_success_timestamp_seconds",
        "When the configuration in use was applied.",
        config.applied,
    )
    shown = Family(
        "gauge", "devhost_config_hash_info", "The hash of the configuration in use.", "hash"
    )
    shown.add(1, config.hash)
    yield shown


def _holder_family(holders: Iterable[DeviceHolder]) -> Family:
    family = Family(
        "gauge",
        "devhost_device_allocated",
        "Devices that pods have; the value is always 1.",
        _LABEL,
        "device_id",
        "namespace",
        "pod",
    )
    for one in holders:
        labels = (one.resource, one.device_id, one.namespace, one.pod)  # as kubelet has them
        family.add(1, *map(printable, labels))
    return family

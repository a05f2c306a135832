"""The metrics that are read of a host when it is scraped."""

import platform
from collections.abc import Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from devhost import __version__
from devhost.model.names import printable
from devhost.model.resource_state import State
from devhost.node.node import Host
from devhost.node.resource import ServedResource, is_registered
from devhost.observe import logs
from devhost.observe.metrics import REGISTRATION_RESULTS

# Read from a host at each scrape: the labels, and the text.
_FAMILIES: Final = {
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
    "devhost_list_updates_total": ("resource_name", "Device lists sent to kubelet."),
    "devhost_config_reloads_total": ("result", "Changes of the configuration file, by result."),
    "devhost_kubelet_restarts_total": ("", "Restarts of kubelet that registrations have shown."),
    "devhost_cdi_spec_writes_total": ("", "CDI spec files written."),
    "devhost_log_lines_dropped_total": ("", "Log lines dropped: the log was not read fast enough."),
    "devhost_uevent_overruns_total": ("", "Times that device events of the kernel were lost."),
}
_Sample = tuple[str, tuple[str, ...], float]  # name, values of the labels, value


class HostCollector(Collector):
    """Reads the metrics of a host; with `devices` also which pod holds which device."""

    def __init__(self, host: Host, *, devices: bool) -> None:
        self._host, self._devices = host, devices

    def collect(self) -> Iterable[Metric]:
        """Return the metrics."""
        families: dict[str, GaugeMetricFamily | CounterMetricFamily] = {}
        for name, (labels, text) in _FAMILIES.items():
            family = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
            families[name] = family(name, text, labels=labels.split())
        for name, values, value in _samples(self._host, devices=self._devices):
            families[name].add_metric(values, value)
        return [family for family in families.values() if family.samples]

    def describe(self) -> Iterable[Metric]:
        """Return no metrics, which would be made once more only to compare their names."""
        return ()


def _samples(host: Host, *, devices: bool) -> Iterator[_Sample]:
    yield "devhost_build_info", (__version__, platform.python_version()), 1
    for served in host.resources:
        yield from _resource_samples(served)
        if host.parts.holders.unavailable_reason is None:
            in_use = {offered.device for offered in host.parts.holders.pods_by_id(served.name)}
            yield "devhost_devices_in_use", (served.name,), len(in_use)
    if host.source is not None:
        config = host.source.status
        yield "devhost_config_reloads_total", (REGISTRATION_RESULTS[True],), config.reloads
        yield "devhost_config_reloads_total", (REGISTRATION_RESULTS[False],), config.failures
        yield "devhost_config_last_reload_successful", (), not config.problems
        applied = config.applied.timestamp()
        yield "devhost_config_last_reload_success_timestamp_seconds", (), applied
        yield "devhost_config_hash_info", (config.hash,), 1
    yield "devhost_kubelet_restarts_total", (), host.parts.backend.restarts
    yield "devhost_cdi_spec_writes_total", (), host.parts.cdi_files.writes
    yield "devhost_log_lines_dropped_total", (), logs.dropped_lines()[0]
    yield "devhost_uevent_overruns_total", (), host.parts.reconciler.locations.uevents.overruns
    for served in host.resources if devices else ():
        for offered, pods in host.parts.holders.pods_by_id(served.name).items():
            for namespace, _, pod in (name.partition("/") for name in pods):
                values = (served.name, offered.id, namespace, pod)  # as kubelet has them
                yield "devhost_device_allocated", tuple(map(printable, values)), 1


def _resource_samples(served: ServedResource) -> Iterator[_Sample]:
    name, devices, count = served.name, served.devices.offered.present_devices, served.devices.count
    if not served.draining:
        healthy = sum(device.healthy for device in devices)
        yield "devhost_devices", (name, "Healthy"), healthy
        yield "devhost_devices", (name, "Unhealthy"), len(devices) - healthy
    yield "devhost_devices_expected", (name,), count.expected
    yield "devhost_devices_missing", (name,), count.missing
    yield "devhost_registered", (name,), is_registered(served)
    published = served.publication.status
    yield "devhost_streams", (name,), published.streams
    yield "devhost_list_updates_total", (name,), published.lists_sent
    for state in State:
        yield "devhost_resource_state", (name, state.value), served.status.state is state

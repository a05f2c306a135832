"""What the metrics say of a host, as it is when they are scraped."""

import platform
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from devhost import __version__
from devhost.host.supervisor import Host
from devhost.model.names import printable
from devhost.model.state import State
from devhost.observe import logs
from devhost.observe.metrics import LABEL, result


def families(host: Host, *, devices: bool) -> Iterator[Metric]:
    """Yield the metrics of a host.

    Args:
        host: The host.
        devices: Whether to include which pod holds which device: a series for each.
    """
    build = GaugeMetricFamily(
        "devhost_build_info",
        "The version of devhost and of Python.",
        labels=("version", "python"),
    )
    build.add_metric((__version__, platform.python_version()), 1)
    yield build
    yield from _resources(host)
    if host.source is not None:
        yield from _configuration(host)
    yield CounterMetricFamily(
        "devhost_kubelet_restarts",
        "Restarts of kubelet that registrations have shown.",
        host.shared.directory.restarts,
    )
    yield CounterMetricFamily(
        "devhost_cdi_spec_writes", "CDI spec files written.", host.shared.cdi_files.writes
    )
    yield CounterMetricFamily(
        "devhost_log_lines_dropped",
        "Log lines dropped because the log was not read fast enough.",
        logs.dropped(),
    )
    yield CounterMetricFamily(
        "devhost_uevent_overruns",
        "Times that device events of the kernel were lost; everything was read again.",
        host.shared.inventory.uevent_overruns,
    )
    if devices:
        yield _holders(host)


def _resources(host: Host) -> Iterator[Metric]:
    devices = GaugeMetricFamily(
        "devhost_devices", "Distinct devices by health.", labels=(LABEL, "health")
    )
    expected = GaugeMetricFamily(
        "devhost_devices_expected",
        "Devices that should be there: minDevices, or the most since the file changed.",
        labels=(LABEL,),
    )
    missing = GaugeMetricFamily(
        "devhost_devices_missing", "Expected devices that are not there.", labels=(LABEL,)
    )
    registered = GaugeMetricFamily(
        "devhost_registered",
        "Whether the resource is registered with kubelet (1 or 0).",
        labels=(LABEL,),
    )
    streams = GaugeMetricFamily("devhost_streams", "Open ListAndWatch calls.", labels=(LABEL,))
    lists = CounterMetricFamily(
        "devhost_list_updates", "Device lists sent to kubelet.", labels=(LABEL,)
    )
    states = GaugeMetricFamily(
        "devhost_resource_state",
        "The state of the resource: 1 for the current state, 0 for all others.",
        labels=(LABEL, "state"),
    )
    for runner in host.runners:
        name, known = runner.name, runner.snapshot.devices.values()
        healthy, count = sum(device.healthy for device in known), host.shared.counts.of(name)
        devices.add_metric((name, "Healthy"), healthy)
        devices.add_metric((name, "Unhealthy"), len(known) - healthy)
        expected.add_metric((name,), count.expected)
        missing.add_metric((name,), count.missing)
        registered.add_metric((name,), runner.registered)
        streams.add_metric((name,), runner.device_list.stream_count)
        lists.add_metric((name,), runner.device_list.lists_sent)
        for state in State:
            states.add_metric((name, state.value), runner.status.state is state)
    yield from (devices, expected, missing, registered, streams, lists, states)


def _configuration(host: Host) -> Iterator[Metric]:
    assert host.source is not None  # noqa: S101 (the caller has looked)
    config = host.source.status
    reloads = CounterMetricFamily(
        "devhost_config_reloads",
        "Changes of the configuration file, by result.",
        labels=("result",),
    )
    reloads.add_metric((result(ok=True),), config.reloads)
    reloads.add_metric((result(ok=False),), config.failures)
    yield reloads
    yield GaugeMetricFamily(
        "devhost_config_last_reload_successful",
        "Whether the current content of the configuration file is in use (1 or 0).",
        not config.problems,
    )
    yield GaugeMetricFamily(
        "devhost_config_last_reload_success_timestamp_seconds",
        "When the configuration in use was applied.",
        config.applied.timestamp(),
    )
    shown = GaugeMetricFamily(
        "devhost_config_hash_info", "The hash of the configuration in use.", labels=("hash",)
    )
    shown.add_metric((config.hash,), 1)
    yield shown


def _holders(host: Host) -> Metric:
    family = GaugeMetricFamily(
        "devhost_device_allocated",
        "Devices that pods have; the value is always 1.",
        labels=(LABEL, "device_id", "namespace", "pod"),
    )
    for runner in host.runners:
        for device_id, pods in host.shared.holders.of(runner.name).items():
            for pod in pods:
                namespace, _, name = pod.partition("/")
                labels = (runner.name, device_id, namespace, name)  # as kubelet has them
                family.add_metric([*map(printable, labels)], 1)
    return family

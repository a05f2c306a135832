"""The metrics that Prometheus gets, through a resource's life."""

import time
from pathlib import Path

import grpc
import pytest

from devhost.observe.metrics import Metrics
from tests.observe.calls import allocate
from tests.support.asking import Samples, port_of, until_value
from tests.support.daemon import Daemon, tokens
from tests.support.hosting import Kubelet
from tests.support.metrics import OF_A_RESOURCE, OF_THE_HOST

A = "example.com/a"


def samples_of(metrics: Metrics) -> Samples:
    return Samples(metrics.text().decode())


def labels(samples: Samples) -> dict[str, set[str]]:
    names: dict[str, set[str]] = {}
    for sample in samples.all:
        if sample.name.startswith("devhost_"):
            name = sample.name
            for suffix in ("_bucket", "_sum", "_count"):
                name = name.removesuffix(suffix)
            names.setdefault(name, set()).update(sample.labels.keys() - {"le"})
    return names


def test_metrics_of_a_resource_that_is_served_no_more_are_gone() -> None:
    """A resource that comes again begins at 0."""
    counters = Metrics()
    counters.add_resource(A)
    counters.allocations.labels(A, "ok").inc()
    counters.remove_resource(A)
    assert not samples_of(counters).names_of(A)
    counters.add_resource(A)
    name = "devhost_allocations_total"
    assert samples_of(counters).value(name, resource_name=A, result="ok") == 0


async def test_metrics_of_a_process_are_of_the_contract(daemon: Daemon, started: Kubelet) -> None:
    begun = time.time()
    await daemon.start(tokens(a=3))
    await started.wait(A, 3, 3)
    port = await port_of(daemon)

    await until_value(port, 1, "devhost_list_updates_total", resource_name=A)
    samples = await until_value(port, 0, "devhost_devices_in_use", resource_name=A)
    assert labels(samples) == OF_A_RESOURCE | OF_THE_HOST
    assert samples.value("devhost_devices", resource_name=A, health="Healthy") == 3
    assert samples.value("devhost_devices", resource_name=A, health="Unhealthy") == 0
    assert samples.value("devhost_registrations_total", resource_name=A, result="ok") == 1
    assert samples.value("devhost_allocations_total", resource_name=A, result="ok") == 0
    assert samples.value("devhost_streams", resource_name=A) == 1
    assert samples.value("devhost_registered", resource_name=A) == 1
    assert (samples.value("devhost_discovery_duration_seconds_count", resource_name=A) or 0) >= 1
    applied = samples.value("devhost_config_last_reload_success_timestamp_seconds") or 0
    assert begun <= applied <= time.time()
    assert samples.value("process_resident_memory_bytes")

    await started.admit("pod", {"app": {A: 2}})
    name = "devhost_allocations_total"
    samples = await until_value(port, 1, name, resource_name=A, result="ok")
    assert samples.value("devhost_allocation_duration_seconds_count", resource_name=A) == 1

    with pytest.raises(grpc.aio.AioRpcError):
        await allocate(daemon, ["none"])
    await until_value(port, 1, name, resource_name=A, result="refused")


async def test_metrics_restarts_of_kubelet_are_counted(daemon: Daemon, kubelet: Kubelet) -> None:
    await daemon.start(tokens(a=1))
    port = await port_of(daemon)
    samples = await until_value(port, 1, "devhost_resource_state", resource_name=A, state="Waiting")
    assert samples.value("devhost_registered", resource_name=A) == 0
    await kubelet.start()
    try:
        await kubelet.wait(A, 1, 1)
        samples = await until_value(port, 1, "devhost_registered", resource_name=A)
        assert samples.value("devhost_kubelet_restarts_total") == 0
        await kubelet.restart()
        await until_value(port, 1, "devhost_kubelet_restarts_total")
        await until_value(port, 2, "devhost_registrations_total", resource_name=A, result="ok")
    finally:
        await kubelet.stop()


async def test_metrics_of_cdi_and_pods(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    (directory / "colas" / "x").touch()
    daemon.flags += ["--metrics-devices"]
    daemon.flags += ["--allow-path", f"{directory}/**"]
    await daemon.start(
        f"version: v1\nresources:\n  - name: {A}\n    inject: cdi\n"
        f"    sources: [directory: {directory / 'colas'}]\n"
        "    allocate: {mounts: [{hostPath: '${path}', containerPath: /x}]}\n"
    )
    await started.wait(A, 1, 1)
    port = await port_of(daemon)
    samples = await until_value(port, 1, "devhost_cdi_spec_writes_total")
    assert not samples.value("devhost_device_allocated")
    await started.admit("pod", {"app": {A: 1}})
    held = {"resource_name": A, "device_id": "x", "namespace": "default", "pod": "pod"}
    samples = await until_value(port, 1, "devhost_device_allocated", **held)
    assert samples.value("devhost_devices_in_use", resource_name=A) == 1

"""What Prometheus gets, through a resource's life."""

import time
from pathlib import Path

import grpc
import pytest

from devhost.observe.metrics import Metrics
from tests.observe.calls import allocate
from tests.support.asking import Samples, port_of, until_metrics
from tests.support.daemon import Daemon, tokens
from tests.support.hosting import Kubelet
from tests.support.metrics import OF_A_RESOURCE, OF_THE_HOST

A, B = "example.com/a", "example.com/b"


def said_by(metrics: Metrics) -> Samples:
    return Samples(metrics.text().decode())


def labels(samples: Samples) -> dict[str, set[str]]:
    """Return the labels of each of our metrics, a histogram's as one."""
    found: dict[str, set[str]] = {}
    for one in samples.all:
        if one.name.startswith("devhost_"):
            name = one.name
            for suffix in ("_bucket", "_sum", "_count"):
                name = name.removesuffix(suffix)
            found.setdefault(name, set()).update(one.labels.keys() - {"le"})
    return found


# ── the metrics by themselves ──


def test_metrics_count_what_happens() -> None:
    counters = Metrics()
    counters.add_resource(A)
    before = said_by(counters)
    for name in ("registrations", "allocations"):
        assert before.value(f"devhost_{name}_total", resource_name=A, result="ok") == 0
    counters.registrations.labels(A, "ok").inc()
    counters.allocation_seconds.labels(A).observe(0.003)
    said = said_by(counters)
    assert said.value("devhost_registrations_total", resource_name=A, result="ok") == 1
    name = "devhost_allocation_duration_seconds_bucket"
    assert said.value(name, resource_name=A, le="0.0025") == 0
    assert said.value(name, resource_name=A, le="0.005") == 1


def test_metrics_of_a_resource_that_is_served_no_more_are_gone() -> None:
    """And one that comes again begins at 0."""
    counters = Metrics()
    counters.add_resource(A)
    counters.allocations.labels(A, "ok").inc()
    counters.remove_resource(A)
    assert not said_by(counters).names_of(A)
    counters.add_resource(A)
    said = said_by(counters)
    assert said.value("devhost_allocations_total", resource_name=A, result="ok") == 0


# ── of a process ──


async def test_metrics_of_a_process_are_of_the_contract(daemon: Daemon, started: Kubelet) -> None:
    begun = time.time()
    await daemon.start(tokens(a=3))
    await started.wait(A, 3, 3)
    port = await port_of(daemon)

    sent = "devhost_list_updates_total"
    await until_metrics(port, lambda it: it.value(sent, resource_name=A) == 1)
    used = "devhost_devices_in_use"
    said = await until_metrics(port, lambda it: it.value(used, resource_name=A) == 0)
    assert labels(said) == OF_A_RESOURCE | OF_THE_HOST
    assert said.value("devhost_devices", resource_name=A, health="Healthy") == 3
    assert said.value("devhost_devices", resource_name=A, health="Unhealthy") == 0
    assert said.value("devhost_registrations_total", resource_name=A, result="ok") == 1
    assert said.value("devhost_streams", resource_name=A) == 1
    assert said.value("devhost_registered", resource_name=A) == 1
    looks = said.value("devhost_discovery_duration_seconds_count", resource_name=A)
    assert looks is not None
    assert looks >= 1
    applied = said.value("devhost_config_last_reload_success_timestamp_seconds")
    assert applied is not None
    assert begun <= applied <= time.time()
    assert said.value("process_resident_memory_bytes")

    await started.admit("pod", {"app": {A: 2}})
    name = "devhost_allocations_total"
    said = await until_metrics(port, lambda it: it.value(name, resource_name=A, result="ok") == 1)
    assert said.value("devhost_allocation_duration_seconds_count", resource_name=A) == 1

    with pytest.raises(grpc.aio.AioRpcError):
        await allocate(daemon, ["none"])
    await until_metrics(port, lambda it: it.value(name, resource_name=A, result="refused") == 1)


async def test_metrics_restarts_of_kubelet_are_counted(daemon: Daemon, kubelet: Kubelet) -> None:
    await daemon.start(tokens(a=1))
    port = await port_of(daemon)
    name, state = "devhost_resource_state", "Waiting"
    said = await until_metrics(port, lambda it: it.value(name, resource_name=A, state=state))
    assert said.value("devhost_registered", resource_name=A) == 0
    await kubelet.start()
    try:
        await kubelet.wait(A, 1, 1)
        said = await until_metrics(port, lambda it: it.value("devhost_registered", resource_name=A))
        assert said.value("devhost_kubelet_restarts_total") == 0
        await kubelet.restart()
        await until_metrics(port, lambda it: it.value("devhost_kubelet_restarts_total") == 1)
        done = "devhost_registrations_total"
        await until_metrics(port, lambda it: it.value(done, resource_name=A, result="ok") == 2)
    finally:
        await kubelet.stop()


async def test_metrics_of_cdi_and_holders(
    daemon: Daemon, started: Kubelet, directory: Path
) -> None:
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
    said = await until_metrics(port, lambda it: it.value("devhost_cdi_spec_writes_total") == 1)
    assert not said.value("devhost_device_allocated")
    await started.admit("pod", {"app": {A: 1}})
    held = {"resource_name": A, "device_id": "x", "namespace": "default", "pod": "pod"}
    said = await until_metrics(port, lambda it: it.value("devhost_device_allocated", **held) == 1)
    assert said.value("devhost_devices_in_use", resource_name=A) == 1

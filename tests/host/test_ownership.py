"""A node that a pod may hold is not offered under another resource or ID."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.dry_run import report
from devhost.host.config_source import ConfigSource
from devhost.host.host import Host, Settings
from devhost.host.status import status
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.model.device import HostDevice
from devhost.standin.kubelet import AdmissionError
from tests.support.daemon import until
from tests.support.hosting import Hosting, Kubelet, contract

A, B = "example.com/a", "example.com/b"


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask often who holds what."""
    monkeypatch.setattr("devhost.host.holders.POLL_S", 0.1)


@pytest.fixture
def state(directory: Path) -> Path:
    return directory / "state"


@pytest.fixture
def cola(directory: Path) -> Path:
    """The one node of these tests."""
    path = directory / "colas" / "cola"
    path.touch()
    return path


def config(directory: Path, *names: str, extra: str = "") -> str:
    """Return a configuration in which each resource finds the node."""
    entries = (
        f"  - {{name: {name}, sources: [directory: {directory}/colas]{extra}}}\n" for name in names
    )
    return "version: v1\nresources:\n" + "".join(entries)


async def withheld(kubelet: Kubelet, hosting: Hosting, resource: str, reason: str) -> None:
    """See that the node stays unhealthy, longer than any time that it would have to wait."""
    await kubelet.wait(resource, 1, 0)
    await asyncio.sleep(3 * hosting.leave_after)
    assert (await kubelet.capacity())[resource] == (1, 0)
    with pytest.raises(AdmissionError):
        await kubelet.admit("second", {"app": {resource: 1}})
    reasons = [one.reason or "" for one in _devices(hosting, resource)]
    assert any(reason in one for one in reasons), reasons
    troubles = status(hosting.hosts[-1])["troubles"]
    assert any(one.startswith(f"{resource}: ") and reason in one for one in troubles), troubles


def _devices(hosting: Hosting, resource: str) -> list[HostDevice]:
    for runner in hosting.hosts[-1].resources:
        if runner.name == resource:
            return [one for one in runner.snapshot.devices.values() if not one.replaced]
    return []


async def offered(kubelet: Kubelet, resource: str) -> None:
    """See that the next pod gets the node."""
    await kubelet.wait(resource, 1, 1)
    await kubelet.admit("second", {"app": {resource: 1}})


# ── a change while devhost runs ──


@contract
async def test_ownership_of_a_renamed_resource_waits_for_the_pod_that_holds_the_node(
    started: Kubelet, hosting: Hosting, directory: Path, cola: Path
) -> None:
    hosting.start(config(directory, A), pod_resources=hosting.pod_resources)
    await started.wait(A, 1, 1)
    await started.admit("first", {"app": {A: 1}})
    hosting.reload(config(directory, B))
    await withheld(started, hosting, B, f"held as {A} cola by default/first")
    await started.free("first")
    await offered(started, B)


async def test_ownership_at_the_start_is_what_the_plan_says(
    started: Kubelet, hosting: Hosting, directory: Path, cola: Path
) -> None:
    """Its resource does not wait for an earlier source to name it: another one would have it."""
    links = directory / "links"
    links.mkdir()
    text = f"""
version: v1
resources:
  - {{name: {A}, sources: [directory: {links}, directory: {cola.parent}]}}
  - {{name: {B}, sources: [directory: {cola.parent}]}}
"""
    reports = report(loads(text).require(), HostFiles(), Policy(), "node-1")
    assert [[*one.snapshot.devices] for one in reports] == [["cola"], []]
    hosting.hold_s = 1.0
    hosting.start(text)
    await started.wait(A, 1, 1)
    await started.wait(B, 0, 0)


@pytest.mark.parametrize(
    ("key", "value", "edit"),
    [
        ("name", B, (A, B)),
        ("id", "'new-${name}'", ("}\n", ", id: 'new-${name}'}\n")),
        ("replicas", "2", ("}\n", ", replicas: 2}\n")),
        ("group", "all", ("}\n", ", group: all}\n")),
    ],
)
async def test_ownership_edit_that_moves_nodes_without_pod_resources_is_refused(
    started: Kubelet,
    directory: Path,
    cola: Path,
    key: str,
    value: str,
    edit: tuple[str, str],
) -> None:
    file, text = directory / "config.yaml", config(directory, A)
    file.write_text(text)
    source = ConfigSource(str(file), Policy())
    settings = Settings(directory / "plugins", "node", leave_after=0.3, hold_s=0.0)
    host = Host(source.first()[0].require(), settings, source)
    task = asyncio.create_task(host.run())
    try:
        await started.wait(A, 1, 1)
        await started.admit("first", {"app": {A: 1}})
        edited = text.replace(*edit) + "  - {name: e.com/other, sources: [static: 1]}\n"
        file.write_text(edited)
        source.reload_soon()
        await until(lambda: source.status.failures > 0, "the refusal")
        (problem,) = source.status.problems
        column = edited.splitlines()[2].rindex(value) + 1
        assert str(problem).startswith(
            f"{file}:3:{column}: error: resources[0].{key}: a change of `{key}` gives the nodes"
        )
        assert "start it with --assume-free" in problem.message
        assert [one.name for one in host.resources] == [A]
        file.write_text(text.replace("}\n", ", maxDevices: 5}\n"))
        source.reload_soon()
        await until(lambda: not source.status.problems, "an edit that moves nothing")
    finally:
        task.cancel()
        await asyncio.wait([task])


# ── a restart of devhost ──


@contract
@pytest.mark.parametrize("kubelet_restarts", [False, True])
async def test_ownership_edit_while_devhost_is_down_waits_for_the_pod(
    started: Kubelet,
    hosting: Hosting,
    directory: Path,
    cola: Path,
    state: Path,
    kubelet_restarts: bool,
) -> None:
    sockets: dict[str, Any] = {"pod_resources": hosting.pod_resources, "state_dir": state}
    hosting.start(config(directory, A), **sockets)
    await started.wait(A, 1, 1)
    await started.admit("first", {"app": {A: 1}})
    await hosting.stop()
    if kubelet_restarts:
        await started.restart()
    hosting.start(config(directory, B, extra=", id: 'new-${name}'"), **sockets)
    await withheld(started, hosting, B, f"held as {A} cola by default/first")
    await started.free("first")
    await offered(started, B)


# ── when a pod has ended ──

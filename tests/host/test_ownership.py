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
from tests.support.hardware import HostTree
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
async def test_a_renamed_resource_waits_for_the_pod_that_holds_the_node(
    started: Kubelet, hosting: Hosting, directory: Path, cola: Path
) -> None:
    hosting.start(config(directory, A), pod_resources=hosting.pod_resources)
    await started.wait(A, 1, 1)
    await started.admit("first", {"app": {A: 1}})
    hosting.reload(config(directory, B))
    await withheld(started, hosting, B, f"held as {A} cola by default/first")
    await started.free("first")
    await offered(started, B)


@pytest.mark.parametrize(
    ("source", "name", "resource", "prefix"),
    [
        ("sysfs: net", "ens1f0v0", B, ""),
        ("pci: {device: 8086:154c, node: none}", "0000:3b:02.0", A, "new-"),
    ],
    ids=["interface-resource", "function-id"],
)
async def test_hardware_without_a_node_is_withheld_under_another_name(
    started: Kubelet,
    hosting: Hosting,
    directory: Path,
    source: str,
    name: str,
    resource: str,
    prefix: str,
) -> None:
    """What is owned is a place in the kernel, such as that of a network interface."""
    tree = HostTree(directory / "host")
    tree.hardware("pci 0000:3b:02.0 8086:154c class=020000 driver=iavf\n  net ens1f0v0 type=1\n")

    answer = "allocate: {env: {NIC: '${name}'}}"

    def text(resource: str, prefix: str) -> str:
        options = f"sources: [{source}], id: '{prefix}${{name}}', {answer}"
        return f"version: v1\nresources: [{{name: {resource}, {options}}}]\n"

    hosting.start(text(A, ""), root=tree.root, pod_resources=hosting.pod_resources)
    await started.wait(A, 1, 1)
    await started.admit("first", {"app": {A: 1}})
    hosting.reload(text(resource, prefix))
    why = f"withheld: held as {A} {name} by default/first"
    await until(lambda: hosting.reason(resource, f"{prefix}{name}") == why, "its pod")
    await started.free("first")
    await offered(started, resource)


async def test_a_renamed_resource_without_pod_resources_names_assume_free(
    started: Kubelet, hosting: Hosting, directory: Path, cola: Path
) -> None:
    hosting.start(config(directory, A), assume_free=False)
    await started.wait(A, 1, 1)
    await started.admit("first", {"app": {A: 1}})
    hosting.reload(config(directory, B))
    await withheld(started, hosting, B, "drain the node and start devhost with --assume-free")


async def test_a_node_is_at_the_start_whose_the_plan_says(
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


async def test_devices_that_come_and_go_are_not_withheld(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """Under its own name it comes back without pod-resources, alone or as a part of a device."""
    parts = [directory / "in", directory / "out"]
    for part in parts:
        part.mkdir()
        for card in ("card0", "card1"):
            (part / card).touch()
    (directory / "colas" / "cola").touch()
    sources = ", ".join(f"{{directory: {part}, as: {part.name}}}" for part in parts)
    hosting.start(
        "version: v1\nresources:\n"
        f"  - {{name: {A}, group: '${{name}}', sources: [{sources}]}}\n"
        f"  - {{name: {B}, sources: [directory: {directory}/colas]}}\n",
        assume_free=False,
    )
    plugged = [parts[0] / "card0", parts[1] / "card1", directory / "colas" / "cola"]
    for _ in range(3):
        await started.wait(A, 2, 2)
        await started.wait(B, 1, 1)
        for path in plugged:
            path.unlink()
        await started.wait(A, 2, 0)
        await started.wait(B, 1, 0)
        for path in reversed(plugged):
            path.touch()
    await started.wait(A, 2, 2)
    await started.wait(B, 1, 1)


async def test_two_symlinks_that_exchange_their_nodes_wait_for_the_pod(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """Each waits for the pod that holds its node under the other's ID."""
    first, second, free = (directory / "colas" / name for name in ("a", "b", "t"))
    for name, link in (("x", first), ("y", second)):
        (directory / name).touch()
        link.symlink_to(directory / name)
    declared = f"{{name: {A}, sources: [glob: '{directory}/colas/[ab]']}}"
    hosting.start(f"version: v1\nresources: [{declared}]\n", pod_resources=hosting.pod_resources)
    await started.wait(A, 2, 2)
    await started.admit("first", {"app": {A: 2}})
    free.symlink_to(directory / "x")
    first.unlink()
    await started.wait(A, 2, 1)
    first.symlink_to(directory / "y")
    free.rename(second)
    await until(
        lambda: hosting.reason(A, "a") == f"withheld: held as {A} b by default/first", "its pod"
    )
    await until(
        lambda: hosting.reason(A, "b") == f"withheld: held as {A} a by default/first", "its pod"
    )
    await started.free("first")
    await started.wait(A, 2, 2)


@pytest.mark.parametrize(
    ("key", "value", "edit"),
    [
        ("name", B, (A, B)),
        ("id", "'new-${name}'", ("}\n", ", id: 'new-${name}'}\n")),
        ("replicas", "2", ("}\n", ", replicas: 2}\n")),
        ("group", "all", ("}\n", ", group: all}\n")),
    ],
)
async def test_an_edit_that_moves_nodes_without_pod_resources_is_refused(
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
async def test_an_edit_while_devhost_is_down_waits_for_the_pod(
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


async def test_a_device_is_free_soon_after_its_pod_has_ended(
    started: Kubelet, hosting: Hosting
) -> None:
    """However many resources there are, and though nothing else happens."""
    others = "".join(f"  - {{name: {A}-{one}, sources: [static: 1]}}\n" for one in range(20))

    def text(replicas: int) -> str:
        slot = f"{{name: {A}, sources: [static: [a]], replicas: {replicas}}}"
        return f"version: v1\nresources:\n  - {slot}\n{others}"

    hosting.start(text(2), pod_resources=hosting.pod_resources)
    await started.wait(A, 2, 2)
    await started.admit("first", {"app": {A: 2}})
    holders = hosting.hosts[-1].shared.holders
    await until(lambda: len(holders.held(A)) == 2, "what the pod holds is known")
    hosting.reload(text(1))
    await started.wait(A, 3, 0)
    await asyncio.sleep(3 * hosting.leave_after)
    await started.free("first")
    await started.wait(A, 1, 1)

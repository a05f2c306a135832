"""Registration, lists and Allocate: what must happen between devhost and a kubelet."""

import asyncio
from pathlib import Path

import pytest

from devhost.errors import KubeletError
from devhost.kubelet.directory import PluginDirectory
from devhost.model.names import resource_name_problem
from devhost.standin.kubelet import AdmissionError
from tests.support.hosting import Hosting, Kubelet, contract

COLA = "myway5.com/cola"
TOKEN = "netease/vpcport"


def cola(directory: Path, extra: str = "") -> str:
    return f"""
version: v1
resources:
  - name: {COLA}
    sources: [directory: {directory}/colas]
    allocate:
      env: {{COLA_DEVICES: "${{id}}"}}
{extra}
"""


def tokens(count: int) -> str:
    resources = "".join(
        f'\n  - {{name: "example.com/r{index}", sources: [static: 2]}}' for index in range(count)
    )
    return f"version: v1\nresources:{resources}\n"


@contract
async def test_registration_of_fifty_resources_of_one_process(
    started: Kubelet, hosting: Hosting
) -> None:
    hosting.start(tokens(50))
    for index in range(50):
        await started.wait(f"example.com/r{index}", 2, 2)
    assert len(list(hosting.plugins.glob("devhost-*.sock"))) == 50


@contract
async def test_list_follows_hotplug_and_unplug(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """A device that comes is allocatable; one that goes is unhealthy immediately."""
    hosting.start(cola(directory))
    await started.wait(COLA, 0, 0)
    (directory / "colas" / "a").touch()
    (directory / "colas" / "b").touch()
    await started.wait(COLA, 2, 2)
    (directory / "colas" / "a").unlink()
    await started.wait(COLA, 2, 1)
    (directory / "colas" / "a").touch()
    await started.wait(COLA, 2, 2)


@contract
async def test_list_drops_a_missing_device_after_remove_missing_after(
    started: Kubelet, hosting: Hosting, directory: Path, may_leave: asyncio.Event
) -> None:
    (directory / "colas" / "a").touch()
    hosting.start(cola(directory, "    removeMissingAfter: 100ms"))
    await started.wait(COLA, 1, 1)
    (directory / "colas" / "a").unlink()
    await started.wait(COLA, 1, 0)
    may_leave.set()
    await started.wait(COLA, 0, 0)


@contract
async def test_allocate_gives_each_device_to_one_pod_in_natural_order(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    for name in ("a", "b", "c10", "c9"):
        (directory / "colas" / name).touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 4, 4)
    one = (await started.admit("one", {"app": {COLA: 1}}))["app"]
    three = (await started.admit("three", {"app": {COLA: 3}}))["app"]
    assert one["envs"] == {"COLA_DEVICES": one["deviceIds"][COLA][0]}
    ids = one["deviceIds"][COLA] + three["deviceIds"][COLA]
    assert sorted(ids) == ["a", "b", "c10", "c9"]
    natural = sorted(three["deviceIds"][COLA], key=["a", "b", "c9", "c10"].index)
    assert three["envs"] == {"COLA_DEVICES": ",".join(natural)}
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        await started.admit("more", {"app": {COLA: 1}})
    await started.free("three")
    all_again = (await started.admit("again", {"app": {COLA: 3}}))["app"]
    assert all_again["envs"] == three["envs"]


@contract
async def test_allocate_of_two_resources_gives_a_container_both_answers(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    (directory / "colas" / "a").touch()
    more = f"""
  - name: {TOKEN}
    sources: [static: 3]
    allocate: {{env: {{VPC_PORT: "${{id}}"}}}}"""
    hosting.start(cola(directory, more))
    await started.wait(COLA, 1, 1)
    await started.wait(TOKEN, 3, 3)
    answer = (await started.admit("pod", {"app": {COLA: 1, TOKEN: 1}}))["app"]
    token = answer["deviceIds"][TOKEN][0]
    assert answer["envs"] == {"COLA_DEVICES": "a", "VPC_PORT": token}


@contract
async def test_registration_after_a_kubelet_restart_is_on_a_fresh_socket(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """A kubelet that dies, deletes our sockets and comes back finds every resource again."""
    (directory / "colas" / "a").touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 1, 1)
    before = set(hosting.plugins.glob("devhost-*.sock"))
    for _ in range(3):
        await started.restart()
        await started.wait(COLA, 1, 1)
    assert before.isdisjoint(hosting.plugins.glob("devhost-*.sock")), "a socket name came again"
    await started.admit("pod", {"app": {COLA: 1}})


@contract
async def test_list_has_a_device_that_came_while_kubelet_was_away(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """While the kubelet is away its socket lies dead; devices that change meanwhile count."""
    (directory / "colas" / "a").touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 1, 1)
    await started.kill()
    assert (hosting.plugins / "kubelet.sock").is_socket()
    (directory / "colas" / "b").touch()
    await started.start()
    await started.wait(COLA, 2, 2)


@contract
async def test_registration_waits_for_a_kubelet_that_starts_later(
    kubelet: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """devhost waits for a kubelet as long as it takes."""
    (directory / "colas" / "a").touch()
    host = hosting.start(cola(directory))
    while not host.resources or host.resources[0].status.state != "Waiting":
        await asyncio.sleep(0)
    await kubelet.start()
    await kubelet.wait(COLA, 1, 1)
    await kubelet.stop()


@contract
async def test_restart_of_devhost_leaves_no_socket_and_pods_keep_their_devices(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """A stopped host leaves no socket and no allocatable; a new one takes over, pods keep theirs."""
    (directory / "colas" / "a").touch()
    (directory / "colas" / "b").touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 2, 2)
    held = (await started.admit("pod", {"app": {COLA: 1}}))["app"]
    await hosting.stop()
    assert not list(hosting.plugins.glob("devhost-*.sock"))
    await started.wait(COLA, 2, 0)
    hosting.start(cola(directory))
    await started.wait(COLA, 2, 2)
    other = (await started.admit("pod-2", {"app": {COLA: 1}}))["app"]
    assert held["deviceIds"] != other["deviceIds"]


@contract
async def test_allocate_of_two_replicas_gives_a_container_the_device_once(
    started: Kubelet, hosting: Hosting
) -> None:
    """Each replica is an ID of its own; the container sees the device once."""
    hosting.start(
        f"""
version: v1
resources:
  - name: {TOKEN}
    sources: [static: [slot]]
    replicas: 3
    allocate: {{env: {{SLOT: "${{id}}", COUNT: "${{count}}"}}}}
"""
    )
    await started.wait(TOKEN, 3, 3)
    answer = (await started.admit("pod", {"app": {TOKEN: 2}}))["app"]
    assert answer["envs"] == {"SLOT": "slot", "COUNT": "1"}


@contract
async def test_registration_of_an_invalid_resource_name_is_refused(
    started: Kubelet, hosting: Hosting
) -> None:
    """The kubelet refuses by its own grammar, and so does the loader before it."""
    directory = PluginDirectory(hosting.plugins)
    for name in ("kubernetes.io/a", "gpu", "Example.com/a"):
        assert resource_name_problem(name) is not None
        with pytest.raises(KubeletError, match="invalid"):
            await directory.register(name, "nobody.sock", pre_start=False)
    await directory.close()

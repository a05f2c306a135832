"""What must happen between devhost and a kubelet, on the stand-in and on the real one."""

import asyncio
import os
from pathlib import Path

import pytest

from devhost.errors import KubeletError
from devhost.kubelet.directory import PluginDirectory
from devhost.model.names import resource_name_problem
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.support.hosting import Hosting, Kubelet

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


async def test_each_resource_is_registered(started: Kubelet, hosting: Hosting) -> None:
    """Fifty resources of one process are all registered and listed."""
    hosting.start(tokens(50))
    for index in range(50):
        await started.wait(f"example.com/r{index}", 2, 2)
    assert len(list(hosting.plugins.glob("devhost-*.sock"))) == 50


async def test_a_missing_directory_is_served_empty_and_fills(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """A directory that is not there yet is a state: capacity 0, then its files."""
    (directory / "colas").rmdir()
    hosting.start(cola(directory))
    await started.wait(COLA, 0, 0)
    (directory / "colas").mkdir()
    (directory / "colas" / "a").touch()
    await started.wait(COLA, 1, 1)


@pytest.mark.parametrize("source", [
    "glob: {top}/one/*.d",
    "glob: {top}/one/a.d",
    "glob: {top}/*/a.d",
    "glob: {top}/*/*",
    "glob: {top}/**",
    "glob: {top}/**/*.d",
    "glob: {top}/o*/**",
    "glob: {top}/**/one/a.d",
    "directory: {{path: {top}, recursive: true}}",
])  # fmt: skip
@pytest.mark.parametrize("level", ["one", "one/two"])
async def test_a_change_below_the_top_of_a_source_is_seen_by_its_event(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path, source: str, level: str
) -> None:
    """Both the file that comes and the one that goes; the rescan is an hour away."""
    top = directory / "colas"
    if level == "one/two":
        source = source.replace("one/", "one/two/").replace("{top}/*/", "{top}/*/*/")
    (top / level).mkdir(parents=True)
    hosting.start(f"""
version: v1
resources: [{{name: {COLA}, sources: [{source.format(top=top)}]}}]
""")
    await standin.wait(COLA, 0, 0)
    (top / level / "a.d").touch()
    await standin.wait(COLA, 1, 1)
    (top / level / "a.d").unlink()
    await standin.wait(COLA, 1, 0)


async def test_a_directory_removed_and_made_again_is_followed(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """A watch dies with its directory; the new one is watched again."""
    (directory / "colas" / "a").touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 1, 1)
    (directory / "colas").rename(directory / "away")
    await started.wait(COLA, 1, 0)
    (directory / "colas").mkdir()
    (directory / "colas" / "a").touch()
    await started.wait(COLA, 1, 1)
    (directory / "colas" / "b").touch()
    await started.wait(COLA, 2, 2)


async def test_hotplug_and_unplug(started: Kubelet, hosting: Hosting, directory: Path) -> None:
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


async def test_a_missing_device_leaves_the_list_in_time(
    started: Kubelet, hosting: Hosting, directory: Path, may_leave: asyncio.Event
) -> None:
    """After removeMissingAfter, and never before its Unhealthy was sent, the ID leaves."""
    (directory / "colas" / "a").touch()
    hosting.start(cola(directory, "    removeMissingAfter: 100ms"))
    await started.wait(COLA, 1, 1)
    (directory / "colas" / "a").unlink()
    await started.wait(COLA, 1, 0)
    may_leave.set()
    await started.wait(COLA, 0, 0)


async def test_allocation(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    """One, several and all devices; an ID is given to one pod only, and freed again."""
    for name in ("a", "b", "c10", "c9"):
        (directory / "colas" / name).touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 4, 4)
    one = (await started.admit("one", {"app": {COLA: 1}}))["app"]
    three = (await started.admit("three", {"app": {COLA: 3}}))["app"]
    assert one["envs"] == {"COLA_DEVICES": one["deviceIds"][COLA][0]}
    assert sorted(one["deviceIds"][COLA] + three["deviceIds"][COLA]) == ["a", "b", "c10", "c9"]
    with pytest.raises(AdmissionError, match="Requested: 1, Available: 0"):
        await started.admit("more", {"app": {COLA: 1}})
    await started.free("three")
    all_again = (await started.admit("again", {"app": {COLA: 3}}))["app"]
    assert all_again["envs"] == three["envs"]


async def test_devices_are_in_natural_order(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """Whatever order the kubelet asks in, c9 comes before c10."""
    for name in ("c10", "c9", "c1"):
        (directory / "colas" / name).touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 3, 3)
    answer = (await started.admit("pod", {"app": {COLA: 3}}))["app"]
    assert answer["envs"] == {"COLA_DEVICES": "c1,c9,c10"}


async def test_two_resources_in_one_container(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """A container with devices of two resources receives the answers of both."""
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


async def test_a_kubelet_restart(started: Kubelet, hosting: Hosting, directory: Path) -> None:
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


async def test_a_kubelet_that_is_away(started: Kubelet, hosting: Hosting, directory: Path) -> None:
    """While the kubelet is away its socket lies dead; devices that change meanwhile count."""
    (directory / "colas" / "a").touch()
    hosting.start(cola(directory))
    await started.wait(COLA, 1, 1)
    await started.kill()
    assert (hosting.plugins / "kubelet.sock").is_socket()
    (directory / "colas" / "b").touch()
    await started.start()
    await started.wait(COLA, 2, 2)


async def test_a_kubelet_that_comes_late(
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


async def test_our_own_restart(started: Kubelet, hosting: Hosting, directory: Path) -> None:
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


async def test_shares(started: Kubelet, hosting: Hosting) -> None:
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


@pytest.mark.skipif(os.geteuid() != 0, reason="device nodes need root")
async def test_a_node_belongs_to_the_first_resource(
    started: Kubelet, hosting: Hosting, directory: Path
) -> None:
    """Two resources that find one node: the first in the file keeps it."""
    (directory / "colas" / "a").touch()
    more = f"""
  - name: example.com/second
    sources: [directory: {directory}/colas]
  - name: example.com/third
    sources: [directory: {directory}/colas]
    overlap: allow"""
    hosting.start(cola(directory, more))
    await started.wait(COLA, 1, 1)
    await started.wait("example.com/second", 0, 0)
    await started.wait("example.com/third", 1, 1)


async def test_a_failing_source_keeps_what_was_known(
    started: Kubelet, hosting: Hosting, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sick disk is not an empty one: devices stay, unhealthy, and heal."""
    (directory / "colas" / "a").touch()
    host = hosting.start(cola(directory))
    await started.wait(COLA, 1, 1)

    def sick(*_: object) -> None:
        raise OSError(5, "Input/output error", "/etc/colas")

    with monkeypatch.context() as patch:
        patch.setattr("devhost.hostfs.files.os.scandir", sick)
        host.resources[0].trigger_scan()
        await started.wait(COLA, 1, 0)
        assert host.resources[0].snapshot.error == "Input/output error (/etc/colas)"
    host.resources[0].trigger_scan()
    await started.wait(COLA, 1, 1)


async def test_a_name_that_the_kubelet_refuses(started: Kubelet, hosting: Hosting) -> None:
    """The kubelet refuses by its own grammar, and so does the loader before it."""
    directory = PluginDirectory(hosting.plugins)
    for name in ("kubernetes.io/a", "gpu", "Example.com/a"):
        assert resource_name_problem(name) is not None
        with pytest.raises(KubeletError, match="invalid"):
            await directory.register(name, "nobody.sock", pre_start=False)
    await directory.close()


@pytest.mark.parametrize("after", ["0s", "100ms"])
async def test_a_seat_that_becomes_free_is_taken(
    started: Kubelet, hosting: Hosting, directory: Path, after: str, may_leave: asyncio.Event
) -> None:
    """Over the limit, a device waits for no longer than until another one is given up."""
    for name in ("a", "b", "c"):
        (directory / "colas" / name).touch()
    hosting.start(cola(directory, f"    maxDevices: 2\n    removeMissingAfter: {after}"))
    await started.wait(COLA, 2, 2)
    (directory / "colas" / "a").unlink()
    await started.wait(COLA, 3, 2)
    may_leave.set()
    await started.wait(COLA, 2, 2)

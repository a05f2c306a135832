"""Devices by CDI: the kubelet gets names, and what they stand for is on the disk."""

import asyncio
import json
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation import cdi
from devhost.model.resource_state import State
from devhost.node.cdi_files import CdiFiles, CdiInjection
from tests.support import cdiverify
from tests.support.daemon import until
from tests.support.hosting import Hosting, Kubelet, contract
from tests.support.mounts import read_only, tmpfs
from tests.support.root import needs_root

PORT = "example.com/port"
USER = 1000

pytestmark = [needs_root, pytest.mark.program("cdiverify")]


class Bench:
    """Devices that are nodes of a directory, and the directory of the specs."""

    def __init__(self, directory: Path, hosting: Hosting) -> None:
        self.directory, self.hosting = directory, hosting
        self.nodes = directory / "nodes"
        self.nodes.mkdir()
        self.file = hosting.cdi / cdi.file_name(PORT)

    def plug(self, name: str, minor: int) -> Path:
        path = self.nodes / name
        path.parent.mkdir(exist_ok=True)
        os.mknod(path, 0o640 | stat.S_IFCHR, os.makedev(240, minor))
        return path

    def config(self, options: str = "inject: cdi", source: str | None = None) -> str:
        source = source or f"{self.nodes}/*"
        return f"""
version: v1
resources: [{{name: {PORT}, sources: [{source}], prefer: packed, {options}}}]
"""

    def start(self, options: str = "inject: cdi", source: str | None = None) -> None:
        self.hosting.start(self.config(options, source))

    def inject(self, *names: str) -> Any:
        """Return the OCI spec of a container, with the user 1000, that gets CDI devices."""
        answer = cdiverify.inject(self.hosting.cdi, names, USER)
        assert answer["errors"] == {}
        assert not answer["unresolved"]
        return answer["oci"]

    def numbers(self) -> dict[str, int]:
        content = json.loads(self.file.read_text())
        return {
            device["name"][2:-13]: node["minor"]
            for device in content["devices"]
            for node in device["containerEdits"]["deviceNodes"]
        }


@pytest.fixture
def bench(directory: Path, hosting: Hosting) -> Bench:
    return Bench(directory, hosting)


def named(*devices: str) -> list[str]:
    return [cdi.qualified_name(PORT, key) for key in devices]


@contract
async def test_cdi_names_stand_for_nodes_and_variables(started: Kubelet, bench: Bench) -> None:
    """A node is in one of the two, or a container would have it twice.

    What symlinks and directories lead to is in the spec, as CDI takes neither for a device; what
    is joined over the devices of a container can stand in no spec.
    """
    links = bench.directory / "by-id"
    links.mkdir()
    for minor, name in enumerate("ab", 1):
        (links / name).symlink_to(bench.plug(name, minor))
        bench.plug(f"bus/00{minor}", 10 + minor)
    config = bench.directory / "config"
    config.touch()
    entry = f"{{hostPath: {bench.nodes}/bus, containerPath: /dev/bus}}"
    env = '{PORTS: "${id}", "PATH_${id}": "${path}", COUNT: "${count}", "NAME_${index}": "${id}"}'
    allocate = f'{{devices: ["${{path}}", {entry}], mounts: [{config}], env: {env}}}'
    bench.start(f"inject: cdi, allocate: {allocate}", f"{links}/*")
    await started.wait(PORT, 2, 2)
    answer = (await started.admit("pod", {"app": {PORT: 2}}))["app"]
    assert sorted(answer["cdiDevices"]) == named("a", "b")
    assert answer["devices"] == []
    assert answer["envs"] == {"PORTS": "a,b", "COUNT": "2", "NAME_0": "a", "NAME_1": "b"}
    oci = bench.inject(*answer["cdiDevices"])
    assert oci["process"]["env"] == [f"PATH_a={links}/a", f"PATH_b={links}/b"]
    nodes = oci["linux"]["devices"]
    by_id = {(f"{links}/a", 1), (f"{links}/b", 2)}
    bus = {("/dev/bus/001", 11), ("/dev/bus/002", 12)}
    assert {(node["path"], node["minor"]) for node in nodes} == by_id | bus
    assert {(node["uid"], node["gid"], node["fileMode"]) for node in nodes} == {(USER, USER, 0o640)}
    mounts = [mount["source"] for mount in oci.get("mounts") or ()]
    mounts += [mount["hostPath"] for mount in answer["mounts"]]
    assert mounts == [str(config)]


async def test_cdi_spec_unwritable_serves(started: Kubelet, bench: Bench, hosting: Hosting) -> None:
    """Only what is new or changed waits, and no longer than the cause lasts."""
    for minor, name in enumerate("abc", 1):
        bench.plug(name, minor)
    with tmpfs(hosting.cdi, "size=64k"):
        bench.start()
        await started.wait(PORT, 3, 3)
        read_only(hosting.cdi, on=True)
        try:
            (bench.nodes / "c").chmod(0o666)
            bench.plug("d", 4)
            await started.wait(PORT, 4, 2)
            reason = hosting.reason(PORT, "d")
            assert reason
            assert reason.startswith("its CDI spec could not be written: ")
            assert hosting.reason(PORT, "c") == reason, "it has changed"
            answer = (await started.admit("pod", {"app": {PORT: 2}}))["app"]
            bench.inject(*answer["cdiDevices"])
            assert sorted(answer["cdiDevices"]) == named("a", "b")
        finally:
            read_only(hosting.cdi, on=False)
        bench.plug("e", 5)  # or the next look at all
        await started.wait(PORT, 5, 5)
        assert bench.numbers() == {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}
        await hosting.stop()


async def test_cdi_spec_of_a_resource_added_again_while_it_is_removed_is_there(
    started: Kubelet, bench: Bench, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The state directory may be slow when its records are dropped there."""
    bench.plug("a", 1)
    bench.start()
    await started.wait(PORT, 1, 1)
    ending, added, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()
    remove = CdiInjection.remove

    async def slow_remove(self: CdiInjection) -> None:
        ending.set()
        await added.wait()
        await remove(self)
        ended.set()

    monkeypatch.setattr(CdiInjection, "remove", slow_remove)
    former = hosting.hosts[-1].resources
    hosting.reload("version: v1\nresources: []\n")
    await ending.wait()
    hosting.reload(bench.config())
    assert hosting.hosts[-1].resources == former, "another one uses the same files"
    added.set()
    await ended.wait()
    await started.wait(PORT, 1, 1)
    answer = (await started.admit("pod", {"app": {PORT: 1}}))["app"]
    bench.inject(*answer["cdiDevices"])


async def test_cdi_spec_after_a_takeover(started: Kubelet, bench: Bench, hosting: Hosting) -> None:
    """Their configurations may differ; when it serves, it writes its own."""
    bench.plug("a", 1)
    bench.start()
    await started.wait(PORT, 1, 1)
    bench.start('inject: cdi, id: "new-${name}"')
    await hosting.until(PORT, State.WAITING)
    (second,) = hosting.hosts[1].resources
    bench.plug("b", 2)
    await until(lambda: {"new-a", "new-b"} <= second.devices.offered.devices.keys(), "its look")
    await until(lambda: bench.numbers().keys() == {"a", "b"}, "a look of the first one")
    await hosting.stop(0)
    await until(lambda: bench.numbers().keys() == {"new-a", "new-b"}, "its spec")
    await started.wait(PORT, 2, 2)


async def test_cdi_spec_without_room_is_written_when_another_resource_has_ended(
    started: Kubelet, hosting: Hosting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devhost.allocation.cdi.CDI_SPECS_MAX", 200)
    token = 'sources: [static: 1], inject: cdi, allocate: {env: {"A_${id}": b}}'
    names = ["example.com/first", "example.com/second"]
    first, second = (f"{{name: {name}, {token}}}" for name in names)
    hosting.start(f"version: v1\nresources: [{first}]\n")
    await started.wait(names[0], 1, 1)
    hosting.reload(f"version: v1\nresources: [{first}, {second}]\n")
    await started.wait(names[1], 1, 0)
    hosting.reload(f"version: v1\nresources: [{second}]\n")
    await started.wait(names[1], 1, 1)


async def test_cdi_spec_has_another_number_before_the_device_is_healthy(
    started: Kubelet, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container would get the device that has the number now."""
    path = bench.plug("a", 1)
    bench.start()
    await started.wait(PORT, 1, 1)
    write = CdiFiles.write

    def slow(self: CdiFiles, name: str, content: bytes | None) -> None:
        time.sleep(0.3)
        write(self, name, content)

    monkeypatch.setattr(CdiFiles, "write", slow)
    monkeypatch.setattr("devhost.devices.absence.SWAP_S", 0.0)
    path.unlink()
    await started.wait(PORT, 1, 0)
    bench.plug("a", 2)
    await started.wait(PORT, 1, 1)
    assert bench.numbers() == {"a": 2}
    answer = (await started.admit("pod", {"app": {PORT: 1}}))["app"]
    (node,) = bench.inject(*answer["cdiDevices"])["linux"]["devices"]
    assert node["minor"] == 2


@contract
async def test_cdi_spec_stays_when_a_reload_changes_inject(started: Kubelet, bench: Bench) -> None:
    """The spec stays for containers that have names; it comes before any answer that has some."""
    path = bench.plug("a", 1)
    bench.plug("b", 2)
    bench.plug("c", 3)
    bench.start("inject: deviceSpecs")
    await started.wait(PORT, 3, 3)
    bench.hosting.reload(bench.config())
    first = (await started.admit("first", {"app": {PORT: 1}}))["app"]
    assert (first["cdiDevices"], first["devices"]) == (named("a"), [])
    bench.inject(*first["cdiDevices"])
    bench.hosting.reload(bench.config("inject: deviceSpecs"))
    second = (await started.admit("second", {"app": {PORT: 1}}))["app"]
    assert second["cdiDevices"] == []
    assert [device["hostPath"] for device in second["devices"]] == [str(path.with_name("b"))]
    bench.inject(*first["cdiDevices"])


async def test_cdi_file_of_another_stays(started: Kubelet, bench: Bench, hosting: Hosting) -> None:
    bench.plug("a", 1)
    bench.start()
    await started.wait(PORT, 1, 1)
    bench.start()
    await hosting.until(PORT, State.WAITING)
    nothing = "version: v1\nresources: []\n"
    hosting.reload(nothing)
    await until(lambda: hosting.served(PORT) is None)
    assert bench.numbers() == {"a": 1}
    await hosting.stop()
    hosting.reload(nothing)
    await until(lambda: hosting.served(PORT) is None)
    assert not bench.file.exists()

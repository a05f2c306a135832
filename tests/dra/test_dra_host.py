"""The host with DRA against the stand-in API server: publishing, preparing, restarts."""

import asyncio
import json
import os
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.backends.backend import run_together
from devhost.backends.dra import slices
from devhost.backends.dra.api_client import ApiError
from devhost.backends.dra.slices import PATH
from devhost.backends.resource_lock import LOCKS, resource_hash
from devhost.cli.output import print_resource
from devhost.errors import BackendGoneError
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.hostfs.files import HostFiles
from devhost.model.resource_state import State
from tests.dra.world import NODE, NODE_PATH, World, eventually, failing
from tests.support.api_server import ApiObject, StatusError
from tests.support.dra_kubelet import CLAIMS, node

TOKEN, SERIAL, OTHER = "example.com/token", "example.com/serial", "example.com/other"
TOKENS: Final = """
version: v1
backend: dra
resources:
  - {name: example.com/token, sources: [static: 3], allocate: {env: {TOKENS: "${id}"}}}
"""
SHARED: Final = TOKENS.replace("static: 3]", "static: 1], replicas: 3, maxPerContainer: 1")
# Two nodes that every machine has.
SERIALS: Final = """
version: v1
resources:
  - name: example.com/serial
    backend: dra
    sources: [{dev: "(?P<port>null|zero)"}]
    id: "fake-${port}"
    allocate:
      devices: [{hostPath: "${path}", containerPath: "/dev/serial${index}"}]
      env: {SERIAL_PORTS: "/dev/serial${index}"}
"""


async def registered(world: World, resource: str) -> None:
    await world.kubelet.register()
    await world.until(resource, State.REGISTERED)


def metrics(world: World) -> str:
    for metric in world.dra.metrics():
        world.host.parts.metrics.registry.register(metric)
    return world.host.parts.metrics.text().decode()


def writes(world: World) -> list[tuple[str, str, int]]:
    return [request for request in world.api.requests if request[1].startswith(PATH)]


async def test_a_slice_is_as_the_scheduler_needs_it(world: World) -> None:
    async with world.serve(SERIALS, SERIAL):
        (published,) = world.slices()
    assert published["spec"] == {
        "driver": "devhost",
        "nodeName": NODE,
        "pool": {"name": f"{NODE}/{SERIAL}", "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {
                "name": f"fake-{port}",
                "attributes": {
                    "resource": {"string": SERIAL},
                    "id": {"string": f"fake-{port}"},
                    "port": {"string": port},
                },
            }
            for port in ("null", "zero")
        ],
    }
    assert published["metadata"]["ownerReferences"][0]["uid"] == "node-uid"
    assert world.slices() == [published], "SIGTERM leaves the slices"


async def test_of_a_removed_node_nothing_is_written(world: World) -> None:
    """The API server would delete it again, without end."""
    async with world.serve(TOKENS, TOKEN):
        content = world.api.objects.pop(NODE_PATH)
        world.api.remove(f"{PATH}/{world.slices()[0]['metadata']['name']}")
        await world.until(TOKEN, State.WAITING, "404")
        assert not world.slices()
        world.api.put(NODE_PATH, {**content, "metadata": {"uid": "another"}})
        await world.until_published("0", "1", "2")
        assert world.slices()[0]["metadata"]["ownerReferences"][0]["uid"] == "another"


async def test_foreign_slices_stay(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.api_server._matches", lambda *_: True)
    pool = {"name": f"{NODE}/{TOKEN}", "generation": 7, "resourceSliceCount": 1}
    spec = {"driver": "devhost", "nodeName": NODE, "pool": pool, "devices": []}
    foreign = {
        "node": spec | {"nodeName": "node-2"},
        "driver": spec | {"driver": "other"},
        "pool": spec | {"pool": pool | {"name": "node-2/example.com/token"}},
    }

    def put_others() -> None:
        for name, content in foreign.items():
            world.api.put(f"{PATH}/{name}", {"kind": "ResourceSlice", "spec": content})

    odd_name = "odd/../node?"
    former = {"spec": spec | {"pool": pool | {"name": f"{NODE}/example.com/former"}}}
    world.api.put(f"{PATH}/{odd_name}", {"metadata": {"name": odd_name}, **former})
    put_others()
    async with world.serve(TOKENS, TOKEN):
        await eventually(lambda: len(writes(world)) == 2)
        put_others()
        (name,) = {content["metadata"]["name"] for content in world.slices()} - foreign.keys()
        world.api.remove(f"{PATH}/{name}")  # seen after the others
        await eventually(lambda: len(writes(world)) == 3)
        # Its answer may be under way.
        count_slices = world.dra.metrics()[0]
        await eventually(lambda: next(iter(count_slices.collect())).samples[0].value == 1)
    assert sorted(writes(world)) == [
        ("DELETE", f"{PATH}/{odd_name}", 200),
        *[("POST", PATH, 201)] * 2,
    ]
    assert foreign.keys() < {content["metadata"]["name"] for content in world.slices()}


async def test_pool_that_stays_is_logged_once(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with world.serve(TOKENS.replace("/token", "/former"), "example.com/former"):
        pass
    world.api.fault = failing(403, "forbidden", "DELETE")
    monkeypatch.setattr(slices, "_jitter", lambda _failures: 0.0)
    async with world.run(TOKENS):
        await eventually(lambda: sum(verb == "DELETE" for verb, _, _ in writes(world)) > 2)
        world.api.fault = lambda _verb, _path: None
        await world.until_published("0", "1", "2")
    assert sum("slices were not written" in text for text in caplog.messages) == 1


async def test_more_devices_than_a_slice_has_are_several(world: World) -> None:
    def seen() -> tuple[int, set[tuple[int, int]]]:
        pools = [content["spec"]["pool"] for content in world.slices()]
        counts = {(pool["generation"], pool["resourceSliceCount"]) for pool in pools}
        return len(world.published()), counts

    async with world.serve(TOKENS.replace("static: 3", "static: 70"), TOKEN):
        for generation, count, slices in ((1, 70, 2), (2, 60, 1), (3, 70, 2)):
            world.reload(TOKENS.replace("static: 3", f"static: {count}"))
            expected = (count, {(generation, slices)})
            await eventually(lambda expected=expected: seen() == expected, seen)  # type: ignore[misc]


async def test_without_the_api_server_nothing_is_lost(world: World) -> None:
    world.api.fault = failing(503, "etcd is being restored")
    async with world.serve(TOKENS):
        await world.until(TOKEN, State.WAITING, "API server: 503 etcd is being restored")
        assert any("etcd is being restored" in trouble for trouble in world.troubles())
        world.api.fault = lambda _verb, _path: None
        await world.until(TOKEN, State.REGISTERED)
        world.api.break_watches()
        world.api.remove(f"{PATH}/{world.slices()[0]['metadata']['name']}")
        await world.until_published("0", "1", "2")


async def test_without_watches_changes_are_written(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slices, "_jitter", lambda _failures: 0.01)
    world.api.fault = failing(503, "overloaded", "WATCH")
    async with world.serve(TOKENS):
        for count in (3, 2):
            world.reload(TOKENS.replace("static: 3", f"static: {count}"))
            await world.until_published(*map(str, range(count)))
            await world.until(TOKEN, State.WAITING, "API server: 503 overloaded")
        assert sum("slices cannot be written" in text for text in caplog.messages) == 1


async def test_a_watch_that_has_ended_goes_on_without_another_list(world: World) -> None:
    async with world.serve(TOKENS, TOKEN):
        before = world.api.lists
        world.api.end_watches()
        world.api.remove(f"{PATH}/{world.slices()[0]['metadata']['name']}")
        await world.until_published("0", "1", "2")
        assert world.api.lists == before


async def test_works_that_run_together_end_though_one_fails_just_then() -> None:
    """Else a host would not end, nor a backend that has failed begin again."""
    is_ending, may_end = asyncio.Event(), asyncio.Event()

    async def end_slowly() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            is_ending.set()
            await may_end.wait()

    async def fail() -> None:
        raise ApiError(500, "broken")

    running = asyncio.create_task(run_together(end_slowly(), fail()))
    await is_ending.wait()
    running.cancel()
    may_end.set()
    await asyncio.wait({running})
    assert running.cancelled()


async def test_without_a_lock_claims_are_prepared(world: World) -> None:
    """The directory is there, but another plugin has put a link in it: it is not followed."""
    plugins = SimulatedKubelet(world.plugins)
    await plugins.start()
    lock = world.plugins / LOCKS / f"{resource_hash(TOKEN)}.lock"
    elsewhere = world.directory / "elsewhere"
    lock.parent.mkdir()
    lock.symlink_to(elsewhere)
    plugin = f"  - {{name: {OTHER}, backend: devicePlugin, sources: [static: 1], allocate: {{env: {{B: b}}}}}}\n"
    async with world.run(TOKENS + plugin):
        await world.kubelet.register()
        await world.until(TOKEN, State.BACKING_OFF, f"cannot make a lock in {world.plugins}: ")
        await world.prepare("u", TOKEN, "0")
        await plugins.wait(OTHER, 1, 1)
        assert not world.published()
        lock.unlink()
        await world.until(TOKEN, State.REGISTERED)
        assert not elsewhere.exists()
    await plugins.stop()


async def test_unreadable_answer_is_a_failure_of_the_api_server(world: World) -> None:
    async with world.serve(TOKENS, TOKEN):
        name = world.claim("u", TOKEN, "0")
        first = await world.kubelet.prepare(name, "u")
        content = world.api.objects[NODE_PATH]
        world.api.objects[NODE_PATH] = {"metadata": {}}
        world.api.break_watches()
        await world.until(TOKEN, State.WAITING, "API server: an answer that cannot be read")
        assert await world.kubelet.prepare(name, "u") == first
        unreadable = world.claim("v", TOKEN, "1")
        world.api.objects[f"{CLAIMS}/{unreadable}"]["status"] = "none"
        assert "cannot be read" in (await world.kubelet.prepare(unreadable, "v")).error
        assert "is no UID" in await world.kubelet.unprepare(unreadable, "../v")
        world.api.objects[NODE_PATH] = content
        await world.until(TOKEN, State.REGISTERED)


async def test_a_refused_write_is_a_trouble_of_its_resource_alone(world: World) -> None:
    config = f"{TOKENS}  - {{name: {OTHER}, sources: [static: 1], allocate: {{env: {{B: b}}}}}}\n"

    def refuse(content: ApiObject) -> ApiObject:
        if content["spec"]["pool"]["name"].endswith("/token"):
            raise StatusError(403, "devhost may only write its own node's ResourceSlices")
        return content

    world.api.admit = refuse
    async with world.serve(config, OTHER):
        await world.until(TOKEN, State.BACKING_OFF, "403 devhost may only write its own node's")
        assert any("403 devhost may only" in trouble for trouble in world.troubles())
        world.api.admit = lambda content: content
        await world.until(TOKEN, State.REGISTERED)


@pytest.mark.parametrize("field", ["attributes", "allowMultipleAllocations"])
async def test_what_the_api_server_does_not_keep_is_sent_once(world: World, field: str) -> None:
    def drop(content: ApiObject) -> ApiObject:
        devices = [
            {key: value for key, value in device.items() if key != field}
            for device in content["spec"]["devices"]
        ]
        return {**content, "spec": {**content["spec"], "devices": devices}}

    world.api.admit = drop
    async with world.serve(SHARED, TOKEN):
        served = world.served(TOKEN)
        assert f"did not keep `{field}`" in served.publication.status.warnings[0]
        world.api.put(f"{PATH}/other", {"kind": "ResourceSlice", "spec": {"driver": "x"}})
        world.api.put(NODE_PATH, world.api.objects[NODE_PATH])
    assert len(writes(world)) == 1


async def test_an_older_kubelet_is_named_and_gets_no_devices(world: World) -> None:
    world.api.put(NODE_PATH, node("v1.35.4"))
    async with world.run(TOKENS):
        await world.until(TOKEN, State.WAITING, "needs kubelet 1.36, this node has 1.35.4")
        assert not world.slices()
        world.api.put(NODE_PATH, node("v1.36.3", "containerd://1.7.2"))
        await world.kubelet.register()
        await world.until(TOKEN, State.REGISTERED)
        served = world.served(TOKEN)
        assert "containerd 2" in served.publication.status.warnings[0]


async def test_after_a_refusal_there_is_a_fresh_instance(world: World) -> None:
    async with world.run(TOKENS):
        await world.kubelet.register(accept=False, error="already registered")
        first = world.kubelet.info.endpoint
        await world.until(TOKEN, State.WAITING, "already registered")
        await eventually(lambda: not Path(first).exists())
        await registered(world, TOKEN)
        assert world.kubelet.info.endpoint != first


async def test_without_its_socket_it_is_not_registered_and_publishes_nothing(world: World) -> None:
    async with world.serve(TOKENS, TOKEN):
        await asyncio.to_thread(Path(world.kubelet.info.endpoint).unlink)
        await world.until(TOKEN, State.WAITING, "its socket was removed: waiting for kubelet to")
        changed = world.dra.writer.changed
        world.api.remove(f"{PATH}/{world.slices()[0]['metadata']['name']}")  # as kubelet does
        await changed.wait()
        assert not world.published()
        await registered(world, TOKEN)
        await world.until_published("0", "1", "2")


@pytest.mark.parametrize("name", ["device-plugins", "plugins_registry", "cdi"])
async def test_removed_directory_ends_the_process(
    world: World, removed_mount: Path, name: str
) -> None:
    async with world.serve(TOKENS, TOKEN):
        await world.prepare("u", TOKEN, "0")
        (world.directory / name).rename(world.directory / "former")
        (world.directory / name).symlink_to(removed_mount)
        with pytest.raises(BackendGoneError, match=f"{name} was removed"):
            await world.ended()


@pytest.fixture
def removed_mount(tmp_path: Path) -> Iterator[Path]:
    """A path to a directory that was removed, as a container's mount is."""
    directory = tmp_path / "mounted"
    directory.mkdir()
    descriptor = os.open(directory, os.O_RDONLY)
    directory.rmdir()
    yield Path(f"/proc/self/fd/{descriptor}")
    os.close(descriptor)


async def test_sockets_of_an_instance_that_was_killed_are_removed(world: World) -> None:
    dead = world.kubelet.registry / "devhost-0123abcd-reg.sock"
    foreign = world.kubelet.registry / "devhost-a-0123abcd-reg.sock"
    for path in (dead, foreign):
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))
    async with world.run(TOKENS):
        await eventually(lambda: not dead.exists())
        assert foreign.exists()


async def test_of_two_instances_one_publishes_and_both_prepare(world: World) -> None:
    second = World.beside(world)
    async with world.serve(TOKENS, TOKEN), second.run(TOKENS.replace("static: 3", "static: 2")):
        await second.kubelet.register()
        await second.until(TOKEN, State.WAITING, "another instance of devhost")
        world.api.remove(f"{PATH}/{world.slices()[0]['metadata']['name']}")
        await world.until_published("0", "1", "2")
        assert "devhost_dra_writes_total{" not in metrics(second)
        name = world.claim("u1", TOKEN, "0")
        assert not (await second.kubelet.prepare(name, "u1")).error
        assert len(world.published()) == 3
        assert not await world.kubelet.unprepare(name, "u1")
        assert not world.records()
        # The other instance may write it again, and then sees that the claim has ended.
        await eventually(lambda: not world.cdi_files())
        await world.stop()
        await second.until(TOKEN, State.REGISTERED)
        await second.until_published("0", "1")


async def test_a_claim_gets_names_of_a_file_with_its_nodes_and_env(world: World) -> None:
    async with world.serve(SERIALS, SERIAL):
        name = world.claim("7e8e", SERIAL, "fake-null", "fake-zero")
        answer = await world.kubelet.prepare(name, "7e8e")
        granted = [(device.device_name, [*device.cdi_device_ids]) for device in answer.devices]
        kind = "dra.devhost/claim"
        assert granted == [
            ("fake-null", [f"{kind}=c7e8e-0", f"{kind}=c7e8e-s0"]),
            ("fake-zero", [f"{kind}=c7e8e-1"]),
        ]
        assert [[*device.request_names] for device in answer.devices] == [["r"], ["r"]]
        assert answer.devices[0].pool_name == f"{NODE}/{SERIAL}"
        assert not answer.devices[0].HasField("share_id")
        entries = world.spec()
        first = entries["c7e8e-0"]["deviceNodes"][0]
        assert (first["path"], first["hostPath"], first["major"], first["minor"]) == (
            "/dev/serial0",
            "/dev/null",
            1,
            3,
        )
        assert entries["c7e8e-1"]["deviceNodes"][0]["path"] == "/dev/serial1"
        assert entries["c7e8e-s0"] == {"env": ["SERIAL_PORTS=/dev/serial0,/dev/serial1"]}
        assert [path.name for path in world.cdi_files()] == ["devhost-claim_7e8e.json"]


async def test_vendor_names_stand_beside_their_device(world: World, tmp_path: Path) -> None:
    world.files = HostFiles(str(tmp_path))
    (tmp_path / "etc/cdi").mkdir(parents=True)
    (tmp_path / "etc/cdi/v.yaml").write_text("{kind: v.org/d, devices: [{name: a}, {name: b}]}")
    config = TOKENS.replace("static: 3", "cdi: v.org/d").replace("${id}", "${cdi.name}")
    async with world.serve(config, TOKEN):
        attributes = [device["attributes"] for device in world.devices_in_slices()]
        assert [values["cdiQualified"]["string"] for values in attributes] == [
            "v.org/d=a",
            "v.org/d=b",
        ]
        name = world.claim("u", TOKEN, "a", "b", extended=False)
        claim = world.api.objects[f"{CLAIMS}/{name}"]
        for number, result in enumerate(claim["status"]["allocation"]["devices"]["results"]):
            result["request"] = f"r{number}"
        answer = await world.kubelet.prepare(name, "u")
        granted = [[*device.cdi_device_ids] for device in answer.devices]
        ours = "dra.devhost/claim=cu-s0"
        assert granted == [[ours, "v.org/d=a"], [ours, "v.org/d=b"]]


@pytest.mark.parametrize("extended", [True, False])
async def test_scope_is_a_request_or_the_claim(world: World, extended: bool) -> None:
    async with world.serve(TOKENS, TOKEN):
        name = world.claim("u", TOKEN, "0", "1", extended=extended)
        results = world.api.objects[f"{CLAIMS}/{name}"]["status"]["allocation"]["devices"][
            "results"
        ]
        results[0]["request"], results[1]["request"] = "first", "second/alternative"
        answer = await world.kubelet.prepare(name, "u")
        assert [[*device.request_names] for device in answer.devices] == [["first"], ["second"]]
        envs = [entry["env"][0] for entry in world.spec().values()]
        assert envs == (["TOKENS=0", "TOKENS=1"] if extended else ["TOKENS=0,1"])
        assert all(device.cdi_device_ids for device in answer.devices)


async def test_a_prepared_claim_needs_neither_api_server_nor_cdi_directory(world: World) -> None:
    async with world.serve(SERIALS, SERIAL):
        name = world.claim("u", SERIAL, "fake-null")
        first = await world.kubelet.prepare(name, "u")
        spec = world.spec()
        world.cdi.rename(world.directory / "former")
        world.api.fault = failing(500, "broken")
        assert await world.kubelet.prepare(name, "u") == first
        assert world.spec() == spec
        assert not await world.kubelet.unprepare(name, "u")
        assert not await world.kubelet.unprepare("never seen", "other")
        assert not world.records()
        assert not world.cdi_files()


async def test_cdi_file_of_a_former_process_is_written_when_it_can_be(world: World) -> None:
    async with world.serve(SERIALS, SERIAL):
        await world.prepare("u", SERIAL, "fake-null")
        spec = world.spec()
    shutil.rmtree(world.cdi)
    world.cdi.write_text("a file")
    async with world.serve(SERIALS, SERIAL):
        world.cdi.unlink()
        world.served(SERIAL).scan.request()
        await eventually(world.cdi_files)
        assert world.spec() == spec


async def test_of_an_earlier_boot_nothing_is_written_before_kubelet_asks(world: World) -> None:
    async with world.serve(SERIALS, SERIAL):
        name = await world.prepare("u", SERIAL, "fake-null")
    shutil.rmtree(world.cdi)
    edit_records(world, lambda record: record.update(boot="an earlier one"))
    edit_records(world, with_other_numbers)
    async with world.serve(SERIALS, SERIAL):
        assert not world.cdi_files()
        assert not (await world.kubelet.prepare(name, "u")).error
        first = world.spec()["cu-0"]["deviceNodes"][0]
        assert (first["major"], first["minor"]) == (1, 3), "as they are in this boot"


def edit_records(world: World, edit: Any) -> None:
    (path,) = (world.state / "claims").glob("*.json")
    entry = json.loads(path.read_text())
    edit(entry)
    path.write_text(json.dumps(entry))


def with_other_numbers(record: dict[str, Any]) -> None:
    for edits in record["entries"].values():
        for entry in edits.get("deviceNodes", ()):
            entry |= {"major": 250, "minor": 1, "hostPath": "/dev/elsewhere"}


def a_link_to_null(world: World) -> tuple[Path, str]:
    """Make the link that a device is; return it, and a configuration."""
    link = world.devices / "tty0"
    link.symlink_to("/dev/null")
    config = f"""
version: v1
resources:
  - name: {SERIAL}
    backend: dra
    sources: ["{world.devices}/tty*"]
    allocate: {{devices: [{{hostPath: "${{path}}", containerPath: /dev/serial0}}]}}
"""
    return link, config


def lead_to_zero(link: Path) -> None:
    fresh = link.with_name("fresh")
    fresh.symlink_to("/dev/zero")
    fresh.rename(link)


async def test_a_device_that_moved_is_where_it_is_now(world: World) -> None:
    link, config = a_link_to_null(world)
    async with world.serve(config, SERIAL):
        name = world.claim("u", SERIAL, "tty0")
        first = await world.kubelet.prepare(name, "u")
        lead_to_zero(link)
        await eventually(lambda: world.spec()["cu-0"]["deviceNodes"][0]["minor"] == 5, world.spec)
        assert await world.kubelet.prepare(name, "u") == first
        link.unlink()
        await world.until_published()
        assert "/dev/serial0 is not there" in (await world.kubelet.prepare(name, "u")).error
        (node,) = world.spec()["cu-0"]["deviceNodes"]
        assert (node["minor"], node["hostPath"]) == (5, "/dev/zero"), "the file stays as it was"
        assert not await world.kubelet.unprepare(name, "u")


async def test_device_that_moved_while_the_disk_was_full(world: World) -> None:
    link, config = a_link_to_null(world)
    away = world.directory / "away"
    async with world.serve(config, SERIAL):
        await world.prepare("u", SERIAL, "tty0")
        world.state.rename(away)
        world.state.write_text("a file")
        lead_to_zero(link)
        handouts, served = world.host.parts.records, world.served(SERIAL)
        (record,) = handouts.table.claims.values()
        await eventually(lambda: record not in handouts.table and handouts.problem)
        world.state.unlink()
        away.rename(world.state)
        await eventually(lambda: handouts.problem is None)
        served.scan.request()
        await eventually(lambda: world.spec()["cu-0"]["deviceNodes"][0]["minor"] == 5, world.spec)


async def test_claims_that_cannot_be_prepared_say_why(world: World) -> None:
    async with world.serve(TOKENS, TOKEN):
        gone = await world.kubelet.prepare("none", "u")
        assert gone.error == 'API server: 404 "none" not found'
        reused = world.claim("another", TOKEN, "0")
        assert "is another claim now" in (await world.kubelet.prepare(reused, "u")).error
        unknown = world.claim("u", TOKEN, "7")
        assert (await world.kubelet.prepare(unknown, "u")).error == f"{TOKEN}: there is no device 7"
        elsewhere = world.claim("w", "example.com/none", "0")
        assert "there is no pool" in (await world.kubelet.prepare(elsewhere, "w")).error
        assert not world.records()


async def test_a_device_that_another_claim_has_is_refused(world: World) -> None:
    async with world.serve(TOKENS, TOKEN):
        first, second = world.claim("u", TOKEN, "0"), world.claim("v", TOKEN, "0")
        assert not (await world.kubelet.prepare(first, "u")).error
        refused = await world.kubelet.prepare(second, "v")
        assert refused.error == f"{TOKEN}: 0 is held by claim default/{first}"
        await world.prepare("w", TOKEN, "0", adminAccess=True)
        await world.kubelet.unprepare(first, "u")
        assert not (await world.kubelet.prepare(second, "v")).error


async def test_claims_of_one_device_get_shares_of_their_own(world: World) -> None:
    go, state = world.devices / "go", world.state / "claims"
    config = f"{SHARED.rstrip().removesuffix('}')}, preStart: [{{waitFor: {go}}}]}}\n"
    async with world.serve(config, TOKEN):
        assert world.published() == ["0"]
        names = {uid: world.claim(uid, TOKEN, "0", shareID=f"share-{uid}") for uid in "abcd"}
        prepared = asyncio.gather(*(world.kubelet.prepare(names[uid], uid) for uid in "abc"))
        await eventually(lambda: len([*state.glob("*.json")]) == 3)
        go.touch()
        answers = [answer.devices[0] for answer in await prepared]
        assert [(device.device_name, device.share_id) for device in answers] == [
            ("0", f"share-{uid}") for uid in "abc"
        ]
        ids = {record["claim"]: record["devices"][0]["id"] for record in world.records()}
        assert sorted(ids.values()) == ["0::0", "0::1", "0::2"]
        refused = await world.kubelet.prepare(names["d"], "d")
        assert refused.error.startswith(f"{TOKEN}: 0 is held by claim default/claim-")
        await world.kubelet.unprepare(names["b"], "b")
        assert not (await world.kubelet.prepare(names["d"], "d")).error
        assert world.records()[-1]["devices"][0]["id"] == ids["b"]


async def test_requests_for_one_device_in_a_claim_get_shares_of_their_own(world: World) -> None:
    async with world.serve(SHARED, TOKEN):
        name = world.claim("u", TOKEN, "0", "0")
        allocation = world.api.objects[f"{CLAIMS}/{name}"]["status"]["allocation"]
        for result, share in zip(allocation["devices"]["results"], "ab", strict=True):
            result |= {"request": share, "shareID": share}
        assert not (await world.kubelet.prepare(name, "u")).error
        assert [device["id"] for device in world.records()[0]["devices"]] == ["0::0", "0::1"]


async def test_more_shares_than_a_container_may_have_are_refused(world: World) -> None:
    config = SHARED.replace("maxPerContainer: 1", "maxPerContainer: 2")
    async with world.serve(config, TOKEN):
        names = world.published()
        allowed = await world.prepare("u", TOKEN, *names[:2])
        await world.kubelet.unprepare(allowed, "u")
        refused = await world.kubelet.prepare(world.claim("v", TOKEN, *names), "v")
        assert refused.error == f"{TOKEN}: 3 shares of device 0, but maxPerContainer is 2"
        assert not world.records()


async def test_parameters_for_the_driver_are_refused(world: World) -> None:
    async with world.serve(TOKENS, TOKEN):
        name = world.claim("u", TOKEN, "0")
        allocated = world.api.objects[f"{CLAIMS}/{name}"]["status"]["allocation"]
        allocated["devices"]["config"] = [{"opaque": {"driver": "devhost", "parameters": {}}}]
        assert "has parameters for devhost" in (await world.kubelet.prepare(name, "u")).error


async def test_a_record_that_cannot_be_written_is_no_answer(world: World) -> None:
    async with world.serve(TOKENS, TOKEN):
        await world.prepare("first", TOKEN, "1")
        shutil.rmtree(world.state)
        world.state.write_text("a file")
        name = world.claim("u", TOKEN, "0")
        assert "cannot be recorded" in (await world.kubelet.prepare(name, "u")).error
        world.state.unlink()
        assert not (await world.kubelet.prepare(name, "u")).error
        assert {record["claim"] for record in world.records()} == {"first", "u"}


@pytest.mark.parametrize(
    ("hanging", "problem"),
    [
        pytest.param("node.cdi_files.CdiFiles.write", "its CDI file: {cdi}: no answer", id="cdi"),
        pytest.param("devices.scan.Scanner.allocate", f"{SERIAL}: the host does not", id="host"),
    ],
)
async def test_what_does_not_answer_is_named(
    world: World, monkeypatch: pytest.MonkeyPatch, hanging: str, problem: str
) -> None:
    go = threading.Event()
    monkeypatch.setattr("devhost.node.claim_files.PATIENCE_S", 0.1)
    monkeypatch.setattr("devhost.node.answers._LOOK_UP_S", 0.1)
    async with world.serve(SERIALS, SERIAL):
        name = world.claim("u", SERIAL, "fake-null")
        if "Scanner" not in hanging:  # a prepared claim does not ask the host
            assert not (await world.kubelet.prepare(name, "u")).error
        monkeypatch.setattr("devhost.node.answers._RENDER_S", 0.1)
        monkeypatch.setattr(f"devhost.{hanging}", lambda *_args: go.wait())
        try:
            refused = (await world.kubelet.prepare(name, "u")).error
        finally:
            go.set()
    assert refused.startswith(problem.format(cdi=world.cdi))


async def test_a_resource_that_is_removed_before_it_was_served_is_forgotten(world: World) -> None:
    added = f"{TOKENS}  - {{name: {OTHER}, sources: [static: 1], allocate: {{env: {{B: b}}}}}}\n"
    async with world.serve(TOKENS, TOKEN):
        world.reload(added)
        world.reload(TOKENS)
        await eventually(lambda: not world.has(OTHER))
        assert f"{NODE}/{OTHER}" not in world.dra.writer.pools.here


async def test_a_resource_that_is_added_again_is_published_again(world: World) -> None:
    nothing = "{version: v1, resources: []}"
    async with world.serve(TOKENS, TOKEN):
        name = await world.prepare("u", TOKEN, "0")
        world.reload(nothing)
        await world.until(TOKEN, State.DRAINING)
        await world.until_published()
        world.reload(TOKENS)
        await world.until_published("0", "1", "2")
        await world.until(TOKEN, State.REGISTERED)
        await world.kubelet.unprepare(name, "u")
        world.reload(nothing)
        await eventually(lambda: not world.has(TOKEN))
        world.reload(TOKENS)
        await world.until(TOKEN, State.REGISTERED)
        await world.until_published("0", "1", "2")


async def test_patterns_say_on_which_nodes_dra_offers_a_resource(world: World) -> None:
    here = TOKENS.replace("backend: dra", f"backend: {{dra: [edge-*, {NODE}]}}")
    async with world.serve(here, TOKEN):
        pass
    async with world.run(here.replace(NODE, "other")):
        await world.until(TOKEN, State.WAITING, "kubelet.sock")
        await eventually(lambda: not world.slices())


async def test_metrics_tell_of_slices_claims_and_writes(world: World) -> None:
    async with world.serve(TOKENS, TOKEN):
        for uid in ("u", "v"):  # for one device
            await world.kubelet.prepare(world.claim(uid, TOKEN, "0"), uid)
        text = metrics(world)
    for line in (
        "devhost_dra_slices 1.0",
        "devhost_dra_claims 1.0",
        'devhost_dra_writes_total{code="201",verb="POST"} 1.0',
        'devhost_dra_prepare_seconds_count{result="ok"} 1.0',
        'devhost_dra_prepare_seconds_count{result="error"} 1.0',
    ):
        assert line in text


async def test_status_names_pool_and_claims(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    async with world.serve(TOKENS, TOKEN):
        name = await world.prepare("u", TOKEN, "0")
        (shown,) = world.status()["resources"]
        assert shown["dra"] == {
            "driver": "devhost",
            "pool": f"{NODE}/{TOKEN}",
            "claims": [f"default/{name}"],
        }
        assert shown["registered"]
    print_resource(shown, wide=False)
    claims = f"driver devhost, pool {NODE}/{TOKEN}, claims: default/{name}"
    assert claims in capsys.readouterr().out


async def test_a_claim_with_too_much_text_is_refused_and_takes_no_room(world: World) -> None:
    """Nothing of it is kept, and its steps do not run."""
    marks = world.directory / "marks"
    large = TOKENS.replace('{TOKENS: "${id}"}', f"{{A: {'x' * 70_000}}}")
    large = large.replace("3], ", f"3], preStart: [{{run: [touch, {marks}]}}], ")
    async with world.serve(large, TOKEN):
        name = world.claim("u", TOKEN, "0")
        problem = (await world.kubelet.prepare(name, "u")).error
        assert "takes 68 KiB: at most 64 KiB" in problem
        assert (world.records(), marks.exists()) == ([], False)
        world.reload(TOKENS)
        await eventually(lambda: world.published() == ["0", "1", "2"])
        assert not (await world.kubelet.prepare(name, "u")).error


@pytest.mark.parametrize("first", ["a", "b"])
async def test_after_a_boot_one_claim_finds_a_shared_node_name(world: World, first: str) -> None:
    names = {"a": world.claim("a", SERIAL, "fake-null"), "b": world.claim("b", SERIAL, "former")}
    async with world.serve(SERIALS, SERIAL):
        assert not (await world.kubelet.prepare(names["a"], "a")).error
    (path,) = (world.state / "claims").glob("*.json")
    record = json.loads(path.read_text())
    record["boot"] = record["devices"][0]["nodes"][0]["boot"] = "an earlier one"
    path.write_text(json.dumps(record))
    record |= {"claim": "b", "name": names["b"], "entries": {"cb-0": record["entries"]["ca-0"]}}
    record["devices"][0] |= {"id": "former", "device": "former"}
    path.with_name("devhost_b.json").write_text(json.dumps(record))
    async with world.serve(SERIALS, SERIAL):
        assert not (await world.kubelet.prepare(names[first], first)).error
        second = "ab".replace(first, "")
        assert "handed out as" in (await world.kubelet.prepare(names[second], second)).error

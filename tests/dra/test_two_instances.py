"""Two instances of devhost on a node: who writes which record."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from devhost.custody.state_dir import directory_lock
from devhost.model.config import Config
from devhost.model.records import ClaimRecord
from devhost.model.resource_state import State
from devhost.node.claim_files import ClaimFiles
from devhost.node.node import Host
from tests.dra.test_dra_host import TOKEN, TOKENS
from tests.dra.world import World, declare_files, eventually
from tests.support.dra_kubelet import CLAIMS

X, Y = "example.com/x", "example.com/y"


@pytest.fixture(autouse=True)
def device(world: World) -> None:
    (world.devices / "n0").touch()


@contextlib.asynccontextmanager
async def two_instances(world: World, config: str) -> AsyncIterator[World]:
    """Run two instances that kubelet has; yield the second, which waits for the lock of the first."""
    second = World.beside(world)
    async with world.serve(config, X), second.run(config):
        await second.kubelet.register()
        await eventually(lambda: any(r.devices.offered.devices for r in second.host.resources))
        yield second


@pytest.mark.parametrize("resource", [X, Y])
async def test_second_driver_prepares_a_node_that_is_free(world: World, resource: str) -> None:
    second = World.beside(world)
    async with (
        world.serve(declare_files(world, X), X, driver="one.example.com"),
        second.serve(declare_files(world, resource), driver="two.example.com"),
    ):
        # Of one resource the second waits for its lock, and kubelet may ask it all the same.
        await second.until(resource, State.WAITING if resource == X else State.REGISTERED)
        world.claim("u1", X, "n0", driver="one.example.com", name="c1")
        world.claim("u2", resource, "n0", driver="two.example.com", name="c2")
        assert not (await world.kubelet.prepare("c1", "u1")).error
        refused = (await second.kubelet.prepare("c2", "u2")).error
        assert "claim default/c1" in refused or "handed out" in refused
        assert not await world.kubelet.unprepare("c1", "u1")
        await eventually(lambda: not second.records())
        while (await second.kubelet.prepare("c2", "u2")).error:
            await asyncio.sleep(0.1)


async def test_claim_waits_for_first_scan(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    go, apply_first = asyncio.Event(), Host._apply_first

    async def apply_late(host: Host, config: Config) -> None:
        await go.wait()
        await apply_first(host, config)

    second = World.beside(world)
    async with world.serve(declare_files(world, X), X):
        monkeypatch.setattr(Host, "_apply_first", apply_late)
        async with second.serve(declare_files(world, X)):
            name = world.claim("u1", X, "n0")
            requests: list[str] = []
            world.api.fault = lambda _verb, path: requests.append(path)
            prepared = asyncio.create_task(second.kubelet.prepare(name, "u1"))
            await eventually(lambda: f"{CLAIMS}/{name}" in requests)
            go.set()
            assert not (await prepared).error


async def test_ended_claim_leaves_no_file(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    second, write_file = World.beside(world), ClaimFiles.write_file
    answers: list[str] = []

    async def write_late(files: ClaimFiles, name: str, content: bytes | None) -> None:
        if content is not None:
            answers.append(await world.kubelet.unprepare("c1", "u1"))
        await write_file(files, name, content)

    async with world.serve(TOKENS, TOKEN):
        world.claim("u1", TOKEN, "0", name="c1")
        assert not (await world.kubelet.prepare("c1", "u1")).error
        monkeypatch.setattr(ClaimFiles, "write_file", write_late)
        async with second.serve(TOKENS):
            assert answers == [""]
            assert not world.cdi_files()


@pytest.mark.parametrize("at_once", [False, True])
async def test_newer_of_two_runs_steps(
    world: World, monkeypatch: pytest.MonkeyPatch, at_once: bool
) -> None:
    marks = world.directory / "marks"
    config = declare_files(world, X, f", preStart: [{{run: [sh, -c, 'echo x >> {marks}']}}]")
    async with two_instances(world, config) as second:
        world.claim("u1", X, "n0", name="c1")
        allocator = second.dra.claims._allocator
        complete = allocator.complete

        async def complete_late(*record: Any, run_steps: bool) -> ClaimRecord:
            if not run_steps:
                assert not (await world.kubelet.prepare("c1", "u1")).error
            return await complete(*record, run_steps=run_steps)

        if at_once:
            monkeypatch.setattr(allocator, "complete", complete_late)
        assert not (await second.kubelet.prepare("c1", "u1")).error
        assert not (await second.kubelet.prepare("c1", "u1")).error
        assert not (await world.kubelet.prepare("c1", "u1")).error
        assert marks.read_text() == "x\n"


async def test_claims_of_two_instances_have_different_shares(world: World) -> None:
    config = declare_files(world, X, ", replicas: 4, maxPerContainer: 1")
    same = 0
    async with two_instances(world, config) as second:
        for number in range(30):
            uids = f"a{number}", f"b{number}"
            names = [world.claim(uid, X, "n0", shareID=uid) for uid in uids]
            answers = await asyncio.gather(
                world.kubelet.prepare(names[0], uids[0]), second.kubelet.prepare(names[1], uids[1])
            )
            assert not [answer.error for answer in answers if answer.error]
            ids = {record["claim"]: record["devices"][0]["id"] for record in world.records()}
            same += len({ids[uid] for uid in uids}) == 1
            for name, uid in zip(names, uids, strict=True):
                assert not await second.kubelet.unprepare(name, uid)
            await eventually(lambda: not world.host.parts.records.table.claims)
    assert same == 0, f"{same} of 30 times two claims had one share"


async def test_a_claim_that_was_only_started_goes_on_with_its_share(world: World) -> None:
    go = world.directory / "go"
    steps = f"preStart: [{{waitFor: {go}}}]"
    config = declare_files(world, X, f", replicas: 2, maxPerContainer: 1, {steps}")
    names = {uid: world.claim(uid, X, "n0", shareID=uid) for uid in "ab"}
    go.touch()
    async with world.serve(config, X):
        assert not (await world.kubelet.prepare(names["a"], "a")).error
        go.unlink()
        asking = asyncio.create_task(world.kubelet.prepare(names["b"], "b"))
        await eventually(lambda: len(world.records()) == 2)
        await world.stop()
        asking.cancel()
    assert {entry["claim"]: entry["state"] for entry in world.records()} == {
        "a": "completed",
        "b": "started",
    }
    go.touch()
    async with world.serve(config):
        assert not await world.kubelet.unprepare(names["a"], "a")
        assert not (await world.kubelet.prepare(names["b"], "b")).error
        (record,) = world.records()
        assert (record["state"], record["devices"][0]["id"]) == ("completed", "n0::1")


async def test_a_claim_whose_record_was_lost_is_not_wiped_by_steps(world: World) -> None:
    marks = world.directory / "marks"
    config = declare_files(world, X, f", preStart: [{{run: [sh, -c, 'echo x >> {marks}']}}]")
    name = world.claim("u", X, "n0")
    async with world.serve(config, X):
        assert not (await world.kubelet.prepare(name, "u")).error
        world.lists.hold("one", X, "n0", claim=name)
    world.state.rename(world.directory / "lost")
    async with world.serve(config, X):
        await eventually(lambda: world.holders(X))
        assert "delete the pod" in (await world.kubelet.prepare(name, "u")).error
        assert (marks.read_text(), world.records()) == ("x\n", [])


async def test_no_step_before_the_record(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is slow has the record of the first try later, and the second try waits for it."""
    monkeypatch.setattr("devhost.backends.dra.prepared_claims.SAVE_S", 0.05)
    marks = world.directory / "marks"
    config = declare_files(world, X, f", preStart: [{{run: [sh, -c, 'echo x >> {marks}']}}]")
    name = world.claim("u", X, "n0")
    async with world.serve(config, X):
        with directory_lock(world.state):
            for _ in range(2):
                assert "cannot be recorded" in (await world.kubelet.prepare(name, "u")).error
            assert not marks.exists()
        await eventually(world.records)
        assert not (await world.kubelet.prepare(name, "u")).error
        assert marks.read_text() == "x\n"

"""Devices are prepared once for each pod that is given them, and never while one uses them."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.errors import AllocationError, PreStartError
from devhost.host import preparation, records
from devhost.host.preparation import Preparation, Start
from devhost.host.records import Records
from devhost.host.state_files import write_atomically
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource, Step
from devhost.model.device import HostDevice, Node

NAME: Final = "example.com/disk"
HOLDER: Final = {"run": ["format", "${path}"]}
EACH: Final = {"run": ["check"], "every": "start"}
ALL: Final = Policy(("*",), allow_exec=True, enforced=True, allow_devices=("/dev/*",))


def resource(*steps: Mapping[str, Any]) -> Resource:
    return Resource.model_validate(
        {"name": NAME, "sources": [{"dev": "x"}], "preStart": list(steps)}
    )


def token(device_id: str, **more: Any) -> HostDevice:
    return HostDevice(device_id, (Node("", None, 0, device_id),), **more)


DEVICES: Final = {one: token(one) for one in "abc"}


class Steps:
    """What would have been run; each may be told to do something else."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.starts: list[Start] = []
        self.act: Callable[[str], Awaitable[None]] | None = None

    async def run_steps(self, steps: Iterable[tuple[int, Step]], start: Start) -> str | None:
        for _, step in steps:
            words = "format" if step.every == "holder" else "check"
            self.ran.append(f"{words} {start.device.id}")
            self.starts.append(start)
            if self.act is not None:
                try:
                    await self.act(self.ran[-1])
                except PreStartError as error:
                    return str(error)
        return None

    def taken(self) -> list[str]:
        """Sorted: devices run side by side."""
        ran, self.ran = sorted(self.ran), []
        return ran


class World:
    """A host that prepares devices."""

    def __init__(self, state: Path | None, steps: Steps) -> None:
        self.state, self.steps = state, steps
        self.resource = resource(HOLDER, EACH)
        self.devices: Mapping[str, HostDevice] = DEVICES
        self.preparation = self.new()

    def new(self, **more: Any) -> Preparation:
        """Prepare as another process does."""
        self.records = Records(self.state, lambda: None)
        self.preparation = Preparation(
            NAME, node_name="node-1", files=HostFiles(), policy=ALL, records=self.records, **more
        )
        return self.preparation

    async def allocate(self, *ids: str) -> None:
        await self.preparation.allocated(self.resource, ids)

    async def start(self, *ids: str) -> list[str]:
        await self.preparation.prepare(self.resource, self.devices, ids)
        return self.steps.taken()

    async def refused(self, *ids: str) -> str:
        with pytest.raises(PreStartError) as caught:
            await self.preparation.prepare(self.resource, self.devices, ids)
        return str(caught.value)

    def marks(self) -> dict[str, bool]:
        """What the disk has."""
        assert self.state is not None
        entries = json.loads((self.state / records.FILE).read_text())
        return {one["id"]: one["prepared"] for one in entries}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    fake = Steps()
    monkeypatch.setattr(preparation, "run_steps", fake.run_steps)
    return fake


@pytest.fixture
def world(tmp_path: Path, steps: Steps) -> World:
    return World(tmp_path / "state", steps)


@contextlib.contextmanager
def full(failure: int = 28) -> Iterator[None]:
    """Have nothing be written to the state directory."""

    def fail(*_: Any) -> None:
        raise OSError(failure, "No space left on device")

    with patch.object(records, "write_atomically", fail):
        yield


FIRST: Final = ["check a", "format a"]
AGAIN: Final = ["check a"]


# ── once per holder ──


async def test_a_step_runs_once_per_holder_and_others_at_each_start(world: World) -> None:
    """Also for the app after its init container: both are allocated before either starts."""
    await world.allocate("a")
    await world.allocate("a")
    assert await world.start("a") == FIRST
    assert await world.start("a") == AGAIN
    assert await world.start("a") == AGAIN
    assert world.marks() == {"a": True}


async def test_the_steps_of_a_device_keep_the_lists_order(world: World, steps: Steps) -> None:
    world.resource = resource(EACH, HOLDER, EACH)
    await world.allocate("a")
    await world.preparation.prepare(world.resource, DEVICES, ["a"])
    assert steps.ran == ["check a", "format a", "check a"]


async def test_the_next_pod_gets_a_run_of_its_own(world: World) -> None:
    for _ in range(2):
        await world.allocate("a")
        assert await world.start("a") == FIRST
        assert await world.start("a") == AGAIN


async def test_a_restart_of_devhost_changes_nothing(world: World) -> None:
    await world.allocate("a", "b")
    await world.start("a")
    world.new()
    assert await world.start("a") == AGAIN
    assert await world.start("b") == ["check b", "format b"]


async def test_what_another_instance_has_prepared_meanwhile_is_not_prepared_again(
    world: World,
) -> None:
    await world.allocate("a")
    first = world.preparation
    world.new()
    assert await world.start("a") == FIRST
    world.preparation = first
    assert await world.start("a") == AGAIN


async def test_a_device_is_prepared_once_for_all_its_shares(world: World) -> None:
    await world.allocate("a::0", "a::1")
    assert await world.start("a::0", "a::1") == FIRST
    assert world.marks() == {"a::0": True, "a::1": True}


async def test_steps_know_whose_device_and_container_it_is(world: World, steps: Steps) -> None:
    await world.allocate("b", "a")
    await world.start("b", "a")
    seen = {one.device.id: dict(one.constants) for one in steps.starts}
    common = {"resource": NAME, "nodeName": "node-1", "count": "2"}
    assert seen == {"a": {**common, "index": "0"}, "b": {**common, "index": "1"}}


# ── when it cannot be told ──


@pytest.mark.parametrize("lost", ["never", "file", "damaged"])
async def test_without_a_mark_nothing_is_run(world: World, steps: Steps, lost: str) -> None:
    """It is not known whether a container has started with it: it would be wiped on a guess."""
    if lost != "never":
        await world.allocate("a")
        assert world.state is not None
        path = world.state / records.FILE
        path.unlink() if lost == "file" else path.write_bytes(b"{")
    assert await world.refused("a") == (
        "cannot tell whether device a was prepared (no record of its allocation): "
        "delete the pod to get a fresh device"
    )
    assert not steps.ran
    assert (world.records.lost is not None) == (lost == "damaged")
    await world.allocate("a")
    assert await world.start("a") == FIRST


async def test_without_a_state_directory_a_restart_cannot_tell(steps: Steps) -> None:
    world = World(None, steps)
    await world.allocate("a")
    assert await world.start("a") == FIRST
    assert await world.start("a") == AGAIN
    world.new()
    reason = await world.refused("a")
    assert "(no record of its allocation; --state-dir would have kept it)" in reason


async def test_a_state_directory_that_cannot_be_read_fails_the_start(
    world: World, steps: Steps
) -> None:
    await world.allocate("a")
    assert world.state is not None
    (world.state / records.FILE).unlink()
    (world.state / records.FILE).mkdir()
    reason = await world.refused("a")
    assert reason.startswith("cannot tell whether device a was prepared: ")
    assert "Is a directory" in reason
    assert not steps.ran


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (None, "device a is missing"),
        (token("a", missing_since=1.0), "device a is missing"),
        (token("a", missing_since=1.0, reason="gone"), "device a is missing: gone"),
    ],
)
async def test_a_device_that_is_not_there_is_named(
    world: World, device: HostDevice | None, reason: str
) -> None:
    await world.allocate("a", "b")
    world.devices = {"b": token("b"), **({"a": device} if device else {})}
    assert await world.refused("a", "b") == reason


async def test_an_ill_device_that_is_there_is_prepared(world: World) -> None:
    """Perhaps that is what makes it well."""
    world.devices = {"a": token("a", reason="not readable")}
    await world.allocate("a")
    assert await world.start("a") == FIRST


# ── failures ──


async def test_after_a_failed_step_all_run_again(world: World, steps: Steps) -> None:
    async def fail(_: str) -> None:
        if len(steps.ran) == 2:
            raise PreStartError("preStart[1] failed")

    await world.allocate("a")
    steps.act = fail
    assert await world.refused("a") == "preStart[1] failed"
    assert world.marks() == {"a": False}
    steps.act, steps.ran = None, []
    world.new()
    assert await world.start("a") == FIRST


async def test_one_devices_failure_is_not_anothers(world: World, steps: Steps) -> None:
    async def fail(what: str) -> None:
        if what == "format a":
            raise PreStartError("a failed")

    await world.allocate("a", "b")
    steps.act = fail
    assert await world.refused("a", "b") == "a failed"
    steps.act, steps.ran = None, []
    assert await world.start("a", "b") == ["check a", "check b", "format a"]


async def test_a_mark_that_cannot_be_saved_fails_the_allocate(world: World) -> None:
    """After a restart the device could not be told from one that a pod uses."""
    with full(), pytest.raises(AllocationError) as caught:
        await world.allocate("b", "a")
    assert str(caught.value).startswith(f"{NAME}: cannot save that devices a, b is fresh: ")
    assert "No space left on device" in str(caught.value)
    await world.allocate("a")
    assert await world.start("a") == FIRST


async def test_what_is_prepared_starts_although_nothing_can_be_saved(world: World) -> None:
    await world.allocate("a")
    await world.start("a")
    with full():
        with pytest.raises(AllocationError):
            await world.allocate("b")
        assert await world.start("a") == AGAIN


async def test_what_cannot_be_kept_fails_the_start(world: World, steps: Steps) -> None:
    """Or the steps would run once more, when devhost has restarted and the container, too."""
    await world.allocate("a")
    with full():
        reason = await world.refused("a")
        assert reason.startswith("cannot save that device a is prepared: ")
        assert "No space left on device" in reason
        assert steps.taken() == FIRST
        await world.refused("a")
        assert steps.taken() == FIRST
    world.new()
    assert await world.start("a") == FIRST


async def test_a_state_directory_that_hangs_fails_the_allocate_soon(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preparation, "_SYNC_S", 0.0)
    with pytest.raises(AllocationError, match="the state directory does not answer"):
        await world.allocate("a")


async def test_an_allocation_during_a_start_takes_the_device_away(
    world: World, steps: Steps
) -> None:
    """The pod is gone while its steps still run, and another one has the device."""

    async def overtake(_: str) -> None:
        steps.act = None
        await world.allocate("a")

    await world.allocate("a")
    steps.act = overtake
    assert await world.refused("a") == "device a was allocated again meanwhile"
    steps.ran = []
    assert await world.start("a") == FIRST


# ── side by side ──


class Gate:
    """Steps that wait to be let through."""

    def __init__(self, steps: Steps) -> None:
        self.open, self.at = asyncio.Event(), asyncio.Queue[str]()
        steps.act = self.act

    async def act(self, what: str) -> None:
        self.at.put_nowait(what)
        await self.open.wait()


async def test_starts_of_one_device_wait_for_each_other(world: World, steps: Steps) -> None:
    """Those of another device do not, nor do the devices of one container."""
    gate = Gate(steps)
    await world.allocate("a", "b", "c")
    first = asyncio.ensure_future(world.start("a", "b"))
    assert {await gate.at.get(), await gate.at.get()} == {"format a", "format b"}
    second = asyncio.ensure_future(world.start("b", "a"))
    other = asyncio.ensure_future(world.start("c"))
    assert await gate.at.get() == "format c"
    assert gate.at.empty()
    gate.open.set()
    await asyncio.gather(first, second, other)
    ran = [gate.at.get_nowait() for _ in range(gate.at.qsize())]
    assert sorted(ran) == ["check a", "check a", "check b", "check b", "check c"]


async def test_a_start_does_not_wait_for_ever(
    world: World, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = Gate(steps)
    await world.allocate("a")
    first = asyncio.ensure_future(world.start("a"))
    await gate.at.get()
    monkeypatch.setattr(preparation, "WITHIN_S", 0.05)
    assert await world.refused("a") == "device a is still being prepared for another start"
    gate.open.set()
    await first


async def test_a_cancelled_start_has_not_prepared_anything(world: World, steps: Steps) -> None:
    """Its steps have ended when the cancellation goes on."""
    gate, ended = Gate(steps), list[str]()

    async def act(what: str) -> None:
        try:
            await gate.act(what)
        finally:
            await asyncio.sleep(0)
            ended.append(what)

    steps.act = act
    await world.allocate("a", "b")
    start = asyncio.ensure_future(world.start("a", "b"))
    await gate.at.get()
    await gate.at.get()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert sorted(ended) == ["format a", "format b"]
    steps.act, steps.ran = None, []
    assert await world.start("a") == FIRST


# ── without steps for holders ──


async def test_steps_of_each_start_need_no_marks(world: World) -> None:
    world.resource = resource(EACH)
    await world.allocate("a")
    assert await world.start("a") == AGAIN
    assert await world.start("b") == ["check b"]
    assert world.state is not None
    assert not world.state.exists()


@pytest.mark.parametrize("between", [(), (EACH,)])
async def test_a_device_that_was_started_unmarked_is_not_wiped_later(
    world: World, steps: Steps, between: tuple[Any, ...]
) -> None:
    """It was handed out while there was a step for holders, and started while there was none."""
    await world.allocate("a")
    await world.preparation.declared(resource(*between))
    assert world.marks() == {}
    await world.preparation.declared(world.resource)
    assert "no record of its allocation" in await world.refused("a")
    assert not steps.ran


async def test_an_allocation_that_a_change_overtakes_leaves_no_mark(world: World) -> None:
    await world.preparation.declared(resource())
    await world.allocate("a")  # by the former declaration; it starts unmarked
    await world.preparation.declared(world.resource)
    assert "no record of its allocation" in await world.refused("a")
    await world.allocate("a")
    assert await world.start("a") == FIRST


# ── whatever happens ──


class Pod:
    """A pod on a device."""

    def __init__(self) -> None:
        self.prepared = self.started = False


class Fate:
    """A node to which things happen, and what must be true of every one of them."""

    def __init__(self, state: Path, steps: Steps) -> None:
        self.world, self.state, self.steps = World(state, steps), state, steps
        self.sibling = self.world.preparation
        self.world.new()
        self.pods: dict[str, Pod] = {}
        self.sick = False

    async def allocate(self, one: str) -> None:
        if one not in self.pods:
            with contextlib.suppress(AllocationError):
                await self.world.allocate(one)
                self.pods[one] = Pod()

    async def allocate_for_init_too(self, one: str) -> None:
        before = self.pods.get(one)
        await self.allocate(one)
        if self.pods.get(one) is not before:
            with contextlib.suppress(AllocationError):
                await self.world.allocate(one)

    async def end(self, one: str) -> None:
        self.pods.pop(one, None)

    async def start(self, one: str) -> None:
        await self._start(one, None)

    async def start_and_fail(self, one: str) -> None:
        async def fail(_: str) -> None:
            raise PreStartError("failed")

        await self._start(one, fail)

    async def start_and_cancel(self, one: str) -> None:
        async def cancel(_: str) -> None:
            raise asyncio.CancelledError

        await self._start(one, cancel)

    async def start_and_be_replaced(self, one: str) -> None:
        async def replace(_: str) -> None:
            self.pods.pop(one, None)
            await self.allocate(one)

        await self._start(one, replace)

    async def _start(self, one: str, event: Callable[[str], Awaitable[None]] | None) -> None:
        pod = self.pods.get(one)
        if pod is None:
            return

        async def act(what: str) -> None:
            nonlocal event
            now = self.pods.get(one)
            if what.startswith("format"):
                assert now is None or not now.started, "a device in use was wiped"
                pod.prepared = True
            happening, event = event, None
            if happening is not None:
                await happening(what)

        self.steps.act = act
        try:
            await self.world.preparation.prepare(self.world.resource, DEVICES, [one])
        except (PreStartError, asyncio.CancelledError):
            return
        if self.pods.get(one) is pod:
            pod.started = True
            assert pod.prepared, "a pod was started with what another left"

    async def restart_devhost(self, _: str) -> None:
        self.world.new()

    async def take_over(self, _: str) -> None:
        self.sibling, self.world.preparation = self.world.preparation, self.sibling

    async def lose_state(self, _: str) -> None:
        shutil.rmtree(self.state, ignore_errors=True)

    async def corrupt_state(self, _: str) -> None:
        for file in self.state.glob("*.json"):
            file.write_text("{")

    async def fall_ill(self, _: str) -> None:
        self.sick = True

    async def recover(self, _: str) -> None:
        self.sick = False

    def write(self, path: Path, raw: bytes) -> None:
        if self.sick:
            raise OSError(5, "Input/output error")
        write_atomically(path, raw)


EVENTS: Final = [
    *["allocate"] * 2,
    "allocate_for_init_too",
    "end",
    *["start"] * 3,
    "start_and_fail",
    "start_and_cancel",
    "start_and_be_replaced",
    "restart_devhost",
    "take_over",
    "lose_state",
    "corrupt_state",
    "fall_ill",
    "recover",
]


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from("aab")), min_size=10))
@settings(max_examples=200)
def test_no_device_in_use_is_ever_wiped(events: list[tuple[str, str]]) -> None:
    """And each pod's first start follows a run of its own."""

    async def live(directory: Path) -> None:
        steps = Steps()
        fate = Fate(directory / "state", steps)
        with (
            patch.object(preparation, "run_steps", steps.run_steps),
            patch.object(records, "write_atomically", fate.write),
        ):
            for what, one in events:
                await getattr(fate, what)(one)

    with TemporaryDirectory() as directory:
        asyncio.run(live(Path(directory)))

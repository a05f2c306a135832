"""Devices are prepared once for each pod that is given them, and never while one uses them."""

import asyncio
import contextlib
import json
import shutil
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.allocation.compiled import Declaration
from devhost.allocation.policy import Policy
from devhost.backends.deviceplugin.device_list import DeviceList
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.custody import record_store
from devhost.custody.custody import Custody
from devhost.custody.holders import Holders
from devhost.custody.record_files import RecordFiles
from devhost.custody.record_store import RecordStore
from devhost.custody.state_dir import write_atomically
from devhost.errors import AllocationError, PreStartError
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource, Step
from devhost.model.device import HostDevice
from devhost.model.records import Steps
from devhost.node import pre_start
from devhost.node.pre_start import PreStart, StepRun
from tests.support import devices
from tests.support.offered import offered

NAME: Final = "example.com/disk"
FILE: Final = "records/example.com_disk.json"
HOLDER: Final = {"run": ["format", "${path}"]}
EACH: Final = {"run": ["check"], "every": "start"}


def resource(*steps: Mapping[str, Any]) -> Resource:
    keys = {"name": NAME, "sources": [{"dev": "x"}], "preStart": list(steps)}
    return Resource.model_validate(keys)


def token(device_id: str, **options: Any) -> HostDevice:
    return devices.device(device_id, devices.token(device_id), **options)


DEVICES: Final = {key: token(key) for key in "abc"}


class World:
    """A process that prepares devices; `ran` is what it would have run, `act` what happens then."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.resource = resource(HOLDER, EACH)
        self.devices: Mapping[str, HostDevice] = DEVICES
        self.ran: list[str] = []
        self.starts: list[StepRun] = []
        self.act: Callable[[str], Awaitable[None]] | None = None
        self.new()

    def new(self) -> None:
        """Go on as another process does."""
        backend = DevicePluginBackend(Path("/nowhere"), Path("/nowhere/pr.sock"), 0.0)
        file = RecordFiles(self.state, backend.locks.lock_of)
        self.claims = Custody(Holders(backend.pods, "node-1"), backend, file)
        self.claims.add(NAME, DeviceList(), lambda: None)
        policy = Policy(allow_exec=True)
        declaration = Declaration(self.resource, HostFiles(), policy, "node-1")
        self.pre_start = PreStart(declaration, file)

    async def run_steps(self, steps: Iterable[tuple[int, Step]], run: StepRun) -> str | None:
        for _, step in steps:
            words = "format" if step.repeat == "holder" else "check"
            self.ran.append(f"{words} {run.device.id}")
            self.starts.append(run)
            if self.act is not None:
                try:
                    await self.act(self.ran[-1])
                except PreStartError as error:
                    return str(error)
        return None

    async def allocate(self, *ids: str) -> None:
        steps: Steps = "pending" if self.pre_start.needs_steps(self.resource) else "none"
        await self.claims.hand_out(self.resource, DEVICES, offered(*ids), steps=steps)

    async def start(self, *ids: str) -> list[str]:
        """Return what has run, sorted: devices are prepared side by side."""
        await self.pre_start.run_steps_for(self.resource, self.devices, offered(*ids))
        ran, self.ran = sorted(self.ran), []
        return ran

    async def refused(self, *ids: str) -> str:
        with pytest.raises(PreStartError) as caught:
            await self.pre_start.run_steps_for(self.resource, self.devices, offered(*ids))
        return str(caught.value)

    def marks(self) -> dict[str, bool]:
        entries = json.loads((self.state / FILE).read_text())["records"]
        return {e["id"]: e["steps"] == "done" for e in entries if e["steps"] != "none"}


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(tmp_path / "state")
    monkeypatch.setattr(pre_start, "run_steps", world.run_steps)
    return world


def full() -> Any:
    error = OSError(28, "No space left on device")
    return patch.object(record_store, "write_atomically", side_effect=error)


FIRST: Final = ["check a", "format a"]
AGAIN: Final = ["check a"]


async def test_steps_get_the_variables_of_their_device_and_container(world: World) -> None:
    await world.allocate("b", "a")
    await world.start("b", "a")
    seen = {run.device.id: dict(run.constants) for run in world.starts}
    common = {"resource": NAME, "nodeName": "node-1", "count": "2"}
    assert seen == {"a": {**common, "index": "0"}, "b": {**common, "index": "1"}}


@pytest.mark.parametrize("lost", ["never", "file", "damaged"])
async def test_start_without_a_record_is_refused(world: World, lost: str) -> None:
    """A container may have started with it, for all that is known: a guess would wipe it."""
    path = world.state / FILE
    if lost != "never":
        await world.allocate("a")
        path.unlink() if lost == "file" else path.write_bytes(b"{")
    assert await world.refused("a") == (
        "cannot tell whether device a was prepared (no record of its allocation): "
        "delete the pod to get a fresh device"
    )
    assert not world.ran
    await world.allocate("a")
    assert await world.start("a") == FIRST


@pytest.mark.parametrize(("path", "problem"), [(FILE, "Is a directory"), ("", "Not a directory")])
async def test_start_with_unreadable_records_fails(world: World, path: str, problem: str) -> None:
    await world.allocate("a")
    (world.state / path).rename(world.state.with_name("former"))
    (world.state / path).mkdir() if path else world.state.touch()
    reason = await world.refused("a")
    assert reason.startswith("cannot tell whether device a was prepared: ")
    assert problem in reason
    assert not world.ran


@pytest.mark.parametrize(
    ("device", "reason"),
    [
        (None, "device a is missing"),
        (token("a", missing_since=1.0, reason="gone"), "device a is missing: gone"),
    ],
)
async def test_start_without_a_device(world: World, device: HostDevice | None, reason: str) -> None:
    await world.allocate("a", "b")
    world.devices = {"b": token("b"), **({"a": device} if device else {})}
    assert await world.refused("a", "b") == reason


async def test_start_with_a_failed_step_leaves_the_other_device(world: World) -> None:
    async def fail(step: str) -> None:
        if step == "format a":
            raise PreStartError("a failed")

    await world.allocate("a", "b")
    world.act = fail
    assert await world.refused("a", "b") == "a failed"
    world.act, world.ran = None, []
    assert await world.start("a", "b") == ["check a", "check b", "format a"]


async def test_full_state_directory_fails_allocate_and_start(world: World) -> None:
    """After a restart the device could not be told from one that a pod uses."""
    with full(), pytest.raises(AllocationError, match=r"cannot mark a, b as fresh: .*No space"):
        await world.allocate("a", "b")
    await world.allocate("a")
    with full():
        reason = await world.refused("a")
        assert reason.startswith("cannot save that device a is prepared: ")
        assert "No space left on device" in reason
    world.new()
    world.ran = []
    assert await world.start("a") == FIRST
    with full():
        assert await world.start("a") == AGAIN


async def test_slow_state_holds_up_the_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the file has the mark of a former pod, which the next process would go by."""
    answers, update = threading.Event(), RecordStore.update
    await world.allocate("b")
    assert await world.start("b") == ["check b", "format b"]
    with monkeypatch.context() as disk:
        disk.setattr(RecordStore, "update", lambda *args: answers.wait(60) and update(*args))
        disk.setattr("devhost.custody.custody._STEPS_S", 0.0)
        disk.setattr(pre_start, "_SYNC_S", 0.0)
        await world.allocate("a")
        with pytest.raises(AllocationError, match="cannot mark b as fresh: the state directory"):
            await world.allocate("b")
        assert (await world.refused("a")).endswith("the state directory does not answer")
        assert not world.ran
        answers.set()
    assert await world.start("a") == FIRST
    assert world.marks()["a"]


class Gate:
    def __init__(self, world: World) -> None:
        self.open, self.at = asyncio.Event(), asyncio.Queue[str]()
        world.act = self.act

    async def act(self, step: str) -> None:
        self.at.put_nowait(step)
        await self.open.wait()


async def test_starts_of_one_device_wait_for_each_other(world: World) -> None:
    """Starts of another device do not, nor do the devices of one container."""
    gate = Gate(world)
    await world.allocate("a", "b", "c")
    first = asyncio.ensure_future(world.start("a", "b"))
    assert {await gate.at.get(), await gate.at.get()} == {"format a", "format b"}
    second = asyncio.ensure_future(world.start("b", "a"))
    third = asyncio.ensure_future(world.start("c"))
    assert await gate.at.get() == "format c"
    assert gate.at.empty()
    gate.open.set()
    await asyncio.gather(first, second, third)
    ran = [gate.at.get_nowait() for _ in range(gate.at.qsize())]
    assert sorted(ran) == ["check a", "check a", "check b", "check b", "check c"]


async def test_start_gives_up_waiting(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(world)
    await world.allocate("a")
    first = asyncio.ensure_future(world.start("a"))
    await gate.at.get()
    monkeypatch.setattr(pre_start, "PRE_START_TIMEOUT_S", 0.05)
    assert await world.refused("a") == "device a is still being prepared for another start"
    gate.open.set()
    await first


async def test_cancelled_start_ends_its_steps_and_prepares_nothing(world: World) -> None:
    gate, ended = Gate(world), list[str]()

    async def act(step: str) -> None:
        try:
            await gate.act(step)
        finally:
            await asyncio.sleep(0)
            ended.append(step)

    world.act = act
    await world.allocate("a", "b")
    start = asyncio.ensure_future(world.start("a", "b"))
    await gate.at.get()
    await gate.at.get()
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert sorted(ended) == ["format a", "format b"]
    world.act, world.ran = None, []
    assert await world.start("a") == FIRST


@pytest.mark.parametrize("between", [(), (EACH,)])
async def test_device_started_without_steps_is_kept(world: World, between: tuple[Any, ...]) -> None:
    """The pod got the device while there was a step for holders, and started while there was none."""
    await world.allocate("a")
    with_step, world.resource = world.resource, resource(*between)
    await world.pre_start.spec_changed(world.resource)
    assert world.marks() == {}
    assert await world.start("a") == ["check a"] * len(between)
    await world.pre_start.spec_changed(with_step)
    world.resource = with_step
    assert "no record of its allocation" in await world.refused("a")
    assert not world.ran


async def test_allocate_by_a_former_declaration_leaves_no_record(world: World) -> None:
    await world.pre_start.spec_changed(resource())
    await world.allocate("a")  # it starts unmarked
    await world.pre_start.spec_changed(world.resource)
    assert "no record of its allocation" in await world.refused("a")
    await world.allocate("a")
    assert await world.start("a") == FIRST


class Pod:
    def __init__(self) -> None:
        self.prepared = self.started = False


class Fate:
    """A node to which things happen, and what must be true of every one of them."""

    def __init__(self, state: Path) -> None:
        self.world, self.state = World(state), state
        self.sibling = self.world.claims, self.world.pre_start
        self.world.new()
        self.pods: dict[str, Pod] = {}
        self.full = False

    async def allocate(self, device: str) -> None:
        if device not in self.pods:
            with contextlib.suppress(AllocationError):
                await self.world.allocate(device)
                self.pods[device] = Pod()

    async def end(self, device: str) -> None:
        self.pods.pop(device, None)

    async def start(self, device: str) -> None:
        await self._start(device)

    async def start_and_fail(self, device: str) -> None:
        await self._start(device, PreStartError("failed"))

    async def start_and_cancel(self, device: str) -> None:
        await self._start(device, asyncio.CancelledError())

    async def start_and_be_replaced(self, device: str) -> None:
        await self._start(device, replaced=True)

    async def _start(
        self, device: str, error: BaseException | None = None, *, replaced: bool = False
    ) -> None:
        pod = self.pods.get(device)
        if pod is None:
            return

        async def act(step: str) -> None:
            nonlocal replaced
            now = self.pods.get(device)
            if step.startswith("format"):
                assert now is None or not now.started, "a device in use was wiped"
                pod.prepared = True
            if replaced:
                replaced = False
                await self.end(device)
                await self.allocate(device)
            if error is not None:
                raise error

        self.world.act = act
        try:
            await self.world.start(device)
        except (PreStartError, asyncio.CancelledError):
            return
        if self.pods.get(device) is pod:
            pod.started = True
            assert pod.prepared, "a pod was started with what another left"

    async def restart_devhost(self, _: str) -> None:
        self.world.new()

    async def take_over(self, _: str) -> None:
        world, sibling = self.world, self.sibling
        self.sibling = world.claims, world.pre_start
        world.claims, world.pre_start = sibling

    async def lose_state(self, _: str) -> None:
        shutil.rmtree(self.state, ignore_errors=True)

    async def corrupt_state(self, _: str) -> None:
        for file in self.state.glob("*.json"):
            file.write_text("{")

    async def fill_disk_or_make_room(self, _: str) -> None:
        self.full = not self.full

    def write(self, path: Path, raw: bytes) -> None:
        if self.full:
            raise OSError(5, "Input/output error")
        write_atomically(path, raw)


EVENTS: Final = (
    *("allocate", "allocate", "end", "start", "start", "start", "start_and_fail"),
    *("start_and_cancel", "start_and_be_replaced", "restart_devhost", "take_over", "lose_state"),
    *("corrupt_state", "fill_disk_or_make_room"),
)


def on_a(events: str) -> list[tuple[str, str]]:
    return [(event, "a") for event in events.split()]


@given(st.lists(st.tuples(st.sampled_from(EVENTS), st.sampled_from("aab")), min_size=10))
@example(on_a("allocate take_over start take_over end allocate start"))
@example(on_a("allocate take_over start take_over lose_state fill_disk_or_make_room start"))
@example(on_a("allocate start_and_be_replaced start"))
@settings(max_examples=200)
def test_device_in_use_is_not_wiped_whatever_happens(events: list[tuple[str, str]]) -> None:
    """Each pod's first start follows a run of its own."""

    async def live(directory: Path) -> None:
        fate = Fate(directory / "state")
        disk = patch.object(record_store, "write_atomically", fate.write)
        with disk, patch.object(pre_start, "run_steps", fate.world.run_steps):
            for event, device in events:
                await getattr(fate, event)(device)

    with TemporaryDirectory() as directory:
        asyncio.run(live(Path(directory)))

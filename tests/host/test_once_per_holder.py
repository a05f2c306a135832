"""Devices are prepared once for each pod that is given them, and never while one uses them."""

import asyncio
import json
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.allocation.policy import Policy
from devhost.errors import KubeletError, PreStartError
from devhost.host.prestart import holder_records, preparation
from devhost.host.prestart.preparation import Preparation
from devhost.host.prestart.steps import Start
from devhost.host.state_files import write_atomically
from devhost.hostfs.files import HostFiles
from devhost.kubelet.podresources import HeldBy
from devhost.model.config import Resource, Step
from devhost.model.device import FileKind, FileState, HostDevice, Node
from devhost.model.names import share_ids

NAME: Final = "example.com/disk"
POD: Final = "ns/pod-0"
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

    async def run_step(self, _number: int, step: Step, start: Start) -> None:
        words = "format" if step.every == "holder" else "check"
        self.ran.append(f"{words} {start.device.id}")
        self.starts.append(start)
        if self.act is not None:
            await self.act(self.ran[-1])

    async def refuse_in_use(self, _start: Start) -> None:
        """Nothing is mounted here."""

    def taken(self) -> list[str]:
        """Sorted: devices run side by side."""
        ran, self.ran = sorted(self.ran), []
        return ran


class World:
    """A host that prepares devices, and a kubelet that says who holds them."""

    def __init__(self, state: Path | None, steps: Steps) -> None:
        self.state, self.steps = state, steps
        self.held: dict[str, set[str]] = {}
        self.failure: str | None = None
        self.asked = 0
        self.resource = resource(HOLDER, EACH)
        self.devices: Mapping[str, HostDevice] = DEVICES
        self.preparation = self.new()

    def new(self, **more: Any) -> Preparation:
        options: dict[str, Any] = {
            "holders": self.holders,
            "still_held": self.still_held,
            "state_dir": self.state,
            **more,
        }
        self.preparation = Preparation(
            NAME, node_name="node-1", files=HostFiles(), policy=ALL, **options
        )
        return self.preparation

    async def holders(self, name: str) -> HeldBy:
        assert name == NAME
        self.asked += 1
        if self.failure is not None:
            raise KubeletError(self.failure)
        return {one: frozenset(pods) for one, pods in self.held.items()}

    async def allocate(self, *ids: str, pod: str = POD) -> None:
        for one in ids:
            self.held.pop(one, None)  # kubelet allocates what is free
        await self.preparation.allocated(self.resource, ids)
        self.held |= {one: {pod} for one in ids}

    async def forge(self, *ids: str) -> None:
        """Allocate as somebody else than kubelet does."""
        await self.preparation.allocated(self.resource, ids)

    async def still_held(self, _: str, ids: Sequence[str]) -> HeldBy:
        return {one: frozenset(self.held[one]) for one in ids if one in self.held}

    async def start(self, *ids: str) -> list[str]:
        await self.preparation.prepare(self.resource, self.devices, ids)
        return self.steps.taken()

    async def refused(self, *ids: str) -> str:
        with pytest.raises(PreStartError) as caught:
            await self.preparation.prepare(self.resource, self.devices, ids)
        return str(caught.value)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> Steps:
    fake = Steps()
    monkeypatch.setattr(preparation, "run_step", fake.run_step)
    monkeypatch.setattr(preparation, "refuse_in_use", fake.refuse_in_use)
    return fake


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder_records, "_PATIENCE_S", 30.0)


@pytest.fixture
def world(tmp_path: Path, steps: Steps) -> World:
    return World(tmp_path / "state", steps)


def record_of(world: World, one: str) -> str | None:
    """The record on the disk, in a word."""
    assert world.state is not None
    (file,) = (world.state / "holders").iterdir()
    record = json.loads(file.read_text())["devices"].get(one, {})
    return "fresh" if record.get("fresh") else record.get("holder")


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
    assert record_of(world, "a") == POD


async def test_the_steps_of_a_device_keep_the_lists_order(world: World, steps: Steps) -> None:
    world.resource = resource(EACH, HOLDER, EACH)
    await world.allocate("a")
    await world.preparation.prepare(world.resource, DEVICES, ["a"])
    assert steps.ran == ["check a", "format a", "check a"]


@pytest.mark.parametrize("pod", [POD, "ns/pod-1"])
async def test_the_next_pod_gets_a_run_of_its_own(world: World, pod: str) -> None:
    """Also one of the same name."""
    await world.allocate("a")
    assert await world.start("a") == FIRST
    await world.allocate("a", pod=pod)
    assert await world.start("a") == FIRST
    assert await world.start("a") == AGAIN


async def test_an_allocate_of_others_does_not_count(world: World, steps: Steps) -> None:
    """They may send one for a device that a pod uses, before it starts again."""
    await world.allocate("a", "b")
    await world.start("a")
    await world.forge("a", "b")
    assert await world.start("a") == AGAIN
    assert await world.start("b") == ["check b"]  # kubelet lists it: it may have been used
    await world.forge("a")
    await world.forge("a")
    world.new()
    assert await world.start("a") == AGAIN
    await world.allocate("a", pod="ns/other")
    assert await world.start("a") == FIRST


async def test_a_restart_of_devhost_changes_nothing(world: World) -> None:
    await world.allocate("a", "b")
    await world.start("a")
    world.new()
    assert await world.start("a") == AGAIN
    assert await world.start("b") == ["check b", "format b"]


async def test_a_lost_state_directory_prepares_nothing_again(world: World) -> None:
    """Who was prepared is remembered; what has not started cannot be told apart any more."""
    await world.allocate("a", "b")
    await world.start("a")
    assert world.state is not None
    shutil.rmtree(world.state)
    assert await world.start("a") == AGAIN
    with pytest.raises(PreStartError, match="no record of its allocation"):
        await world.start("b")


async def test_only_fresh_devices_of_a_container_are_prepared(world: World) -> None:
    """An init container's device comes back with another in the app container."""
    await world.allocate("a")
    await world.start("a")
    await world.allocate("b")
    assert await world.start("a", "b") == ["check a", "check b", "format b"]


async def test_steps_know_whose_device_and_container_it_is(world: World, steps: Steps) -> None:
    await world.allocate("b", "a")
    await world.start("b", "a")
    seen = {one.device.id: one for one in steps.starts}
    assert {one: (it.pod, dict(it.constants)) for one, it in seen.items()} == {
        one: (
            POD,
            {"resource": NAME, "nodeName": "node-1", "index": index, "count": "2"},
        )
        for one, index in [("a", "0"), ("b", "1")]
    }


# ── when it cannot be told ──


async def test_without_a_record_nothing_is_run(world: World, steps: Steps) -> None:
    world.held = {"a": {POD}}
    assert await world.refused("a") == (
        f"cannot tell whether {POD} has used device a before (no record of its allocation): "
        "delete the pod to get a fresh device"
    )
    assert not steps.ran
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


async def test_a_record_of_another_pod_does_not_count(world: World, steps: Steps) -> None:
    await world.allocate("a")
    await world.start("a")
    world.held = {"a": {"ns/other"}}
    assert await world.refused("a") == (
        f"cannot tell whether ns/other has used device a before (its record is of {POD}): "
        "delete the pod to get a fresh device"
    )
    assert not steps.ran


async def test_a_device_that_nobody_is_known_to_hold_is_not_prepared(
    world: World, steps: Steps
) -> None:
    await world.allocate("a", "b")
    world.held = {"b": {POD}}
    reason = await world.refused("a", "b")
    assert reason.startswith("cannot tell which pod starts with device a: pod-resources lists none")
    assert "ordinary init containers" in reason
    assert "`every: start`" in reason
    assert not steps.ran


@pytest.mark.parametrize(
    "held", [{"a": {"ns/x", "ns/y"}, "b": {"ns/x"}}, {"a": {"ns/x"}, "b": {"ns/y"}}]
)
async def test_devices_of_several_pods_are_not_prepared(
    world: World, steps: Steps, held: dict[str, set[str]]
) -> None:
    await world.allocate("a", "b")
    world.held = held
    assert await world.refused("b", "a") == (
        "cannot tell which pod starts with devices a, b: held by ns/x, ns/y"
    )
    assert not steps.ran


async def test_who_holds_a_device_has_to_be_known(world: World, steps: Steps) -> None:
    await world.allocate("a")
    world.failure = "/run/pod.sock: connection refused"
    assert await world.refused("a") == (
        "cannot tell which pod starts with device a: the socket of --pod-resources: "
        "/run/pod.sock: connection refused"
    )
    world.failure = None
    world.preparation._holders = None
    reason = await world.refused("a")
    assert "a step that runs once per holder needs --pod-resources" in reason
    assert "`every: start`" in reason
    assert not steps.ran


async def test_who_holds_a_device_has_to_be_said_in_time(world: World) -> None:
    async def never(_: str) -> HeldBy:
        await asyncio.Event().wait()
        raise AssertionError

    world.new(holders=never, within=0.05)
    await world.allocate("a")
    assert (await world.refused("a")).endswith("--pod-resources did not answer in time")


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
    assert record_of(world, "a") == "fresh"
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


async def test_what_cannot_be_kept_fails_the_start(
    world: World, steps: Steps, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    await world.allocate("a")
    with monkeypatch.context() as broken:
        broken.setattr(holder_records, "write_atomically", full)
        reason = await world.refused("a")
    assert reason.startswith(f"cannot save that device a is prepared for {POD}: ")
    assert "No space left on device" in reason
    steps.ran = []
    assert await world.start("a") == FIRST


async def test_records_that_cannot_be_read_fail_the_start(world: World, steps: Steps) -> None:
    await world.allocate("a")
    assert world.state is not None
    (file,) = (world.state / "holders").iterdir()
    file.unlink()
    file.mkdir()
    assert (await world.refused("a")).startswith("the holder record of device a cannot be read:")
    assert not steps.ran


async def test_an_allocation_during_a_start_takes_the_device_away(
    world: World, steps: Steps
) -> None:
    """The pod is gone while its steps still run, and another of its name has the device."""

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


async def test_a_start_does_not_wait_for_ever(world: World, steps: Steps) -> None:
    gate = Gate(steps)
    await world.allocate("a")
    first = asyncio.ensure_future(world.start("a"))
    await gate.at.get()
    world.preparation._within = 0.05
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


async def test_steps_of_each_start_need_no_holders_and_no_records(
    world: World, steps: Steps
) -> None:
    world.resource, world.failure = resource(EACH), "nobody is to ask"
    await world.allocate("a")
    assert await world.start("a") == AGAIN
    assert await world.start("b") == ["check b"]
    assert (world.asked, [start.pod for start in steps.starts]) == (0, [None, None])
    assert world.state is not None
    assert not world.state.exists()


@pytest.mark.parametrize(("between", "told"), [((), True), ((EACH,), True), ((EACH,), False)])
async def test_a_device_that_was_started_unrecorded_is_not_wiped_later(
    world: World, steps: Steps, between: tuple[Any, ...], *, told: bool
) -> None:
    """It was handed out while there was a step for holders, and started while there was none."""
    await world.allocate("a")
    world.resource = resource(*between)
    if told:
        await world.preparation.declared(world.resource)
        world.new()
    if between:
        assert await world.start("a") == AGAIN
    world.resource = resource(HOLDER)
    await world.preparation.declared(world.resource)
    assert "no record of its allocation" in await world.refused("a")
    assert not steps.ran


async def test_an_allocation_that_a_change_overtakes_leaves_no_mark(world: World) -> None:
    await world.preparation.declared(resource())
    await world.allocate("a")  # by the former declaration; it starts unrecorded
    await world.preparation.declared(world.resource)
    assert "no record of its allocation" in await world.refused("a")
    await world.allocate("a")
    assert await world.start("a") == FIRST


# ── shares ──


def shared(world: World, kind: FileKind = FileKind.BLOCK) -> tuple[str, str]:
    node = Node("/no/such", FileState("/no/such", kind, (8, 0), (0, 0, 0)), 0, "a")
    world.devices = {"a": HostDevice("a", (node,))}
    first, second = share_ids("a", 2)
    return first, second


async def test_a_device_is_prepared_once_for_all_its_shares(world: World) -> None:
    first, second = shared(world)
    await world.allocate(first, second)
    assert await world.start(first, second) == FIRST
    assert (record_of(world, first), record_of(world, second)) == (POD, POD)


async def test_a_pod_that_uses_one_share_does_not_lose_what_is_on_it(world: World) -> None:
    first, second = shared(world)
    await world.allocate(first)
    await world.start(first)
    await world.allocate(second)
    assert await world.start(first, second) == AGAIN
    assert await world.start(second) == AGAIN
    assert record_of(world, second) == POD


async def test_a_disk_that_another_pod_uses_is_not_prepared(world: World, steps: Steps) -> None:
    first, second = shared(world)
    await world.allocate(first)
    await world.start(first)
    await world.allocate(second, pod="ns/pod-1")
    assert await world.refused(second) == (f"device a is in use by {POD}: it is not prepared again")
    assert not steps.ran
    shared(world, FileKind.CHAR)
    assert await world.start(second) == FIRST


# ── whatever happens ──


class Pod:
    """A pod on a device."""

    def __init__(self, name: str) -> None:
        self.name, self.prepared, self.started = name, False, False


class Fate:
    """A node to which things happen, and what must be true of every one of them."""

    def __init__(self, state: Path, steps: Steps, *, every_pod_gets_a_run: bool) -> None:
        self.world, self.state = World(state, steps), state
        self.sibling = self.world.preparation
        self.world.new()
        self.steps, self.pods = steps, dict[str, Pod]()
        self.every_pod_gets_a_run = every_pod_gets_a_run
        self.sick = False

    async def happens(self, what: str, one: str, name: str) -> None:
        await getattr(self, what)(one, name)

    async def allocate(self, one: str, name: str) -> None:
        if one not in self.pods and all(pod.name != name for pod in self.pods.values()):
            await self.world.preparation.allocated(self.world.resource, [one])
            self.pods[one] = Pod(name)

    async def allocate_for_init_too(self, one: str, name: str) -> None:
        before = self.pods.get(one)
        await self.allocate(one, name)
        if self.pods.get(one) is not before:
            await self.world.preparation.allocated(self.world.resource, [one])

    async def forge(self, one: str, _: str) -> None:
        pod = self.pods.get(one)
        if pod is not None and pod.started:
            self.world.held = {one: {pod.name}}
            await self.world.forge(one)
            self.world.held = {}

    async def end(self, one: str, _: str) -> None:
        self.pods.pop(one, None)

    async def start(self, one: str, name: str) -> None:
        await self._start(one, None)

    async def start_and_fail(self, one: str, name: str) -> None:
        async def fail(_: str) -> None:
            raise PreStartError("failed")

        await self._start(one, fail)

    async def start_and_cancel(self, one: str, name: str) -> None:
        async def cancel(_: str) -> None:
            raise asyncio.CancelledError

        await self._start(one, cancel)

    async def start_and_be_replaced(self, one: str, name: str) -> None:
        async def replace(_: str) -> None:
            self.pods.pop(one, None)
            await self.allocate(one, name)

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
            if self.every_pod_gets_a_run:
                assert pod.prepared, "a pod was started with what another left"

    async def restart_kubelet(self, one: str, name: str) -> None:
        self.world.preparation._holders = self._nobody

    async def list_again(self, one: str, name: str) -> None:
        self.world.preparation._holders = self._listed

    async def _nobody(self, _: str) -> HeldBy:
        return {}

    async def _listed(self, _: str) -> HeldBy:
        return {one: frozenset([pod.name]) for one, pod in self.pods.items()}

    async def restart_devhost(self, one: str, name: str) -> None:
        self.world.new(holders=self._listed)

    async def take_over(self, one: str, name: str) -> None:
        self.sibling, self.world.preparation = self.world.preparation, self.sibling
        self.world.preparation._holders = self._listed

    async def lose_state(self, one: str, name: str) -> None:
        shutil.rmtree(self.state, ignore_errors=True)

    async def corrupt_state(self, one: str, name: str) -> None:
        for file in self.state.glob("holders/*.json"):
            file.write_text("{")

    async def fall_ill(self, one: str, name: str) -> None:
        self.sick = True

    async def recover(self, one: str, name: str) -> None:
        self.sick = False

    def write(self, path: Path, raw: bytes) -> None:
        if self.sick:
            raise OSError(5, "Input/output error")
        write_atomically(path, raw)


ALWAYS: Final = [
    "allocate",
    "allocate",
    "allocate_for_init_too",
    "forge",
    "end",
    "start",
    "start",
    "start",
    "start_and_fail",
    "start_and_cancel",
    "start_and_be_replaced",
    "restart_kubelet",
    "list_again",
]
LOSS: Final = ["lose_state", "corrupt_state"]
ILL: Final = ["fall_ill", "recover"]


@pytest.mark.parametrize(
    ("more", "every_pod_gets_a_run"),
    [
        (["restart_devhost", *LOSS], True),
        (["restart_devhost", "take_over"], True),
        (["restart_devhost", "lose_state"], True),
        # What an instance remembers that takes over again may be older than the file that is lost.
        (["restart_devhost", "take_over", "lose_state"], False),
        ([*LOSS, *ILL], True),
        # A mark that could not be written dies with its process. No pod may lose data by that,
        # but the next of the same name may find what the one before has left.
        (["restart_devhost", *LOSS, *ILL], False),
        (["restart_devhost", "take_over", "corrupt_state", *ILL], False),
    ],
)
@given(data=st.data())
@settings(max_examples=50)
def test_no_device_in_use_is_ever_wiped(
    more: list[str], data: st.DataObject, *, every_pod_gets_a_run: bool
) -> None:
    """And each pod's first start follows a run of its own."""
    event = st.tuples(
        st.sampled_from([*ALWAYS, *more]), st.sampled_from("aab"), st.sampled_from(["ns/p", "ns/q"])
    )
    events = data.draw(st.lists(event, min_size=10, max_size=40))

    async def live(directory: Path) -> None:
        steps = Steps()
        fate = Fate(directory / "state", steps, every_pod_gets_a_run=every_pod_gets_a_run)
        await fate.restart_devhost("", "")
        with ExitStack() as stack:
            stack.enter_context(patch.object(preparation, "run_step", steps.run_step))
            stack.enter_context(patch.object(holder_records, "write_atomically", fate.write))
            for what, one, name in events:
                await fate.happens(what, one, name)

    with TemporaryDirectory() as directory:
        asyncio.run(live(Path(directory)))


# ── a real disk ──


def command(*argv: str) -> str:
    done = subprocess.run(argv, check=False, capture_output=True, text=True, timeout=250)
    if done.returncode:
        raise OSError(f"{argv}: {done.stderr.strip()}")
    return done.stdout.strip()


class Disk:
    """A loop device, and its filesystem mounted as a container would."""

    def __init__(self, directory: Path) -> None:
        image, self.place = directory / "image", directory / "mnt"
        with image.open("wb") as stream:
            stream.truncate(16 * 1024 * 1024)
        self.place.mkdir()
        self.path = command("losetup", "--find", "--show", str(image))

    def mount(self) -> None:
        command("mount", "-t", "ext4", self.path, str(self.place))

    def unmount(self) -> None:
        command("umount", str(self.place))

    @property
    def mode(self) -> int:
        return Path(self.path).stat().st_mode & 0o777

    @property
    def files(self) -> list[str]:
        return sorted(file.name for file in self.place.iterdir())


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    if missing := [one for one in ("losetup", "mkfs.ext4", "mount") if not shutil.which(one)]:
        pytest.skip(f"no {', '.join(missing)} on this machine")
    try:
        disk = Disk(tmp_path)
    except OSError as error:
        pytest.skip(f"no loop device: {error}")
    yield disk
    subprocess.run(["umount", str(disk.place)], check=False, capture_output=True)
    command("losetup", "--detach", disk.path)


async def test_a_real_disk_is_formatted_for_each_pod_and_never_under_one(
    tmp_path: Path, disk: Disk
) -> None:
    world = World(tmp_path / "state", Steps())
    found = Node(disk.path, HostFiles().stat(disk.path), 0, "superdisk")
    world.devices = {"superdisk": HostDevice("superdisk", (found,))}
    world.resource = resource(
        {"run": ["mkfs.ext4", "-q", "${path}"], "timeout": "28s"},
        {"waitFor": "${path}"},
        {"mode": "0660"},
    )
    await world.allocate("superdisk")
    await world.start("superdisk")
    assert disk.mode == 0o660

    disk.mount()
    (disk.place / "data").write_text("precious")
    await world.start("superdisk")  # it crashed; what it mounted is there still
    disk.unmount()
    await world.start("superdisk")
    world.new()
    await world.start("superdisk")
    assert world.state is not None
    shutil.rmtree(world.state)
    await world.start("superdisk")
    shutil.rmtree(world.state)
    world.new()
    assert "cannot tell whether" in await world.refused("superdisk")
    disk.mount()
    assert disk.files == ["data", "lost+found"]
    assert (disk.place / "data").read_text() == "precious"

    await world.allocate("superdisk")  # while somebody has not let go of it
    assert (await world.refused("superdisk")).startswith(
        f"device superdisk: {disk.path} is in use by the host (mounted or swapped on)"
    )
    assert (disk.place / "data").read_text() == "precious"
    disk.unmount()
    await world.start("superdisk")
    disk.mount()
    assert disk.files == ["lost+found"]


async def test_a_disk_that_cannot_be_formatted_says_why(tmp_path: Path, disk: Disk) -> None:
    world = World(tmp_path / "state", Steps())
    found = Node(disk.path, HostFiles().stat(disk.path), 0, "superdisk")
    world.devices = {"superdisk": HostDevice("superdisk", (found,))}
    world.resource = resource({"run": ["mkfs.ext4", "-q", "-b", "12345", "${path}"]})
    await world.allocate("superdisk")
    reason = await world.refused("superdisk")
    assert reason.startswith("preStart[0] (run mkfs.ext4) of device superdisk: exited with 1: ")
    assert "12345" in reason
    assert record_of(world, "superdisk") == "fresh"

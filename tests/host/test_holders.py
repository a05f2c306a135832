"""The holders of devices: many ask concurrently, of a kubelet that may be away."""

import asyncio
import logging
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from devhost.backends.podresources import PodResources
from devhost.custody import holders as module
from devhost.custody.holders import CONFIRM_S, POLL_S, Holders
from devhost.errors import KubeletError
from devhost.model.advertised import AdvertisedName, OfferedId
from devhost.model.resource_state import HeldBy, PodHoldings, PodList
from tests.support.scripted_plugin import COLA

NODE = "Node-1"
NOBODY: Mapping[str, HeldBy] = {}
ONE: Mapping[str, HeldBy] = {COLA: {OfferedId("a", "a"): frozenset({"default/one"})}}
TWO: Mapping[str, HeldBy] = {COLA: {OfferedId("a", "a"): frozenset({"default/two"})}}

Answer = Mapping[str, HeldBy] | KubeletError


class FakePodLister(PodResources):
    """Answers when the test does.

    Attributes:
        now: Which kubelet it is.
        pods: Pods that it lists without devices.
        unlisted: Whether kubelet's checkpoint has devices that it does not list.
    """

    def __init__(self) -> None:
        super().__init__(Path("kubelet.sock"), Path())
        self.calls = self.now = 0
        self.pods = frozenset({"devhost/devhost"})
        self.unlisted = True
        self._questions: asyncio.Queue[asyncio.Future[Mapping[str, HeldBy]]] = asyncio.Queue()
        self._running = False

    async def list_pods(self) -> PodList:
        assert not self._running, "one call at a time"
        self.calls += 1
        self._running = True
        try:
            question: asyncio.Future[Mapping[str, HeldBy]] = asyncio.Future()
            self._questions.put_nowait(question)
            before, answer = self.now, await question
            if before != self.now:
                raise KubeletError("another kubelet has taken over")
            by_plugin = {name: frozenset().union(*ids.values()) for name, ids in answer.items()}
            pods = self.pods.union(*by_plugin.values())
            return PodList(before, pods, PodHoldings(answer, by_plugin))
        finally:
            self._running = False

    async def covers_checkpoint(self, held: PodHoldings) -> bool:
        return not self.unlisted

    async def question(self) -> "asyncio.Future[Mapping[str, HeldBy]]":
        return await self._questions.get()

    async def answer(self, answer: Answer) -> None:
        question = await self.question()
        if isinstance(answer, KubeletError):
            question.set_exception(answer)
        else:
            question.set_result(answer)


@pytest.fixture
def lister() -> FakePodLister:
    return FakePodLister()


@pytest.fixture
def holders(lister: FakePodLister) -> Holders:
    return Holders(lister, NODE)


async def refresh(holders: Holders, lister: FakePodLister, answer: Answer) -> None:
    await asyncio.gather(holders.refresh(), lister.answer(answer))


async def turns() -> None:
    """Run all tasks as far as they can go."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_holders_stay_after_a_failure(holders: Holders, lister: FakePodLister) -> None:
    assert holders.unavailable_reason is not None
    await refresh(holders, lister, ONE)
    assert holders.unavailable_reason is None
    assert holders.pods_by_id("example.com/tea") == {}
    await refresh(holders, lister, KubeletError("away"))
    assert holders.unavailable_reason == "away"
    assert holders.pods_by_id(COLA) == ONE[COLA]
    await refresh(holders, lister, NOBODY)
    assert holders.unavailable_reason is None
    assert holders.pods_by_id(COLA) == {}


@pytest.mark.parametrize(("answer", "unknown"), [(ONE, None), (KubeletError("away"), "away")])
async def test_holders_asked_for_during_a_call_share_its_answer(
    holders: Holders, lister: FakePodLister, answer: Answer, unknown: str | None
) -> None:
    asking = [asyncio.create_task(holders.refresh()) for _ in range(5)]
    await turns()
    await lister.answer(answer)
    await asyncio.gather(*asking)
    assert (holders.unavailable_reason, lister.calls) == (unknown, 1)


async def test_holders_that_change_are_told(holders: Holders, lister: FakePodLister) -> None:
    seen: list[HeldBy] = []

    def see() -> None:
        seen.append(holders.pods_by_id(COLA))

    holders.on_change.append(see)
    for answer in (NOBODY, ONE, dict(ONE), TWO):
        await refresh(holders, lister, answer)
    await refresh(holders, lister, KubeletError("away"))
    await refresh(holders, lister, TWO)
    assert seen == [ONE[COLA], TWO[COLA]]


async def test_holders_that_are_unavailable_are_logged_once_and_so_is_the_end(
    holders: Holders, lister: FakePodLister, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    away, mute = KubeletError("away"), KubeletError("mute")
    answers: list[Answer] = [NOBODY, away, away, mute, ONE, ONE, mute]
    for answer in answers:
        await asyncio.gather(holders.refresh(), lister.answer(answer))
    lines = [(r.levelname, r.getMessage(), vars(r).get("fields")) for r in caplog.records]
    unknown = ("WARNING", "pod-resources unavailable")
    assert lines == [
        (*unknown, {"reason": "away"}),
        (*unknown, {"reason": "mute"}),
        ("INFO", "pod-resources available again", None),
        (*unknown, {"reason": "mute"}),
    ]


async def test_holders_wait_for_an_allocate(holders: Holders, lister: FakePodLister) -> None:
    """A question then could make the kubelet hand a device out twice."""
    lister.inflight_since.append(0.0)
    asking = asyncio.create_task(holders.refresh())
    await turns()
    assert lister.calls == 0
    lister.inflight_since.clear()
    await lister.answer(ONE)
    await asking
    assert holders.pods_by_id(COLA) == ONE[COLA]


# ── a kubelet that has just started lists only the pods that it has admitted so far ──


class Clock:
    """The event loop's clock, and a kubelet that answers immediately."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.lister, self.now = FakePodLister(), 1000.0
        self.holders = Holders(self.lister, NODE)
        monkeypatch.setattr(asyncio.get_running_loop(), "time", lambda: self.now)

    async def list(self, answer: Mapping[str, HeldBy], after: float) -> None:
        """Advance the clock, then ask."""
        self.now += after
        await refresh(self.holders, self.lister, answer)

    def unheld(self, since: float = 0.0) -> bool:
        return self.holders.confirmed_free(AdvertisedName(COLA, "a", shared=False), since)


@pytest.fixture
async def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


async def test_holders_of_a_device_are_none_by_two_lists_that_are_apart(clock: Clock) -> None:
    for after, unheld in ((0, False), (POLL_S, False), (CONFIRM_S / 2, False), (CONFIRM_S, True)):
        await clock.list(NOBODY, after)
        assert clock.unheld() is unheld
    assert not clock.unheld(since=clock.now)
    await clock.list(ONE, CONFIRM_S)
    assert not clock.unheld()


async def test_holders_listed_by_a_new_kubelet_free_no_device(clock: Clock) -> None:
    """kubelet is new after devhost's own start, and after its restart."""
    for _ in range(2):
        for after in (0.0, CONFIRM_S, CONFIRM_S, CONFIRM_S):
            await clock.list(NOBODY, after)
            assert not clock.unheld()
        await clock.list(NOBODY, CONFIRM_S)
        await clock.list(NOBODY, CONFIRM_S)
        assert clock.unheld()
        clock.lister.now += 1


@pytest.mark.parametrize("static", [(), ("kube-system/etcd-node-1", "ns/web-node-1")])
async def test_holders_of_static_pods_free_no_device(clock: Clock, static: Iterable[str]) -> None:
    """The API server may be away for long, so that kubelet knows static pods alone."""
    clock.lister.pods = frozenset(static)
    for _ in range(20):
        await clock.list(NOBODY, POLL_S)
        assert not clock.unheld()
        assert not clock.holders.complete
    clock.lister.pods |= {"ns/web-1"}
    await clock.list(NOBODY, POLL_S)
    assert not clock.holders.complete, "it admits them one after the other"
    clock.lister.pods = frozenset()  # the last one may end
    for after, unheld in ((POLL_S, False), (CONFIRM_S, True)):
        await clock.list(NOBODY, after)
        assert clock.holders.complete
        assert clock.unheld() is unheld


async def test_holders_that_are_complete_are_known_at_once(clock: Clock) -> None:
    """Pods may have claims that kubelet does not know yet."""
    clock.lister.pods, clock.lister.unlisted = frozenset(), False
    for after, unheld in ((0, False), (CONFIRM_S, True)):
        await clock.list(NOBODY, after)
        assert clock.holders.complete
        assert clock.unheld() is unheld
    name, share = AdvertisedName(COLA, "a", shared=False), OfferedId("a", "a")
    for _ in range(20):
        await clock.list(NOBODY, POLL_S)
        assert not clock.holders.confirmed_free(name, 0.0, share)


async def test_holders_listed_by_two_kubelets_do_not_confirm_each_other(clock: Clock) -> None:
    for answer in (NOBODY, NOBODY):
        await clock.list(answer, POLL_S)
    clock.lister.now += 1
    await clock.list(NOBODY, CONFIRM_S)
    assert not clock.unheld()
    await clock.list(NOBODY, POLL_S)
    assert not clock.unheld()


async def test_holders_before_a_restart_stay_until_the_lists_are_whole(clock: Clock) -> None:
    await clock.list(ONE, 0)
    await clock.list(ONE, POLL_S)
    for _ in range(4):
        clock.lister.now += 1
        for _ in range(3):
            await clock.list(NOBODY, CONFIRM_S)
            assert clock.holders.pods_by_id(COLA) == {}
            assert clock.holders.held_ids(COLA) == {"a"}
    await clock.list(NOBODY, POLL_S)
    assert clock.holders.held_ids(COLA) == frozenset()


async def test_holders_of_a_replaced_kubelet(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list may be of either kubelet."""
    monkeypatch.setattr(module, "POLL_S", 0.0)
    for replaced in (True, False):
        asking = asyncio.create_task(clock.holders.refresh())
        question = await clock.lister.question()
        clock.lister.now += replaced
        question.set_result(NOBODY)
        await asking
        assert clock.unheld() is not replaced

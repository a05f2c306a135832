"""Who holds what, asked for by many concurrently, of a kubelet that may be away."""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devhost.errors import KubeletError
from devhost.host import holders as module
from devhost.host.holders import Holders
from devhost.kubelet.podresources import HeldBy, PodResources
from tests.kubelet_standin.test_simulator import COLA, a_node, healthy

NOBODY: Mapping[str, HeldBy] = {}
ONE: Mapping[str, HeldBy] = {COLA: {"a": frozenset({"default/one"})}}
TWO: Mapping[str, HeldBy] = {COLA: {"a": frozenset({"default/two"})}}

Answer = Mapping[str, HeldBy] | KubeletError


class Asked(PodResources):
    """Answers when the test does."""

    def __init__(self) -> None:
        super().__init__(Path("kubelet.sock"))
        self.calls = self.now = 0
        self._questions: asyncio.Queue[asyncio.Future[Mapping[str, HeldBy]]] = asyncio.Queue()
        self._running = False

    async def kubelet(self) -> object:
        return self.now

    async def holders(self) -> Mapping[str, HeldBy]:
        assert not self._running, "one call at a time"
        self.calls += 1
        self._running = True
        try:
            question: asyncio.Future[Mapping[str, HeldBy]] = asyncio.Future()
            self._questions.put_nowait(question)
            return await question
        finally:
            self._running = False

    async def question(self) -> "asyncio.Future[Mapping[str, HeldBy]]":
        async with asyncio.timeout(60):
            return await self._questions.get()

    async def answer(self, answer: Answer) -> None:
        question = await self.question()
        if isinstance(answer, KubeletError):
            question.set_exception(answer)
        else:
            question.set_result(answer)


@pytest.fixture
def asked() -> Asked:
    return Asked()


@pytest.fixture
def holders(asked: Asked) -> Holders:
    return Holders(asked)


@asynccontextmanager
async def running(holders: Holders) -> AsyncIterator[None]:
    task = asyncio.create_task(holders.run())
    yield
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def refresh(holders: Holders, asked: Asked, answer: Answer) -> None:
    await asyncio.gather(holders.refresh(), asked.answer(answer))


async def turns() -> None:
    """Let all tasks go on as far as they can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_without_a_socket_nothing_is_known() -> None:
    holders = Holders(None)
    holders.subscribe(lambda: None)
    await holders.run()
    for question in (holders.refresh(), holders.now(COLA)):
        with pytest.raises(KubeletError, match="devhost runs without --pod-resources"):
            await question
    assert not holders.known
    assert holders.of(COLA) == {}


async def test_nothing_is_known_before_the_first_list(holders: Holders, asked: Asked) -> None:
    asking = asyncio.create_task(holders.refresh())
    question = await asked.question()
    assert not holders.known
    question.set_result(ONE)
    await asking
    assert holders.known
    assert holders.of(COLA) == ONE[COLA]
    assert holders.of("example.com/tea") == {}


async def test_a_failure_leaves_the_last_list_in_force(holders: Holders, asked: Asked) -> None:
    await refresh(holders, asked, ONE)
    for answer in (holders.refresh(), holders.now(COLA)):
        with pytest.raises(KubeletError, match=r"^away$"):
            await asyncio.gather(answer, asked.answer(KubeletError("away")))
        assert not holders.known
        assert holders.of(COLA) == ONE[COLA]
    await refresh(holders, asked, NOBODY)
    assert holders.known
    assert holders.of(COLA) == {}


async def test_those_who_ask_during_a_call_share_it(holders: Holders, asked: Asked) -> None:
    asking = [asyncio.create_task(holders.refresh()) for _ in range(5)]
    await turns()
    await asked.answer(ONE)
    await asyncio.gather(*asking)
    assert asked.calls == 1


async def test_those_who_share_a_call_share_its_failure(holders: Holders, asked: Asked) -> None:
    asking = [asyncio.create_task(holders.refresh()) for _ in range(3)]
    await turns()
    await asked.answer(KubeletError("away"))
    results = await asyncio.gather(*asking, return_exceptions=True)
    assert [str(result) for result in results] == ["away"] * 3
    assert asked.calls == 1


async def test_now_does_not_take_the_answer_to_an_earlier_question(
    holders: Holders, asked: Asked
) -> None:
    before = asyncio.create_task(holders.refresh())
    await turns()
    now = [asyncio.create_task(holders.now(COLA)) for _ in range(3)]
    await turns()
    await asked.answer(ONE)
    await before
    assert not any(each.done() for each in now)
    await asked.answer(TWO)
    assert await asyncio.gather(*now) == [TWO[COLA]] * 3
    assert asked.calls == 2


async def test_now_asks_each_time(holders: Holders, asked: Asked) -> None:
    for answer in (ONE, TWO):
        held, _ = await asyncio.gather(holders.now(COLA), asked.answer(answer))
        assert held == answer[COLA]


async def test_a_caller_who_gives_up_leaves_the_others_an_answer(
    holders: Holders, asked: Asked
) -> None:
    first = asyncio.create_task(holders.refresh())
    await asked.question()
    shared, later = asyncio.create_task(holders.refresh()), asyncio.create_task(holders.now(COLA))
    await turns()
    first.cancel()
    await asked.answer(ONE)
    await shared
    assert await later == ONE[COLA]
    with pytest.raises(asyncio.CancelledError):
        await first
    assert asked.calls == 2


async def test_changes_of_the_list_are_told(holders: Holders, asked: Asked) -> None:
    seen: list[HeldBy] = []

    def see() -> None:
        seen.append(holders.of(COLA))

    holders.subscribe(see)
    for answer in (NOBODY, ONE, dict(ONE), TWO):
        await refresh(holders, asked, answer)
    with pytest.raises(KubeletError):
        await refresh(holders, asked, KubeletError("away"))
    await refresh(holders, asked, TWO)
    assert seen == [ONE[COLA], TWO[COLA]]
    holders.unsubscribe(see)
    await refresh(holders, asked, NOBODY)
    assert len(seen) == 2


async def test_it_is_polled_while_somebody_wants_to_know(
    holders: Holders, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "POLL_S", 0)
    changed = asyncio.Event()
    async with running(holders):
        await turns()
        assert asked.calls == 0
        holders.subscribe(changed.set)
        await asked.answer(NOBODY)
        await asked.answer(KubeletError("away"))
        await asked.answer(ONE)
        await changed.wait()
        question = await asked.question()
        holders.unsubscribe(changed.set)
        question.set_result(TWO)
        await turns()
        assert (asked.calls, holders.of(COLA)) == (4, TWO[COLA])
        holders.subscribe(changed.set)
        await asked.answer(ONE)


async def test_a_failure_is_logged_once_and_so_is_its_end(
    holders: Holders, asked: Asked, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    away, mute = KubeletError("away"), KubeletError("mute")
    answers: list[Answer] = [NOBODY, away, away, mute, ONE, ONE, mute]
    for answer in answers:
        await asyncio.gather(holders.refresh(), asked.answer(answer), return_exceptions=True)
    lines = [
        (each.levelname, each.getMessage(), vars(each).get("fields")) for each in caplog.records
    ]
    unknown = ("WARNING", "pod-resources unavailable")
    assert lines == [
        (*unknown, {"reason": "away"}),
        (*unknown, {"reason": "mute"}),
        ("INFO", "pod-resources available again", None),
        (*unknown, {"reason": "mute"}),
    ]


async def test_pods_are_seen_to_come_and_go_through_a_restart_of_the_kubelet(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real client against the stand-in kubelet."""
    monkeypatch.setattr(module, "POLL_S", 0.01)
    path = short_path / "kubelet.sock"
    holders, changed = Holders(PodResources(path)), asyncio.Event()
    with pytest.raises(KubeletError, match=r"kubelet\.sock: no such socket"):
        await holders.refresh()
    holders.subscribe(changed.set)
    async with a_node(short_path / "plugins", path) as node, running(holders):
        await node.registered(*healthy("a"))
        await node.kubelet.admit("one", {"main": {COLA: 1}})
        async with asyncio.timeout(60):
            await changed.wait()
        assert holders.of(COLA) == ONE[COLA]
        await node.kubelet.kill()
        with pytest.raises(KubeletError, match="connection refused"):
            await holders.now(COLA)
        assert holders.of(COLA) == ONE[COLA]
        await node.kubelet.start()
        assert await holders.now(COLA) == ONE[COLA]
        await node.kubelet.free("one")
        async with asyncio.timeout(60):
            while holders.of(COLA):  # it may have been told of the list before, too
                changed.clear()
                await changed.wait()
        assert holders.known


async def test_nothing_is_asked_while_an_allocate_runs(holders: Holders, asked: Asked) -> None:
    """A question then could make the kubelet hand a device out twice."""
    with holders.allocating():
        asking = asyncio.create_task(holders.refresh())
        await turns()
        assert asked.calls == 0
    await asked.answer(ONE)
    await asking
    assert holders.of(COLA) == ONE[COLA]


async def test_what_one_of_the_last_two_polls_listed_is_held(
    holders: Holders, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kubelet that has just started lists only a part of its pods."""
    monkeypatch.setattr(module, "POLL_S", 0.001)
    holders.subscribe(lambda: None)
    async with running(holders):
        for answer, held in [(ONE, {"a"}), (NOBODY, {"a"}), (NOBODY, set())]:
            await asked.answer(answer)
            await turns()
            assert holders.held(COLA) == held


async def test_a_list_counts_only_if_one_kubelet_answered_all_the_while(
    holders: Holders, asked: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of a kubelet that came meanwhile may lack pods, and was not asked as its first one."""
    monkeypatch.setattr(module, "POLL_S", 0.0)
    for replaced in (True, False):
        asking = asyncio.create_task(holders.refresh())
        question = await asked.question()
        asked.now += replaced
        question.set_result(NOBODY)
        await asking
        assert holders.unheld(COLA, "a", shared=False, since=0.0) is not replaced

"""Two instances on one plugin directory, in each order of starting and ending.

As in a surge update, or beside a pod that does not want to end. In the end the survivor is
registered, everything is allocatable and containers get its answers.
"""

import asyncio
import contextlib
import itertools
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from devhost.errors import KubeletError
from devhost.kubelet.device_list import DeviceList, Stream
from devhost.kubelet.encoding import ListMessage
from devhost.model.state import State
from tests.support.daemon import Daemon
from tests.support.hosting import Kubelet, on_one_kubelet
from tests.support.overlap import Instance, Start, served_by, tokens

T, U, V = "example.com/t", "example.com/u", "example.com/v"
MANY = 20


@pytest.fixture(autouse=True)
def no_socket_is_left(directory: Path) -> Iterator[None]:
    yield
    assert not sockets(directory)


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[DeviceList]:
    """What lists have gone out, one entry each."""
    sent: list[DeviceList] = []
    note = DeviceList.end_send

    def noting(self: DeviceList, stream: Stream, message: ListMessage, now: float) -> None:
        sent.append(self)
        note(self, stream, message, now)

    monkeypatch.setattr(DeviceList, "end_send", noting)
    return sent


@pytest.fixture
async def pair(start: Start, started: Kubelet) -> tuple[Instance, Instance]:
    """An older instance with three tokens that waits, a newer one with five that serves."""
    return await two(start, started)


async def two(start: Start, kubelet: Kubelet) -> tuple[Instance, Instance]:
    older = start(tokens("old", t=3))
    await older.until(T, State.REGISTERED)
    await served_by(kubelet, "old", T, 3)
    newer = start(tokens("new", t=5))
    await newer.until(T, State.REGISTERED)
    await older.until(T, State.WAITING)
    await served_by(kubelet, "new", T, 5)
    return older, newer


def sockets(directory: Path) -> set[str]:
    return {path.name for path in (directory / "plugins").glob("devhost-*.sock")}


async def until_sockets(directory: Path, count: int) -> None:
    async with asyncio.timeout(60):
        while len(sockets(directory)) != count:
            await asyncio.sleep(0.005)


# ── two, and one of them ends ──


async def test_the_older_stops_first(
    pair: tuple[Instance, Instance], started: Kubelet, directory: Path
) -> None:
    """What a surge update does: the newer keeps all that it has."""
    older, newer = pair
    await older.stop()
    await served_by(started, "new", T, 5)
    await newer.until(T, State.REGISTERED)
    await until_sockets(directory, 1)


async def test_the_newer_stops_first(
    pair: tuple[Instance, Instance], started: Kubelet, directory: Path
) -> None:
    """As when an update is taken back: the older serves again, by its own configuration."""
    older, newer = pair
    assert older.status(T).reason == "a newer instance of devhost serves it"
    await newer.stop()
    await older.until(T, State.REGISTERED)
    await served_by(started, "old", T, 3)
    await until_sockets(directory, 1)


@on_one_kubelet
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("first", ["old", "new"])
async def test_one_process_ends(
    started: Kubelet, directory: Path, first: str, number: signal.Signals
) -> None:
    """Older or newer, stopped or killed: the other has every resource, and no socket is left."""
    names = [f"r{index}" for index in range(MANY)]
    processes: dict[str, Daemon] = {}
    async with contextlib.AsyncExitStack() as stack:
        for who, count in (("old", 3), ("new", 4)):
            daemon = processes[who] = Daemon(directory)
            daemon.config = directory / f"{who}.yaml"
            stack.push_async_callback(daemon.kill)
            await daemon.start(tokens(who, **dict.fromkeys(names, count)))
            await daemon.until(State.REGISTERED, MANY)
        await processes["old"].until(State.WAITING, MANY)
        for name in names:
            await started.wait(f"example.com/{name}", 4, 4)
        ended = processes.pop(first)
        ended.signal(number)
        assert await ended.ended() == -(number % signal.SIGTERM)
        (who, survivor), *_ = processes.items()
        for name in names:
            await served_by(started, who, f"example.com/{name}", 3 if who == "old" else 4)
        await survivor.until(State.REGISTERED, MANY)
        await until_sockets(directory, MANY)
        assert await survivor.stop() == 0
        assert not survivor.found("", level="raw")
        assert not ended.found("", level="raw")


async def test_while_a_newer_lives_the_older_sends_nothing(
    started: Kubelet, start: Start, directory: Path, sent: list[DeviceList]
) -> None:
    """Its stream stays open, because its end would end the newer's on some kubelets."""
    text = f"version: v1\nresources: [{{name: {T}, sources: [directory: {directory}/colas]}}]\n"
    (directory / "colas" / "a").touch()
    older = start(text)
    await started.wait(T, 1, 1)
    newer = start(text)
    await older.until(T, State.WAITING)
    await newer.until(T, State.REGISTERED)
    of_older, of_newer = older.host.runners[0].device_list, newer.host.runners[0].device_list
    before, version = sent.count(of_older), of_older.version
    for number, name in enumerate(("b", "c"), 2):
        (directory / "colas" / name).touch()
        await started.wait(T, number, number)
        async with asyncio.timeout(60):
            while len(of_older.entries) < number:
                await asyncio.sleep(0.005)
    assert of_older.version > version
    server = older.host.runners[0]._registration._server
    assert server is not None
    assert len(server.servicer.streams) == 1
    async with asyncio.timeout(60):
        while sent.count(of_newer) < 3:  # the kubelet may have a list before this is noted
            await asyncio.sleep(0.005)
    await newer.stop()
    await older.until(T, State.REGISTERED)
    await started.wait(T, 3, 3)
    async with asyncio.timeout(60):
        while sent.count(of_older) == before:
            await asyncio.sleep(0.005)
    assert sent.count(of_older) == before + 1, "the first list of its new stream, and no other"


async def test_the_older_goes_and_the_newer_tells_its_list_again(
    pair: tuple[Instance, Instance], sent: list[DeviceList]
) -> None:
    """The last list may have been the older's, and no kubelet asks."""
    older, newer = pair
    sent.clear()
    await older.stop()
    async with asyncio.timeout(60):
        while newer.host.runners[0].device_list not in sent:
            await asyncio.sleep(0.005)


# ── what the two declare differs ──


async def test_each_serves_what_the_other_does_not_declare(started: Kubelet, start: Start) -> None:
    """Who speaks is settled for each resource."""
    older = start(tokens("old", t=2, u=2))
    await older.until(T, State.REGISTERED)
    await older.until(U, State.REGISTERED)
    newer = start(tokens("new", t=3, v=3))
    await older.until(T, State.WAITING)
    await served_by(started, "new", T, 3)
    await served_by(started, "old", U, 2)
    await served_by(started, "new", V, 3)
    assert older.status(U).state is State.REGISTERED
    await newer.stop()
    await served_by(started, "old", T, 2)
    await served_by(started, "old", U, 2)
    await started.wait(V, 3, 0)


async def test_the_newer_drops_a_resource(started: Kubelet, start: Start) -> None:
    """Removed from the newer's configuration, it is the older's again."""
    older = start(tokens("old", t=2, u=2))
    newer = start(tokens("new", t=3, u=3))
    await older.until(U, State.WAITING)
    await served_by(started, "new", U, 3)
    config = newer.host._config
    assert config is not None
    newer.host.apply(replace(config, resources=config.resources[:1]))
    await older.until(U, State.REGISTERED)
    await served_by(started, "old", U, 2)
    await served_by(started, "new", T, 3)


# ── three, and kubelet restarts ──


@pytest.mark.parametrize("order", list(itertools.permutations("abc")), ids="".join)
async def test_three(started: Kubelet, start: Start, directory: Path, order: str) -> None:
    """At each moment the newest of those that live serves, whichever ends."""
    counts = {"a": 2, "b": 3, "c": 4}
    living = {}
    for who, count in counts.items():
        living[who] = start(tokens(who, t=count))
        await living[who].until(T, State.REGISTERED)
        await served_by(started, who, T, count)
    for who in order:
        await living.pop(who).stop()
        if living:
            newest = max(living)
            await served_by(started, newest, T, counts[newest])
            await living[newest].until(T, State.REGISTERED)
            for other in living.keys() - {newest}:
                await living[other].until(T, State.WAITING)
    assert not sockets(directory)


@pytest.mark.parametrize("first", ["old", "new"])
async def test_the_kubelet_restarts_under_two(started: Kubelet, start: Start, first: str) -> None:
    """It removes the sockets of both, both come back immediately, and again the newer serves."""
    older, newer = await two(start, started)
    for _ in range(5):
        await started.restart()
        await served_by(started, "new", T, 5)
    await older.until(T, State.WAITING)
    await newer.until(T, State.REGISTERED)
    await served_by(started, "new", T, 5)
    await (older if first == "old" else newer).stop()
    if first == "old":
        await served_by(started, "new", T, 5)
    else:
        await served_by(started, "old", T, 3)


# ── at the same moment ──


async def test_both_start_at_once(started: Kubelet, start: Start) -> None:
    """They agree on the newer."""
    for _ in range(5):
        older, newer = start(tokens("old", t=3)), start(tokens("new", t=5))
        await newer.until(T, State.REGISTERED)
        await older.until(T, State.WAITING)
        await served_by(started, "new", T, 5)
        await older.stop()
        await served_by(started, "new", T, 5)
        await newer.stop()


async def test_both_wait_for_the_kubelet(kubelet: Kubelet, start: Start) -> None:
    """They see it at the same moment, as after a reboot."""
    older, newer = start(tokens("old", t=3)), start(tokens("new", t=5))
    await older.until(T, State.WAITING)
    await newer.until(T, State.WAITING)
    await kubelet.start()
    await newer.until(T, State.REGISTERED)
    await older.until(T, State.WAITING)
    await served_by(kubelet, "new", T, 5)
    await kubelet.stop()


async def test_the_older_is_about_to_register(started: Kubelet, start: Start) -> None:
    """The newer waits for the end of its call: the kubelet prefers who came last."""
    go = asyncio.Event()
    older = start(tokens("old", t=3))
    directory = older.host._shared.directory
    register = directory.register

    async def slowly(resource: str, endpoint: str, *, pre_start: bool) -> None:
        await go.wait()
        await register(resource, endpoint, pre_start=pre_start)

    directory.register = slowly  # type: ignore[method-assign]
    await older.until(T, State.SERVING)
    newer = start(tokens("new", t=5))
    await newer.until(T, State.SERVING)
    async with asyncio.timeout(60):
        while not older.host._shared.directory.instances.newer(T):
            await asyncio.sleep(0.005)
    assert newer.status(T).state is State.SERVING
    go.set()
    await newer.until(T, State.REGISTERED)
    assert older.status(T).state is State.WAITING
    await served_by(started, "new", T, 5)
    await newer.stop()
    await served_by(started, "old", T, 3)


async def test_a_newer_one_comes_while_the_older_is_backing_off(
    started: Kubelet, start: Start
) -> None:
    """The older waits then, and registers when the newer has gone."""
    older = start(tokens("old", t=3))
    directory = older.host._shared.directory
    register = directory.register

    async def failing(resource: str, endpoint: str, *, pre_start: bool) -> None:
        raise KubeletError("refused by the test")

    directory.register = failing  # type: ignore[method-assign]
    await older.until(T, State.BACKING_OFF)
    newer = start(tokens("new", t=5))
    await newer.until(T, State.REGISTERED)
    directory.register = register  # type: ignore[method-assign]
    await older.until(T, State.WAITING)
    await served_by(started, "new", T, 5)
    await newer.stop()
    await served_by(started, "old", T, 3)
    await older.until(T, State.REGISTERED)


async def test_a_flapping_newer_one(started: Kubelet, start: Start, directory: Path) -> None:
    """Ten times come and gone, each time at another moment of the older's way back."""
    older = start(tokens("old", t=3))
    await older.until(T, State.REGISTERED)
    for number in range(10):
        newer = start(tokens("new", t=5))
        if number % 2:
            await newer.until(T, State.REGISTERED)
        else:
            own = newer.host._shared.directory.instances.fresh_name(T).rpartition("-")[0]
            async with asyncio.timeout(60):
                while not any(name.startswith(own) for name in sockets(directory)):
                    await asyncio.sleep(0)
        await newer.stop()
    await older.until(T, State.REGISTERED)
    await served_by(started, "old", T, 3)
    await until_sockets(directory, 1)

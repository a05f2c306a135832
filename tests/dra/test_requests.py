"""How often the API server is asked, by a clock that goes on when all tasks wait."""

import asyncio
import random
import selectors
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from devhost.backends.dra.api_client import ApiClient, ApiError
from devhost.backends.dra.slices import NodeSlices, SliceWriter
from devhost.backends.resource_lock import ResourceLocks
from tests.dra.world import NODE, NODE_PATH
from tests.support.api_server import ApiObject
from tests.support.dra_kubelet import node

POOL = "node-1/example.com/token"


class Clock(selectors.DefaultSelector):
    """Time that passes immediately until the next timer."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        self.now += timeout or 0.0
        return super().select(0)


def run_by_clock(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    clock = Clock()

    def new_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(clock)
        loop.time = lambda: clock.now  # type: ignore[method-assign]
        return loop

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())


class Api(ApiClient):
    """An API server whose watches end or fail some seconds late, and that may refuse writes."""

    def __init__(
        self, watches_live_s: float = 1e6, ready_s: float = 0.0, *, watches_fail: bool = True
    ) -> None:
        super().__init__("http://127.0.0.1:1")
        self.times: list[float] = []
        self.writes_at: list[float] = []
        self.watches_live_s, self.ready_s = watches_live_s, ready_s
        self.watches_fail = watches_fail

    async def call(
        self, verb: str, path: str, body: ApiObject | None = None, **query: str
    ) -> ApiObject:
        now = asyncio.get_running_loop().time()
        self.times.append(now)
        if verb == "GET":
            return node() if path == NODE_PATH else {"metadata": {"resourceVersion": "1"}}
        self.writes_at.append(now)
        if now < self.ready_s:
            raise ApiError(403, "rights are not loaded yet")
        assert body is not None
        return body

    async def watch(self, *_args: object, **_query: str) -> AsyncIterator[ApiObject]:
        self.times.append(asyncio.get_running_loop().time())
        await asyncio.sleep(self.watches_live_s)
        for event in tuple[ApiObject]():
            yield event
        if self.watches_fail:
            raise ApiError(503, "overloaded")


def writer_of(api: Api, directory: Path) -> SliceWriter:
    slices = NodeSlices(api, "devhost", NODE)
    writer = SliceWriter(slices, ResourceLocks(directory), lambda: None)
    writer.pools.here[POOL] = pool = writer.pools.new(POOL, "example.com/token")
    pool.devices = [{"name": "a"}]
    pool.lock.acquire("devhost")
    return writer


@pytest.mark.parametrize("watches_fail", [True, False])
def test_short_watches_make_few_requests(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, watches_fail: bool
) -> None:
    """An API server that is overloaded, or behind a proxy that is, ends them so."""

    async def count() -> None:
        api = Api(watches_live_s=0.5, watches_fail=watches_fail)
        running = asyncio.create_task(writer_of(api, tmp_path).run())
        await asyncio.sleep(600.0)
        running.cancel()
        by_minute = Counter(int(time // 60) for time in api.times)
        assert by_minute[0] <= 50
        assert all(by_minute[minute] <= 12 for minute in range(2, 10)), by_minute
        logged = sum("slices cannot be written" in text for text in caplog.messages)
        assert logged == watches_fail

    run_by_clock(count)


def test_a_watch_that_lasts_is_good_again(tmp_path: Path) -> None:
    async def follow() -> None:
        api = Api(watches_live_s=0.5)
        writer = writer_of(api, tmp_path)
        running = asyncio.create_task(writer.run())
        await asyncio.sleep(600.0)
        assert writer.problem == "API server: 503 overloaded"
        api.watches_live_s = 40.0
        await asyncio.sleep(100.0)
        assert writer.problem is None
        begun = len(api.times)
        await asyncio.sleep(600.0)
        assert len(api.times) - begun > 30, "it is opened again soon"
        assert writer.problem is None
        running.cancel()

    run_by_clock(follow)


@pytest.mark.parametrize("ready_s", [10.0, 25.0])
def test_refused_write_is_tried_again_in_time(tmp_path: Path, ready_s: float) -> None:
    """An API server that has just started knows no rights for some seconds."""

    async def write() -> None:
        api = Api(ready_s=ready_s)
        writer = writer_of(api, tmp_path)
        running = asyncio.create_task(writer.run())
        await asyncio.sleep(200.0)
        running.cancel()
        writer.pools.here[POOL].lock.release()
        assert ready_s <= api.writes_at[-1] <= 2 * ready_s + 2.0, api.writes_at

    for seed in range(20):
        random.seed(seed)
        run_by_clock(write)

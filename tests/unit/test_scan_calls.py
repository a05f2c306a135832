"""Blocking work that comes late, or never."""

import asyncio
import threading

import pytest

from devhost.host import inventory
from devhost.host.resource.scan_calls import ScanCalls


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inventory, "ANSWER_S", 0.05)


class Host:
    """Answers after `release`, and counts how often it is asked."""

    def __init__(self) -> None:
        self.release, self.asked, self.late = threading.Event(), 0, asyncio.Event()
        self.calls = ScanCalls("a.b/c", self.late.set)

    def work(self) -> int:
        self.asked += 1
        self.release.wait(30)
        return self.asked

    async def run(self) -> int:
        return await self.calls.run(self.work)


async def test_what_hangs_is_not_asked_a_second_time() -> None:
    """When its answer comes, it is asked again: the answer is of some time ago."""
    host = Host()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await host.run()
    assert host.asked == 1
    assert not host.late.is_set()
    host.release.set()
    async with asyncio.timeout(60):
        await host.late.wait()
    host.late.clear()
    assert await host.run() == 2
    assert not host.late.is_set()


async def test_what_is_slow_gets_more_time() -> None:
    host = Host()
    with pytest.raises(TimeoutError):
        await host.run()
    await asyncio.sleep(0.05)
    host.release.set()
    async with asyncio.timeout(60):
        await host.late.wait()
    assert host.calls._seconds > 0.05 * 2


async def test_work_of_which_the_wait_was_cancelled_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by a reload; what comes next begins when it has ended, and its result counts."""
    monkeypatch.setattr(inventory, "ANSWER_S", 60.0)
    host = Host()
    former = asyncio.create_task(host.run())
    await asyncio.sleep(0)
    former.cancel()
    await asyncio.wait({former})
    next_one = asyncio.create_task(host.run())
    await asyncio.sleep(0)
    host.release.set()
    assert await next_one == 2
    assert not host.late.is_set()


async def test_work_that_fails() -> None:
    def broken() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await ScanCalls("a.b/c", lambda: None).run(broken)

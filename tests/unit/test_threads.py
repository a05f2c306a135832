"""Blocking calls in threads."""

import asyncio
import errno
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from devhost.hostfs.files import Progress
from devhost.watch.threads import (
    ABANDONED_MAX,
    BlockingCalls,
    NoAnswerError,
    run_in_thread,
)


async def test_in_thread_returns_results_and_failures() -> None:
    results = await asyncio.gather(*(run_in_thread("n", lambda n=n: n) for n in range(100)))  # type: ignore[misc]
    assert results == list(range(100))
    with pytest.raises(LookupError, match="no"):
        await run_in_thread("fail", raising(LookupError("no")))


async def test_blocking_call_returns_or_fails() -> None:
    calls = BlockingCalls("calls")
    assert await calls.run(lambda: 42, patience=60) == 42
    with pytest.raises(TimeoutError, match="what the disk said"):
        await calls.run(raising(TimeoutError(errno.ETIMEDOUT, "what the disk said")))
    assert not calls.hanging


async def test_blocking_call_that_hangs_is_abandoned() -> None:
    release, late = threading.Event(), asyncio.Event()
    calls = BlockingCalls("calls", Path("/state"), serial=True)
    with pytest.raises(NoAnswerError, match=r"^/state: no answer in 0.01 s$"):
        await calls.run(release.wait, patience=0.01, on_late=late.set)
    assert calls.hanging
    with pytest.raises(NoAnswerError, match=r"no answer in 60 s"):  # not even begun
        await calls.run(late.set, patience=60)
    assert not late.is_set()
    release.set()
    await late.wait()
    assert not calls.hanging
    assert await calls.run(lambda: 42, patience=60) == 42


@pytest.mark.parametrize("progress", [None, Progress()], ids=["in all", "each answer"])
async def test_blocking_call_on_a_busy_loop_is_in_time(progress: Progress | None) -> None:
    """The loop learns of both at the same time: that it has returned, and that it is late."""
    returned = threading.Event()

    def busy() -> None:
        returned.wait()
        time.sleep(0.5)  # longer than the patience

    def work() -> int:
        returned.set()
        return 42

    asyncio.get_running_loop().call_soon(busy)
    assert await BlockingCalls("calls").run(work, patience=0.4, progress=progress) == 42


async def test_blocking_call_that_returns_in_the_moment_in_which_it_is_given_up() -> None:
    returned, late = threading.Event(), asyncio.Event()
    calls = BlockingCalls("calls")
    given_up = asyncio.create_task(calls.run(returned.set, on_late=late.set))

    def give_up() -> None:
        returned.wait()
        time.sleep(0.1)  # until the thread has said so
        given_up.cancel()

    asyncio.get_running_loop().call_soon(give_up)
    await late.wait()
    assert given_up.cancelled()
    assert not calls._abandoned


async def test_blocking_calls_abandoned_are_bounded() -> None:
    release = threading.Event()
    calls = BlockingCalls("calls")
    waiting = [asyncio.create_task(calls.run(release.wait)) for _ in range(ABANDONED_MAX)]
    try:
        await asyncio.sleep(0)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        with pytest.raises(NoAnswerError, match="8 earlier calls have not returned"):
            await calls.run(int)
    finally:
        release.set()
    while calls.hanging:
        await asyncio.sleep(0)
    assert await calls.run(int) == 0


async def test_blocking_call_waits_for_a_serial_one_whose_caller_was_cancelled() -> None:
    """The former was not late: that it has not returned yet says nothing of the host."""
    release, begun = threading.Event(), threading.Event()
    calls = BlockingCalls("calls", serial=True)
    former = asyncio.create_task(calls.run(lambda: begun.set() or release.wait(), patience=60))  # type: ignore[func-returns-value]
    await asyncio.to_thread(begun.wait)
    former.cancel()
    await asyncio.wait({former})
    following = asyncio.create_task(calls.run(release.is_set, patience=60))
    await asyncio.sleep(0)
    release.set()
    assert await following


def raising(error: Exception) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail

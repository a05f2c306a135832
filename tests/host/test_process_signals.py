"""Signals end the process, and have it read its configuration again."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator

import pytest

from devhost.daemon.process import wait_for_signal


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_term_or_int_cancels_the_work(number: int) -> None:
    """The loop's own pipe is full, so that the signal has no room in it."""
    ended = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(10_000):
            loop.call_soon_threadsafe(int)
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    asyncio.run(asyncio.wait_for(wait_for_signal(work()), 60))
    assert ended


def test_two_signals_in_the_same_instant_are_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python complains of one that is ignored between its arrival and its turn."""
    errors, signals = list[object](), (signal.SIGINT, signal.SIGTERM)
    monkeypatch.setattr(sys, "unraisablehook", errors.append)

    async def work() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signals)
        for number in signals:
            os.kill(os.getpid(), number)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, signals)
        await asyncio.sleep(30)

    asyncio.run(asyncio.wait_for(wait_for_signal(work()), 60))
    assert errors == []

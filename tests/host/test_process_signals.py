"""Signals end the process, and have it read its configuration again."""

import asyncio
import errno
import os
import signal
from collections.abc import Iterator

import pytest

from devhost.host.process import until_signal


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("busy", [False, True], ids=["at rest", "busy"])
def test_signal_term_or_int_cancels_the_work(number: int, busy: bool) -> None:
    """Also while the loop's own pipe is full, so that the signal has no room in it."""
    ended = []

    async def work() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(10_000 if busy else 0):
            loop.call_soon_threadsafe(int)
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
        finally:
            ended.append(True)

    asyncio.run(asyncio.wait_for(until_signal(work()), 60))
    assert ended


def test_signal_hup_has_the_file_read_and_ends_nothing() -> None:
    told = asyncio.Event()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGHUP)
        await told.wait()

    asyncio.run(asyncio.wait_for(until_signal(work(), told.set), 60))
    assert told.is_set()


def test_loop_error_of_the_system_is_one_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """As when a connection cannot be accepted for want of descriptors."""

    async def work() -> None:
        refused = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        context = {"message": "socket.accept() out of system resource", "exception": refused}
        asyncio.get_running_loop().call_exception_handler(context)

    asyncio.run(until_signal(work()))
    (record,) = caplog.records
    assert record.getMessage() == "socket.accept() out of system resource"
    assert getattr(record, "fields", None) == {"reason": "Too many open files"}
    assert record.exc_info is None

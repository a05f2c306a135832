"""Blocking calls in threads: a call that hangs delays neither the event loop nor other calls.

All are daemon threads: none delays the exit of the process.
"""

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import math
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final, TypeVar

from devhost.hostfs.files import Progress

T = TypeVar("T")

ABANDONED_MAX: Final = 8  # each is a thread
PATIENCE_S: Final = 10.0  # for a filesystem to answer


def run_in_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run ``work`` in a thread; return a future of its result, or raise `OSError`."""
    return asyncio.wrap_future(_begin(name, work))


def call_on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], T]) -> T:
    """Return the result of ``work``, which the event loop runs; for a thread.

    Raises:
        TimeoutError: The loop has not run it in `PATIENCE_S`.
        RuntimeError: The loop has closed.
        Exception: Whatever ``work`` raises.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    loop.call_soon_threadsafe(_settle, future, work)
    return future.result(PATIENCE_S)


def run_in_time(work: Callable[[], T], seconds: float) -> T:
    """Return the result of ``work`` in a thread; for code without an event loop.

    Raises:
        TimeoutError: ``work`` has not returned within so many seconds; the thread goes on.
        Exception: Whatever ``work`` raises.
    """
    future = _begin("in time", work)
    if not concurrent.futures.wait([future], seconds).done:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {seconds:g} s")
    return future.result()


def _begin(name: str, work: Callable[[], T]) -> "concurrent.futures.Future[T]":
    future: concurrent.futures.Future[T] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()  # who waits for it may be cancelled, the call is not

    thread = threading.Thread(target=_settle, args=(future, work), name=name, daemon=True)
    try:
        thread.start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "no thread can be started") from error
    return future


def _settle(future: "concurrent.futures.Future[T]", work: Callable[[], T]) -> None:
    try:
        result = work()
    except BaseException as error:  # noqa: BLE001 (handed to the caller)
        future.set_exception(error)
    else:
        future.set_result(result)


async def wait_at_most(seconds: float | None, work: Callable[[], Awaitable[object]]) -> None:
    """Wait for what ``work`` begins, which is cancelled after so many seconds."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await work()


class NoAnswerError(TimeoutError):
    """A blocking call has not returned in time, or too many earlier ones have not returned."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(errno.ETIMEDOUT, reason, *([] if path is None else [str(path)]))

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.filename, self.strerror)))


class BlockingCalls:
    """Blocking calls to a filesystem, or a plugin, that may hang; bounded in time and number.

    A call that does not return in time is abandoned: its thread stays until it returns. While as
    many calls are abandoned as may be, no further calls are begun. With `serial` calls are made in
    turn, and none before an abandoned call has returned: a late write must not undo a later write.
    A call that was not late, but whose caller was cancelled, the next one waits for.
    The path is for the text of errors.
    """

    def __init__(self, name: str, path: Path | None = None, *, serial: bool = False) -> None:
        self._name, self._path = name, path
        self._abandoned = 0
        self._abandoned_max = 1 if serial else ABANDONED_MAX
        self._turn = asyncio.Lock() if serial else None
        self._cancelled: asyncio.Future[Any] | None = None  # the last call in turn, while it runs

    @property
    def hanging(self) -> bool:
        """Whether as many calls are abandoned as may be."""
        return self._abandoned >= self._abandoned_max

    async def run(
        self,
        work: Callable[[], T],
        *,
        patience: float = math.inf,
        progress: Progress | None = None,
        on_late: Callable[[], object] | None = None,
    ) -> T:
        """Return the result of ``work``, which runs in a thread.

        `patience`, in seconds, is for the call and for the calls that it has to wait for; with
        `progress`, for each answer of the host. `on_late` is called on the event loop when the call
        returns after it was abandoned.

        Raises:
            NoAnswerError: The call has not returned in time, or was not begun because too many
                earlier calls have not returned.
            Exception: Whatever ``work`` raises; an `OSError` also if no thread can be started.
        """
        began = time.monotonic()
        turn, limit = self._turn, asyncio.timeout(patience)
        try:
            async with limit, turn or contextlib.nullcontext():
                if self._cancelled is not None:
                    await asyncio.wait({self._cancelled})
                if self.hanging:
                    reason = f"no answer in {patience:g} s"  # to the earlier calls
                    if patience == math.inf:
                        reason = f"{self._abandoned} earlier calls have not returned"
                    raise NoAnswerError(reason, self._path)
                measured = work
                if progress is not None:
                    progress.note()  # it may have waited for its turn
                    measured = functools.partial(progress.measure, work)
                call = run_in_thread(self._name, measured)
                # From here on what the thread has done counts, however late this process sees it:
                # the event loop may be busy, or without CPU time.
                limit.reschedule(None)
                try:
                    while not call.done():
                        since = began if progress is None else progress.answered_at
                        left = since + patience - time.monotonic()
                        if left <= 0.0:
                            self._abandon(call, on_late)
                            raise NoAnswerError(f"no answer in {patience:g} s", self._path)
                        await asyncio.wait({call}, timeout=left)
                except asyncio.CancelledError:
                    self._abandon(call, on_late)
                    self._cancelled = call if turn is not None else None
                    raise
                return call.result()
        except TimeoutError:
            if not limit.expired():  # an error of the call
                raise
            raise NoAnswerError(f"no answer in {patience:g} s", self._path) from None

    def _abandon(self, call: "asyncio.Future[T]", on_late: Callable[[], object] | None) -> None:
        is_late = not call.done()  # else it has just returned
        self._abandoned += is_late

        def end(call: "asyncio.Future[T]") -> None:
            call.exception()  # nobody waits for it
            self._abandoned -= is_late
            self._cancelled = None
            if on_late is not None:
                on_late()

        call.add_done_callback(end)

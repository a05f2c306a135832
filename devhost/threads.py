"""Blocking calls in threads: nothing that hangs delays the event loop or other calls for long.

Short calls share a thread, because starting one for each costs more than most calls take. While
it is busy for long, more are started. A call that takes long by nature, such as a command, has a
thread to itself. All are daemon threads: none delays the exit of the process.

Measured with a thread for each concurrent call instead: the start of 1,000 resources took 16 %
more CPU, an event with one resource as much as now.

If a result is lost because there is no memory to hand it over, its caller would wait forever. The
process ends then, so that it is started again.
"""

import asyncio
import concurrent.futures
import contextlib
import errno
import functools
import math
import os
import queue
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")

Delivery = Callable[[], None]
Job = Callable[[], Delivery]

REGULAR: Final = 1  # threads of a kind that stay; more would compete for Python's lock
STALL_S: Final = 0.02  # no call was begun for so long: more threads are needed
ABANDONED_MAX: Final = 8  # each is a thread
PATIENCE_S: Final = 10.0  # for a filesystem to answer

_NO_THREAD: Final = "no thread can be started"
_FATAL: Final = b"devhost: cannot go on: out of memory, or a bug in a thread\n"


def end_process() -> NoReturn:
    """End the process as failed, without needing memory or a reader of the log."""
    try:
        os.set_blocking(2, False)
        os.write(2, _FATAL)
    finally:
        os._exit(1)


class _Vital:
    """Ends the process if code fails on which others wait."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception):
            end_process()


_VITAL: Final = _Vital()  # to make one takes memory


def in_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run short ``work`` in a thread; return a future of its result.

    Raises:
        OSError: No thread can be started.
    """
    return _SHORT.submit(name, work)


def in_own_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run ``work`` that may take long in a thread of its own.

    If none can be started now, it begins when one can, or when another one has ended its work.

    Raises:
        OSError: There is none of these threads, and none can be started.
    """
    return _LONG.submit(name, work)


def begun(work: Callable[[], T], name: str) -> "concurrent.futures.Future[T]":
    """Run ``work`` in a thread of its own; for code without an event loop.

    Raises:
        OSError: No thread can be started.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (handed to the caller)
            future.set_exception(error)

    _start(run, name)
    return future


def in_time(work: Callable[[], T], seconds: float) -> T:
    """Return the result of ``work`` in a thread of its own; for code without an event loop.

    Raises:
        TimeoutError: It has not returned within so many seconds; the thread goes on.
        Exception: Whatever ``work`` raises.
    """
    future = begun(work, "start")
    done, _ = concurrent.futures.wait([future], seconds)
    if not done:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {seconds:g} s")
    return future.result()


class NoAnswerError(TimeoutError):
    """A blocking call has not returned in time, or too many earlier ones have not returned."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(errno.ETIMEDOUT, reason, *([] if path is None else [str(path)]))

    def __str__(self) -> str:
        return ": ".join(filter(None, (self.filename, self.strerror)))


_ANY_TIME: Final = contextlib.nullcontext()


class BlockingCalls:
    """Blocking calls to one thing that may hang, such as a filesystem; bounded in time and number.

    A call that does not return in time is abandoned: its thread stays until it returns. While as
    many calls are abandoned as may be, further ones have only ``patience_hanging`` seconds.

    Args:
        name: The name of the threads.
        path: What is used, for the text of errors.
        patience_hanging: Seconds that a call waits for abandoned ones to return.
        serial: One call at a time, in order, and none before an abandoned one has returned: a
            late write must not undo a later one.
        start: Begins a call that is not long; default: `in_thread`.
    """

    __slots__ = (
        "_abandoned",
        "_abandoned_max",
        "_name",
        "_path",
        "_patience_hanging",
        "_start",
        "_turn",
    )

    def __init__(
        self,
        name: str,
        path: Path | None = None,
        *,
        patience_hanging: float = 0.0,
        serial: bool = False,
        start: "Callable[[str, Callable[[], Any]], asyncio.Future[Any]] | None" = None,
    ) -> None:
        self._name, self._path, self._start = name, path, start
        self._patience_hanging = patience_hanging
        self._abandoned: list[asyncio.Future[Any]] = []
        self._abandoned_max = 1 if serial else ABANDONED_MAX
        self._turn = asyncio.Lock() if serial else _ANY_TIME

    @property
    def hanging(self) -> bool:
        """Whether as many calls are abandoned as may be."""
        return len(self._abandoned) >= self._abandoned_max

    async def run(
        self,
        work: Callable[[], T],
        *,
        patience: float = math.inf,
        long: bool = False,
        on_late: Callable[[], object] | None = None,
    ) -> T:
        """Return the result of ``work``, which runs in a thread.

        Args:
            work: The call.
            patience: Seconds for the call, and for those that it has to wait for.
            long: Whether it takes long by nature, and gets a thread of its own.
            on_late: Called on the event loop when the call returns after it was abandoned.

        Raises:
            NoAnswerError: It has not returned in time, or was not begun because too many
                earlier ones have not returned.
            Exception: Whatever ``work`` raises; an `OSError` also if no thread can be started.
        """
        limit = asyncio.timeout(None if patience == math.inf else patience)
        try:
            async with limit:
                await self._none_hanging(patience)
                async with self._turn:
                    await self._none_hanging(patience)  # the call before may have been abandoned
                    call = (in_own_thread if long else self._start or in_thread)(self._name, work)
                    try:
                        return await asyncio.shield(call)
                    except asyncio.CancelledError:
                        self.abandon(call, on_late)
                        raise
        except TimeoutError:
            if not limit.expired():  # what the call raised
                raise
            raise NoAnswerError(f"no answer in {patience:g} s", self._path) from None

    async def _none_hanging(self, patience: float) -> None:
        """Wait for abandoned calls, but not for long: one that hangs may never return."""
        if not self.hanging:
            return  # a timeout, even of 0 s, takes longer than all else here
        try:
            async with asyncio.timeout(self._patience_hanging):
                while self.hanging:
                    await asyncio.wait(self._abandoned, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            reason = f"no answer in {patience:g} s"  # to the earlier ones
            if patience == math.inf:
                reason = f"{len(self._abandoned)} earlier calls have not returned"
            raise NoAnswerError(reason, self._path) from None

    def abandon(
        self, call: "asyncio.Future[Any]", on_late: Callable[[], object] | None = None
    ) -> None:
        """Count a call in a thread, for which nobody waits any more, until it returns."""

        def returned(_: "asyncio.Future[Any]") -> None:
            self._abandoned.remove(call)
            if not call.cancelled():
                call.exception()  # or asyncio logs that nobody has asked for it
            if on_late is not None:
                on_late()

        self._abandoned.append(call)
        call.add_done_callback(returned)


def _start(target: Callable[[], None], name: str) -> None:
    try:
        threading.Thread(target=target, name=name, daemon=True).start()
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, _NO_THREAD) from error


def _job(
    name: str, work: Callable[[], T], loop: asyncio.AbstractEventLoop
) -> "tuple[asyncio.Future[T], Job]":
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # cancelled
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def job() -> Delivery:
        threading.current_thread().name = name
        try:
            return functools.partial(deliver, work(), None)
        except BaseException as error:  # noqa: BLE001 (handed to the caller)
            return functools.partial(deliver, None, error)

    return future, job


def _hand_over(loop: asyncio.AbstractEventLoop, delivery: Delivery) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
        loop.call_soon_threadsafe(_deliver, delivery)


def _deliver(delivery: Delivery) -> None:
    with _VITAL:
        delivery()


class _Workers:
    """Threads for calls of one kind.

    To start one takes longer than most calls, and the event loop waits for it: one that has done
    its work waits for more, unless another one does.

    Args:
        most: How many threads there may be, but for calls that take long although they should not.
    """

    def __init__(self, most: float) -> None:
        self._most = most
        self._jobs: queue.SimpleQueue[tuple[Job, asyncio.AbstractEventLoop]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0
        self._queued = 0
        self._begun = 0  # since the start of the process
        self._watched_by: asyncio.AbstractEventLoop | None = None

    def submit(self, name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
        """Have a thread do some work; the event loop sees to it that one does soon.

        Raises:
            OSError: There is no thread, and none can be started.
        """
        loop = asyncio.get_running_loop()
        future, job = _job(name, work, loop)
        try:
            self._submit(job, loop)
        except MemoryError:
            end_process()
        return future

    def _submit(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            busy = self._queued >= self._idle
            if busy and self._threads < self._most:
                self._grow(1)
            if not self._threads:
                raise OSError(errno.EAGAIN, _NO_THREAD)
            self._queued += 1
            watch = busy and self._watched_by is not loop
            if watch:
                self._watched_by = loop  # another one may have been closed
        self._jobs.put((job, loop))
        if watch:
            self._watch(loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Start more threads whenever jobs are queued and none was begun for a while."""
        begun = self._begun

        def check() -> None:
            with _VITAL, self._lock:
                if self._queued and self._begun == begun:
                    self._grow(min(self._threads, self._queued))
                if not self._queued:
                    self._watched_by = None
                    return
            self._watch(loop)

        loop.call_later(STALL_S, check)

    def _grow(self, count: int) -> None:
        with contextlib.suppress(OSError):
            for _ in range(count):
                _start(self._run, _IDLE)
                self._threads += 1
                self._idle += 1

    def _run(self) -> None:
        with _VITAL:
            current = threading.current_thread()
            while True:
                job, loop = self._jobs.get()
                with self._lock:
                    self._queued -= 1
                    self._begun += 1
                    self._idle -= 1
                delivery = job()
                current.name = _IDLE
                with self._lock:
                    end = self._idle >= REGULAR  # those that hang do not count
                    self._threads -= end
                    self._idle += not end
                _hand_over(loop, delivery)
                del job, loop, delivery  # with all that they hold
                if end:
                    return


_IDLE: Final = "idle"
_SHORT: Final = _Workers(most=REGULAR)
_LONG: Final = _Workers(most=math.inf)

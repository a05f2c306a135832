"""Blocking work beside the event loop, which nothing that hangs holds up for long.

Short work shares a few threads: to start one for each look costs more than the look. Where all
of them wait for a filesystem that does not answer, more are started, so one never holds up
another's work for long, nor, being daemons, the exit of the process. What may take its time by
nature, such as a command, has a thread of its own.

A result that is lost, because there was no memory to hand it over, would be waited for for ever.
So then the process ends, and whoever started it starts it again.
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
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

T = TypeVar("T")

Delivery = Callable[[], None]
Job = Callable[[], Delivery]

REGULAR: Final = 1  # threads that stay; more would only wait for each other's turn in Python
STALL_S: Final = 0.02  # nothing was begun for so long: more threads are needed
BATCH_S: Final = 0.002  # for which results of one job after the other wait for the next


_FATAL: Final = b"devhost: cannot go on: out of memory, or a mistake of ours in a thread\n"


def end_process() -> NoReturn:
    """End the process as failed, with no need of memory, nor of anybody who reads the log."""
    try:
        os.set_blocking(2, False)
        os.write(2, _FATAL)
    finally:
        os._exit(1)


class _Vital:
    """Ends the process if something fails on which others wait."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Exception):
            end_process()


_VITAL: Final = _Vital()  # to make one takes memory


def in_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run short ``work`` in a thread; the future has its result, also if nobody waits any more.

    Raises:
        OSError: No thread can be started.
    """
    loop = asyncio.get_running_loop()
    future, job = _job(name, work, loop)
    try:
        _WORKERS.submit(job, loop)
    except RuntimeError as error:
        raise OSError(errno.EAGAIN, "no thread can be started") from error
    return future


def in_own_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run ``work`` that may take long in a thread of its own."""
    loop = asyncio.get_running_loop()
    future, job = _job(name, work, loop)

    def run() -> None:
        with _VITAL:
            _tell(loop, [job()])

    threading.Thread(target=run, name=name, daemon=True).start()
    return future


def in_time(work: Callable[[], T], seconds: float) -> T:
    """Return the result of ``work`` in a thread of its own; for code without an event loop.

    Raises:
        TimeoutError: There was none within so many seconds. The thread is left to itself; it
            does not hold up the exit of the process.
        Exception: Whatever the work raises.
    """
    future: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (handed to whoever waits)
            future.set_exception(error)

    threading.Thread(target=run, name="start", daemon=True).start()
    done, _ = concurrent.futures.wait([future], seconds)
    if not done:
        raise TimeoutError(errno.ETIMEDOUT, f"no answer in {seconds:g} s")
    return future.result()


ABANDONED_MAX: Final = 8  # each is a thread


class NoAnswerError(TimeoutError):
    """A blocking call has not returned in time, or too many earlier ones have not returned."""

    def __init__(self, reason: str, path: Path | None = None) -> None:
        super().__init__(errno.ETIMEDOUT, reason, *([] if path is None else [str(path)]))


class BlockingCalls:
    """Blocking calls to one thing that may hang, such as a filesystem; bounded in time and number.

    A call that does not return in time is abandoned: its thread stays until it returns. While as
    many calls are abandoned as may be, further ones have only ``patience_hanging`` seconds.

    Args:
        name: Of the threads.
        path: What is used, for the text of errors.
        patience_hanging: Seconds that a call waits for abandoned ones to return.
        serial: One call at a time, in order, and none before an abandoned one has returned: a
            late write must not undo a later one.
    """

    def __init__(
        self,
        name: str,
        path: Path | None = None,
        *,
        patience_hanging: float = 0.0,
        serial: bool = False,
    ) -> None:
        self._name, self._path = name, path
        self._patience_hanging = patience_hanging
        self._abandoned: set[asyncio.Future[Any]] = set()
        self._abandoned_max = 1 if serial else ABANDONED_MAX
        self._turn = asyncio.Lock() if serial else contextlib.nullcontext()

    @property
    def hanging(self) -> bool:
        """Whether as many calls are abandoned as may be."""
        return len(self._abandoned) >= self._abandoned_max

    async def run(
        self,
        work: Callable[[], T],
        *,
        patience: float = math.inf,
        on_late: Callable[[], object] | None = None,
    ) -> T:
        """Return the result of ``work``, which runs in a thread.

        Args:
            work: The call.
            patience: Seconds for the call, and for those that it has to wait for.
            on_late: Called on the event loop when the call returns after it was abandoned.

        Raises:
            NoAnswerError: It has not returned in time, or was not begun because too many
                earlier ones have not returned.
            Exception: Whatever ``work`` raises; an `OSError` also if no thread can be started.
        """
        unlimited = patience == math.inf
        limit = asyncio.timeout(None if unlimited else patience)
        if self.hanging:
            limit = asyncio.timeout(self._patience_hanging)
        try:
            async with limit, self._turn:
                while self.hanging:
                    await asyncio.wait(self._abandoned, return_when=asyncio.FIRST_COMPLETED)
                call = in_thread(self._name, work)
                try:
                    return await asyncio.shield(call)
                except asyncio.CancelledError:
                    self.abandon(call, on_late)
                    raise
        except TimeoutError:
            if not limit.expired():  # what the call raised
                raise
            reason = f"no answer in {patience:g} s"
            if unlimited:
                reason = f"{len(self._abandoned)} earlier calls have not returned"
            raise NoAnswerError(reason, self._path) from None

    def abandon(
        self, call: "asyncio.Future[Any]", on_late: Callable[[], object] | None = None
    ) -> None:
        """Count a call in a thread, for which nobody waits any more, until it returns."""

        def returned(_: "asyncio.Future[Any]") -> None:
            self._abandoned.discard(call)
            if not call.cancelled():
                call.exception()  # or asyncio logs that nobody has asked for it
            if on_late is not None:
                on_late()

        self._abandoned.add(call)
        call.add_done_callback(returned)


def _job(
    name: str, work: Callable[[], T], loop: asyncio.AbstractEventLoop
) -> "tuple[asyncio.Future[T], Job]":
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # whoever waited has given up
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def job() -> Delivery:
        threading.current_thread().name = name
        try:
            return functools.partial(deliver, work(), None)
        except BaseException as error:  # noqa: BLE001 (handed to whoever waits)
            return functools.partial(deliver, None, error)

    return future, job


def _tell(loop: asyncio.AbstractEventLoop, deliveries: Sequence[Delivery]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
        loop.call_soon_threadsafe(_deliver, deliveries)


def _deliver(deliveries: Sequence[Delivery]) -> None:
    with _VITAL:
        for delivery in deliveries:
            delivery()


class _Workers:
    """The threads for short work."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[tuple[Job, asyncio.AbstractEventLoop]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unbegun = 0
        self._begun = 0  # ever
        self._idle = 0
        self._watched_by: asyncio.AbstractEventLoop | None = None
        self._done: dict[asyncio.AbstractEventLoop, list[Delivery]] = {}
        self._told_at = 0.0

    def submit(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        """Have a thread do a job; the loop sees to it that one does soon."""
        try:
            self._submit(job, loop)
        except MemoryError:
            end_process()

    def _submit(self, job: Job, loop: asyncio.AbstractEventLoop) -> None:
        with self._lock:
            self._unbegun += 1
            needed = self._unbegun > self._idle
            start = needed and self._threads < REGULAR
            if start:
                try:
                    self._grow(1)
                except RuntimeError:  # none is to be had
                    if not self._threads:
                        self._unbegun -= 1
                        raise
            watch = needed and self._watched_by is not loop
            if watch:
                self._watched_by = loop  # a former one may have been closed
        self._jobs.put((job, loop))
        if watch:
            self._watch(loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look in a while whether jobs are still begun; as long as some wait for that."""
        begun = self._begun

        def look() -> None:
            with _VITAL:
                look_at_all()

        def look_at_all() -> None:
            with self._lock:
                waiting = self._unbegun
                if waiting and self._begun == begun:
                    with contextlib.suppress(RuntimeError):  # none is to be had
                        self._grow(min(self._threads, waiting))
                if not waiting:
                    self._watched_by = None
            self._tell_all()  # what was done before something that hangs
            if waiting:
                self._watch(loop)

        loop.call_later(STALL_S, look)

    def _grow(self, count: int) -> None:
        for _ in range(count):
            threading.Thread(target=self._run, name=_IDLE, daemon=True).start()
            self._threads += 1
            self._idle += 1

    def _run(self) -> None:
        with _VITAL:
            self._work()

    def _work(self) -> None:
        current = threading.current_thread()
        while True:
            job, loop = self._jobs.get()
            with self._lock:
                self._unbegun -= 1
                self._begun += 1
                self._idle -= 1
            delivery = job()
            current.name = _IDLE
            with self._lock:
                self._done.setdefault(loop, []).append(delivery)
                tell = not self._unbegun or time.monotonic() - self._told_at >= BATCH_S
                end = self._idle >= REGULAR  # those that hang do not count
                if end:
                    self._threads -= 1
                else:
                    self._idle += 1
            del job, loop, delivery  # with all that they hold
            if tell:
                self._tell_all()
            if end:
                return

    def _tell_all(self) -> None:
        """Tell the loops what was done: each once for many jobs, for a loop that wakes up costs."""
        with self._lock:
            done, self._done, self._told_at = self._done, {}, time.monotonic()
        for loop, deliveries in done.items():
            _tell(loop, deliveries)


_IDLE: Final = "idle"
_WORKERS: Final = _Workers()

"""Blocking work beside the event loop, which nothing that hangs holds up for long.

Short work shares a few threads: to start one for each look costs more than the look. Where all
of them wait for a filesystem that does not answer, more are started, so one never holds up
another's work for long, nor, being daemons, the exit of the process. What may take its time by
nature, such as a command, has a thread of its own.
"""

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

REGULAR: Final = 2  # threads that stay
STALL_S: Final = 0.02  # nothing was begun for so long: more threads are needed


def in_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run short ``work`` in a thread; the future has its result, also if nobody waits any more."""
    future, job = _job(name, work)
    _WORKERS.submit(job, asyncio.get_running_loop())
    return future


def in_own_thread(name: str, work: Callable[[], T]) -> "asyncio.Future[T]":
    """Run ``work`` that may take long in a thread of its own."""
    future, job = _job(name, work)
    threading.Thread(target=job, name=name, daemon=True).start()
    return future


def _job(name: str, work: Callable[[], T]) -> "tuple[asyncio.Future[T], Callable[[], None]]":
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def deliver(result: T | None, error: BaseException | None) -> None:
        if future.done():
            return  # whoever waited has given up
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def job() -> None:
        threading.current_thread().name = name
        result, failure = None, None
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001 (handed to whoever waits)
            failure = error
        with contextlib.suppress(RuntimeError):  # the loop has closed: nobody waits
            loop.call_soon_threadsafe(deliver, result, failure)

    return future, job


class _Workers:
    """The threads for short work."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._unbegun = 0
        self._begun = 0  # ever
        self._idle = 0
        self._watched_by: asyncio.AbstractEventLoop | None = None

    def submit(self, job: Callable[[], None], loop: asyncio.AbstractEventLoop) -> None:
        """Have a thread do a job; the loop sees to it that one does soon."""
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
            watch = needed and not start and self._watched_by is not loop
            if watch:
                self._watched_by = loop  # a former one may have been closed
        self._jobs.put(job)
        if watch:
            self._watch(loop)

    def _watch(self, loop: asyncio.AbstractEventLoop) -> None:
        """Look in a while whether jobs are still begun; as long as some wait for that."""
        begun = self._begun

        def look() -> None:
            with self._lock:
                waiting = self._unbegun
                if waiting and self._begun == begun:
                    with contextlib.suppress(RuntimeError):  # none is to be had
                        self._grow(min(self._threads, waiting))
                if not waiting:
                    self._watched_by = None
            if waiting:
                self._watch(loop)

        loop.call_later(STALL_S, look)

    def _grow(self, count: int) -> None:
        for _ in range(count):
            threading.Thread(target=self._work, name=_IDLE, daemon=True).start()
            self._threads += 1
            self._idle += 1

    def _work(self) -> None:
        current = threading.current_thread()
        while True:
            job = self._jobs.get()
            with self._lock:
                self._unbegun -= 1
                self._begun += 1
                self._idle -= 1
            job()
            del job  # with all that it holds
            current.name = _IDLE
            with self._lock:
                if self._idle >= REGULAR:  # those that hang do not count
                    self._threads -= 1
                    return
                self._idle += 1


_IDLE: Final = "idle"
_WORKERS: Final = _Workers()

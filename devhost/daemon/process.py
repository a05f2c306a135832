"""The process of a host: signals, limits, the end."""

import asyncio
import contextlib
import ctypes
import gc
import logging
import resource
import signal
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Final

_OTHER_DESCRIPTORS: Final = 64
_M_ARENA_MAX: Final = -8  # malloc.h
_LOG: Final = logging.getLogger(__name__)


def allocate_from_one_arena() -> None:
    """Keep the memory of all threads in one arena of glibc: they take turns anyway."""
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)


def collect_garbage_rarely() -> None:
    """Collect reference cycles less often: of 10,000 devices, each whole collection takes 50 ms."""
    gc.set_threshold(10_000)


def raise_descriptor_limit(resources: int) -> None:
    """Raise the limit of file descriptors as far as allowed, and warn if it is too low."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    # A socket and a connection for each resource, and those of the process.
    if soft != resource.RLIM_INFINITY and soft < (needed := 2 * resources + _OTHER_DESCRIPTORS):
        fields = {"limit": soft, "needed": needed}
        _LOG.warning("the limit of file descriptors is too low", extra={"fields": fields})


def can_start_threads(count: int) -> bool:
    """Return whether `count` more threads can run at a time; without them gRPC crashes."""
    end = threading.Event()
    try:
        for _ in range(count):
            threading.Thread(target=end.wait, daemon=True).start()
    except RuntimeError:
        return False
    finally:
        end.set()
    return True


async def wait_for_signal(
    work: Coroutine[Any, Any, None], on_hangup: Callable[[], object] | None = None
) -> None:
    """Run ``work`` until it ends; cancel it at SIGTERM or SIGINT.

    Afterwards these signals, and SIGHUP, are ignored, because the process ends.
    """
    task = asyncio.create_task(work, name="main")
    loop, ends = asyncio.get_running_loop(), (signal.SIGTERM, signal.SIGINT)
    ending = False

    # Not `loop.add_signal_handler`: a loop that closes restores the default actions, so that a
    # second SIGTERM would kill a process that is about to exit 0.
    # A signal that comes just before the loop sleeps is handled when it wakes, after 0.5 s at most.
    # No handler ignores signals: Python would complain of one that has come at the same time.
    def end(_number: int, _frame: object) -> None:
        nonlocal ending
        if not ending:
            ending = True
            loop.call_soon_threadsafe(task.cancel)

    def hang_up(_number: int, _frame: object) -> None:
        if on_hangup is not None:
            loop.call_soon_threadsafe(on_hangup)

    signal.signal(signal.SIGHUP, hang_up)
    for number in ends:
        signal.signal(number, end)
    try:
        await asyncio.wait({task})
    except asyncio.CancelledError:  # by SIGINT, before it was handled here
        task.cancel()
        await asyncio.wait({task})
    finally:
        for number in (*ends, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
    if not task.cancelled():
        task.result()  # raises its exception

"""The process around a host: signals, limits, the end."""

import asyncio
import contextlib
import logging
import resource
import signal
from collections.abc import Callable, Coroutine
from typing import Any, Final

from devhost.memory import settle

_SETTLE_AFTER_S: Final = 10.0  # by then a start is over
_OTHERS: Final = 64
_LOG: Final = logging.getLogger(__name__)


def raise_descriptor_limit(resources: int) -> None:
    """Use as many descriptors as allowed, and say if that is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    # A socket and a connection for each resource; the rest is ours, or passes.
    if soft != resource.RLIM_INFINITY and soft < (needed := 2 * resources + _OTHERS):
        fields = {"limit": soft, "needed": needed}
        _LOG.warning("too few file descriptors are allowed", extra={"fields": fields})


async def until_signal(
    work: Coroutine[Any, Any, None], on_hangup: Callable[[], object] | None = None
) -> None:
    """Run ``work`` until it ends, or until SIGTERM or SIGINT; then cancel it and wait.

    Args:
        work: The whole of the program.
        on_hangup: Called at SIGHUP, which otherwise would end the process.
    """
    task = asyncio.create_task(work, name="main")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        _on_signal(number, loop, task.cancel)
    _on_signal(signal.SIGHUP, loop, on_hangup or (lambda: None))
    loop.call_later(_SETTLE_AFTER_S, settle)
    with contextlib.suppress(asyncio.CancelledError):
        await task


def _on_signal(
    number: int, loop: asyncio.AbstractEventLoop, callback: Callable[[], object]
) -> None:
    """Call back on the loop at a signal, also when the loop is busy.

    `add_signal_handler` alone learns of it from a byte in the loop's pipe; where threads have
    filled that with theirs, the signal would be lost. The byte is what wakes the loop up.
    """

    def handle(_number: int, _frame: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop has closed: the end is near anyway
            loop.call_soon_threadsafe(callback)

    loop.add_signal_handler(number, lambda: None)
    signal.signal(number, handle)
    signal.set_wakeup_fd(signal.set_wakeup_fd(-1), warn_on_full_buffer=False)

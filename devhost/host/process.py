"""The process of a host: signals, limits, the end.

It is imported before all else, so it imports nothing large.
"""

import contextlib
import logging
import os
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import asyncio

_OTHER_DESCRIPTORS: Final = 64
_LOG: Final = logging.getLogger(__name__)


def exit_on_signals() -> None:
    """Exit with 0 on SIGTERM and SIGINT until `until_signal` handles them.

    The handlers do not raise: an import that is interrupted by an exception may replace or ignore
    it. Handlers are needed because process 1 ignores SIGTERM by default. SIGHUP is ignored: its
    default action ends the process, and the file has yet to be read anyway.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(_number: int, _frame: object) -> None:
    logging.shutdown()
    os._exit(0)


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


async def until_signal(
    work: Coroutine[Any, Any, None], on_hangup: Callable[[], object] | None = None
) -> None:
    """Run ``work`` until it ends; cancel it at SIGTERM or SIGINT.

    Afterwards these signals, and SIGHUP, are ignored, because the process ends.
    """
    import asyncio  # noqa: PLC0415 (large)

    task = asyncio.create_task(work, name="main")
    loop = asyncio.get_running_loop()
    callbacks: dict[int, Callable[[], object]] = {
        signal.SIGTERM: task.cancel,
        signal.SIGINT: task.cancel,
        signal.SIGHUP: on_hangup or (lambda: None),
    }
    with _signals(loop, callbacks):
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:  # by SIGINT, before it was handled here
            task.cancel()
            await asyncio.wait({task})
        if not task.cancelled():
            task.result()  # raises its exception


@contextlib.contextmanager
def _signals(
    loop: "asyncio.AbstractEventLoop", callbacks: Mapping[int, Callable[[], object]]
) -> Iterator[None]:
    """Call back on the loop at signals, except SIGHUP only once; at the end they are ignored.

    Not `loop.add_signal_handler`: it receives signals by a byte in the loop's own pipe, which
    threads may have filled, and a loop that closes restores the default actions, so that a second
    SIGTERM would kill a process that is about to exit 0. The byte in the pipe here only wakes the
    loop.
    """
    ended = False

    def handle(number: int, _frame: object) -> None:
        nonlocal ended
        if not ended:
            ended = number != signal.SIGHUP
            loop.call_soon_threadsafe(callbacks[number])

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.setblocking(False)
        theirs.setblocking(False)
        loop.add_reader(ours, lambda: ours.recv(4096))
        signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        for number in callbacks:
            signal.signal(number, handle)
        try:
            yield
        finally:
            for number in callbacks:
                signal.signal(number, signal.SIG_IGN)
            signal.set_wakeup_fd(-1)
            loop.remove_reader(ours)

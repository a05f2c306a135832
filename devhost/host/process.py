"""The process around a host: signals, limits, the end."""

import asyncio
import contextlib
import resource
import signal
from collections.abc import Callable, Coroutine
from typing import Any


def raise_descriptor_limit() -> None:
    """Use as many descriptors as allowed: two for each resource, and 1024 is soon reached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


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
        loop.add_signal_handler(number, task.cancel)
    loop.add_signal_handler(signal.SIGHUP, on_hangup or (lambda: None))
    with contextlib.suppress(asyncio.CancelledError):
        await task

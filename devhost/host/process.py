"""The process around a host: signals, limits, the end."""

import asyncio
import contextlib
import logging
import resource
import signal
from collections.abc import Coroutine
from typing import Any, Final

_LOG: Final = logging.getLogger(__name__)


def raise_descriptor_limit() -> None:
    """Use as many descriptors as allowed: two for each resource, and 1024 is soon reached."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


async def until_signal(work: Coroutine[Any, Any, None]) -> None:
    """Run ``work`` until it ends, or until SIGTERM or SIGINT; then cancel it and wait."""
    task = asyncio.create_task(work, name="main")
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    # By default it would end the process, which is not what whoever sends it wants.
    loop.add_signal_handler(signal.SIGHUP, _LOG.warning, "reloading is not supported yet: restart")
    with contextlib.suppress(asyncio.CancelledError):
        await task

"""The long tasks of a host: one that fails is started again."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final

CRASH_PAUSE_S, CRASH_PAUSE_MAX_S = 1.0, 60.0
_LOG: Final = logging.getLogger(__name__)


async def keep_running(
    kind: str,
    name: str,
    work: Callable[[], Awaitable[object]],
    failed: Callable[[Exception], object] = lambda _error: None,
    fatal: type[Exception] | tuple[()] = (),
) -> None:
    """Run `work` until it returns; run it again, after a growing pause, when it raises.

    `kind` and `name` are for the log; `failed` gets each exception, but a `fatal` one is raised.
    """
    clock, pause = asyncio.get_running_loop().time, CRASH_PAUSE_S
    while True:
        began = clock()
        try:
            await work()
        except fatal:
            raise
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("%s failed", kind, extra={"fields": {kind: name}})
            failed(error)
            if clock() - began > CRASH_PAUSE_MAX_S:
                pause = CRASH_PAUSE_S
            await asyncio.sleep(pause)
            pause = min(pause * 2, CRASH_PAUSE_MAX_S)
        else:
            return

"""The slow rescan: makes harmless that something was not told.

What the directories' events tell needs none; still one resource after the other is looked at,
one a round, so that a thousand cost what one costs. Where there are no events, see `Runner`.
"""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final, Protocol

RESCAN_S: Final = 30.0


class Rescanned(Protocol):
    """A resource that can look at everything again."""

    def rescan(self) -> None:
        """Look at everything again, also whether the watches are right."""
        ...


async def rotate(resources: Callable[[], Mapping[str, Rescanned]]) -> None:
    """Rescan one resource every `RESCAN_S`, for ever."""
    waiting: list[str] = []
    while True:
        await asyncio.sleep(RESCAN_S)
        current = resources()
        waiting = [name for name in waiting if name in current] or list(current)[::-1]
        if waiting:
            current[waiting.pop()].rescan()

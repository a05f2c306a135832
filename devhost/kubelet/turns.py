"""How many registrations begin at a time."""

import asyncio
from typing import Final

_AT_A_TIME: Final = 32
_LONG_S: Final = 0.5


class Turn:
    """A place among those that begin; ending it again does nothing."""

    __slots__ = ("_limit", "_places")

    def __init__(self, places: asyncio.Semaphore) -> None:
        self._places: asyncio.Semaphore | None = places
        self._limit = asyncio.get_running_loop().call_later(_LONG_S, self.end)

    def end(self) -> None:
        """Let the next one begin."""
        self._limit.cancel()
        if self._places is not None:
            self._places.release()
            self._places = None


class Turns:
    """Has a thousand resources register one after the other, some at a time.

    All at once would take memory that the process never gives back. One that takes long, because
    the kubelet or another instance hangs, does not hold the others up.
    """

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(_AT_A_TIME)

    async def next(self) -> Turn:
        """Wait for a place."""
        await self._places.acquire()
        return Turn(self._places)

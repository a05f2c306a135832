"""How many resources do something at a time, such as to register."""

import asyncio
from typing import Final

_AT_A_TIME: Final = 32
_LONG_S: Final = 0.5


class Turn:
    """A place among those that begin; ending it again does nothing."""

    __slots__ = ("_limit", "_places")

    def __init__(self, places: asyncio.Semaphore, long_s: float) -> None:
        self._places: asyncio.Semaphore | None = places
        self._limit = asyncio.get_running_loop().call_later(long_s, self.end)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        self.end()

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

    Args:
        at_a_time: How many resources.
        long_s: After so many seconds the next one begins, too.
    """

    def __init__(self, at_a_time: int = _AT_A_TIME, long_s: float = _LONG_S) -> None:
        self._places, self._long_s = asyncio.Semaphore(at_a_time), long_s

    async def next(self) -> Turn:
        """Wait for a place."""
        await self._places.acquire()
        return Turn(self._places, self._long_s)

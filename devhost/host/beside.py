"""Looks at the host in threads, of which a sick filesystem holds few."""

import asyncio
from collections.abc import Callable
from typing import Final, TypeVar

from devhost.errors import PreStartError
from devhost.threads import in_thread

T = TypeVar("T")

_STUCK_MAX: Final = 8  # looks that a filesystem owes; each is a thread


class Beside:
    """Runs looks at the host in threads; a filesystem that does not answer gets few of them."""

    def __init__(self) -> None:
        self._stuck = 0

    async def do(self, name: str, work: Callable[[], T]) -> T:
        """Return the work's result.

        Raises:
            PreStartError: Too many former ones have not come back.
            Exception: Whatever the work raises.
        """
        if self._stuck >= _STUCK_MAX:
            raise PreStartError(f"the host did not answer the last {_STUCK_MAX} looks")
        future = in_thread(name, work)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.leave(future)
            raise

    def leave(self, future: "asyncio.Future[T]") -> None:
        """Wait no longer for a look, but count it as long as it has not come back."""
        if not future.done():
            self._stuck += 1
            future.add_done_callback(self._unstuck)

    def _unstuck(self, future: "asyncio.Future[T]") -> None:
        self._stuck -= 1
        if not future.cancelled():
            future.exception()  # nobody waits for it any more

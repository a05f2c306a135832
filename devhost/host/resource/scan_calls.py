"""The blocking part of the scans of one resource, in a thread; it waits only so long."""

import asyncio
from collections.abc import Callable, Iterable
from typing import TypeVar

from devhost.host import inventory
from devhost.host.looking import around_hung
from devhost.threads import BlockingCalls, NoAnswerError

T = TypeVar("T")


class ScanCalls:
    """Runs the blocking work of one resource, one call at a time.

    Args:
        name: The resource's name.
        on_late: Called when a call has returned for which nobody waited any longer.
        own: Returns the directories that the work is about, if they are known.
    """

    def __init__(
        self,
        name: str,
        on_late: Callable[[], None],
        own: Callable[[], Iterable[str] | None] = lambda: None,
    ) -> None:
        self._on_late, self._own = on_late, own
        self._seconds = inventory.ANSWER_S
        self._calls = BlockingCalls(
            f"scan {name}", serial=True, patience_hanging=self._seconds, start=self._start
        )
        self._given_up = False

    def _start(self, name: str, work: Callable[[], T]) -> asyncio.Future[T]:
        seconds = inventory.ANSWER_S / 2
        return asyncio.ensure_future(around_hung(name, work, self._own, seconds))

    async def run(self, work: Callable[[], T]) -> T:
        """Return the result of work in a thread.

        Raises:
            NoAnswerError: It has not returned in time, or an earlier call has not.
            Exception: Whatever the work raises.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()

        def late() -> None:
            if self._given_up:  # else the wait was cancelled, as by a reload
                self._given_up = False
                self._seconds = inventory.longer(self._seconds, loop.time() - began)
                self._on_late()

        try:
            return await self._calls.run(work, patience=self._seconds, on_late=late)
        except NoAnswerError:
            self._given_up = True
            raise

"""The blocking part of the scans of one resource, in a thread; it waits only so long."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

from devhost.host import inventory
from devhost.threads import BlockingCalls, NoAnswerError

T = TypeVar("T")


class ScanCalls:
    """Runs the blocking work of one resource, one call at a time.

    Args:
        name: The resource's name.
        on_late: Called when a call has returned for which nobody waited any longer.
    """

    def __init__(
        self,
        name: str,
        on_late: Callable[[], None],
    ) -> None:
        self._on_late = on_late
        self._seconds = inventory.ANSWER_S
        self._calls = BlockingCalls(f"scan {name}", serial=True, patience_hanging=self._seconds)
        self._given_up = False

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

"""Waits for the host only so long."""

import asyncio
from collections.abc import Callable
from typing import Any, Final, TypeVar

from devhost.host import inventory
from devhost.threads import in_thread

T = TypeVar("T")

_MAX_S: Final = 60.0


class Patience:
    """Runs blocking work, one at a time; what comes late is announced, for it is not waited for.

    Args:
        late: Called when work has ended that was given up.
    """

    def __init__(self, late: Callable[[], None]) -> None:
        self._late = late
        self._seconds = inventory.ANSWER_S
        self._job: asyncio.Future[Any] | None = None
        self._given_up = False

    async def run(self, name: str, work: Callable[[], T]) -> T:
        """Return the result of work in a thread.

        Raises:
            TimeoutError: It has not come back in time, or what was begun before has not.
            Exception: Whatever the work raises.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        if self._job is not None:
            await self._wait(began)
        job = self._job = in_thread(name, work)
        started = loop.time()

        def ended(job: asyncio.Future[Any]) -> None:
            if not job.cancelled():
                job.exception()  # perhaps nobody waits for it any more
            if self._job is job:
                self._job = None
            if self._given_up:
                self._given_up = False
                # What is slow and not dead is given more time from then on, or it would flap.
                taken = loop.time() - started
                self._seconds = min(max(self._seconds, 2 * taken), _MAX_S)
                self._late()

        job.add_done_callback(ended)
        await self._wait(began)
        result: T = job.result()
        return result

    async def _wait(self, began: float) -> None:
        if self._job is None:
            return
        left = began + self._seconds - asyncio.get_running_loop().time()
        done, _ = await asyncio.wait({self._job}, timeout=max(0.0, left))
        if not done:
            self._given_up = True
            raise TimeoutError

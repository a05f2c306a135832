"""What `asyncio.Event` is, for those of which there are thousands."""

import asyncio


class Flag:
    """An event without a queue, which takes 700 bytes, while few wait or nobody does."""

    __slots__ = ("_set", "_waiters")

    def __init__(self) -> None:
        self._set = False
        self._waiters: list[asyncio.Future[None]] | None = None

    def set(self) -> None:
        """Wake all that wait, and let go whoever waits from now on."""
        self._set = True
        waiters, self._waiters = self._waiters, None
        for waiter in waiters or ():
            if not waiter.done():
                waiter.set_result(None)

    def clear(self) -> None:
        """Have others wait from now on."""
        self._set = False

    async def wait(self) -> None:
        """Wait until it is set."""
        if self._set:
            return
        waiter = asyncio.get_running_loop().create_future()
        if self._waiters is None:
            self._waiters = []
        self._waiters.append(waiter)
        await waiter

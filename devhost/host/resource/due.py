"""Whether something may have changed since the last look, and where."""

import asyncio
import math


class Due:
    """Collects reasons to look again; a burst of them is one look. One task waits for them."""

    def __init__(self) -> None:
        self._due = True
        self._paths: set[str] | None = None
        self._waiter: asyncio.Future[None] | None = None

    def __bool__(self) -> bool:
        return self._due

    def tell(self, path: str | None = None) -> None:
        """Something may have changed; at one path, if that is known."""
        if path is None:
            self._paths = None
        elif self._paths is not None:
            self._paths.add(path)
        self._due = True
        self._wake()

    def take(self) -> set[str] | None:
        """Begin anew; return the paths that changed, or ``None`` if anything may have."""
        paths, self._paths = self._paths, set()
        self._due = False
        return paths

    async def wait(self, seconds: float) -> bool:
        """Wait for a reason, but not longer; return whether there is one."""
        if not self._due:
            loop = asyncio.get_running_loop()
            self._waiter = loop.create_future()
            if seconds == math.inf:
                await self._waiter
            else:
                timer = loop.call_later(max(seconds, 0.0), self._wake)
                try:
                    await self._waiter
                finally:
                    timer.cancel()
        return self._due

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

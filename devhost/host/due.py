"""Whether something may have changed since the last look, and where."""

import asyncio
import contextlib


class Due:
    """Collects reasons to look again; a burst of them is one look."""

    def __init__(self) -> None:
        self._event = asyncio.Event()
        self._paths: set[str] | None = set()
        self.tell()

    def __bool__(self) -> bool:
        return self._event.is_set()

    def tell(self, path: str | None = None) -> None:
        """Something may have changed; at one path, if that is known."""
        if path is None:
            self._paths = None
        elif self._paths is not None:
            self._paths.add(path)
        self._event.set()

    def take(self) -> set[str] | None:
        """Begin anew; return the paths that changed, or ``None`` if anything may have."""
        paths, self._paths = self._paths, set()
        self._event.clear()
        return paths

    async def wait(self, seconds: float) -> bool:
        """Wait for a reason, but not longer; return whether there is one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(seconds, 0.0)):
                await self._event.wait()
        return self._event.is_set()

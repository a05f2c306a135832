"""Saves the configuration in force to the state directory, apart from following its file."""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final

from devhost.host.config.last_good import LastGood
from devhost.threads import in_thread

PATIENCE_S: Final = 10.0  # more than a write waits for the lock
_RETRY_S: Final = 1.0
_RETRY_MAX_S: Final = 30.0
_LOG: Final = logging.getLogger(__name__)


class ConfigSaver:
    """Keeps the last good copy up to date; a state directory that hangs delays only this.

    Args:
        last_good: The copy.
        on_change: Called with the reason why the configuration is not saved, or with ``None``
            when it is.
    """

    def __init__(self, last_good: LastGood, on_change: Callable[[str | None], None]) -> None:
        self._last_good, self._on_change = last_good, on_change
        self._latest = b""
        self._due = asyncio.Event()
        self._problem: str | None = None

    def save(self, raw: bytes) -> None:
        """Have a configuration saved in place of any former one; returns immediately."""
        self._latest = raw
        self._due.set()

    async def run(self) -> None:
        """Save what `save` was called with, until cancelled; retry what fails."""
        pause = _RETRY_S
        await self._due.wait()
        while True:
            self._due.clear()
            saved = await self._save(self._latest)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if saved else pause):
                    await self._due.wait()
            pause = _RETRY_S if saved else min(pause * 2, _RETRY_MAX_S)

    async def _save(self, raw: bytes) -> bool:
        try:
            writing = in_thread("save config", lambda: self._last_good.write(raw))
            writing.add_done_callback(lambda late: late.cancelled() or late.exception())
            await asyncio.wait({writing}, timeout=PATIENCE_S)
            if not writing.done():
                self._tell(f"no answer in {PATIENCE_S:g} s")
                # Only one write at a time: a late one must not replace a newer configuration.
                await asyncio.wait({writing})
            writing.result()
        except (OSError, RuntimeError) as error:  # RuntimeError: no thread can be started
            self._tell(getattr(error, "strerror", None) or str(error))
            return False
        if not self._due.is_set():  # nothing newer waits
            self._tell(None)
        return True

    def _tell(self, reason: str | None) -> None:
        problem = reason and f"{self._last_good.path}: {reason}"
        if problem == self._problem:
            return
        if problem:
            _LOG.warning("cannot save the last good configuration: %s", problem)
        else:
            _LOG.info("the last good configuration is saved again")
        self._problem = problem
        self._on_change(problem)

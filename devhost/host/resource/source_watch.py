"""Has the directories watched in which one resource's sources look."""

import asyncio
from collections.abc import Callable
from typing import Final

from devhost.discovery.match import WatchRoot
from devhost.discovery.roots import is_silent
from devhost.discovery.scan import Scanner
from devhost.threads import in_thread
from devhost.watch.targets import WatchTarget
from devhost.watch.watcher import Watcher

_WAIT_S: Final = 1.0


class SourceWatch:
    """The watches of one resource."""

    def __init__(self, watcher: Watcher, look_again: Callable[[str | None], None]) -> None:
        self._subscription, self._look_again = watcher.subscribe(look_again), look_again
        self._of: Scanner | None = None
        self._arranging: asyncio.Task[None] | None = None
        self._roots: frozenset[WatchRoot] = frozenset()  # for which they are, or were, arranged

    def of(self, scanner: Scanner) -> bool:
        """Whether they are, or are becoming, those of a declaration."""
        return self._of is scanner

    @property
    def degraded(self) -> bool:
        """Whether not all can be watched, so that it has to be looked at regularly."""
        return self._subscription.degraded

    @property
    def directories(self) -> frozenset[str] | None:
        """The directories in which the sources look; ``None`` where that is not known."""
        arranging = self._arranging
        if arranging is None or not arranging.done():
            return None
        if arranging.cancelled() or arranging.exception() is not None:
            return None
        return self._subscription.directories

    def doubt(self) -> None:
        """Have `arrange` see that they are still right."""
        self._of = None

    async def arrange(self, scanner: Scanner) -> None:
        """Watch where the sources look, or see that the watches are still right.

        It is waited for, so that nothing is missed, but not for long: the filesystem may not
        answer. Then that is noticed by the survey, this is not tried twice at a time, and in the
        end it is looked again, for what came between the survey and the watch.
        """
        self._of = scanner
        roots = scanner.watch_roots()
        if self._arranging is None or self._arranging.done() or self._roots != roots:
            self._cancel()
            self._roots = roots
            work = self._arrange(scanner, roots)
            self._arranging = asyncio.create_task(work, name=f"watch {scanner.resource.name}")
        _, late = await asyncio.wait({self._arranging}, timeout=_WAIT_S)
        for one in late:
            one.add_done_callback(self._arranged_late)

    def _arranged_late(self, arranging: "asyncio.Task[None]") -> None:
        if not arranging.cancelled():
            self._look_again(None)

    async def _arrange(self, scanner: Scanner, roots: frozenset[WatchRoot]) -> None:
        files = scanner.files
        targets = await in_thread(
            f"watch {scanner.resource.name}",
            lambda: frozenset(
                WatchTarget(files.to_local(files.resolve(root.path)), root.recursive)
                for root in roots
                if not is_silent(root.path)
            ),
        )
        await self._subscription.watch(targets)

    def end(self) -> None:
        """Watch nothing more."""
        self._cancel()
        self._of = None
        self._subscription.close()

    def _cancel(self) -> None:
        if self._arranging is not None:
            self._arranging.cancel()

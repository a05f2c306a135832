"""Listening to a watcher, and seeing what the kernel has of it."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from devhost.watch.targets import WatchTarget
from devhost.watch.watcher import Subscription, Watcher


class Listener:
    """Collects what a watcher calls back with."""

    subscription: Subscription

    def __init__(self, watcher: Watcher | None = None) -> None:
        self._paths: asyncio.Queue[str | None] = asyncio.Queue()
        self.callback: Callable[[str | None], None] = self._paths.put_nowait
        if watcher is not None:
            self.subscription = watcher.subscribe(self.callback)

    async def watch(self, path: str | Path, **kind: Any) -> None:
        """Watch a directory instead of the former one."""
        await self.subscription.watch(target(path, **kind))

    async def until(self, path: str | Path | None) -> list[str | None]:
        """Wait for a path; return what came before it."""
        before: list[str | None] = []
        expected = None if path is None else str(path)
        async with asyncio.timeout(60):
            while (came := await self._paths.get()) != expected:
                before.append(came)
        return before


def target(path: str | Path, **kind: Any) -> frozenset[WatchTarget]:
    """Return a directory as the only target."""
    return frozenset({WatchTarget(str(path), **kind)})


async def listen(watcher: Watcher, path: Path, **kind: Any) -> Listener:
    """Watch a directory."""
    listener = Listener(watcher)
    await listener.watch(path, **kind)
    return listener


async def settled(watcher: Watcher, place: Path) -> None:
    """Wait until all events so far are delivered, and the watches are right again.

    The event that is made last comes last. ``place`` is a directory that does not exist yet.
    """
    place.mkdir()  # noqa: ASYNC240
    last = await listen(watcher, place)
    (place / "x").touch()
    await last.until(place / "x")
    last.subscription.close()
    while pending := [one._resolving for one in watcher.subscriptions if one._resolving]:
        await asyncio.wait(pending)


def descriptors() -> dict[str, str]:
    """Return what this process has open."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = os.readlink(path)
        except FileNotFoundError:  # that of this loop
            continue
    return found


def instances() -> int:
    """Return how many instances of inotify this process has."""
    return list(descriptors().values()).count("anon_inode:inotify")


def watches() -> int:
    """Return how many directories this process watches."""
    return sum(
        Path(f"/proc/self/fdinfo/{number}").read_text().count("inotify wd:")
        for number, what in descriptors().items()
        if what == "anon_inode:inotify"
    )

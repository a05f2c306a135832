"""Listening to a watcher, and seeing what the kernel has of it."""

import asyncio
import os
import tempfile
from pathlib import Path
from typing import Any

from devhost.watch.watcher import Subscription, Watcher, WatchTarget


class Listener:
    """Notes when a watcher calls back."""

    def __init__(self, watcher: Watcher) -> None:
        self.called = asyncio.Event()
        self.subscription: Subscription = Subscription(watcher, self.called.set)

    async def watch(self, path: str | Path, **kind: Any) -> None:
        """Watch a directory instead of the former one."""
        await self.subscription.watch(target(path, **kind))

    async def call(self) -> None:
        """Wait for a call since the last one that was waited for."""
        await self.called.wait()
        self.called.clear()


def target(path: str | Path, **kind: Any) -> frozenset[WatchTarget]:
    """Return a directory as the only target."""
    return frozenset({WatchTarget(str(path), **kind)})


async def listen(watcher: Watcher, path: str | Path, **kind: Any) -> Listener:
    """Watch a directory."""
    listener = Listener(watcher)
    await listener.watch(path, **kind)
    return listener


async def settled(watcher: Watcher) -> None:
    """Wait until all events so far are delivered, and the watches are right again.

    The event that is made last comes last.
    """
    with tempfile.TemporaryDirectory() as place:
        last = await listen(watcher, place)
        last.called.clear()
        Path(place, "x").touch()  # noqa: ASYNC240
        await last.call()
        last.subscription.close()
    tasks = [subscription._arranging for subscription in watcher.subscriptions]
    while pending := [task for task in tasks if task and not task.done()]:
        await asyncio.wait(pending)
        tasks = [subscription._arranging for subscription in watcher.subscriptions]


async def hears(watcher: Watcher, listener: Listener, path: str | Path) -> bool:
    """Return whether a fresh file in a directory is an event, when all is settled."""
    await settled(watcher)
    listener.called.clear()
    with tempfile.NamedTemporaryFile(dir=path):
        await settled(watcher)
        return listener.called.is_set()


def descriptors() -> dict[str, str]:
    """Return what this process has open."""
    links = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            links[path.name] = os.readlink(path)
        except FileNotFoundError:  # that of this loop
            continue
    return links


def instances() -> int:
    """Return how many instances of inotify this process has."""
    return list(descriptors().values()).count("anon_inode:inotify")


def watches() -> int:
    """Return how many directories this process watches."""
    return sum(
        Path(f"/proc/self/fdinfo/{number}").read_text().count("inotify wd:")
        for number, link in descriptors().items()
        if link == "anon_inode:inotify"
    )

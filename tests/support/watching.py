"""Listening to a watcher, and seeing what the kernel has of it."""

import asyncio
import os
from collections.abc import Callable
from pathlib import Path

from devhost.watch.spots import Spot
from devhost.watch.watcher import Watcher


class Told:
    """The paths that a watcher calls back with."""

    def __init__(self) -> None:
        self._paths: asyncio.Queue[str | None] = asyncio.Queue()
        self.look_again: Callable[[str | None], None] = self._paths.put_nowait

    async def until(self, path: str | Path | None) -> list[str | None]:
        """Wait until a path is told; return what was told before it."""
        before: list[str | None] = []
        wanted = None if path is None else str(path)
        async with asyncio.timeout(5):
            while (told := await self._paths.get()) != wanted:
                before.append(told)
        return before


async def told(watcher: Watcher, path: Path, key: str = "k", **kind: bool) -> Told:
    """Watch a directory."""
    one = Told()
    await watcher.watch(key, frozenset({Spot(str(path), **kind)}), one.look_again)
    return one


async def settled(watcher: Watcher, place: Path) -> None:
    """Wait until all events so far are delivered, and the watches are arranged by them.

    The event that is made last comes last. ``place`` is a directory that is not there yet.
    """
    place.mkdir()  # noqa: ASYNC240
    last = await told(watcher, place, "settle")
    (place / "x").touch()
    await last.until(place / "x")
    watcher.unwatch("settle")
    while looks := [one.looking for one in watcher._wanted.values() if one.looking]:
        await asyncio.wait(looks)


def descriptors() -> dict[str, str]:
    """Return what this process has open."""
    found = {}
    for path in Path("/proc/self/fd").iterdir():
        try:
            found[path.name] = os.readlink(path)
        except FileNotFoundError:  # that of looking
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

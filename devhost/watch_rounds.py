"""Looks now and then whether watched directories are as their events have told.

Of some changes there is no event: on a filesystem that others write, too, or further up than is
watched. A directory whose modification time or identity is another one, while nothing was told,
is looked at again.
"""

import asyncio
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from devhost.threads import in_thread
from devhost.watch_spots import Spot
from devhost.watch_wanted import Seen, Wanted

ROUND_S: Final = 30.0


class Rounds:
    """Goes round all spots; one whose filesystem does not answer is left out until it does."""

    def __init__(
        self, wanted: Callable[[], Iterable[Wanted]], renew: Callable[[Iterable[Spot]], None]
    ) -> None:
        self._wanted, self._renew = wanted, renew
        self._stuck: set[Spot] = set()

    async def run(self) -> None:
        """Go round for ever."""
        while True:
            await asyncio.sleep(ROUND_S)
            await self.go(ROUND_S)

    async def go(self, patience: float) -> None:
        """Go round once, but wait for a filesystem only so many seconds."""
        asked = [
            (one, one.seen, one.inside.keys() | {one.spot.path})
            for one in self._wanted()
            if one.spot not in self._stuck
        ]
        now: list[Seen] = []
        looking = in_thread("round", lambda: _look([paths for _, _, paths in asked], now))
        done, _ = await asyncio.wait({looking}, timeout=patience)
        if not done:
            stuck = {one.spot for one, _, _ in asked[len(now) :][:1]}  # none, if it ends just now
            self._stuck |= stuck
            looking.add_done_callback(lambda _: self._stuck.difference_update(stuck))
        differing = []
        for (one, before, _), seen in zip(asked, tuple(now), strict=False):
            if one.seen is before:  # else something was told meanwhile
                if before not in (None, seen):
                    differing.append(one.spot)
                one.seen = seen
        self._renew(differing)


def _look(asked: Sequence[Iterable[str]], now: list[Seen]) -> None:
    for paths in asked:
        now.append({path: _seen(path) for path in paths})  # noqa: PERF401 (its length tells how far it is)


def _seen(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_mtime_ns

"""Watching directories: events never carry state, they only say "look again".

watchdog is behind a small interface so that what is under it can change. Its traps, and
what is done about them: files are never watched, only directories (a ConfigMap swaps links);
a directory that is not there is waited for at its nearest existing ancestor; a watch dies
with its directory, so the ancestor's events set it up anew; one event filter everywhere,
because two filters on one directory replace each other; and what inotify cannot give
(limits, lost events) is left to the caller's slow rescan.
"""

import asyncio
import logging
import os
import warnings
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

_STRUCTURAL: Final[list[type[FileSystemEvent]]] = [
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
]
_ECHO_S: Final = 0.25
_LOG: Final = logging.getLogger(__name__)

LookAgain = Callable[[], None]


@dataclass(frozen=True, slots=True)
class Spot:
    """A directory to watch, and whether all below it counts."""

    path: str
    recursive: bool = False


@dataclass(slots=True)
class _Wanted:
    """What is subscribed to a spot, and the watches that serve it."""

    subscribers: dict[Hashable, LookAgain] = field(default_factory=dict)
    own: Spot | None = None
    ancestor: Spot | None = None


class Watcher:
    """Calls back on the event loop when something under a watched directory changed."""

    def __init__(self) -> None:
        self._wanted: dict[Spot, _Wanted] = {}
        self._watches: dict[Spot, tuple[Any, set[Spot]]] = {}
        self._observer: Any = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self.degraded: str | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        # watchdog 7.1 warns from its thread when a new directory's watch is made twice (once
        # for its event, once by its own walk); nothing is lost.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
        try:
            self._observer = Observer()
            self._observer.start()
        except OSError as error:
            self._degrade(error)
        return self

    async def __aexit__(self, *_: object) -> None:
        observer, self._observer = self._observer, None
        if observer is not None:
            observer.stop()
            await asyncio.get_running_loop().run_in_executor(None, observer.join)

    def watch(self, key: Hashable, spots: frozenset[Spot], look_again: LookAgain) -> None:
        """Call ``look_again`` for changes under the spots, until `unwatch`."""
        for spot in spots:
            wanted = self._wanted.setdefault(spot, _Wanted())
            wanted.subscribers[key] = look_again
            self._arrange(spot, wanted)

    def unwatch(self, key: Hashable) -> None:
        """Drop all that was subscribed under a key."""
        for spot, wanted in list(self._wanted.items()):
            if wanted.subscribers.pop(key, None) is not None and not wanted.subscribers:
                self._release(spot, wanted)
                del self._wanted[spot]

    # ── which watches serve which spots ──

    def _arrange(self, spot: Spot, wanted: _Wanted) -> None:
        """Watch the directory itself where it is there, and its nearest ancestor always."""
        own = spot if os.path.isdir(spot.path) else None
        above = os.path.dirname(spot.path.rstrip("/")) or "/"
        while not os.path.isdir(above) and above != "/":
            above = os.path.dirname(above)
        ancestor = Spot(above) if above != spot.path else None
        if (own, ancestor) != (wanted.own, wanted.ancestor):
            self._release(spot, wanted)
            wanted.own = self._acquire(own, spot)
            wanted.ancestor = self._acquire(ancestor, spot)

    def _acquire(self, place: Spot | None, spot: Spot) -> Spot | None:
        if place is None or self._observer is None:
            return None
        if place not in self._watches:
            handler = _Handler(lambda event: self._from_thread(place, event))
            try:
                watch = self._observer.schedule(
                    handler, place.path, recursive=place.recursive, event_filter=_STRUCTURAL
                )
            except FileNotFoundError:
                return None
            except OSError as error:
                self._degrade(error)
                return None
            self._watches[place] = (watch, set())
        self._watches[place][1].add(spot)
        return place

    def _release(self, spot: Spot, wanted: _Wanted) -> None:
        for place in (wanted.own, wanted.ancestor):
            if place is None or place not in self._watches:
                continue
            watch, users = self._watches[place]
            users.discard(spot)
            if not users:
                del self._watches[place]
                if self._observer is not None:
                    self._observer.unschedule(watch)
        wanted.own = wanted.ancestor = None

    # ── events ──

    def _from_thread(self, place: Spot, event: FileSystemEvent) -> None:
        assert self._loop is not None  # noqa: S101 (set before any watch)
        try:
            self._loop.call_soon_threadsafe(self._on_event, place, event)
        except RuntimeError:
            _LOG.debug("event after the loop has closed")

    def _on_event(self, place: Spot, event: FileSystemEvent) -> None:
        if place not in self._watches:
            return
        paths = [str(path) for path in (event.src_path, event.dest_path) if path]
        for spot in list(self._watches[place][1]):
            wanted = self._wanted.get(spot)
            if wanted is None:
                continue
            of_ancestor = place == wanted.ancestor and place != wanted.own
            if of_ancestor and not any(_leads_to(path, spot.path) for path in paths):
                continue
            if of_ancestor or (isinstance(event, DirDeletedEvent) and spot.path in paths):
                self._release(spot, wanted)  # a watch of a removed directory is dead
                self._arrange(spot, wanted)
            for look_again in list(wanted.subscribers.values()):
                look_again()
                if place.recursive and isinstance(event, DirCreatedEvent | DirMovedEvent):
                    # What is put into a new directory may come before its watch.
                    asyncio.get_running_loop().call_later(_ECHO_S, look_again)

    def _degrade(self, error: OSError) -> None:
        if self.degraded is None:
            self.degraded = f"no file events: {error.strerror or error}"
            _LOG.warning("cannot watch for changes, only the slow rescan sees them: %s", error)


def _leads_to(path: str, wanted: str) -> bool:
    return wanted == path or wanted.startswith(path.rstrip("/") + "/")


class _Handler(FileSystemEventHandler):
    def __init__(self, deliver: Callable[[FileSystemEvent], None]) -> None:
        self._deliver = deliver

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._deliver(event)

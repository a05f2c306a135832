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
    places: set[Spot] = field(default_factory=set)


@dataclass(slots=True)
class _Watch:
    """A scheduled watch, which directory it is of, and the spots that it serves."""

    handle: Any
    identity: tuple[int, int] | None
    users: set[Spot] = field(default_factory=set)


class Watcher:
    """Calls back on the event loop when something under a watched directory changed."""

    def __init__(self) -> None:
        self._wanted: dict[Spot, _Wanted] = {}
        self._watches: dict[Spot, _Watch] = {}
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
        """Call ``look_again`` for changes under the spots, until `unwatch`.

        Called again, it looks whether the watches are still of the directories at the paths:
        of what happens further up than a spot's nearest ancestor there is no event.
        """
        for spot in spots:
            wanted = self._wanted.setdefault(spot, _Wanted())
            wanted.subscribers[key] = look_again
            self._arrange(spot, wanted)

    def unwatch(self, key: Hashable) -> None:
        """Drop all that was subscribed under a key."""
        for spot, wanted in list(self._wanted.items()):
            if wanted.subscribers.pop(key, None) is not None and not wanted.subscribers:
                for place in wanted.places:
                    self._release(place, spot)
                del self._wanted[spot]

    # ── which watches serve which spots ──

    def _arrange(self, spot: Spot, wanted: _Wanted) -> None:
        """Watch the directory itself where it is there, and its nearest ancestor always."""
        own = spot if os.path.isdir(spot.path) else None
        above = os.path.dirname(spot.path.rstrip("/")) or "/"
        while not os.path.isdir(above) and above != "/":
            above = os.path.dirname(above)
        places = {own} if own else set()
        if above != spot.path:
            places.add(Spot(above))
        for place in wanted.places - places:
            self._release(place, spot)
        for place in places:
            self._acquire(place, spot)
        wanted.places = places

    def _acquire(self, place: Spot, spot: Spot) -> None:
        """Use a watch; one of a directory that is no more at its path is made anew."""
        watch = self._watches.get(place)
        if watch is not None and watch.identity != _identity(place.path):
            self._drop(place)
            watch = None
        if watch is None:
            watch = self._scheduled(place)
        if watch is not None:
            watch.users.add(spot)

    def _scheduled(self, place: Spot) -> _Watch | None:
        if self._observer is None:
            return None
        handler = _Handler(lambda event: self._from_thread(place, event))
        identity = _identity(place.path)
        try:
            handle = self._observer.schedule(
                handler, place.path, recursive=place.recursive, event_filter=_STRUCTURAL
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._degrade(error)
            return None
        watch = self._watches[place] = _Watch(handle, identity)
        return watch

    def _release(self, place: Spot, spot: Spot) -> None:
        watch = self._watches.get(place)
        if watch is not None:
            watch.users.discard(spot)
            if not watch.users:
                self._drop(place)

    def _drop(self, place: Spot) -> set[Spot]:
        """End a watch; return the spots that it served."""
        watch = self._watches.pop(place)
        if self._observer is not None:
            self._observer.unschedule(watch.handle)
        return watch.users

    # ── events ──

    def _from_thread(self, place: Spot, event: FileSystemEvent) -> None:
        assert self._loop is not None  # noqa: S101 (set before any watch)
        try:
            self._loop.call_soon_threadsafe(self._on_event, place, event)
        except RuntimeError:
            _LOG.debug("event after the loop has closed")

    def _on_event(self, place: Spot, event: FileSystemEvent) -> None:
        watch = self._watches.get(place)
        if watch is None:
            return
        paths = [str(path) for path in (event.src_path, event.dest_path) if path]
        affected = {spot for spot in watch.users if _concerns(place, spot, paths)}
        if event.is_directory:
            affected |= self._renewed(paths)
        for spot in affected:
            wanted = self._wanted.get(spot)
            for look_again in list(wanted.subscribers.values()) if wanted else ():
                look_again()
                if place.recursive and isinstance(event, DirCreatedEvent | DirMovedEvent):
                    # What is put into a new directory may come before its watch.
                    asyncio.get_running_loop().call_later(_ECHO_S, look_again)

    def _renewed(self, paths: list[str]) -> set[Spot]:
        """Watch anew what directories came, went or moved at ``paths``: old watches are dead."""
        spots = {spot for spot in self._wanted for path in paths if _leads_to(path, spot.path)}
        for place in list(self._watches):
            if place in self._watches and any(_leads_to(path, place.path) for path in paths):
                spots |= self._drop(place)
        for spot in spots & self._wanted.keys():
            self._arrange(spot, self._wanted[spot])
        return spots

    def _degrade(self, error: OSError) -> None:
        if self.degraded is None:
            self.degraded = f"no file events: {error.strerror or error}"
            _LOG.warning("cannot watch for changes, only the slow rescan sees them: %s", error)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _concerns(place: Spot, spot: Spot, paths: list[str]) -> bool:
    """Whether an event of a watch is of a spot, or only of its ancestor's other entries."""
    return place.path == spot.path or any(_leads_to(path, spot.path) for path in paths)


def _leads_to(path: str, wanted: str) -> bool:
    return wanted == path or wanted.startswith(path.rstrip("/") + "/")


class _Handler(FileSystemEventHandler):
    def __init__(self, deliver: Callable[[FileSystemEvent], None]) -> None:
        self._deliver = deliver

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._deliver(event)

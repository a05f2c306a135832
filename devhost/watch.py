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
import warnings
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Self

from watchdog.events import (
    DirCreatedEvent,
    DirDeletedEvent,
    DirMovedEvent,
    FileClosedEvent,
    FileCreatedEvent,
    FileDeletedEvent,
    FileMovedEvent,
    FileSystemEvent,
    FileSystemEventHandler,
)
from watchdog.observers import Observer

from devhost.threads import in_thread
from devhost.watch_spots import Identity, Spot, concerns, leads_to, places

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


@dataclass(slots=True)
class _Wanted:
    """What is subscribed to a spot, and the watches that serve it."""

    subscribers: dict[Hashable, LookAgain] = field(default_factory=dict)
    places: set[Spot] = field(default_factory=set)
    looks: int = 0


@dataclass(slots=True)
class _Watch:
    """A scheduled watch, which directory it is of, and the spots that it serves."""

    handle: Any
    identity: Identity
    writes: bool
    users: set[Spot] = field(default_factory=set)


class Watcher:
    """Calls back on the event loop when something under a watched directory changed."""

    def __init__(self) -> None:
        self._wanted: dict[Spot, _Wanted] = {}
        self._watches: dict[Spot, _Watch] = {}
        self._unwatched: set[Spot] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._observer: Any = None
        self._open = False
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def degraded(self) -> bool:
        """Whether something cannot be watched, so that it has to be looked at now and then."""
        return bool(self._unwatched)

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        # watchdog 7.1 warns from its thread when a new directory's watch is made twice (once
        # for its event, once by its own walk); nothing is lost.
        warnings.filterwarnings("ignore", "Callback with id", RuntimeWarning)
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        observer, self._observer, self._open = self._observer, None, False
        for task in self._tasks:
            task.cancel()
        if observer is not None:
            observer.stop()
            await asyncio.get_running_loop().run_in_executor(None, observer.join)

    async def watch(self, key: Hashable, spots: frozenset[Spot], look_again: LookAgain) -> None:
        """Call ``look_again`` for changes under the spots, until `unwatch`; return when it does.

        Called again with other spots, they take the place of the former. It then also looks
        whether the watches are still of the directories at the paths: of what happens further
        up than a spot's nearest ancestor there is no event. It may take as long as the
        filesystem takes to answer.
        """
        for spot in [spot for spot, one in self._wanted.items() if key in one.subscribers]:
            if spot not in spots:
                self._unsubscribe(spot, key)
        for spot in spots:
            self._wanted.setdefault(spot, _Wanted()).subscribers[key] = look_again
        await self._arrange(spots)

    def unwatch(self, key: Hashable) -> None:
        """Drop all that was subscribed under a key."""
        for spot in [spot for spot, one in self._wanted.items() if key in one.subscribers]:
            self._unsubscribe(spot, key)

    def _unsubscribe(self, spot: Spot, key: Hashable) -> None:
        wanted = self._wanted[spot]
        del wanted.subscribers[key]
        if not wanted.subscribers:
            for place in wanted.places:
                self._release(place, spot)
            del self._wanted[spot]

    # ── which watches serve which spots ──

    async def _arrange(self, spots: Iterable[Spot]) -> None:
        """Watch each directory itself where it is there, and its nearest ancestor always."""
        looks: list[tuple[Spot, _Wanted, int]] = []
        for spot in spots:
            wanted = self._wanted[spot]
            wanted.looks += 1
            looks.append((spot, wanted, wanted.looks))
        while looks:
            asked = [spot for spot, _, _ in looks]
            found = await in_thread("watch", lambda asked=asked: [places(one) for one in asked])  # type: ignore[misc]
            fresh = []
            for (spot, wanted, look), there in zip(looks, found, strict=True):
                if self._wanted.get(spot) is not wanted or wanted.looks != look:
                    continue  # given up, or looked at again since
                for place in wanted.places - there.keys():
                    self._release(place, spot)
                made = [self._acquire(place, there[place], spot) for place in there]
                wanted.places = set(there)
                if any(made):  # something may have come before the watch
                    fresh.append((spot, wanted, look))
            looks = fresh

    def _acquire(self, place: Spot, identity: Identity, spot: Spot) -> bool:
        """Use a watch; one of a directory that is no more at its path is made anew.

        Returns:
            Whether it was made.
        """
        watch, users = self._watches.get(place), set()
        writes = any(one.writes and one.path == place.path for one in self._wanted)
        if watch and (watch.identity != identity or (writes and not watch.writes)):
            users, watch = self._drop(place), None
        made = None
        if watch is None:
            watch = made = self._scheduled(place, identity, writes=writes)
        if watch is not None:
            watch.users |= users | {spot}
        return made is not None

    def _scheduled(self, place: Spot, identity: Identity, *, writes: bool) -> _Watch | None:
        if not self._open:
            return None
        handler = _Handler(lambda event: self._from_thread(place, event))
        events = [*_STRUCTURAL, FileClosedEvent] if writes else _STRUCTURAL
        try:
            if self._observer is None:
                observer = Observer()  # fails where no more instances of inotify are allowed
                observer.start()
                self._observer = observer
            handle = self._observer.schedule(
                handler, place.path, recursive=place.recursive, event_filter=events
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self._degrade(place, error)
            return None
        self._unwatched.discard(place)
        watch = self._watches[place] = _Watch(handle, identity, writes)
        return watch

    def _degrade(self, place: Spot, error: OSError) -> None:
        if not self._unwatched:
            reason = error.strerror or str(error)
            fields = {"directory": place.path, "reason": reason}
            _LOG.warning("cannot watch for changes, so looking regularly", extra={"fields": fields})
        self._unwatched.add(place)

    def _release(self, place: Spot, spot: Spot) -> None:
        watch = self._watches.get(place)
        if watch is not None:
            watch.users.discard(spot)
            if not watch.users:
                self._drop(place)
        self._unwatched.discard(place)

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
        affected = {spot for spot in watch.users if concerns(place, spot, paths)}
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
        spots = {spot for spot in self._wanted for path in paths if leads_to(path, spot.path)}
        for place in list(self._watches):
            if place in self._watches and any(leads_to(path, place.path) for path in paths):
                spots |= self._drop(place)
        again = spots & self._wanted.keys()
        if again and self._loop is not None:
            task = self._loop.create_task(self._rearrange(again), name="watch")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        return spots

    async def _rearrange(self, spots: set[Spot]) -> None:
        await self._arrange(spots & self._wanted.keys())
        for spot in spots & self._wanted.keys():  # something may have come before the watch
            for look_again in list(self._wanted[spot].subscribers.values()):
                look_again()


class _Handler(FileSystemEventHandler):
    def __init__(self, deliver: Callable[[FileSystemEvent], None]) -> None:
        self._deliver = deliver

    def on_any_event(self, event: FileSystemEvent) -> None:
        self._deliver(event)

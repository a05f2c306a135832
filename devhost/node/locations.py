"""The locations of a host: each is watched and read once for all resources that look there."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from devhost.hostfs.files import THREAD, HostFiles, Progress, Tally
from devhost.model.limits import ENTRIES_TOTAL_MAX
from devhost.sources.base import NOT_DEVICES, Listing, Location, has_no_events, list_location
from devhost.watch.inotify import Subscription, Watcher, WatchTarget
from devhost.watch.threads import BlockingCalls, NoAnswerError, wait_at_most
from devhost.watch.uevents import Uevents

READ_TIMEOUT_S: Final = 10.0  # for each answer of a filesystem: large directories need many
_WATCH_S: Final = 5.0  # adding 1,000 takes more than 1 s; a reading without its watch is repeated

OnChange = Callable[[], None]
"""Called when something may have changed at a location."""


class EntryQuota:
    """Limits the entries of all locations together. May be used in any thread."""

    def __init__(self, total: int = ENTRIES_TOTAL_MAX) -> None:
        self._total, self._taken = total, dict[object, int]()
        self.used = 0
        self._lock: Final = threading.RLock()

    def add(self, location: object) -> None:
        """Count the entries of a location from now on."""
        with self._lock:
            self._taken[location] = 0

    def remove(self, location: object) -> None:
        """Count none of a location, whatever a thread that still runs takes."""
        with self._lock:
            self.used -= self._taken.pop(location)

    def try_take(self, location: object, count: int) -> str | None:
        """Raise the count of a location to `count`; or return why it may not have so many."""
        with self._lock:
            taken = self._taken.get(location, 0)
            if count > taken and self.used - taken + count > self._total:
                return f"more than {self._total:,} entries in all"
            self.set_count(location, max(count, taken))
            return None

    def set_count(self, location: object, count: int) -> None:
        """Set the count of a location after it was read."""
        with self._lock:
            if location in self._taken:
                self.used += count - self._taken[location]
                self._taken[location] = count


def timeout_text() -> str:
    """Return the reason for a host, or a plugin, that did not answer."""
    return f"no answer in {READ_TIMEOUT_S:.0f} s"


class LocationWatch:
    """The events of a location, by inotify and from the kernel."""

    def __init__(
        self, location: Location, files: HostFiles, watcher: Watcher, uevents: Uevents
    ) -> None:
        self._location, self._files, self._uevents = location, files, uevents
        self.subscribers: dict[Hashable, OnChange] = {}
        self._subscription = Subscription(watcher, self._notify)
        if location.subsystems:
            uevents.subscribe(location.subsystems, self._notify)
        self._calls = BlockingCalls(f"watch {location.base}", serial=True)
        self._starting = asyncio.Lock()
        self._requested, self._started = 1, 0  # how often

    @property
    def polling_reason(self) -> str:
        """Why there are no events, so that the location has to be read regularly; else empty."""
        polling_reason = self._uevents.polling_reason if self._location.subsystems else None
        return polling_reason or self._subscription.polling_reason

    def recheck(self) -> None:
        """Check at the next `start` that the watches are still right."""
        self._requested += 1

    async def start(self) -> None:
        """Watch the location, if it is not watched; wait, so that nothing is missed.

        But not for long: the filesystem may not answer, which the reading shows too. When it
        answers later, that counts as a change.
        """
        async with self._starting:
            requested = self._requested
            if requested != self._started:
                with contextlib.suppress(NoAnswerError):
                    await self._start()
                    self._started = requested

    async def _start(self) -> None:
        if self._location.subsystems:
            self._uevents.open()
        watched, files = self._location.watched, self._files
        if watched is None or has_no_events(watched.path):
            return
        path = await self._calls.run(
            lambda: files.to_local(files.resolve(watched.path)),
            patience=_WATCH_S,
            on_late=self._notify,
        )
        leave_out = frozenset(map(files.to_local, NOT_DEVICES))
        target = WatchTarget(path, watched.recursive, watched.writes, leave_out=leave_out)
        # The subscription notifies when it is late.
        await wait_at_most(_WATCH_S, lambda: self._subscription.watch(frozenset({target})))

    def _notify(self) -> None:
        for on_change in list(self.subscribers.values()):
            on_change()

    def close(self) -> None:
        """Watch the location no longer."""
        self._subscription.close()
        if self._location.subsystems:
            self._uevents.unsubscribe(self._notify)


class LocationReader:
    """Reads a location in use; a location that hangs holds up only the resources that read it."""

    def __init__(
        self, location: Location, files: HostFiles, watch: LocationWatch, quota: EntryQuota
    ) -> None:
        self.location, self._files, self.watch, self._quota = location, files, watch, quota
        quota.add(self)
        self._count = 0  # of entries
        self._turn = threading.Lock()  # to read
        self._progress = Progress()  # of the thread that reads
        self._listing: Listing | None = None
        self._began = 0.0

    def close(self) -> None:
        """Watch and read the location no longer."""
        self.watch.close()
        self._quota.remove(self)

    def read(self, since: float) -> Listing:
        """Return a listing that was begun at a time of the event loop's clock or later. Blocks.

        It is made once for all who ask at that time.
        """
        progress, began = THREAD.progress, time.monotonic()
        while not self._turn.acquire(timeout=READ_TIMEOUT_S / 10):
            if time.monotonic() >= max(began, self._progress.answered_at) + READ_TIMEOUT_S:
                return Listing(failure=timeout_text())
            progress.note()  # the thread that reads gets answers, or has some time left
        self._progress = progress
        try:
            listing = self._listing
            if listing is None or self._began < since:
                self._began = time.monotonic()
                listing = self._read()
            # A listing has all names: it is kept only for other resources.
            self._listing = listing if len(self.watch.subscribers) > 1 else None
            return listing
        finally:
            self._turn.release()

    def _read(self) -> Listing:
        tally = Tally(lambda count: self._quota.try_take(self, count))
        listing = list_location(self.location, self._files, tally)
        if not listing.failure:  # else the devices of the former listing are still known
            self._count = tally.count
        self._quota.set_count(self, self._count)
        return listing


class Locations:
    """The locations that resources read."""

    def __init__(self, files: HostFiles, watcher: Watcher) -> None:
        self._files, self.watcher = files, watcher
        self._quota = EntryQuota()
        self.uevents = Uevents()
        self._readers: dict[Location, LocationReader] = {}
        self._locations: dict[Hashable, tuple[Location, ...]] = {}  # by subscriber

    def subscribe(
        self, subscriber: Hashable, locations: Iterable[Location], on_change: OnChange
    ) -> list[LocationReader]:
        """Call `on_change` for changes of these locations, and no longer for former ones.

        Returns the readers of the locations.
        """
        former = self._locations.get(subscriber, ())
        self._locations[subscriber] = tuple(locations)
        for location in self._locations[subscriber]:
            if location not in self._readers:
                watch = LocationWatch(location, self._files, self.watcher, self.uevents)
                reader = LocationReader(location, self._files, watch, self._quota)
                self._readers[location] = reader
            self._readers[location].watch.subscribers[subscriber] = on_change
        self._leave(subscriber, set(former).difference(self._locations[subscriber]))
        return [self._readers[location] for location in self._locations[subscriber]]

    def unsubscribe(self, subscriber: Hashable) -> None:
        """End the calls of a subscriber."""
        self._leave(subscriber, self._locations.pop(subscriber, ()))

    def _leave(self, subscriber: Hashable, locations: Iterable[Location]) -> None:
        for location in locations:
            reader = self._readers[location]
            del reader.watch.subscribers[subscriber]
            if not reader.watch.subscribers:
                reader.close()
                del self._readers[location]

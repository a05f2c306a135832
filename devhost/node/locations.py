"""The locations of a host: each is watched and read once for all resources that look there."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from devhost.hostfs.files import THREAD, HostFiles, Progress, Tally
from devhost.model.limits import ENTRIES_TOTAL_MAX
from devhost.sources.base import NOT_DEVICES, Listing, Location, list_location
from devhost.watch.threads import BlockingCalls, NoAnswerError, wait_at_most
from devhost.watch.uevents import Uevents
from devhost.watch.watcher import Subscription, Watcher, WatchTarget

READ_TIMEOUT_S: Final = 10.0  # for each answer of a filesystem: large directories need many
_WATCH_S: Final = 5.0  # adding 1,000 takes more than 1 s; a reading without its watch is repeated


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


class WatchedLocation:
    """A location in use: watched on the event loop, by inotify and the kernel."""

    def __init__(
        self, location: Location, files: HostFiles, watcher: Watcher, uevents: Uevents
    ) -> None:
        self.location, self._files, self._uevents = location, files, uevents
        self.subscribers: dict[Hashable, Callable[[], None]] = {}
        self._subscription = Subscription(watcher, self._notify)
        if location.subsystems:
            uevents.subscribe(location.subsystems, self._notify)
        self._calls = BlockingCalls(f"watch {self.place}", serial=True)
        self._starting = asyncio.Lock()
        self._requested, self._started = 1, 0  # how often

    @property
    def place(self) -> str:
        """The directory that is watched, or what the kernel's events are about."""
        return self.location.watched.path if self.location.watched else "/sys"

    @property
    def polling_reason(self) -> str:
        """Why there are no events, so that the location has to be read regularly; else empty."""
        polling_reason = self._uevents.polling_reason if self.location.subsystems else None
        return polling_reason or self._subscription.polling_reason

    def recheck(self) -> None:
        """Check at the next `watch` that the watches are still right."""
        self._requested += 1

    async def watch(self) -> None:
        """Watch the location, if it is not watched; wait, so that nothing is missed.

        But not for long: the filesystem may not answer, which the reading shows too. When it
        answers later, that counts as a change.
        """
        async with self._starting:
            requested = self._requested
            if requested != self._started:
                with contextlib.suppress(NoAnswerError):
                    await self._watch()
                    self._started = requested

    async def _watch(self) -> None:
        if self.location.subsystems:
            self._uevents.open()
        watched, files = self.location.watched, self._files
        if watched is None:
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
        if self.location.subsystems:
            self._uevents.unsubscribe(self._notify)


class LocationReader(WatchedLocation):
    """Reads a location in threads; one that hangs holds up only the resources that read it."""

    def __init__(
        self,
        location: Location,
        files: HostFiles,
        watcher: Watcher,
        uevents: Uevents,
        quota: EntryQuota,
    ) -> None:
        super().__init__(location, files, watcher, uevents)
        self._quota, self._count = quota, 0  # of entries
        quota.add(self)
        self._turn = threading.Lock()  # to read
        self._progress = Progress()  # of the thread that reads
        self._listing: Listing | None = None
        self._began = 0.0

    def close(self) -> None:
        """Watch and read the location no longer."""
        super().close()
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
            self._listing = listing if len(self.subscribers) > 1 else None
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

    def subscribe(
        self,
        subscriber: Hashable,
        locations: Iterable[Location],
        on_change: Callable[[], None],
        former: Iterable[LocationReader] = (),
    ) -> list[LocationReader]:
        """Call `on_change` for changes of these locations, and no longer for those of `former`.

        Returns the readers of the locations.
        """
        readers = [self._reader(location) for location in locations]
        for reader in readers:
            reader.subscribers[subscriber] = on_change
        self.unsubscribe(subscriber, set(former).difference(readers))
        return readers

    def _reader(self, location: Location) -> LocationReader:
        if location not in self._readers:
            host = self._files, self.watcher, self.uevents
            self._readers[location] = LocationReader(location, *host, self._quota)
        return self._readers[location]

    def unsubscribe(self, subscriber: Hashable, readers: Iterable[LocationReader]) -> None:
        """End the calls of a subscriber for changes of the locations of these readers."""
        for reader in readers:
            del reader.subscribers[subscriber]
            if not reader.subscribers:
                reader.close()
                del self._readers[reader.location]

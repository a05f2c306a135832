"""What is on the host: each root is watched and read once for all resources that look there."""

import asyncio
import threading
import time
from collections.abc import Callable, Hashable, Iterable
from typing import Final

from devhost.discovery.sources.base import (
    NOT_DEVICES,
    Listing,
    Location,
    has_no_events,
    list_location,
)
from devhost.hostfs.files import HostFiles, Progress, Tally
from devhost.model.limits import ENTRIES_FEW, ENTRIES_MAX, ENTRIES_TOTAL_MAX
from devhost.watch.threads import run_in_thread
from devhost.watch.uevents import Uevents
from devhost.watch.watcher import Subscription, Watcher, WatchTarget

READ_TIMEOUT_S: Final = 10.0  # for each answer of a filesystem: large directories need many
_WATCH_S: Final = 5.0  # adding 1,000 takes more than 1 s; a reading without its watch is repeated

OnChange = Callable[[], None]
"""Called when something may have changed at a root."""


class EntryQuota:
    """How many entries all roots may have together; each may always have a few.

    May be used in any thread.
    """

    def __init__(
        self, each: int = ENTRIES_MAX, total: int = ENTRIES_TOTAL_MAX, few: int = ENTRIES_FEW
    ) -> None:
        self._each, self._total, self._few = each, total, few
        self._taken: dict[object, int] = {}
        self.used = 0
        self._lock: Final = threading.Lock()

    def add(self, root: object) -> None:
        """Let a root have entries."""
        with self._lock:
            self._taken[root] = 0

    def remove(self, root: object) -> None:
        """Let a root have none from now on, whatever a thread that still runs takes."""
        with self._lock:
            self.used -= self._taken.pop(root)

    def try_take(self, root: object, count: int) -> str | None:
        """Take so many for a root, unless it has more already; or return why that may not be."""
        with self._lock:
            taken = self._taken.get(root, 0)
            if count > self._each:
                return f"more than {self._each:,} entries"
            if count > max(taken, self._few) and self.used - taken + count > self._total:
                return f"more than {self._total:,} entries in all"
            if count > taken:
                self._set(root, count)
            return None

    def set_count(self, root: object, count: int) -> None:
        """Set how many a root has after all."""
        with self._lock:
            self._set(root, count)

    def _set(self, root: object, count: int) -> None:
        if root in self._taken:
            self.used += count - self._taken[root]
            self._taken[root] = count


def timeout_text() -> str:
    """Say that the host, or a plugin, did not answer."""
    return f"no answer in {READ_TIMEOUT_S:.0f} s"


class LocationReader:
    """A root that is in use. One that hangs holds up only those who read it."""

    def __init__(
        self,
        root: Location,
        files: HostFiles,
        watcher: Watcher,
        uevents: Uevents,
        entries: EntryQuota,
    ) -> None:
        self.root, self._files = root, files
        self._uevents, self._entries, self._count = uevents, entries, 0
        entries.add(self)
        self._subscription = Subscription(watcher, self._tell)
        if root.subsystems:
            uevents.subscribe(root.subsystems, self._tell)
        self.users: dict[Hashable, OnChange] = {}
        self._turn = threading.Lock()  # to read
        self._progress = Progress()  # of who reads
        self._reading: Listing | None = None
        self._began = 0.0
        self._watching: asyncio.Task[None] | None = None
        self._late = False  # the watch is not waited for any longer
        self._in_doubt = True

    @property
    def polling_reason(self) -> str:
        """Why events do not tell of it, so that it has to be read regularly; else empty."""
        polling_reason = self._uevents.polling_reason if self.root.subsystems else None
        return polling_reason or self._subscription.polling_reason

    def recheck_watches(self) -> None:
        """Have the next reading see that the watches are still right."""
        self._in_doubt = True

    def close(self) -> None:
        """Watch it no longer."""
        if self._watching is not None:
            self._watching.cancel()
        self._subscription.close()
        self._entries.remove(self)
        if self.root.subsystems:
            self._uevents.unsubscribe(self._tell)

    def _tell(self) -> None:
        for changed in list(self.users.values()):
            changed()

    def read(self, since: float) -> Listing:
        """Return a reading that began at a time of the event loop's clock or later. Blocks.

        It is made once for all who ask at that time.
        """
        progress, began = Progress.current(), time.monotonic()
        while not self._turn.acquire(timeout=READ_TIMEOUT_S / 10):
            if time.monotonic() >= max(began, self._progress.answered_at) + READ_TIMEOUT_S:
                return Listing(failure=timeout_text())
            progress.note()  # one that reads gets answers, or has some time left
        self._progress = progress
        try:
            reading = self._reading
            if reading is None or self._began < since:
                self._began = time.monotonic()
                reading = self._read()
            # What nobody else can use is not kept: it has all names.
            self._reading = reading if len(self.users) > 1 else None
            return reading
        finally:
            self._turn.release()

    def _read(self) -> Listing:
        tally = Tally(lambda count: self._entries.try_take(self, count))
        reading = list_location(self.root, self._files, tally)
        if not reading.failure:  # else the devices of the former reading are still known
            self._count = tally.count
        self._entries.set_count(self, self._count)
        return reading

    # ── watching ──

    async def watch(self) -> None:
        """See that it is watched, if that is in doubt; wait, so that nothing is missed.

        But not for long: the filesystem may not answer, which the reading shows too. What comes
        between the reading and the watch is read when the watch is there.
        """
        if self._in_doubt:
            if self.root.subsystems:
                self._uevents.open()
            if self._watching is None:
                self._in_doubt = False
                self._watching = asyncio.create_task(
                    self._arrange(), name=f"watch {self.root.base}"
                )
                self._watching.add_done_callback(self._arranged)
        if self._watching is not None and not self._late:
            ended, late = await asyncio.wait({self._watching}, timeout=_WATCH_S)
            self._late = bool(late)
            for watching in ended:
                if not watching.cancelled() and (error := watching.exception()) is not None:
                    self._watching, self._in_doubt = None, True
                    raise error

    def _arranged(self, watching: "asyncio.Task[None]") -> None:
        self._watching, late, self._late = None, self._late, False
        if not watching.cancelled():
            self._in_doubt = self._in_doubt or watching.exception() is not None
            if late:
                self._tell()

    async def _arrange(self) -> None:
        watched, files = self.root.watched, self._files
        if watched is None:
            return
        path = watched.path
        shown = await run_in_thread(f"watch {path}", lambda: files.to_local(files.resolve(path)))
        if has_no_events(path):
            targets = frozenset[WatchTarget]()
        elif watched.recursive:
            leave_out = frozenset(map(files.to_local, NOT_DEVICES))
            targets = frozenset({WatchTarget(shown, recursive=True, leave_out=leave_out)})
        else:
            targets = frozenset({WatchTarget(shown)})
        await self._subscription.watch(targets)


class Locations:
    """All roots that resources read."""

    def __init__(self, files: HostFiles, watcher: Watcher) -> None:
        self._files, self._watcher = files, watcher
        self._entries = EntryQuota()
        self.uevents = Uevents()
        self._roots: dict[Location, LocationReader] = {}
        self._used: dict[Hashable, tuple[Location, ...]] = {}

    def subscribe(self, user: Hashable, roots: Iterable[Location], changed: OnChange) -> None:
        """Call a user for changes of these roots, which it reads, and no longer for others."""
        former, wanted = self._used.get(user, ()), tuple(roots)
        for root in wanted:
            one = self._roots.get(root)
            if one is None:
                one = self._roots[root] = LocationReader(
                    root, self._files, self._watcher, self.uevents, self._entries
                )
            one.users[user] = changed
        self._used[user] = wanted
        for root in former:
            if root not in wanted:
                self._drop(user, root)

    def unsubscribe(self, user: Hashable) -> None:
        """Call a user no longer."""
        for root in self._used.pop(user, ()):
            self._drop(user, root)

    def _drop(self, user: Hashable, root: Location) -> None:
        one = self._roots[root]
        del one.users[user]
        if not one.users:
            one.close()
            del self._roots[root]

    def readers_of(self, user: Hashable) -> list[LocationReader]:
        """Return the roots of a user."""
        return [self._roots[root] for root in self._used.get(user, ())]

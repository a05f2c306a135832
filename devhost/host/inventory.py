"""What is on the host: each root is watched and read once for all resources that look there."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from devhost.budget import Budget, Share
from devhost.discovery.match import Readings
from devhost.discovery.roots import NOT_DEVICES, Reading, Root, is_silent, read
from devhost.hostfs.files import HostFiles
from devhost.hostfs.tally import Tally
from devhost.limits import ENTRIES_FEW, ENTRIES_MAX, ENTRIES_TOTAL_MAX
from devhost.threads import in_thread
from devhost.watch.targets import WatchTarget
from devhost.watch.watcher import Watcher

if TYPE_CHECKING:
    from devhost.watch.uevents import Interest, Uevents

ANSWER_S: Final = 10.0
_PATIENCE_MAX_S: Final = 60.0
_WATCH_S: Final = 5.0  # adding 1,000 takes more than 1 s; a reading without its watch is repeated
_LOG: Final = logging.getLogger(__name__)

OnChange = Callable[[], None]
"""Called when something may have changed at a root."""


def unanswered() -> str:
    """Say that the host did not answer."""
    return f"the host did not answer in {ANSWER_S:.0f} s"


def longer(patience: float, taken: float) -> float:
    """Return the patience after a late answer; both in seconds.

    A host that is slow gets more time from then on, or its devices would flap.
    """
    return min(max(patience, 2 * taken), _PATIENCE_MAX_S)


class InventoryRoot:
    """A root that is in use. One that hangs holds up only those who read it.

    Attributes:
        root: What is read.
        users: Who is called when something may have changed.
    """

    def __init__(
        self,
        root: Root,
        files: HostFiles,
        watcher: Watcher,
        uevents: "Callable[[], Uevents]",
        entries: Share,
    ) -> None:
        self.root, self._files, self._entries = root, files, entries
        self._subscription = watcher.subscribe(self._changed)
        self._interest: Interest | None = None
        if root.subsystems:
            self._interest = uevents().subscribe(root.subsystems, self._tell)
        self.users: dict[Hashable, OnChange] = {}
        self._reading: Reading | None = None
        self._began = 0.0
        self._job: asyncio.Task[None] | None = None
        self._patience = ANSWER_S
        self._given_up = False  # a read has timed out
        self._watching: asyncio.Task[None] | None = None
        self._in_doubt = True

    @property
    def degraded(self) -> str:
        """Why events do not tell of it, so that it has to be read regularly; else empty."""
        no_events = self._interest.degraded if self._interest is not None else ""
        return no_events or self._subscription.degraded

    def doubt(self) -> None:
        """Have the next reading see that the watches are still right."""
        self._in_doubt = True

    def close(self) -> None:
        """Watch it no longer."""
        for task in (self._job, self._watching):
            if task is not None:
                task.cancel()
        self._subscription.close()
        self._entries.close()
        if self._interest is not None:
            self._interest.close()

    # ── reading ──

    async def read(self, since: float) -> Reading:
        """Return a reading that began at a time of the event loop's clock or later.

        If the host does not answer, that is the failure; the users are called when it does.
        """
        while self._reading is None or self._began < since:
            done, _ = await asyncio.wait({self._begun()}, timeout=self._patience)
            if not done:
                self._given_up = True
                return Reading(self.root, self._files, failure=unanswered())
        reading = self._reading
        if len(self.users) == 1:
            self._reading = None  # nobody else can use it, and it has all names
        return reading

    def _begun(self) -> "asyncio.Task[None]":
        if self._job is None:
            self._job = asyncio.create_task(self._read(), name=f"read {self.root.base}")
        return self._job

    async def _read(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        try:
            if self._in_doubt:
                if self._interest is not None:
                    self._interest.retry()
                await self._watch()
            reads = clock()

            def work() -> Reading:
                entries, tally = self._entries.used, Tally(self._entries.refusal)
                reading = read(self.root, self._files, tally)
                # Where it has failed, the devices of the former reading are still known.
                self._entries.settle(entries if reading.failure else tally.count)
                return reading

            try:
                reading = await in_thread(f"read {self.root.base}", work)
            except Exception as error:  # noqa: BLE001 (logged, and tried again)
                _LOG.exception("reading failed", extra={"fields": {"root": self.root.base}})
                reason = f"reading failed: {error!r}"
                reading = Reading(self.root, self._files, failure=reason)
            self._reading, self._began = reading, reads
        finally:
            self._job = None
        if self._given_up:
            self._given_up = False
            self._patience = longer(self._patience, clock() - began)
            self._tell()

    def _tell(self) -> None:
        for changed in list(self.users.values()):
            changed()

    # ── watching ──

    async def _watch(self) -> None:
        """See that it is watched; wait for that, so that nothing is missed, but not for long.

        The filesystem may not answer: the reading shows that too, and this is not tried twice at a
        time. What came between the reading and the watch is read when the watch is there.
        """
        if self._watching is None:
            self._in_doubt = False
            self._watching = asyncio.create_task(self._arrange(), name=f"watch {self.root.base}")
            self._watching.add_done_callback(self._arranged)
        _, late = await asyncio.wait({self._watching}, timeout=_WATCH_S)
        for one in late:
            one.add_done_callback(self._watched_late)

    def _arranged(self, _: "asyncio.Task[None]") -> None:
        self._watching = None

    def _watched_late(self, watching: "asyncio.Task[None]") -> None:
        if not watching.cancelled():
            self._tell()

    async def _arrange(self) -> None:
        watched, files = self.root.watched, self._files
        if watched is None:
            return
        path = watched.path
        shown = await in_thread(f"watch {path}", lambda: files.to_local(files.resolve(path)))
        if is_silent(path):
            targets = frozenset[WatchTarget]()
        elif watched.recursive:
            leave_out = frozenset(map(files.to_local, NOT_DEVICES))
            targets = frozenset({WatchTarget(shown, recursive=True, leave_out=leave_out)})
        else:
            targets = frozenset({WatchTarget(shown)})
        await self._subscription.watch(targets)

    def _changed(self, _path: str | None) -> None:
        self._tell()


class Inventory:
    """All roots that resources read."""

    def __init__(self, files: HostFiles, watcher: Watcher) -> None:
        self._files, self._watcher = files, watcher
        self._entries = Budget(
            "entries", each=ENTRIES_MAX, total=ENTRIES_TOTAL_MAX, few=ENTRIES_FEW
        )
        self._uevents: Uevents | None = None
        self._roots: dict[Root, InventoryRoot] = {}
        self._used: dict[Hashable, tuple[Root, ...]] = {}

    @property
    def roots(self) -> Iterable[InventoryRoot]:
        """All that are in use."""
        return self._roots.values()

    @property
    def uevent_overruns(self) -> int:
        """How many times the kernel had more device events than could be held."""
        return 0 if self._uevents is None else self._uevents.overruns

    def _device_events(self) -> "Uevents":
        if self._uevents is None:
            from devhost.watch.uevents import Uevents  # noqa: PLC0415 (most hosts need none)

            self._uevents = Uevents()
        return self._uevents

    def use(
        self,
        user: Hashable,
        roots: Iterable[Root],
        changed: OnChange,
    ) -> None:
        """Call a user for changes of these roots, and no longer for others.

        Args:
            user: The user.
            roots: What it reads.
            changed: What is called.
        """
        former, wanted = self._used.get(user, ()), tuple(roots)
        for root in wanted:
            one = self._roots.get(root)
            if one is None:
                share = self._entries.share()
                one = self._roots[root] = InventoryRoot(
                    root, self._files, self._watcher, self._device_events, share
                )
            one.users[user] = changed
        self._used[user] = wanted
        for root in former:
            if root not in wanted:
                self._drop(user, root)

    def leave(self, user: Hashable) -> None:
        """Call a user no longer."""
        for root in self._used.pop(user, ()):
            self._drop(user, root)

    def _drop(self, user: Hashable, root: Root) -> None:
        one = self._roots[root]
        del one.users[user]
        if not one.users:
            one.close()
            del self._roots[root]

    def of(self, user: Hashable) -> list[InventoryRoot]:
        """Return the roots of a user."""
        return [self._roots[root] for root in self._used.get(user, ())]

    async def read(self, user: Hashable, since: float) -> Readings:
        """Return readings of a user's roots that began at a time or later."""
        return await _read(self.of(user), since)


async def _read(ones: Sequence[InventoryRoot], since: float) -> Readings:
    """Return readings of roots that began at a time or later."""
    if len(ones) == 1:
        return {ones[0].root: await ones[0].read(since)}
    found = await asyncio.gather(*(one.read(since) for one in ones))
    return {one.root: reading for one, reading in zip(ones, found, strict=True)}

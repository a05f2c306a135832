"""What is on the host: each root is watched and read once for all resources that look there."""

import asyncio
import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

from devhost.budget import Budget, Share
from devhost.discovery.baseline import baseline
from devhost.discovery.match import Readings
from devhost.discovery.roots import NOT_DEVICES, Reading, Root, is_silent, read
from devhost.host.looking import around_hung
from devhost.hostfs.files import HostFiles
from devhost.hostfs.tally import Tally
from devhost.limits import ENTRIES_FEW, ENTRIES_MAX, ENTRIES_TOTAL_MAX
from devhost.threads import in_own_thread, in_thread
from devhost.watch.targets import WatchTarget
from devhost.watch.watcher import Watcher

if TYPE_CHECKING:
    from devhost.watch.uevents import Interest, Uevents

ANSWER_S: Final = 10.0
_PATIENCE_MAX_S: Final = 60.0
_FEW: Final = 3  # users that scan as quickly as they can be asked
_WATCH_S: Final = 5.0  # adding 1,000 takes more than 1 s; a reading without its watch is repeated
_LOG: Final = logging.getLogger(__name__)

OnChange = Callable[[Root, str | None], None]
"""Called when something may have changed at a root: at one name, or anywhere."""

Differs = Callable[[Readings], bool]
"""Says whether a user finds something else now, in a thread."""


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
        shown: Where this process sees its base, once that is known.
    """

    def __init__(
        self,
        root: Root,
        files: HostFiles,
        watcher: Watcher,
        uevents: "Callable[[], Uevents]",
        entries: Share,
        told: "Callable[[InventoryRoot], None]",
    ) -> None:
        self.root, self._files, self._entries = root, files, entries
        self._subscription = watcher.subscribe(self._changed)
        self._interest: Interest | None = None
        if root.subsystems:
            self._interest = uevents().subscribe(root.subsystems, lambda: told(self))
        self.users: dict[Hashable, OnChange] = {}
        self._reading: Reading | None = None
        self._began = 0.0
        self._job: asyncio.Task[None] | None = None
        self._patience = ANSWER_S
        self._given_up = False  # a read has timed out
        self._watching: asyncio.Task[None] | None = None
        self._is_watched = False
        self._in_doubt = True
        self.shown: str | None = None

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
            directories, reads = self._directories(), clock()

            def work() -> Reading:
                before = None if directories is None else baseline(directories)
                entries, tally = self._entries.used, Tally(self._entries.refusal)
                reading = read(self.root, self._files, tally)
                # Where it has failed, the devices of the former reading are still known.
                self._entries.settle(entries if reading.failure else tally.count)
                reading.baseline = before
                return reading

            try:
                name = f"read {self.root.base}"
                reading = await around_hung(name, work, self._own, ANSWER_S / 2)
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
            self._tell(None)

    def _own(self) -> tuple[str] | None:
        return None if self.shown is None else (self.shown or "/",)

    def _tell(self, name: str | None) -> None:
        for changed in list(self.users.values()):
            changed(self.root, name)

    # ── watching ──

    def _directories(self) -> frozenset[str] | None:
        """Return the directories that are watched; ``None`` where that is not known."""
        return self._subscription.directories if self._is_watched else None

    async def _watch(self) -> None:
        """See that it is watched; wait for that, so that nothing is missed, but not for long.

        The filesystem may not answer: the reading shows that too, and this is not tried twice at a
        time. What came between the reading and the watch is read when the watch is there.
        """
        if self._watching is None:
            self._in_doubt = self._is_watched = False
            self._watching = asyncio.create_task(self._arrange(), name=f"watch {self.root.base}")
            self._watching.add_done_callback(self._arranged)
        _, late = await asyncio.wait({self._watching}, timeout=_WATCH_S)
        for one in late:
            one.add_done_callback(self._watched_late)

    def _arranged(self, watching: "asyncio.Task[None]") -> None:
        self._watching = None
        self._is_watched = not watching.cancelled() and watching.exception() is None

    def _watched_late(self, watching: "asyncio.Task[None]") -> None:
        if not watching.cancelled():
            self._tell(None)

    async def _arrange(self) -> None:
        watched, files = self.root.watched, self._files
        if watched is None:
            return
        path = watched.path
        shown = await in_thread(f"watch {path}", lambda: files.to_local(files.resolve(path)))
        self.shown = shown.rstrip("/")
        if is_silent(path):
            targets = frozenset[WatchTarget]()
        elif watched.recursive:
            leave_out = frozenset(map(files.to_local, NOT_DEVICES))
            targets = frozenset({WatchTarget(shown, recursive=True, leave_out=leave_out)})
        else:
            targets = frozenset({WatchTarget(shown)})
        await self._subscription.watch(targets)

    def _changed(self, path: str | None) -> None:
        above = f"{self.shown}/"
        known = path is not None and path.startswith(above)
        self._tell(path[len(above) :] if known and path is not None else None)


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
        self._differ: dict[Hashable, Callable[[], Differs | None]] = {}
        self._asked: dict[Hashable, InventoryRoot] = {}
        self._asking: asyncio.Task[None] | None = None

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
        differs: Callable[[], Differs | None] = lambda: None,
    ) -> None:
        """Call a user for changes of these roots, and no longer for others.

        Args:
            user: The user.
            roots: What it reads.
            changed: What is called.
            differs: Returns what is to be asked first after an event of a device, if anything.
        """
        self._differ[user] = differs
        former, wanted = self._used.get(user, ()), tuple(roots)
        for root in wanted:
            one = self._roots.get(root)
            if one is None:
                share = self._entries.share()
                one = self._roots[root] = InventoryRoot(
                    root, self._files, self._watcher, self._device_events, share, self._told
                )
            one.users[user] = changed
        self._used[user] = wanted
        for root in former:
            if root not in wanted:
                self._drop(user, root)

    def leave(self, user: Hashable) -> None:
        """Call a user no longer."""
        self._differ.pop(user, None)
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

    def own(self, user: Hashable) -> list[str] | None:
        """Return where this process sees the bases of a user's roots, if that is known."""
        shown = [root.shown for root in self.of(user)]
        return None if None in shown else [one or "/" for one in shown]

    async def read(self, user: Hashable, since: float) -> Readings:
        """Return readings of a user's roots that began at a time or later."""
        return await _read(self.of(user), since)

    # ── events of devices ──

    def _told(self, one: InventoryRoot) -> None:
        """Call the users of a root of which the kernel has told something.

        A hundred may read it, and a device that comes or goes concerns few. Where many can say
        whether they find something else, they are asked first, by one reading.
        """
        asked = {user: one for user in one.users if self._differs(user)}
        if len(asked) <= _FEW:
            asked = {}
        for user, changed in list(one.users.items()):
            if user not in asked:
                changed(one.root, None)
        self._asked |= asked
        if asked and self._asking is None:
            self._asking = asyncio.create_task(self._ask(), name="device events")

    def _differs(self, user: Hashable) -> Differs | None:
        """Return what says whether a user finds something else, if it can be asked now.

        Not where it reads more than the kernel's memory: others would wait for that.
        """
        roots = self._used.get(user, ())
        if not roots or any(root.watched for root in roots):
            return None
        return self._differ[user]()

    async def _ask(self) -> None:
        try:
            while self._asked:
                asked, self._asked = self._asked, {}
                try:
                    concerned = await self._differing(asked)
                except Exception:  # noqa: BLE001 (logged, and all are called)
                    _LOG.exception("asking failed, scanning for all device events")
                    concerned = asked
                for user in concerned:
                    if (changed := asked[user].users.get(user)) is not None:
                        changed(asked[user].root, None)
        finally:
            self._asking = None

    async def _differing(self, asked: Iterable[Hashable]) -> Iterable[Hashable]:
        """Return the users that find something else."""
        # One that can no longer be asked scans for a later reason, and sees this change too.
        differ = {user: differs for user in asked if (differs := self._differs(user))}
        since = asyncio.get_running_loop().time()
        ones = dict.fromkeys(one for user in differ for one in self.of(user))
        readings = await _read(list(ones), since)
        work = in_own_thread(
            "device events",
            lambda: [user for user, differs in differ.items() if differs(readings)],
        )
        done, _ = await asyncio.wait({work}, timeout=ANSWER_S)
        return work.result() if done else differ


async def _read(ones: Sequence[InventoryRoot], since: float) -> Readings:
    """Return readings of roots that began at a time or later."""
    if len(ones) == 1:
        return {ones[0].root: await ones[0].read(since)}
    found = await asyncio.gather(*(one.read(since) for one in ones))
    return {one.root: reading for one, reading in zip(ones, found, strict=True)}

"""The scan: what is on the host becomes devices of resources, and each node has one owner.

A resource is scanned when something may have changed at a root of it, when a time has come, and
each minute: in a thread, those of all resources at the same time; one that does not answer fails
alone. What they have found counts in the order of the file, if the nodes are still free that a scan
has taken, else it is repeated; then the resource takes it.
"""

import asyncio
import functools
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from devhost.discovery.identity import NO_ROOM
from devhost.discovery.ownership import Member, Ownership, View
from devhost.discovery.scan import Scanner
from devhost.host.inventory import ANSWER_S, Inventory, InventoryRoot, unanswered
from devhost.host.metrics import Metrics
from devhost.model import limits
from devhost.model.device import Snapshot
from devhost.watch.threads import BlockingCalls, in_thread

RESCAN_S: Final = 60.0  # what is on NFS, or mounted, has no events
POLL_S: Final = 5.0  # where watching is not possible, or reading has failed
_PATIENCE_S: Final = 1.0  # for those before in the file to have found something
_REPEATS_MAX: Final = 3  # of a scan that does not count, before those before in the file wait
_BURST_S, _REST_MAX_S = 0.002, 0.5
CRASH_PAUSE_S, CRASH_PAUSE_MAX_S = 1.0, 60.0
# The part of the IDs left by declarations that is divided evenly, which a directory that fills up
# cannot take from others. The rest goes to the first that need it.
_EVEN: Final = 0.5
_LOG: Final = logging.getLogger(__name__)


class Scannable(Protocol):
    """A resource that is scanned."""

    @property
    def scanner(self) -> Scanner:
        """Its declaration."""
        ...

    @property
    def known(self) -> Snapshot:
        """What the last scan has found."""
        ...

    async def found(self, snapshot: Snapshot) -> None:
        """Take what a scan has found."""
        ...

    def failed(self, error: Exception) -> None:
        """Say that a mistake of ours has ended a scan; another one follows."""
        ...


class Result(NamedTuple):
    """What a scan has found; `counts` is whether that is so, once it is decided."""

    found: Snapshot
    view: View  # of the owners, by which it was found
    most: int  # IDs, if there were so many
    took: float  # seconds
    counts: "asyncio.Future[bool]"


class Scan:
    """The scans of one resource, one at a time; made by `Scanning.add`.

    One is `due` if something may have changed since it has begun.
    """

    def __init__(self, scanning: "Scanning", resource: Scannable) -> None:
        self._scanning, self.resource = scanning, resource
        self.name = resource.scanner.resource.name
        self.member = scanning.ownership.add(self.name)
        # The resources are arranged before this one is declared.
        self.member.shares = resource.scanner.resource.overlap == "allow"
        self._declared = False
        self.due = self._thorough = False
        self._since = self.began = 0.0
        self._task: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        self.result: Result | None = None  # until it is decided about
        self._calls: BlockingCalls
        self._crash_pause = CRASH_PAUSE_S
        self.repeats = 0  # scans in a row that did not count
        self.ids = self.cut = 0  # how many IDs it has, and how many devices had no room

    @property
    def idle(self) -> bool:
        """Whether no scan is running or due."""
        return self._task is None

    @property
    def roots(self) -> list[InventoryRoot]:
        """What is read for it."""
        return self._scanning.inventory.of(self)

    def request(self, *, thorough: bool = False) -> None:
        """Something may have changed; also what no event tells, if `thorough`."""
        if not self._declared:
            return  # such as one that drains
        self.due, self._thorough = True, self._thorough or thorough
        self._since = asyncio.get_running_loop().time()
        self._scanning.undecided.add(self)
        if self._task is None:
            self.began = self._since
            self._task = asyncio.create_task(self._run(), name=f"scan {self.name}")

    def rescan(self) -> None:
        """Scan everything, and see that the right directories are watched."""
        for root in self.roots:
            root.doubt()
        self.request(thorough=True)

    def declare(self) -> None:
        """Scan by the present declaration; what a scan finds that is running does not count."""
        self._stop()
        scanner = self.resource.scanner
        self.member.shares = scanner.resource.overlap == "allow"
        self.member.finds_links = any(one.finds_links for one in scanner.resource.sources)
        self._scanning.inventory.use(self, scanner.roots, self.request)
        # Not those of the former declaration, of which one may hang.
        self._calls = BlockingCalls(f"scan {self.name}", serial=True)
        self._declared = True
        self.request(thorough=True)

    def release(self) -> None:
        """Stop scanning, and leave the nodes to others."""
        self._declared = False
        self._stop()
        self._scanning.inventory.leave(self)
        self._scanning.concern(self._scanning.ownership.decide(self.member, ()))

    def close(self) -> None:
        """Forget the resource."""
        self.release()
        self._scanning.remove(self)

    def _stop(self) -> None:
        self.repeats = 0
        if self._task is not None:
            self._task.cancel()
        if self._again is not None:
            self._again.cancel()
        self._task, self.result, self.due = None, None, False
        self._scanning.settled(self)

    async def _run(self) -> None:
        """Scan for as long as something may have changed."""
        loop = asyncio.get_running_loop()
        again_at: float | None = None
        while self.due:
            if self._again is not None:
                self._again.cancel()
            self.due, self.began = False, loop.time()
            again_at = await self._scan()
            if self.due:  # one that changes all the time leaves time to the others
                await asyncio.sleep(min(max(_BURST_S, loop.time() - self.began), _REST_MAX_S))
        self._task = None
        if again_at is not None:
            self._again = loop.call_at(again_at, self.rescan)

    async def _scan(self) -> float | None:
        """Scan once; return when to do so again even if nothing happens."""
        loop, thorough = asyncio.get_running_loop(), self._thorough
        self._thorough = False
        try:
            result = await self._result(thorough=thorough)
            found = result.found
            if not await result.counts:
                self.due, self._thorough = True, self._thorough or thorough
                return None
            await self.resource.found(found)
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("resource failed", extra={"fields": {"resource": self.name}})
            self._scanning.settled(self)
            self.resource.failed(error)
            pause = self._crash_pause
            self._crash_pause = min(pause * 2, CRASH_PAUSE_MAX_S)
            return loop.time() + pause
        self._crash_pause = CRASH_PAUSE_S
        loop.call_soon(self._scanning.count, self, result)  # after the list, which is sent first
        # What has failed may have done so for a moment, such as without a free descriptor.
        poll = found.error is not None or any(root.degraded for root in self.roots)
        times = (found.again_at, loop.time() + POLL_S if poll else None)
        return min((time for time in times if time is not None), default=None)

    async def _result(self, *, thorough: bool) -> Result:
        """Find out what is there."""
        loop, scanner, roots = asyncio.get_running_loop(), self.resource.scanner, self.roots
        since, most = self._since, self._scanning.room(self)
        for root in roots:
            await root.watch()
        began, view = loop.time(), View(self._scanning.ownership, self.member)
        conclude = functools.partial(
            scanner.snapshot,
            previous=self.resource.known,
            now=began,
            links_to_come=view.links_to_come,
            thorough=thorough,
            most=most // scanner.resource.replicas,
        )

        def look() -> Snapshot:
            selected = scanner.select({root.root: root.read(since) for root in roots})
            return conclude(selected, owner_of=seen.owner)

        seen = view
        try:
            found = await self._calls.run(look, patience=ANSWER_S, on_late=self.request)
        except TimeoutError:
            view = View(self._scanning.ownership, self.member)  # not that of the thread that hangs
            failed = functools.partial(conclude, scanner.failed(unanswered()), owner_of=view.owner)
            found = await in_thread(f"scan {self.name}", failed)
        self.result = result = Result(found, view, most, loop.time() - began, loop.create_future())
        self._scanning.decide()
        return result


class Scanning:
    """The scans of all resources of a process."""

    def __init__(self, inventory: Inventory, metrics: Metrics) -> None:
        self.inventory, self._metrics = inventory, metrics
        self.ownership = Ownership()
        self.undecided = set[Scan]()  # due, or running, or waiting for those before in the file
        self._scans: dict[Member, Scan] = {}
        self._patience: asyncio.TimerHandle | None = None
        self._granted: dict[str, int] = {}  # IDs that no other resource can have

    def add(self, resource: Scannable) -> Scan:
        """Enter a resource behind those that are there."""
        scan = Scan(self, resource)
        self._scans[scan.member] = scan
        return scan

    def remove(self, scan: Scan) -> None:
        """Forget a resource."""
        self.ownership.remove(scan.member)
        del self._scans[scan.member]
        self._tell_room()

    def arrange(self, order: Sequence[str], declared: Mapping[str, int]) -> None:
        """Go over to another file: the order of its resources, and how many IDs each declares."""
        self.concern(self.ownership.arrange(order))
        left = max(limits.DEVICE_IDS_MAX - sum(declared.values()), 0)
        each = int(left * _EVEN / max(len(declared), 1))
        self._granted = {name: ids + each for name, ids in declared.items()}
        self._tell_room()

    def concern(self, members: Iterable[Member]) -> None:
        """Scan resources again, but those that are decided about anyway."""
        for member in members:
            if (scan := self._scans[member]) not in self.undecided:
                scan.request()

    async def run(self) -> None:
        """Scan everything each minute, until cancelled."""
        while True:
            await asyncio.sleep(RESCAN_S)
            for scan in tuple(self._scans.values()):
                scan.rescan()
                await asyncio.sleep(0)  # not a thousand in one round of the loop

    def count(self, scan: Scan, result: Result) -> None:
        """Count a scan."""
        self._metrics.discovery_seconds.labels(scan.name).observe(result.took)
        self._metrics.discovery_errors.labels(scan.name).inc(result.found.error is not None)

    # ── which scans count ──

    def decide(self) -> None:
        """Decide about what was found, in the order of the file.

        Those that may be about to find something are waited for, but not for long.
        """
        loop = asyncio.get_running_loop()
        if self._patience is not None:
            self._patience.cancel()
        for scan in sorted(self.undecided, key=_turn):
            if scan.result is not None:
                self._decide(scan, scan.result)
            elif loop.time() < scan.began + _PATIENCE_S:
                self._patience = loop.call_at(scan.began + _PATIENCE_S, self.decide)
                break

    def settled(self, scan: Scan) -> None:
        """Have nobody wait for a scan any longer, unless another one is due."""
        if not scan.due and scan in self.undecided:
            self.undecided.discard(scan)
            self.decide()

    def _decide(self, scan: Scan, result: Result) -> None:
        scan.result = None
        try:
            counts = self._counts(scan, result)
        except Exception as error:  # noqa: BLE001 (a mistake of ours is that resource's alone)
            result.counts.set_exception(error)
        else:
            scan.repeats = 0 if counts else scan.repeats + 1
            if counts and not scan.due:
                self.undecided.discard(scan)
            result.counts.set_result(counts)

    def _counts(self, scan: Scan, result: Result) -> bool:
        """Enter what a resource has now, if the nodes and IDs are still free that it has taken."""
        found, view, member = result.found, result.view, scan.member
        offered = frozenset(key for one in found.devices.values() for key in one.keys)
        ids, most = len(found.devices) * scan.resource.scanner.resource.replicas, self.room(scan)
        # Another one had these at the last scan, and why it has left them since may be the reason
        # that has come since this scan began: they may be there no longer.
        stale = scan.due and not member.left.isdisjoint(offered)
        other_room = (ids > most and most < result.most) or (found.cut and most > result.most)
        if stale or other_room or not view.holds():
            return False
        left = [key for key, owner in view.owners.items() if owner is not None]
        expected = member.expected
        if expected and found.error is None:
            expected = expected.intersection(view.owners)
        self.concern(self.ownership.decide(member, offered, left, expected))
        before, scan.ids = scan.ids, ids
        if found.cut and not scan.cut:
            fields = {"resource": scan.name, "left_out": found.cut, "reason": NO_ROOM}
            _LOG.warning("devices left out", extra={"fields": fields})
        scan.cut = found.cut
        if ids < before:
            self._tell_room()
        return True

    # ── how many IDs each may have ──

    def room(self, scan: Scan) -> int:
        """Return how many IDs a resource may have; what it has it keeps."""
        others = sum(
            max(one.ids, self._granted.get(one.name, 0))
            for one in self._scans.values()
            if one is not scan
        )
        return max(scan.ids, limits.DEVICE_IDS_MAX - others)

    def _tell_room(self) -> None:
        self.concern(one.member for one in tuple(self._scans.values()) if one.cut)


def _turn(scan: Scan) -> tuple[bool, int]:
    """Return when it is a scan's turn: first comes what others have overtaken again and again."""
    return scan.repeats < _REPEATS_MAX, scan.member.place

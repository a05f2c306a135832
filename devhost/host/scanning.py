"""The scan: what is on the host becomes devices of resources, and each node has one owner.

A resource is scanned when something may have changed at a root of it, when a time has come, and
each minute. Its roots are read and its sources select in threads, those of all resources at the
same time; one that does not answer fails alone. About what they have found one task decides, in the
order of the file: which devices there are, and which resource offers a node. What the host says of
the devices is again looked up in threads; then the resource takes what was found.
"""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from devhost.discovery.identity import NO_ROOM, Identified
from devhost.discovery.ownership import Member, Ownership
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import Selection
from devhost.host import inventory as host
from devhost.host.inventory import Inventory, InventoryRoot, unanswered
from devhost.host.metrics import Metrics
from devhost.model import limits
from devhost.model.device import Snapshot
from devhost.watch.threads import BlockingCalls, in_thread

RESCAN_S: Final = 60.0  # what is on NFS, or mounted, has no events
POLL_S: Final = 5.0  # where watching is not possible, or reading has failed
_PATIENCE_S: Final = 1.0  # for those before in the file to know what they have found
_BURST_S, _REST_MAX_S = 0.002, 0.5
CRASH_PAUSE_S, CRASH_PAUSE_MAX_S = 1.0, 60.0
_FEW: Final = 200  # to identify so few takes less than a thread does
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


class Scan:
    """The scans of one resource, one at a time; made by `Scanning.add`.

    One is `due` if something may have changed since it has begun; while one is `undecided`, those
    behind it wait for the decision about what it has `selected`.
    """

    def __init__(self, scanning: "Scanning", resource: Scannable) -> None:
        self._scanning, self.resource = scanning, resource
        self.name = resource.scanner.resource.name
        self.member = scanning.ownership.add(self.name)
        # The resources are arranged before this one is declared.
        self.member.shares = resource.scanner.resource.overlap == "allow"
        self._declared = False
        self.due = self.thorough = self.undecided = False
        self.since = self.began = 0.0
        self.task: asyncio.Task[None] | None = None
        self.again: asyncio.TimerHandle | None = None
        self.selected: Selection | None = None
        self.decided: asyncio.Future[Identified] | None = None
        self.calls: BlockingCalls
        self.crash_pause = CRASH_PAUSE_S
        self.ids = self.cut = 0  # how many IDs it has, and how many devices had no room
        self.took, self.read_failed = 0.0, False  # the last reading

    @property
    def idle(self) -> bool:
        """Whether no scan is running or due."""
        return self.task is None and not self.due

    @property
    def roots(self) -> list[InventoryRoot]:
        """What is read for it."""
        return self._scanning.inventory.of(self)

    def request(self, *, thorough: bool = False) -> None:
        """Something may have changed; also what no event tells, if `thorough`."""
        if not self._declared:
            return  # such as one that drains
        self.due = self.undecided = True
        self.thorough = self.thorough or thorough
        self.since = asyncio.get_running_loop().time()
        self._scanning.wake(self)

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
        self.calls = BlockingCalls(f"scan {self.name}", serial=True)
        self._declared = True
        self.request(thorough=True)

    def release(self) -> None:
        """Stop scanning, and leave the nodes to others."""
        self._stop()
        self._declared = False
        self._scanning.inventory.leave(self)
        self._scanning.concern(self._scanning.ownership.decide(self.member, ()))

    def close(self) -> None:
        """Forget the resource."""
        self.release()
        self._scanning.remove(self)

    def _stop(self) -> None:
        if self.task is not None:
            self.task.cancel()
        if self.again is not None:
            self.again.cancel()
        self.task = self.selected = None
        self.due = self.undecided = False


class Scanning:
    """The scans of all resources of a process."""

    def __init__(self, inventory: Inventory, metrics: Metrics) -> None:
        self.inventory, self._metrics = inventory, metrics
        self.ownership = Ownership()
        self._scans: dict[Member, Scan] = {}
        self._active: set[Scan] = set()  # due, or running
        self._woken = asyncio.Event()
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
        self._active.discard(scan)
        self._tell_room()

    def arrange(self, order: Sequence[str], declared: Mapping[str, int]) -> None:
        """Go over to another file: the order of its resources, and how many IDs each declares."""
        self.concern(self.ownership.arrange(order))
        left = max(limits.DEVICE_IDS_MAX - sum(declared.values()), 0)
        each = int(left * _EVEN / max(len(declared), 1))
        self._granted = {name: ids + each for name, ids in declared.items()}
        self._tell_room()

    def wake(self, scan: Scan) -> None:
        """Go on with a resource."""
        if scan.member in self._scans:
            self._active.add(scan)
            self._woken.set()

    def concern(self, members: Iterable[Member]) -> None:
        """Scan resources again, but those that are decided about anyway."""
        for member in members:
            if not (scan := self._scans[member]).undecided:
                scan.request()

    async def run(self) -> None:
        """Scan what is due and decide, until cancelled."""
        loop = asyncio.get_running_loop()
        rescan_at = loop.time() + RESCAN_S
        timer = loop.call_at(rescan_at, self._woken.set)
        while True:
            await self._woken.wait()
            self._woken.clear()
            timer.cancel()
            if loop.time() >= rescan_at:
                rescan_at = loop.time() + RESCAN_S
                for scan in self._scans.values():
                    scan.rescan()
            for scan in self._in_order():
                if scan.due and scan.task is None:
                    self._begin(scan)
                    await asyncio.sleep(0)  # not a thousand in one round of the loop
            wake_at = rescan_at
            for scan in self._in_order():
                if scan.selected is not None:
                    await self._decide(scan, scan.selected)
                elif scan.undecided and loop.time() < scan.began + _PATIENCE_S:
                    wake_at = min(wake_at, scan.began + _PATIENCE_S)
                    break
            timer = loop.call_at(wake_at, self._woken.set)

    def _in_order(self) -> list[Scan]:
        return sorted(self._active, key=lambda one: one.member.place)

    def _begin(self, scan: Scan) -> None:
        scan.due, thorough, scan.thorough = False, scan.thorough, False
        scan.began = asyncio.get_running_loop().time()
        if scan.again is not None:
            scan.again.cancel()
        scan.task = asyncio.create_task(
            self._scan(scan, thorough=thorough), name=f"scan {scan.name}"
        )
        scan.task.add_done_callback(functools.partial(self._ended, scan))

    def _ended(self, scan: Scan, task: "asyncio.Task[None]") -> None:
        if scan.task is task:
            scan.task = None
            self._active.discard(scan)
            if scan.due:
                self.wake(scan)

    # ── one resource ──

    async def _scan(self, scan: Scan, *, thorough: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            found = await self._found(scan, thorough=thorough)
            await scan.resource.found(found)
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("resource failed", extra={"fields": {"resource": scan.name}})
            scan.undecided = scan.due
            scan.resource.failed(error)
            again_at = loop.time() + scan.crash_pause
            scan.crash_pause = min(scan.crash_pause * 2, CRASH_PAUSE_MAX_S)
        else:
            scan.crash_pause = CRASH_PAUSE_S
            again_at = float("inf") if found.again_at is None else found.again_at
            # What has failed may have done so for a moment, such as without a free descriptor.
            if found.error is not None or any(root.degraded for root in scan.roots):
                again_at = min(again_at, loop.time() + POLL_S)
        count = functools.partial(
            self._metrics.scanned, scan.name, scan.took, failed=scan.read_failed
        )
        loop.call_soon(count)  # after the list, which is sent first
        if again_at < float("inf"):
            scan.again = loop.call_at(again_at, scan.rescan)
        if scan.due:  # one that changes all the time leaves time to the others
            await asyncio.sleep(min(max(_BURST_S, loop.time() - scan.began), _REST_MAX_S))

    async def _found(self, scan: Scan, *, thorough: bool) -> Snapshot:
        clock, scanner = asyncio.get_running_loop().time, scan.resource.scanner
        roots, since, unanswered_ = scan.roots, scan.since, False
        for root in roots:
            await root.watch()
        in_time = functools.partial(scan.calls.run, patience=host.ANSWER_S, on_late=scan.request)
        try:
            selected: Selection = await in_time(
                lambda: scanner.select({root.root: root.read(since) for root in roots})
            )
        except TimeoutError:
            selected, unanswered_ = scanner.failed(unanswered()), True
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("scan failed", extra={"fields": {"resource": scan.name}})
            selected = scanner.failed(f"scan failed: {error!r}")
        scan.took, scan.read_failed = clock() - scan.began, bool(selected.failed)
        if not unanswered_:
            try:
                return await self._concluded(scan, selected, in_time, thorough=thorough)
            except TimeoutError:  # a path of an answer may not answer either
                selected = scanner.failed(unanswered())
        # Where nothing is found, no path has to be checked.
        in_any_thread = functools.partial(in_thread, f"scan {scan.name}")
        return await self._concluded(scan, selected, in_any_thread, thorough=thorough)

    async def _concluded(
        self,
        scan: Scan,
        selected: Selection,
        run: Callable[[Callable[[], Snapshot]], Awaitable[Snapshot]],
        *,
        thorough: bool,
    ) -> Snapshot:
        """Wait for the decision, and return the devices as the host has them."""
        scanner = scan.resource.scanner
        scan.decided = asyncio.get_running_loop().create_future()
        scan.selected, scan.undecided = selected, True
        self.wake(scan)
        identified = await scan.decided
        return await run(functools.partial(scanner.conclude, identified, thorough=thorough))

    async def _decide(self, scan: Scan, selected: Selection) -> None:
        """Decide which devices a resource has; a mistake of ours is that resource's alone."""
        decided, scan.selected = scan.decided, None
        assert decided is not None  # noqa: S101 (it was made for what was selected)
        try:
            decision = await self._decision(scan, selected, decided)
        except Exception as error:  # noqa: BLE001 (raised in the task of the scan)
            if not decided.done():
                decided.set_exception(error)
        else:
            if decision is not None:
                scan.undecided = scan.due
                decided.set_result(decision)

    async def _decision(
        self, scan: Scan, selected: Selection, decided: "asyncio.Future[Identified]"
    ) -> Identified | None:
        scanner, member, ownership = scan.resource.scanner, scan.member, self.ownership
        previous, now = scan.resource.known, asyncio.get_running_loop().time()
        left: set[str] = set()

        def owner_of(key: str) -> str | None:
            if (owner := ownership.owner(member, key)) is not None:
                left.add(key)
            return owner

        links = ownership.links_to_come(member)
        identify = functools.partial(
            scanner.identify, selected, previous, owner_of, now, links_to_come=links
        )
        if len(selected.nodes) + len(previous.devices) <= _FEW:
            identified = identify()
        else:
            identified = await in_thread(f"identify {scan.name}", identify)
            if decided.done():
                return None  # the declaration has changed meanwhile
        if scan.due and not member.left.isdisjoint(identified.offered):
            # Another one had these at the last scan, and why it has left them since may be the
            # reason that has come since this scan began: they may be there no longer.
            decided.cancel()
            return None
        self._cut(scan, identified)
        expected = member.expected
        if expected and not selected.failed:
            expected = expected.intersection(node.key for node in selected.nodes)
        self.concern(ownership.decide(member, identified.offered, left, expected))
        return identified

    # ── how many IDs each may have ──

    def _cut(self, scan: Scan, identified: Identified) -> None:
        """Keep a resource within its part of what the process may offer; what it has it keeps."""
        others = sum(
            max(one.ids, self._granted.get(one.name, 0))
            for one in self._scans.values()
            if one is not scan
        )
        replicas = scan.resource.scanner.resource.replicas
        most = max(scan.ids, limits.DEVICE_IDS_MAX - others)
        identified.cut_to(most // replicas)
        before, scan.ids = scan.ids, (len(identified.devices) + len(identified.gone)) * replicas
        if identified.cut and not scan.cut:
            fields = {"resource": scan.name, "left_out": identified.cut, "reason": NO_ROOM}
            _LOG.warning("devices left out", extra={"fields": fields})
        scan.cut = identified.cut
        if scan.ids < before:
            self._tell_room()

    def _tell_room(self) -> None:
        self.concern(one.member for one in tuple(self._scans.values()) if one.cut)

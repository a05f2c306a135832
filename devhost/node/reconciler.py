"""Keeps the devices of each resource as the host has them.

A resource is read when something may have changed at a location of it, when a time has come, and
each minute: in a thread, those of all resources at the same time; one that does not answer fails
alone. The thread forecasts the devices, and verifies them if that is quick. What was found is
resolved in the order of the file, in one pass at a time (`devhost.devices.resolve`). Devices that
are not as forecast, as another resource offers a node now, are verified in a thread after that;
then they are published.
"""

import asyncio
import functools
import math
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from devhost.devices.identify import Identified
from devhost.devices.resolve import Resolver
from devhost.devices.scan import Scanner
from devhost.hostfs.files import Progress
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.node.locations import READ_TIMEOUT_S, LocationReader, Locations, timeout_text
from devhost.node.tasks import keep_running
from devhost.observe.metrics import Metrics
from devhost.sources.selection import Selection
from devhost.watch.threads import BlockingCalls, run_in_thread

RESCAN_S: Final = 60.0  # what is on NFS, or mounted, has no events
POLL_S: Final = 5.0  # where watching is not possible, or reading has failed
ORDER_WAIT_S: Final = 1.0  # for a resource before in the file, which may find the same nodes
_REREADS_MAX: Final = 3  # of a resource that changes all the time
_FEW: Final = 200  # nodes: to resolve so few takes less than a thread does
_BURST_S, _REST_MAX_S = 0.002, 0.5

T = TypeVar("T")
_Edit = Callable[[Resolver], set[str]]
_Finding = tuple[Identified, Snapshot, bool]
"""A forecast, the devices that the resource has, and whether something may have changed since."""
_Outcome = tuple[list[Identified | Exception | None], set[str]]
"""What a pass comes to for each finding, and the resources to read again."""


class ResourceScan:
    """The scans of one resource, one at a time.

    `apply` gets what a scan finds, `failed` a mistake of ours.
    """

    def __init__(
        self,
        reconciler: "Reconciler",
        scanner: Scanner,
        apply: Callable[[Snapshot], Awaitable[None]],
        failed: Callable[[Exception], object],
    ) -> None:
        self._reconciler, self._apply, self._failed = reconciler, apply, failed
        self.name, self.scanner = scanner.resource.name, scanner
        self.found = Snapshot()  # the devices that the resource has, by the last scan
        # The need for a scan; times are on the event loop's clock.
        self.due = False  # something may have changed since the last reading began
        self._full = False  # also what no event tells is asked for
        self._is_reading = False  # a reading was begun that was not taken by a pass yet
        self._since = 0.0  # when a scan was requested last
        self.pending_since = 0.0
        self._outdated_count = 0  # of the last findings: something had changed meanwhile
        self.timer: asyncio.TimerHandle | None = None  # to scan even if nothing happens
        # The devices as read last, if others offer the nodes that they offered before; and the
        # devices when a pass has resolved that.
        self.forecast: Identified
        self.outcome: asyncio.Future[Identified | None] | None = None
        self._owners: Mapping[str, str] = {}  # of nodes that another resource offers
        self._links_to_come = False
        self.readers: Sequence[LocationReader] = ()  # of the locations where its sources look
        self._calls: BlockingCalls | None = None  # while it is enabled
        reconciler.scans[self.name] = self

    @property
    def is_pending(self) -> bool:
        """Whether a scan may be about to find something."""
        return self.due or self._is_reading

    @property
    def is_outdated(self) -> bool:
        """Whether it has to be read again; never that of a resource that changes all the time."""
        return self.due and self._outdated_count < _REREADS_MAX

    def request(self, *, full: bool = False) -> None:
        """Scan, as something may have changed; also what no event tells, if `full`."""
        if self._calls is None:
            return  # such as one that drains
        self._since = asyncio.get_running_loop().time()
        if not self.is_pending:
            self.pending_since = self._since
        self.due, self._full = True, self._full or full
        if self not in self._reconciler.active:
            work = keep_running("resource", self.name, self._run, self._report_failure)
            task = asyncio.create_task(work, name=f"scan {self.name}")
            self._reconciler.active[self] = task

    def rescan(self) -> None:
        """Scan everything, and see that the right directories are watched."""
        for reader in self.readers:
            reader.recheck()
        self.request(full=True)

    def apply_spec(self, scanner: Scanner) -> None:
        """Scan by a specification; a scan that is running is given up."""
        self._stop()
        locations, self.scanner = self._reconciler.locations, scanner
        self.readers = locations.subscribe(self, scanner.locations, self.request, self.readers)
        # Without the calls of the former specification, of which one may hang.
        self._calls = BlockingCalls(f"scan {self.name}", serial=True)
        self.request(full=True)

    def release(self) -> None:
        """Stop scanning, and leave the nodes to others."""
        if self._calls is not None:
            self._stop()
            self._reconciler.locations.unsubscribe(self, self.readers)
            self._calls, self.readers = None, ()
            self._reconciler.edit(lambda resolver: resolver.release(self.name))

    def close(self) -> None:
        """Forget the resource."""
        self.release()
        self._reconciler.scans.pop(self.name, None)

    def _stop(self) -> None:
        task = self._reconciler.active.pop(self, None)
        for pending in (task, self.timer, self.outcome):
            if pending is not None:
                pending.cancel()
        self.outcome = None
        self.due = self._is_reading = False
        if task is not None:
            self._reconciler.wake()  # nobody has to wait for it any longer

    def _report_failure(self, error: Exception) -> None:
        self._failed(error)
        self.request(full=True)

    async def _run(self) -> None:
        """Scan for as long as something may have changed."""
        clock = asyncio.get_running_loop().time
        again_at: float | None = None
        while self.due:
            if self.timer is not None:
                self.timer.cancel()
            began = self.pending_since = clock()
            self.due, self._is_reading = False, True
            again_at = await self._scan(began)
            if self.due:  # one that changes all the time leaves time to the others
                await asyncio.sleep(min(max(_BURST_S, clock() - began), _REST_MAX_S))
        self._reconciler.active.pop(self, None)
        if again_at is not None:
            self.timer = asyncio.get_running_loop().call_at(again_at, self.rescan)

    async def _scan(self, began: float) -> float | None:
        """Scan once; return when to do so again even if nothing happens."""
        loop, scanner = asyncio.get_running_loop(), self.scanner
        full, self._full = self._full, False
        try:
            forecast, snapshot = await self._read(scanner, self._since, full=full)
            identified = await self._resolve(forecast)
        finally:
            if self._is_reading:
                self._is_reading = False
                self._reconciler.wake(self)
        if identified is None:
            self.due, self._full = True, self._full or full
            return None
        if snapshot is None or identified is not forecast:
            snapshot = await self._call(functools.partial(scanner.verify, identified, full=full))
        if snapshot is None:
            forecast, snapshot = await self._read_nothing(scanner)
            await self._resolve(forecast)
        took = loop.time() - began
        await self._apply(snapshot)
        # After the list, which is sent first.
        loop.call_soon(self._reconciler.metrics.observe_scan, self.name, snapshot, took)
        # What has failed may have done so for a moment, such as without a free descriptor.
        if snapshot.error is not None or any(reader.polling_reason for reader in self.readers):
            return min(loop.time() + POLL_S, snapshot.again_at or math.inf)
        return snapshot.again_at

    async def _read(
        self, scanner: Scanner, since: float, *, full: bool
    ) -> tuple[Identified, Snapshot | None]:
        """Return a forecast by listings that are not older than a time, and perhaps its snapshot.

        What takes longer is left for later: others wait until a forecast was resolved.
        """
        readers = self.readers
        for reader in readers:
            await reader.watch()

        def look() -> tuple[Identified, Snapshot | None]:
            listings = {reader.location: reader.read(since) for reader in readers}
            forecast = self._forecast(scanner, scanner.select(listings))
            few = len(forecast.selection.nodes) <= _FEW and scanner.self_contained
            return forecast, scanner.verify(forecast, full=full) if few else None

        return await self._call(look) or await self._read_nothing(scanner)

    async def _read_nothing(self, scanner: Scanner) -> tuple[Identified, Snapshot]:
        """Return the same for a host that does not answer: nothing has to be asked of it."""
        forecast = self._forecast(scanner, scanner.failed(timeout_text()))
        return forecast, await run_in_thread("verify", functools.partial(scanner.verify, forecast))

    def _forecast(self, scanner: Scanner, selection: Selection) -> Identified:
        now, links = time.monotonic(), self._links_to_come
        return scanner.identify(selection, self.found, now, self._owners, links_to_come=links)

    async def _call(self, work: Callable[[], T]) -> T | None:
        """Return the result of a call that blocks; ``None`` if the host does not answer."""
        assert self._calls is not None  # noqa: S101 (it is enabled)
        try:
            return await self._calls.run(
                work, patience=READ_TIMEOUT_S, progress=Progress(), on_late=self.request
            )
        except TimeoutError:
            return None

    async def _resolve(self, forecast: Identified) -> Identified | None:
        """Return the devices, when the pass has come to them."""
        self.forecast, self.outcome = forecast, asyncio.get_running_loop().create_future()
        self._reconciler.wake(self)
        identified = await self.outcome
        self.outcome = None
        del self.forecast  # it has the devices from before
        if identified is not None and identified is not forecast:
            owners = identified.context.owners.items()
            self._owners = {key: owner for key, owner in owners if owner is not None}
            self._links_to_come = identified.context.links_to_come
        return identified

    def take(self) -> _Finding:
        """Return what was found, for a pass."""
        outdated, self._is_reading = self.is_outdated, False
        self._outdated_count = self._outdated_count + 1 if self.due else 0
        return self.forecast, self.found, outdated


class Reconciler:
    """The scans of all resources of a process, and the pass that resolves what they find."""

    def __init__(self, locations: Locations, metrics: Metrics) -> None:
        self.locations, self.metrics = locations, metrics
        self.active: dict[ResourceScan, asyncio.Task[None]] = {}  # with a scan due or running
        self.scans: dict[str, ResourceScan] = {}  # by resource
        self._positions: dict[str, int] = {}
        self._resolver = Resolver()  # belongs to the pass
        self._edits: list[_Edit] = []
        self._pass: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._awaited: ResourceScan | None = None  # the first that may find something yet

    def reserve(self, reserved: Mapping[str, Collection[str]]) -> None:
        """Keep nodes, at the start, for the resources whose pods have them."""
        self._resolver = Resolver(reserved)

    def reconfigure(self, resources: Sequence[Resource]) -> None:
        """Apply the order of the resources of another file, and what they declare."""
        self._positions = {resource.name: at for at, resource in enumerate(resources)}
        self.edit(lambda resolver: resolver.reconfigure(resources))

    def edit(self, change: _Edit) -> None:
        """Change who has what, before the next finding is resolved."""
        self._edits.append(change)
        self.wake()

    async def run(self) -> None:
        """Scan everything each minute, until cancelled."""
        while True:
            await asyncio.sleep(RESCAN_S)
            for scan in tuple(self.scans.values()):
                scan.rescan()
                await asyncio.sleep(0)  # not a thousand in one round of the loop

    # ── the pass ──

    def wake(self, scan: ResourceScan | None = None) -> None:
        """Resolve what is ready, also by what has just come of a scan."""
        last = self._awaited  # at which the last pass has ended: behind it, nothing is ready
        if scan and last and last.is_pending and self._position(scan) > self._position(last):
            return
        if self._pass is None or self._pass.done():
            work = keep_running("task", "resolve", self._resolve_ready)
            self._pass = asyncio.create_task(work, name="resolve")

    async def _resolve_ready(self) -> None:
        """Run passes for as long as there is something for one."""
        ready: list[ResourceScan] = []
        try:
            while (ready := self._ready()) or self._edits:
                edits = tuple(self._edits)
                findings = [scan.take() for scan in ready]
                work = functools.partial(_one_pass, self._resolver, edits, findings)
                few = sum(len(forecast.selection.nodes) for forecast, *_ in findings) <= _FEW
                resolved, again = work() if few else await run_in_thread("resolve", work)
                del self._edits[: len(edits)]
                for scan, identified in zip(ready, resolved, strict=True):
                    _deliver(scan, identified)
                for scan in filter(None, map(self.scans.get, again)):
                    if not scan.is_pending:
                        scan.request()
        except Exception as error:  # tried again, with the same edits
            for scan in ready:
                _deliver(scan, error)
            raise

    def _ready(self) -> list[ResourceScan]:
        """Return the scans to resolve: those before which no resource may find something yet.

        One that takes long is not waited for.
        """
        loop, ready = asyncio.get_running_loop(), list[ResourceScan]()
        if self._timer is not None:
            self._timer.cancel()
        self._awaited = None
        for scan in sorted(self.active, key=self._position):
            if scan.outcome is not None and not scan.outcome.done():
                ready.append(scan)
                if scan.is_outdated:
                    break  # a resource behind it may have been read later
            elif scan.is_pending and loop.time() < (until := scan.pending_since + ORDER_WAIT_S):
                self._timer, self._awaited = loop.call_at(until, self.wake), scan
                break
        return ready

    def _position(self, scan: ResourceScan) -> int:
        return self._positions.get(scan.name, -1)


def _one_pass(resolver: Resolver, edits: Iterable[_Edit], findings: Iterable[_Finding]) -> _Outcome:
    """Apply edits and resolve findings; return the outcomes, and which resources to read again."""
    again = set[str]().union(*(edit(resolver) for edit in edits))
    outcomes: list[Identified | Exception | None] = []
    for forecast, previous, outdated in findings:
        try:
            identified, concerned = resolver.resolve(forecast, previous, outdated=outdated)
        except Exception as error:  # noqa: BLE001 (a mistake of ours is that resource's alone)
            outcomes.append(error)
        else:
            outcomes.append(identified)
            again |= concerned
    return outcomes, again


def _deliver(scan: ResourceScan, outcome: Identified | Exception | None) -> None:
    if (future := scan.outcome) is None or future.done():
        return  # stopped meanwhile
    if isinstance(outcome, Exception):
        future.set_exception(outcome)
    else:
        future.set_result(outcome)

"""One resource's life: scan, publish, serve; change, drain, end."""

import asyncio
import functools
import math
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from devhost.discovery.scan import Scanner, carried_over
from devhost.host.cdi.injection import CdiInjection
from devhost.host.health import HealthMonitor
from devhost.host.inventory import InventoryRoot
from devhost.host.prestart.preparation import Preparation
from devhost.host.resource.allocation_backend import ResourceBackend
from devhost.host.resource.publisher import Publisher, withdrawn, without_left
from devhost.host.resource.resource_status import ResourceStatus
from devhost.host.resource.scan_calls import ScanCalls
from devhost.host.resource.scans import RescanTrigger, Scans
from devhost.host.shared import CodeResource, Shared
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.registration import Registration
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.state import State, Status

POLL_S: Final = 5.0  # where watching is not possible, or reading has failed
_BURST_S, _REST_MAX_S = 0.002, 0.5
_STEP_S: Final = 0.2  # while IDs are leaving
_FIRST_ROUND_S: Final = 1.0
_REMOVED: Final = "its resource was removed from the configuration"
_DRAINING: Final = "removed from the configuration"


class Runner:
    """Serves one resource."""

    def __init__(self, scanner: Scanner, shared: Shared, code: CodeResource | None = None) -> None:
        name, self._code = scanner.resource.name, code
        self._shared = shared
        self.draining = False
        self._due = RescanTrigger()
        self._busy = True
        self._member = shared.ownership.add(name, self.trigger_scan)
        self._declare(scanner)
        self._calls = ScanCalls(name, self.trigger_scan)
        self._scans = Scans(scanner, self._member, shared, self._calls, self.trigger_scan)
        self._scanning: asyncio.Task[Snapshot | None] | None = None
        self.health = HealthMonitor(name, self.trigger_scan)
        self._injection = CdiInjection(shared.cdi_files, shared.holders, self.trigger_scan)
        self.device_list = DeviceList(shared.leave_after)
        self.device_list.ids_held_by_pods = functools.partial(shared.holders.held, name)
        judges = [self.health.with_health, self._injection.judged]
        self._publisher = Publisher(scanner, self.device_list, shared.owners, judges)
        shared.owners.serve(name, self.device_list, self.trigger_scan)
        self._last_held: AbstractSet[str] = frozenset()
        self._up_to_date = asyncio.Event()
        self._preparation = Preparation(
            name,
            node_name=scanner.node_name,
            files=scanner.files,
            policy=scanner.policy,
            holders=shared.holders.now if shared.holders.asked else None,
            still_held=shared.holders.still_held,
            state_dir=shared.state_dir,
        )
        backend = ResourceBackend(
            self._publisher, self._up_to_date, self._preparation, shared, code
        )
        self.resource_status = ResourceStatus(name)
        by_name = code is not None or name in scanner.policy.allow_resources
        served = None if by_name else shared.served_names
        self._registration = Registration(backend, shared.directory, self._tell, served)
        if code is not None:
            code.started(self.trigger_scan)

    @property
    def name(self) -> str:
        """The resource's name."""
        return self._member.name

    @property
    def resource(self) -> Resource:
        """The declaration."""
        return self._scans.scanner.resource

    @property
    def snapshot(self) -> Snapshot:
        """What is advertised."""
        return self._publisher.snapshot

    @property
    def status(self) -> Status:
        """Its state, why, and since when."""
        return self.resource_status.shown

    @property
    def roots(self) -> list[InventoryRoot]:
        """What is read for it."""
        return self._shared.inventory.of(self._member)

    @property
    def idle(self) -> bool:
        """Whether no scan is running or due."""
        return not self._busy and not self._due

    @property
    def registered(self) -> bool:
        """Whether kubelet has it."""
        state = self.status.state
        drains = state is State.DRAINING and self.device_list.stream_count > 0
        return state is State.REGISTERED or drains

    @property
    def held(self) -> AbstractSet[str]:
        """The IDs that pods hold, as far as that is known."""
        return self._shared.holders.held(self.name)

    @property
    def _drained(self) -> bool:
        return self.draining and self.device_list.drained

    # ── what may be asked of it ──

    def trigger_scan(self) -> None:
        """Something may have changed on the host."""
        self._shared.ownership.due(self._member)
        self._due.request()

    def rescan(self) -> None:
        """Scan everything, and see that the right directories are watched."""
        for root in self.roots:
            root.doubt()
        self._due.request(thorough=True)
        self.trigger_scan()

    def change(self, scanner: Scanner) -> None:
        """Go on by another declaration of the resource, with the same socket and stream."""
        self.draining = False
        publisher = self._publisher
        publisher.found = carried_over(publisher.found, self.resource, scanner.resource)
        # The log says it again if the new declaration finds nothing either.
        publisher.snapshot = replace(publisher.snapshot, why_none=tuple)
        self._scans = Scans(scanner, self._member, self._shared, self._calls, self.trigger_scan)
        self._use(scanner)
        self._declare(scanner)
        self._start_over()
        self.resource_status.restore()

    def _use(self, scanner: Scanner) -> None:
        self._shared.inventory.use(self._member, scanner.roots, self.trigger_scan)

    def _declare(self, scanner: Scanner) -> None:
        resource, member = scanner.resource, self._member
        member.shares = resource.overlap == "allow"
        member.finds_links = any(source.finds_links for source in resource.sources)

    def drain(self) -> None:
        """Let all devices leave the kubelet's list, then end."""
        self.draining = True
        self._shared.counts.forget(self.name)
        self._start_over()
        self.resource_status.override(State.DRAINING, _DRAINING)

    def _start_over(self) -> None:
        self._up_to_date.clear()
        self.trigger_scan()
        if self._scanning is not None:
            self._scanning.cancel()

    async def run(self) -> None:
        """Scan and serve until cancelled, or until drained."""
        self.resource_status.set(State.DISCOVERING)
        self._due.request()
        self._use(self._scans.scanner)
        self._shared.holders.subscribe(self._held_changed)
        registering: asyncio.Task[None] | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._drained:
                    rest = await self._discover()
                    if registering is None and self._up_to_date.is_set() and not self._drained:
                        if self.resource.health is not None:
                            await self.health.first_round(_FIRST_ROUND_S)
                            self._publish(self._publisher.found)
                        work = self._registration.run()
                        registering = tasks.create_task(work, name=f"register {self.name}")
                    await asyncio.sleep(rest)
                if registering is not None:
                    registering.cancel()
        finally:
            if self._scanning is not None:
                self._scanning.cancel()
            self._shared.inventory.leave(self._member)
            self._shared.holders.unsubscribe(self._held_changed)
            self.health.close()
            self._injection.close()
            self._shared.ownership.settled(self._member)
            self.resource_status.set(State.STOPPED)

    def failed(self, error: Exception) -> None:
        """Say that it has ended by a mistake of ours, and is started again soon."""
        self.resource_status.set(State.BACKING_OFF, f"failed: {error!r}")

    async def clean_up(self) -> None:
        """Remove the files of a resource that has ended, while it keeps its name."""
        await self._preparation.ended()
        await self._injection.remove(self.name)

    def close(self) -> None:
        """Give up what a resource that has ended shares with others."""
        self._shared.inventory.leave(self._member)
        self._shared.ownership.remove(self._member)
        self._shared.owners.end(self.name)
        self._shared.quota.end(self.name)

    def _tell(self, state: State, reason: str | None = None) -> None:
        self.resource_status.set(state, reason)
        if state in (State.REGISTERED, State.BACKING_OFF):
            self._shared.metrics.registration(self.name, ok=state is State.REGISTERED)
        if self._code is not None and state is State.REGISTERED:
            self._code.registered()
        if state is State.SERVING and reason is None:
            # Another instance may have served it until now.
            self._shared.owners.records.reload()
            if self.resource.inject == "cdi":
                self.trigger_scan()

    # ── discovery ──

    async def _discover(self) -> float:
        """Wait until there is a reason to scan, scan and publish.

        Returns:
            Seconds to rest: a resource whose scans take long leaves time to the others.
        """
        self._busy = False
        await self._until_due()
        self._busy = True
        await self._shared.ownership.begin(self._member)
        thorough = self._due.take()
        began = (clock := asyncio.get_running_loop().time)()
        await self._scan_and_publish(thorough=thorough)
        return min(max(_BURST_S, clock() - began), _REST_MAX_S)

    async def _scan_and_publish(self, *, thorough: bool) -> None:
        scans = self._scans
        scanning = self._scan(scans, thorough=thorough)
        self._scanning = asyncio.create_task(scanning, name=f"scan {self.name}")
        try:
            found = await self._scanning
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return  # the declaration has changed meanwhile
        finally:
            self._scanning.cancel()
            self._scanning = None
        if scans is not self._scans or found is None:
            return  # it has changed after the scan had ended, or the host has
        await self._follow(scans.scanner, found)
        if scans is not self._scans:
            return
        self._publisher.scanner = scans.scanner
        self._publish(found)
        self._registration.check_options()
        self._up_to_date.set()

    async def _follow(self, scanner: Scanner, found: Snapshot) -> None:
        """See to all that has to be so before the kubelet learns of what was found."""
        if not self.draining:
            self.health.watch(scanner, found)
            if not self._shared.directory.lock(self.name).elsewhere:  # that has written its own
                await self._injection.write(scanner, found)
            if not self._up_to_date.is_set():
                await self._preparation.declared(scanner.resource)
        if self.device_list.prunable(asyncio.get_running_loop().time()):
            await self._shared.holders.try_refresh()

    async def _until_due(self) -> None:
        """Wait for a reason to scan, or the time of something that was put off."""
        clock = asyncio.get_running_loop().time
        found = self._publisher.found
        # What has failed may have done so for a moment, such as without a free descriptor.
        poll = found.error is not None or any(root.degraded for root in self.roots)
        pause = POLL_S if poll else math.inf
        if (again_at := found.again_at) is not None:
            pause = min(pause, max(0.0, again_at - clock()))
        until = clock() + pause
        while not self._due and clock() < until:
            if self._drained:
                return
            held = self.held
            busy = self.device_list.leaving - held or (self.draining and not held)
            step = min(until - clock(), _STEP_S) if busy else until - clock()
            if not await self._due.wait(step) and self.device_list.prunable(clock()):
                await self._shared.holders.try_refresh()
                if self._publisher.prune():
                    self._registration.notify()
        if not self._due:
            self.rescan()

    async def _scan(self, scans: Scans, *, thorough: bool) -> Snapshot | None:
        previous = without_left(self._publisher.found, self.device_list.leaving)
        if self.draining:
            self._shared.ownership.decide(self._member, ())
            return withdrawn(previous, _REMOVED, asyncio.get_running_loop().time())
        return await scans.scan(previous, self._due.since, thorough=thorough)

    # ── publishing ──

    def _publish(self, found: Snapshot) -> None:
        self._publisher.publish(self._publisher.scanner, found, self._scans.left)
        self._registration.notify()
        if not self.draining:
            self._shared.counts.changed(self.name, self._publisher)
        else:
            holders = self._shared.holders.of(self.name)
            pods = {pod for pods in holders.values() for pod in pods}
            held = f"; held by {', '.join(sorted(pods))}" if pods else ""
            self.resource_status.override(State.DRAINING, _DRAINING + held)

    # ── who holds what ──

    def _held_changed(self) -> None:
        held, self._last_held = self._last_held, self.held
        if (
            held != self._last_held
            or self.device_list.leaving
            or self._shared.owners.withheld(self.name)
        ):
            self.trigger_scan()

"""One resource's life: look, publish, serve, hand out; change, drain, end."""

import asyncio
import math
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from typing import Final

from devhost.discovery.baseline import Baseline
from devhost.discovery.scan import Scanner, carried_over
from devhost.host.cdi.injection import CdiInjection
from devhost.host.health import HealthMonitor
from devhost.host.prestart.preparation import Preparation
from devhost.host.resource import advertising
from devhost.host.resource.allocation_backend import ResourceBackend
from devhost.host.resource.due import Due
from devhost.host.resource.looker import Looker
from devhost.host.resource.publisher import Publisher
from devhost.host.resource.resource_status import ResourceStatus
from devhost.host.resource.source_watch import SourceWatch
from devhost.host.shared import CodeResource, Shared
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.registration import Registration
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.state import State, Status

POLL_S: Final = 5.0  # where watching is not possible
_BURST_S, _REST_MAX_S = 0.002, 0.5
_STEP_S: Final = 0.2  # while IDs are leaving
_FIRST_ROUND_S: Final = 1.0
_REMOVED: Final = "its resource was removed from the configuration"
_DRAINING: Final = "removed from the configuration"


class Runner:
    """Serves one resource."""

    def __init__(self, scanner: Scanner, shared: Shared, code: CodeResource | None = None) -> None:
        name, self._code = scanner.resource.name, code
        self._scanner, self._shared = scanner, shared
        self._claims = shared.claims
        self._claim = shared.claims.add(name, self.look_again)
        self._claim.shares = scanner.resource.overlap == "allow"
        self.draining = False
        self._due = Due()
        self._looking: asyncio.Task[Snapshot] | None = None
        self._looker = Looker(shared.claims, self._claim, shared.recorder, self.look_again)
        self.health = HealthMonitor(name, self.look_again)
        self._injection = CdiInjection(shared.cdi_files, shared.holders, self.look_again)
        self.device_list = DeviceList(shared.leave_after)
        self.device_list.ids_held_by_pods = self._held
        judges = [self.health.with_health, self._injection.judged]
        self._publisher = Publisher(
            scanner, self.device_list, shared.claims, self._claim, shared.owners, judges
        )
        shared.owners.serve(name, self.device_list, self.look_again)
        self._last_held: AbstractSet[str] = frozenset()
        self._up_to_date = asyncio.Event()
        self._preparation = Preparation(
            name,
            node_name=scanner.node_name,
            files=scanner.files,
            policy=scanner.policy,
            holders=shared.holders.now if shared.holders.asked else None,
            state_dir=shared.state_dir,
        )
        self._declared: Scanner | None = None
        backend = ResourceBackend(
            self._publisher, self._up_to_date, self._preparation, shared, code
        )
        self.resource_status = ResourceStatus(name)
        self._registration = Registration(backend, shared.directory, self._tell)
        self._watch = SourceWatch(shared.watcher, self.look_again)
        if code is not None:
            code.started(self.look_again)

    @property
    def name(self) -> str:
        """The resource's name."""
        return self._scanner.resource.name

    @property
    def resource(self) -> Resource:
        """The declaration."""
        return self._scanner.resource

    @property
    def snapshot(self) -> Snapshot:
        """What is advertised."""
        return self._publisher.snapshot

    @property
    def status(self) -> Status:
        """Its state, why, and since when."""
        return self.resource_status.shown

    @property
    def baseline(self) -> Baseline | None:
        """See `Looker.baseline`."""
        return self._looker.baseline

    @property
    def _drained(self) -> bool:
        return self.draining and self.device_list.drained

    # ── what may be asked of it ──

    def look_again(self, path: str | None = None) -> None:
        """Something may have changed on the host; at one path, if that is known."""
        self._claims.order.busy(self._claim)
        self._due.tell(path)

    def rescan(self) -> None:
        """Look at everything again, also whether the watches are right."""
        self._watch.doubt()
        self.look_again()

    def change(self, scanner: Scanner) -> None:
        """Go on by another declaration of the resource, with the same socket and stream."""
        self.draining = False
        publisher = self._publisher
        publisher.found = carried_over(publisher.found, self._scanner.resource, scanner.resource)
        self._scanner = scanner
        self._claims.share(self._claim, scanner.resource.overlap == "allow")
        self._turn()
        self.resource_status.restore()

    def drain(self) -> None:
        """Let all devices leave the kubelet's list, then end."""
        self.draining = True
        self._shared.expectations.forget(self.name)
        self._turn()
        self.resource_status.override(State.DRAINING, _DRAINING)

    def _turn(self) -> None:
        self._up_to_date.clear()
        self.look_again()
        if self._looking is not None:
            self._looking.cancel()

    async def run(self) -> None:
        """Look and serve until cancelled, or until drained."""
        self.resource_status.set(State.DISCOVERING)
        self._due.tell()
        self._shared.holders.subscribe(self._held_changed)
        registering: asyncio.Task[None] | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._drained:
                    await self._discover()
                    if registering is None and self._up_to_date.is_set() and not self._drained:
                        if self.resource.health is not None:
                            await self.health.first_round(_FIRST_ROUND_S)
                            self._publish(self._publisher.found)
                        work = self._registration.run()
                        registering = tasks.create_task(work, name=f"register {self.name}")
                if registering is not None:
                    registering.cancel()
        finally:
            if self._looking is not None:
                self._looking.cancel()
            self._watch.end()
            self._shared.holders.unsubscribe(self._held_changed)
            self.health.close()
            self._injection.close()
            self._claims.give_up(self._claim)
            self.resource_status.set(State.STOPPED)

    def failed(self, error: Exception) -> None:
        """Say that it has ended by a mistake of ours, and is started again soon."""
        self.resource_status.set(State.BACKING_OFF, f"failed: {error!r}")

    async def close(self) -> None:
        """Give up what a resource that has ended had on this node."""
        self._claims.remove(self._claim)
        self._shared.owners.end(self.name)
        await self._preparation.ended()
        await self._injection.remove(self.name)

    def _tell(self, state: State, reason: str | None = None) -> None:
        self.resource_status.set(state, reason)
        if state in (State.REGISTERED, State.BACKING_OFF):
            self._shared.recorder.registration(self.name, ok=state is State.REGISTERED)
        if self._code is not None and state is State.REGISTERED:
            self._code.registered()
        if self.resource.inject == "cdi" and state is State.REGISTERED:
            self.look_again()  # an older instance may have written its spec until now

    # ── discovery ──

    async def _discover(self) -> None:
        """Wait until there is a reason to look, look, publish, and rest."""
        changed = await self._until_due()
        with await self._claims.order.turns.next():
            began = (clock := asyncio.get_running_loop().time)()
            if not changed or not await self._look_at(changed):
                await self._look_at_all()
        # One whose looks take long leaves time to the others.
        await asyncio.sleep(min(max(_BURST_S, clock() - began), _REST_MAX_S))

    async def _look_at(self, changed: Collection[str]) -> bool:
        """Look at a few paths, if that is enough; else nothing is done."""
        scanner, publisher = self._scanner, self._publisher
        if self.draining or not self._watch.of(scanner):
            return False
        part = await self._looker.part(scanner, publisher.found, changed)
        if part is None:
            return False
        await self._shared.owners.keep(scanner.resource, part.devices.values())
        if scanner is not self._scanner or not publisher.publish_part(part):
            return False
        self.health.watch(scanner, publisher.found)
        self._registration.notify()
        self._shared.expectations.changed(self.name, publisher)
        self._settled()
        return True

    async def _look_at_all(self) -> None:
        scanner = self._scanner
        if not self._watch.of(scanner) and not self.draining:
            await self._watch.arrange(scanner)
        self._looking = asyncio.create_task(self._look(scanner), name=f"look {self.name}")
        try:
            found = await self._looking
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            return  # the declaration has changed meanwhile
        finally:
            self._looking.cancel()
        if scanner is not self._scanner:
            return  # it has changed after the look had ended
        await self._follow(scanner, found)
        if scanner is not self._scanner:
            return
        self._publisher.scanner = scanner
        self._publish(found)
        self._looker.published(scanner, self._publisher.found)
        self._settled()
        self._up_to_date.set()

    def _settled(self) -> None:
        """End a look; it is repeated if other resources took or left a node meanwhile."""
        if self._looker.outdated() and not self.draining:
            self.look_again()
        if not self._due:
            self._claims.order.idle(self._claim)

    async def _follow(self, scanner: Scanner, found: Snapshot) -> None:
        """See to all that has to be so before the kubelet learns of what was found."""
        if not self.draining:
            await self._shared.owners.keep(scanner.resource, found.devices.values())
            self.health.watch(scanner, found)
            if not self._shared.directory.instances.newer(self.name):  # that has written its own
                await self._injection.write(scanner, found)
            if self._declared is not scanner:
                self._declared = scanner
                await self._preparation.declared(scanner.resource)
        if self.device_list.prunable(asyncio.get_running_loop().time()):
            await self._shared.holders.try_refresh()

    async def _until_due(self) -> Collection[str] | None:
        """Wait for a reason to look, or the time of something that was put off.

        Returns:
            The paths that changed; ``None`` if anything may have.
        """
        clock = asyncio.get_running_loop().time
        pause = POLL_S if self._watch.degraded else math.inf
        if (again_at := self._publisher.found.again_at) is not None:
            pause = min(pause, max(0.0, again_at - clock()))
        until = clock() + pause
        while not self._due and clock() < until:
            if self._drained:
                return None
            held = self._held()
            busy = self.device_list.leaving - held or (self.draining and not held)
            step = min(until - clock(), _STEP_S) if busy else until - clock()
            if not await self._due.wait(step) and self.device_list.prunable(clock()):
                await self._shared.holders.try_refresh()
                if self._publisher.prune():
                    self._registration.notify()
        if not self._due:
            self.rescan()
        return self._due.take()

    async def _look(self, scanner: Scanner) -> Snapshot:
        previous = advertising.without_left(self._publisher.found, self.device_list.leaving)
        if self.draining:
            return advertising.withdrawn(previous, _REMOVED, asyncio.get_running_loop().time())
        return await self._looker.all(scanner, previous, self._watch.directories)

    # ── publishing ──

    def _publish(self, found: Snapshot) -> None:
        self._publisher.publish(self._publisher.scanner, found, self._looker.skipped)
        self._registration.notify()
        if not self.draining:
            self._shared.expectations.changed(self.name, self._publisher)
        else:
            holders = self._shared.holders.of(self.name)
            pods = {pod for pods in holders.values() for pod in pods}
            held = f"; held by {', '.join(sorted(pods))}" if pods else ""
            self.resource_status.override(State.DRAINING, _DRAINING + held)

    # ── who holds what ──

    def _held(self) -> AbstractSet[str]:
        """The IDs that pods hold, as far as that is known."""
        return self._shared.holders.held(self.name)

    def _held_changed(self) -> None:
        held, self._last_held = self._last_held, self._held()
        if (
            held != self._last_held
            or self.device_list.leaving
            or self._shared.owners.withheld(self.name)
        ):
            self.look_again()

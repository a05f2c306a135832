"""One resource's life: look, publish, serve, hand out; change, drain, end."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Sequence
from typing import Final

from devhost.discovery.scan import Scanner, carried_over
from devhost.host import advertising
from devhost.host.changes import log_changes
from devhost.host.claims import Claims, Offers
from devhost.host.handout import Handout
from devhost.host.standing import Standing
from devhost.host.surveyor import Surveyor
from devhost.kubelet import wire
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.listing import Listing
from devhost.kubelet.registration import Registration
from devhost.model.answer import Allocation
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.state import State, Status
from devhost.threads import in_thread
from devhost.watch import Watcher
from devhost.watch_spots import Spot

RESCAN_S: Final = 30.0
POLL_S: Final = 5.0  # where watching is not possible
_WATCH_WAIT_S: Final = 1.0
_CHANGE_WAIT_S: Final = 1.0
_BURST_S: Final = 0.005
_STEP_S: Final = 0.2  # while IDs are leaving
_REMOVED: Final = "its resource was removed from the configuration"
_LOG: Final = logging.getLogger(__name__)


class Runner:
    """Serves one resource; the backend of its servicer."""

    def __init__(
        self,
        scanner: Scanner,
        *,
        directory: PluginDirectory,
        watcher: Watcher,
        claims: Claims,
        leave_after: float,
    ) -> None:
        self._scanner, self._watcher, self._claims = scanner, watcher, claims
        self._claim = claims.add(scanner.resource.name, self.look_again)
        self._claim.shares = scanner.resource.overlap == "allow"
        self.draining = False
        self._due = asyncio.Event()
        self._due.set()
        self._looking: asyncio.Task[Snapshot] | None = None
        self._surveyor = Surveyor(self.look_again)
        self._found = Snapshot()
        self.snapshot = Snapshot()
        self._published = scanner
        self._up_to_date = asyncio.Event()
        self._offers: tuple[Offers, Offers] = ({}, {})  # of others, when it was looked and judged
        self._handout = Handout()
        self._left_out = 0
        self._listing = Listing(leave_after)
        self._standing = Standing(scanner.resource.name)
        self._registration = Registration(self, directory, self._standing.tell)
        self._watched: Scanner | None = None
        self._watching: asyncio.Task[None] | None = None

    @property
    def name(self) -> str:
        """The resource's name."""
        return self._scanner.resource.name

    @property
    def resource(self) -> Resource:
        """The declaration."""
        return self._scanner.resource

    @property
    def status(self) -> Status:
        """Its state, why, and since when."""
        return self._standing.status

    @property
    def listing(self) -> Listing:
        """The list that streams send."""
        return self._listing

    @property
    def pre_start_required(self) -> bool:
        """Whether the resource prepares its devices before a container starts."""
        return bool(self._scanner.resource.pre_start)

    @property
    def _drained(self) -> bool:
        return self.draining and self._listing.drained

    # ── what may be asked of it ──

    def look_again(self) -> None:
        """Something may have changed on the host."""
        self._claim.idle.clear()
        self._due.set()

    def change(self, scanner: Scanner) -> None:
        """Go on by another declaration of the resource, with the same socket and stream."""
        self.draining = False
        self._found = carried_over(self._found, self._scanner.resource, scanner.resource)
        self._scanner = scanner
        self._claims.share(self._claim, scanner.resource.overlap == "allow")
        self._turn()
        self._standing.uncover()

    def drain(self) -> None:
        """Let all devices leave the kubelet's list, then end."""
        self.draining = True
        self._turn()
        self._standing.cover(State.DRAINING, "removed from the configuration")

    def _turn(self) -> None:
        self._up_to_date.clear()
        self.look_again()
        if self._looking is not None:
            self._looking.cancel()

    async def run(self) -> None:
        """Look and serve until cancelled, or until drained."""
        self._standing.tell(State.DISCOVERING)
        self._due.set()
        registering: asyncio.Task[None] | None = None
        try:
            async with asyncio.TaskGroup() as tasks:
                while not self._drained:
                    await self._discover()
                    if registering is None and self._up_to_date.is_set() and not self._drained:
                        work = self._registration.run()
                        registering = tasks.create_task(work, name=f"register {self.name}")
                if registering is not None:
                    registering.cancel()
        finally:
            for task in (self._looking, self._watching):
                if task is not None:
                    task.cancel()
            self._watched = None
            self._watcher.unwatch(self)
            self._standing.tell(State.STOPPED)

    def failed(self, error: Exception) -> None:
        """Say that it has ended by a mistake of ours, and is started again soon."""
        self._standing.tell(State.BACKING_OFF, f"failed: {error!r}")

    def close(self) -> None:
        """Give up the claims of a resource that has ended."""
        self._claims.remove(self._claim)

    # ── discovery ──

    async def _discover(self) -> None:
        """Wait until there is a reason to look, look, publish."""
        await self._until_due()
        scanner = self._scanner
        if self._watched is not scanner and not self.draining:
            self._watched = scanner
            await self._watch()
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
        self._published = scanner
        self._publish(found)
        if not self.draining and self._claims.outdated(self._claim, *self._offers):
            self.look_again()
        self._up_to_date.set()
        if not self._due.is_set():
            self._claim.idle.set()
        await asyncio.sleep(_BURST_S)

    async def _watch(self) -> None:
        """Watch where the sources look, or see that the watches are still right.

        It is waited for, so that nothing is missed, but not for long: the filesystem may not
        answer. Then that is noticed by the survey, and this is not tried twice at a time.
        """
        if self._watching is None or self._watching.done():
            self._watching = asyncio.create_task(self._arrange(), name=f"watch {self.name}")
        await asyncio.wait({self._watching}, timeout=_WATCH_WAIT_S)

    async def _arrange(self) -> None:
        scanner, files = self._scanner, self._scanner.files
        spots = await in_thread(
            f"watch {self.name}",
            lambda: frozenset(
                Spot(files.here(files.resolve(root.path)), root.recursive)
                for root in scanner.watch_roots()
                if not root.path.startswith(("/sys", "/proc"))
            ),
        )
        await self._watcher.watch(self, spots, self.look_again)

    async def _until_due(self) -> None:
        """Wait for an event, the slow rescan, or the time of something that was put off."""
        clock = asyncio.get_running_loop().time
        pause = POLL_S if self._watcher.degraded else RESCAN_S
        if self._found.again_at is not None:
            pause = min(pause, max(0.0, self._found.again_at - clock()))
        until = clock() + pause
        while not self._due.is_set() and clock() < until:
            if self._drained:
                return
            busy = self.draining or self._listing.leaving
            step = min(until - clock(), _STEP_S) if busy else until - clock()
            try:
                async with asyncio.timeout(max(step, 0.0)):
                    await self._due.wait()
            except TimeoutError:
                if self._listing.prune(clock()):
                    self._publish(self._found)
        if not self._due.is_set():
            self._watched = None  # the slow rescan repairs what events cannot tell
        self._due.clear()

    async def _look(self, scanner: Scanner) -> Snapshot:
        clock = asyncio.get_running_loop().time
        previous = advertising.without_left(self._found, self._listing.leaving)
        if self.draining:
            return advertising.withdrawn(previous, _REMOVED, clock())
        looked = self._claims.offers(self._claim)
        found = await self._surveyor.survey(scanner)
        await self._claims.turn(self._claim)
        self._offers = looked, self._claims.offers(self._claim)
        claimed = functools.partial(self._claims.holder, self._claim, since=looked)
        return await self._surveyor.judged(
            scanner, found, lambda one: scanner.snapshot(one, previous, claimed, clock())
        )

    # ── publishing ──

    def _publish(self, found: Snapshot) -> None:
        listing, replicas = self._listing, self._published.resource.replicas
        before = listing.entries
        found = advertising.without_left(found, before)
        snapshot = advertising.held_back(
            found,
            replicas,
            before,
            lambda key: self._claims.listed(self._claim, key),
        )
        wanted = advertising.entries(snapshot, replicas)
        listed = wire.truncated(wanted, listing)
        left_out, self._left_out = self._left_out, len(wanted) - len(listed)
        if self._left_out and self._left_out != left_out:
            fields = {"resource": self.name, "left_out": self._left_out}
            _LOG.warning("list truncated", extra={"fields": fields})
        listing.update(listed)
        listing.prune(asyncio.get_running_loop().time())
        if before.keys() - listing.entries.keys():
            self._publish(found)  # what has waited for the IDs that left need wait no more
            return
        self._registration.notify()
        self._found = advertising.without_left(found, listing.leaving)
        former, self.snapshot = self.snapshot, advertising.without_left(snapshot, listing.leaving)
        log_changes(self.name, former, self.snapshot)
        offered = advertising.keys(self.snapshot, leaving=False)
        self._claims.set(self._claim, offered, advertising.keys(self.snapshot, leaving=True))

    # ── handing out ──

    async def allocate(self, advertised_ids: Sequence[str]) -> Allocation:
        """Return what a container receives for devices of the current snapshot.

        Raises:
            AllocationError: A device is gone or refused; the text names it.
        """
        with contextlib.suppress(TimeoutError):  # a change of the configuration counts at once
            async with asyncio.timeout(_CHANGE_WAIT_S):
                await self._up_to_date.wait()
        return await self._handout.allocate(self._published, self.snapshot, advertised_ids)

"""One resource's life: look, publish, serve, hand out."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

from devhost.discovery.scan import Scanner, hand_out
from devhost.discovery.survey import Survey, survey, watch_roots
from devhost.host.claims import Claims
from devhost.host.threads import in_thread
from devhost.kubelet import wire
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.listing import Advertised, Listing
from devhost.kubelet.registration import Registration
from devhost.model.answer import Allocation
from devhost.model.config import Resource
from devhost.model.device import Device, Snapshot, distinct, share_ids
from devhost.watch import Spot, Watcher

RESCAN_S: Final = 30.0
SCAN_TIMEOUT_S: Final = 10.0
_BURST_S: Final = 0.005
_REPEATS_MAX: Final = 3  # of one state with one reason, until registered again
_LINES_MAX: Final = 5  # of one change; 10,000 devices are no 10,000 lines
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
        self._due = asyncio.Event()
        self._due.set()
        self._scan: asyncio.Future[Survey] | None = None
        self._listing = Listing(leave_after)
        self._registration = Registration(self, directory, self._tell)
        self.snapshot = Snapshot()
        self.state, self.reason = "Pending", ""
        self._told: Counter[tuple[str, str]] = Counter()
        self._seen = asyncio.Event()
        self._spots: frozenset[Spot] = frozenset()

    @property
    def name(self) -> str:
        """The resource's name."""
        return self._scanner.resource.name

    @property
    def resource(self) -> Resource:
        """The declaration."""
        return self._scanner.resource

    @property
    def listing(self) -> Listing:
        """The list that streams send."""
        return self._listing

    def look_again(self) -> None:
        """Something may have changed on the host."""
        self._claim.idle.clear()
        self._due.set()

    async def run(self) -> None:
        """Look and serve until cancelled."""
        files = self._scanner.files
        spots = frozenset(
            Spot(files.here(files.resolve(root.path)), root.recursive)
            for root in watch_roots(self._scanner.resource)
            if not root.path.startswith(("/sys", "/proc"))
        )
        self._spots = spots
        self._watcher.watch(self, spots, self.look_again)
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._discover(), name=f"discover {self.name}")
                await self._seen.wait()
                tasks.create_task(self._registration.run(), name=f"register {self.name}")
        finally:
            self._watcher.unwatch(self)

    # ── discovery ──

    async def _discover(self) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            await self._until_due(clock())
            found = await self._survey()
            await self._claims.turn(self._claim)
            previous = self._without_left(self.snapshot)
            snapshot = await in_thread(
                f"scan {self.name}",
                lambda found=found, previous=previous: self._scanner.snapshot(  # type: ignore[misc]
                    found, previous, self._claimed, clock()
                ),
            )
            self._publish(snapshot)
            if not self._due.is_set():
                self._claim.idle.set()
            self._seen.set()
            await asyncio.sleep(_BURST_S)

    async def _until_due(self, now: float) -> None:
        """Wait for an event, the slow rescan, or the time of something that was put off."""
        pause = RESCAN_S
        if self.snapshot.again_at is not None:
            pause = min(pause, max(0.0, self.snapshot.again_at - now))
        until = now + pause
        clock = asyncio.get_running_loop().time
        while not self._due.is_set() and clock() < until:
            step = min(until - clock(), 1.0) if self._listing.leaving else until - clock()
            try:
                async with asyncio.timeout(max(step, 0.0)):
                    await self._due.wait()
            except TimeoutError:
                if self._listing.prune(clock()):
                    self._publish(self._without_left(self.snapshot))
        if not self._due.is_set():
            self._watcher.watch(self, self._spots, self.look_again)
        self._due.clear()

    async def _survey(self) -> Survey:
        if self._scan is None:
            resource, files = self._scanner.resource, self._scanner.files
            self._scan = in_thread(f"look {self.name}", lambda: survey(resource, files))
        try:
            async with asyncio.timeout(SCAN_TIMEOUT_S):
                found = await asyncio.shield(self._scan)
        except TimeoutError:  # at most one scan is outstanding, so this one is waited for again
            reason = f"the host did not answer in {SCAN_TIMEOUT_S:.0f} s"
            count = len(self._scanner.resource.sources)
            return Survey(failed=dict.fromkeys(range(count), reason))
        self._scan = None
        return found

    def _claimed(self, key: str) -> str | None:
        if self._scanner.resource.overlap == "allow" or key.startswith("\0"):
            return None
        return self._claims.holder(self._claim, key)

    # ── publishing ──

    def _without_left(self, snapshot: Snapshot) -> Snapshot:
        """Forget replaced devices whose ID has left the list."""
        replicas = self._scanner.resource.replicas
        kept = {
            device_id: device
            for device_id, device in snapshot.devices.items()
            if not device.replaced
            or any(share in self._listing.leaving for share in share_ids(device_id, replicas))
        }
        return Snapshot(
            kept, snapshot.skipped, snapshot.error, snapshot.notes, snapshot.held, snapshot.again_at
        )

    def _publish(self, snapshot: Snapshot) -> None:
        self._log_changes(snapshot)
        self.snapshot = snapshot
        waits_for = {
            node.state.stamp
            for device in snapshot.devices.values()
            if device.replaced
            for node in device.nodes
            if node.state
        }
        wanted: dict[str, Advertised] = {}
        for device in snapshot.devices.values():
            if device.replaced:
                continue
            blocked = any(node.state and node.state.stamp in waits_for for node in device.nodes)
            entry = Advertised(device.healthy and not blocked, device.numa_nodes)
            wanted |= dict.fromkeys(share_ids(device.id, self._scanner.resource.replicas), entry)
        listed = wire.truncated(wanted, self._listing)
        if len(listed) < len(wanted):
            left_out = len(wanted) - len(listed)
            _LOG.warning("list truncated", extra=self._fields(left_out=left_out))
        self._listing.update(listed)
        self._listing.prune(asyncio.get_running_loop().time())
        self._registration.notify()
        self._claims.set(self._claim, _keys(snapshot.devices.values()))

    def _log_changes(self, snapshot: Snapshot) -> None:
        before = {device.id: device.reason for device in self.snapshot.devices.values()}
        after = {device.id: device.reason for device in snapshot.devices.values()}
        lines: list[tuple[str, dict[str, object]]] = []
        for device_id, reason in after.items():
            if device_id not in before:
                lines.append(("device found", {"device": device_id, "reason": reason}))
            elif before[device_id] != reason:
                health = "device is healthy again" if reason is None else "device is unhealthy"
                lines.append((health, {"device": device_id, "reason": reason}))
        lines += [("device leaves", {"device": gone}) for gone in before.keys() - after.keys()]
        known = set(self.snapshot.skipped)
        lines += [
            ("skipped", {"candidate": skipped.candidate, "reason": skipped.reason})
            for skipped in snapshot.skipped
            if skipped not in known
        ]
        for message, fields in lines[:_LINES_MAX]:
            _LOG.info(message, extra=self._fields(**fields))
        if len(lines) > _LINES_MAX:
            _LOG.info("and more", extra=self._fields(changes=len(lines) - _LINES_MAX))
        for note in set(snapshot.notes) - set(self.snapshot.notes):
            _LOG.info("no devices", extra=self._fields(reason=note))
        if snapshot.error is not None and snapshot.error != self.snapshot.error:
            _LOG.warning("source failed", extra=self._fields(reason=snapshot.error))

    def _fields(self, **fields: object) -> dict[str, object]:
        return {"fields": {"resource": self.name, **{k: v for k, v in fields.items() if v}}}

    def _tell(self, state: str, reason: str | None) -> None:
        if (state, reason or "") == (self.state, self.reason):
            return
        self.state, self.reason = state, reason or ""
        if state == "Registered":
            self._told.clear()
        self._told[self.state, self.reason] += 1
        level = logging.WARNING if state == "BackingOff" else logging.INFO
        if self._told[self.state, self.reason] > _REPEATS_MAX:
            level = logging.DEBUG
        _LOG.log(level, "state", extra=self._fields(state=state, reason=reason))

    # ── handing out ──

    async def allocate(self, advertised_ids: Sequence[str]) -> Allocation:
        """Return what a container receives for devices of the current snapshot.

        Raises:
            AllocationError: A device is gone or refused; the text names it.
        """
        scanner, snapshot, ids = self._scanner, self.snapshot, tuple(advertised_ids)
        return await in_thread(
            f"allocate {self.name}", lambda: hand_out(scanner, snapshot, ids, distinct(ids))
        )


def _keys(devices: Iterable[Device]) -> frozenset[str]:
    return frozenset(
        node.key
        for device in devices
        for node in device.nodes
        if node.state and device.missing_since is None
    )

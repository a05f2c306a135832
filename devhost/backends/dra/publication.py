"""A resource that is offered by DRA: its life, and the devices that claims may get."""

import asyncio
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Final

from devhost.api.drahealth.v1.drahealth_pb2 import DeviceHealth
from devhost.backends.backend import ResourceHandler, ResourceHooks
from devhost.backends.dra.health import device_health
from devhost.backends.dra.pool import SliceDevice, device_entries, pool_devices
from devhost.backends.dra.slices import ResourcePool
from devhost.backends.dra.taints import PoolTaints
from devhost.backends.share_ids import offered_id
from devhost.model.advertised import OfferedId
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.records import ClaimedDevice, ClaimRecord
from devhost.model.resource_state import DraStatus, PublicationStatus, State

if TYPE_CHECKING:
    from devhost.backends.dra.dra_backend import DraBackend

_RETRY_S: Final = 1.0  # after a lock that could not be made
_EVICTED: Final = (
    "pods of claims with {} are evicted; Kubernetes 1.36 and 1.37 do not evict those that ask by "
    "the name of the resource"
)


class PoolOffer:
    """The devices of a resource that claims may get (`OfferedIds`), and its pool, which has them.

    Attributes:
        taints: What is wrong with them.
        ids: The IDs of which a claim for a device gets one, by the device's name, healthy or not.
        blocked: Why no claim gets one yet: then none is offered.
    """

    def __init__(
        self, backend: "DraBackend", resource: Resource, hooks: ResourceHooks, pool: ResourcePool
    ) -> None:
        self.pool, self._backend, self._hooks = pool, backend, hooks
        self._snapshot, self._resource = Snapshot(), resource
        self._devices: Sequence[SliceDevice] = ()
        self.taints = PoolTaints()
        self._timer: asyncio.TimerHandle | None = None  # of the next eviction
        self.blocked = hooks.other_holders()
        self.ids: Mapping[str, Sequence[OfferedId]] = {}

    @property
    def handler(self) -> ResourceHandler:
        """The node's answers for the resource."""
        return self._hooks.handler

    def publish(self, snapshot: Snapshot, resource: Resource) -> bool:
        """Offer the devices of a snapshot; return whether some have left."""
        before = self.device_ids
        self._snapshot, self._resource = snapshot, resource
        self._update_devices()
        self._backend.upkeep.compare(resource.name)
        self._backend.registrar.health.report_change()
        return not before <= self.device_ids

    def update_claim(self, record: ClaimRecord) -> None:
        """Take over that a claim has devices now, has other ones, or has ended."""
        if self.taints.by_name or any(device.moved for device in record.devices):
            self._update_devices()

    def _update_devices(self) -> None:
        """Offer the devices with the taints that they have now."""
        resource, loop = self._resource, asyncio.get_running_loop()
        devices = pool_devices(resource, self._snapshot)
        self.ids = {device.name: device.ids for device in devices}
        listed = [device for device in devices if not device.device.is_leaving]
        records = self._backend.claims.records.of_resource(resource.name)
        held = (device for record in records for device in record.devices if not device.admin)
        # Of the claims that share a device, one whose containers lack it as it is now is the last.
        claimed = {
            device.device: device
            for device in sorted(held, key=lambda device: device.moved)
            if device.pool == self.pool.name
        }
        if self.handler.drain_reason is not None:
            claimed = {}  # the pool is deleted, though claims have devices of it
        self.taints.update(resource, listed, claimed, loop.time())
        self.end_evictions()
        if (next_at := self.taints.next_at) is not None:
            self._timer = loop.call_at(next_at, self._update_devices)
        taints = self.taints.entries(self.pool.driver)
        ids = {name: self._shown_id(device) for name, device in claimed.items()}
        self._devices = device_entries(resource, listed, taints, ids)
        self.block(self.blocked)

    def _shown_id(self, claimed: ClaimedDevice) -> str:
        is_capacity = self._resource.max_per_container == 1
        return offered_id(claimed.id).device if is_capacity else claimed.id

    def end_evictions(self) -> None:
        """Stop the timer of the next eviction."""
        if self._timer is not None:
            self._timer.cancel()

    def block(self, reason: str | None) -> None:
        """Offer no devices for a reason, or all without one.

        What is published stays while nobody can tell yet whether it is to be blocked.
        """
        self.blocked, devices = reason, self._devices if reason is None else ()
        if devices != self.pool.devices and (reason is None or self._hooks.holders_known()):
            self.pool.devices = devices
            self._backend.writer.compare_soon()
            self._backend.writer.report_change()

    def health_of(self, claimed: ClaimedDevice) -> DeviceHealth:
        """Return the health of a device that a claim has."""
        device = self._snapshot.devices.get(offered_id(claimed.id).device)
        is_healthy, reason = None if device is None else True, ""
        if (taint := self.taints.by_name.get(claimed.device)) is not None:
            is_healthy, reason = False, taint.text
        elif device is not None and device.checked is not None and device.checked.unknown:
            is_healthy, reason = None, device.checked.unknown
        return device_health(self.pool.name, claimed.device, reason, is_healthy=is_healthy)

    @property
    def device_ids(self) -> AbstractSet[str]:
        """The devices of the pool, healthy or not."""
        devices = self._snapshot.devices.values()
        return frozenset(device.id for device in devices if not device.is_leaving)

    @property
    def counts(self) -> tuple[int, int]:
        """How many IDs there are, and how many of them are healthy."""
        devices, replicas = self._snapshot.devices.values(), self._resource.replicas
        healthy = sum(device.healthy and not device.is_leaving for device in devices)
        return len(self.device_ids) * replicas, healthy * replicas

    def lists(self, device_id: str, *, shared: bool) -> bool:
        """Whether a device is there, as itself or as shares."""
        device = self._snapshot.devices.get(device_id)
        is_shared = self._resource.replicas > 1
        return device is not None and not device.is_leaving and shared is is_shared

    def may_allocate(self, device_id: str, _now: float, *, shared: bool) -> bool:
        """Whether a claim for a device would be prepared."""
        listed = self.lists(device_id, shared=shared)
        return listed and self._snapshot.devices[device_id].healthy

    @property
    def drained(self) -> bool:
        """Whether none is offered or held, and the API server knows."""
        has_slices = self._backend.writer.slices.has_slices(self.pool)
        held = self._backend.claims.records.of_resource(self.handler.name)
        return not (self.device_ids or has_slices or held)


class DraPublication:
    """One resource at DRA (a `Publication`)."""

    up_to_date = True

    def __init__(self, backend: "DraBackend", offer: PoolOffer, hooks: ResourceHooks) -> None:
        self._backend, self._hooks, self.offered_ids = backend, hooks, offer
        self._pool = offer.pool

    async def run(self) -> None:
        """Show its state until cancelled; then it is removed, if it has ended."""
        hooks, pool, locks = self._hooks, self._pool, self._backend.locks
        self._backend.add(self.offered_ids)
        try:
            while True:
                try:
                    await locks.wait_until_locked(pool.lock, pool.driver, self._show_wait)
                except OSError as error:
                    hooks.set_state(State.BACKING_OFF, str(error))
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._backend.writer.compare_soon()
                hooks.on_locked()
                # Who had the lock may have given devices since the last list.
                await hooks.refresh()
                await hooks.wait_until_free(self._show_wait)
                pool.lock.set_served(False)
                self.offered_ids.block(None)
                await self._show_state()
        finally:
            self.offered_ids.end_evictions()
            if self.offered_ids.drained:
                self._backend.remove(self.offered_ids)
            pool.lock.release()

    def _show_wait(self, reason: str) -> None:
        """Show for what it waits; kubelet may ask this instance for claims all the same."""
        self.offered_ids.block(self._hooks.other_holders())
        self._hooks.set_state(State.WAITING, reason)

    async def _show_state(self) -> None:
        """Show how far the pool is published, until the lock is lost."""
        shown: tuple[State, str | None] | None = None
        while self._pool.lock.held:
            if (state := self._publishing_state()) != shown:
                shown = state
                self._hooks.set_state(*state)
            await self._backend.writer.changed.wait()

    def _publishing_state(self) -> tuple[State, str | None]:
        """Return the state of the publication, and why, if it is not complete."""
        writer, registrar = self._backend.writer, self._backend.registrar
        if (reason := writer.problem or registrar.problem) is not None:
            return State.WAITING, reason
        if self._pool.problem is not None:
            return State.BACKING_OFF, self._pool.problem
        return (State.REGISTERED if self._pool.is_published else State.SERVING), None

    @property
    def status(self) -> PublicationStatus:
        """How many IDs are listed, and for how many claims."""
        backend, pool, (listed, healthy) = self._backend, self._pool, self.offered_ids.counts
        claims = backend.claims.records.of_resource(self.offered_ids.handler.name)
        names = ", ".join(sorted(self.offered_ids.taints.evicted))
        evicted = _EVICTED.format(names) if names else None
        warnings = pool.left_out, backend.writer.node.warning, evicted
        return PublicationStatus(
            listed=listed,
            healthy=healthy,
            streams=int(backend.registrar.problem is None),
            lists_sent=0,
            warnings=tuple(filter(None, warnings)),
            dra=DraStatus(pool.driver, pool.name, [record.shown for record in claims]),
        )

    def spec_changed(self) -> None:
        """Do nothing: kubelet has no options of a resource."""

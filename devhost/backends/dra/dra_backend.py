"""Offers resources by Dynamic Resource Allocation: the pools, claims and driver of a process."""

import asyncio
import contextlib
import functools
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from prometheus_client import Gauge

from devhost.backends.backend import ClaimRecords, ResourceHandler, ResourceHooks, run_together
from devhost.backends.dra.api_client import ApiClient
from devhost.backends.dra.claim_servicer import DraServicer
from devhost.backends.dra.claim_upkeep import ClaimUpkeep
from devhost.backends.dra.health import DeviceHealth, HealthStreams
from devhost.backends.dra.node_versions import read_node
from devhost.backends.dra.plugin_watcher import DriverSockets, Registrar
from devhost.backends.dra.pool import SliceDevice, device_entries, pool_devices, pool_name
from devhost.backends.dra.prepared_claims import PreparedClaims
from devhost.backends.dra.slices import NodeSlices, ResourcePool, SliceWriter
from devhost.backends.dra.taints import PoolTaints
from devhost.backends.podresources import ClaimedId, PodResources
from devhost.backends.resource_lock import ResourceLocks
from devhost.backends.share_ids import offered_id
from devhost.model.advertised import OfferedId
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.records import ClaimedDevice, ClaimRecord
from devhost.model.resource_state import DraStatus, PublicationStatus, State
from devhost.watch.watcher import Watcher

_RETRY_S: Final = 1.0  # after a lock that could not be made
_EVICTED: Final = (
    "pods of claims with {} are evicted; Kubernetes 1.36 and 1.37 do not evict those that ask by "
    "the name of the resource"
)


class DraBackend:
    """The devices that DRA offers for a process."""

    def __init__(
        self,
        driver: str,
        node_name: str,
        kubelet_dir: Path,
        api: ApiClient,
        pods: PodResources,
        locks: ResourceLocks,
    ) -> None:
        self.driver, self.node_name, self.locks, self._api = driver, node_name, locks, api
        self._publications: dict[str, DraPublication] = {}  # by pool
        self.changed = asyncio.Event()  # another one after each change
        sockets = DriverSockets(kubelet_dir, driver)
        self._slices = slices = NodeSlices(api, driver, node_name)
        self.claims = PreparedClaims(api, driver, self._publications.get)
        self.claims.on_change = self._claim_changed
        self.upkeep = ClaimUpkeep(api, self.claims)
        servicer = DraServicer(self.claims)
        self.health = HealthStreams(self._list_health)
        self.registrar = Registrar(sockets, servicer, self.health, self._kubelet_answered)
        self.writer = SliceWriter(
            slices,
            locks,
            functools.partial(read_node, api, node_name),
            lambda: self.registrar.problem,
            self.report_change,
        )
        count_slices = Gauge("devhost_dra_slices", "ResourceSlices of this node.", registry=None)
        count_slices.set_function(lambda: len(slices))
        count_claims = Gauge("devhost_dra_claims", "Claims that are prepared.", registry=None)
        count_claims.set_function(lambda: len([*self.claims]))
        self.metrics = count_slices, count_claims, api.writes, servicer.seconds
        pods.claimed_ids = self._claimed_ids

    # ── for the node ──

    @property
    def restarts(self) -> int:
        """How often kubelet has registered the driver again."""
        return max(0, self.registrar.registrations - 1)

    def open(self, resource: Resource, hooks: ResourceHooks) -> "DraPublication":
        """Return the publication of a resource, to be run."""
        publication = DraPublication(self, resource, hooks)
        self.add(publication)
        return publication

    def offers(self, resource: Resource) -> bool:
        """Whether it is the backend of a resource on this node, by its configuration."""
        return resource.uses_dra(self.node_name)

    def has_slices(self, resource: str) -> bool:
        """Whether the API server has slices of a resource, as last read."""
        return pool_name(self.node_name, resource) in self._slices.pools

    def look_up_by(self, resource: str, handler: ResourceHandler) -> None:
        """Set who answers for recorded claims of a resource, whichever backend offers that now."""
        self.claims.handlers[pool_name(self.node_name, resource)] = handler

    def add(self, publication: "DraPublication") -> None:
        """Publish a resource, which may have been removed."""
        name = publication.pool.name
        self._publications[name], self.writer.pools[name] = publication, publication.pool

    def remove(self, publication: "DraPublication") -> None:
        """Remove a resource that has ended."""
        name = publication.pool.name
        del self._publications[name], self.writer.pools[name]

    async def run(self, watcher: Watcher, records: ClaimRecords) -> None:
        """Serve kubelet and publish devices until cancelled."""
        await self.claims.begin(records)
        try:
            await run_together(
                self._remove_dead_sockets(),
                self.registrar.run(watcher),
                self.writer.run(),
                self.upkeep.run(records),
            )
        finally:
            await self._api.close()

    async def _remove_dead_sockets(self) -> None:
        """Remove what instances that were killed have left, now and when one has freed a lock."""
        while True:
            freed = self.locks.freed
            with contextlib.suppress(OSError):  # no registry: kubelet has not started yet
                await self.registrar.sockets.remove_dead()
            await freed.wait()

    def report_change(self) -> None:
        """Wake the publications, whose states may have changed."""
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    def _claim_changed(self, record: ClaimRecord) -> None:
        """Take over that a claim has devices now, has other ones, or has ended."""
        for pool in {device.pool for device in record.devices} & self._publications.keys():
            self._publications[pool].update_claim(record)
        self.health.report_change()

    def _list_health(self) -> list[DeviceHealth]:
        """Return the health of the devices that claims have."""
        devices = (device for record in self.claims for device in record.devices)
        claimed = {(device.pool, device.device): device for device in devices}
        return [
            self._publications[pool].health_of(device)
            for (pool, _), device in claimed.items()
            if pool in self._publications
        ]

    def _claimed_ids(self) -> Mapping[ClaimedId, tuple[str, OfferedId]]:
        """Return the advertised IDs of devices, as kubelet's list of pods names these."""
        claimed: dict[ClaimedId, tuple[str, OfferedId]] = {}
        for pool, publication in self._publications.items():
            for name, ids in publication.ids.items():
                claimed[ClaimedId(self.driver, pool, name, None)] = publication.handler.name, ids[0]
        for record in self.claims.all_drivers():
            for device in record.devices:
                key = ClaimedId(record.driver, device.pool, device.device, device.share or "")
                claimed[key] = device.resource, offered_id(device.id)
        return claimed

    def _kubelet_answered(self) -> None:
        self.writer.compare_soon(reads_node=True)  # it may be of another version
        self.report_change()


class DraPublication:
    """One resource at DRA (a `Publication`), and the IDs of its pool (`OfferedPool`)."""

    def __init__(self, backend: DraBackend, resource: Resource, hooks: ResourceHooks) -> None:
        pool = pool_name(backend.node_name, resource.name)
        lock = backend.locks.get(resource.name)
        self.handler, self.pool = hooks.handler, ResourcePool(pool, lock)
        self._backend, self._hooks = backend, hooks
        self._snapshot, self._resource = Snapshot(), resource
        self._devices: Sequence[SliceDevice] = ()
        self.taints = PoolTaints()
        self._timer: asyncio.TimerHandle | None = None  # of the next eviction
        self.blocked = hooks.other_holders()
        self.ids: Mapping[str, Sequence[OfferedId]] = {}

    @property
    def offered_ids(self) -> "DraPublication":
        """The IDs that a pod may get: they are those of its pool."""
        return self

    async def run(self) -> None:
        """Show its state until cancelled; then it is removed, if it has ended."""
        self._backend.add(self)
        try:
            while True:
                try:
                    await self._backend.writer.locks.wait_until_taken(self.pool, self._show_wait)
                except OSError as error:
                    self._hooks.set_state(State.BACKING_OFF, str(error))
                    await asyncio.sleep(_RETRY_S)
                    continue
                self._hooks.on_locked()
                # Who had the lock may have given devices since the last list.
                await self._hooks.refresh()
                await self._hooks.wait_until_free(self._show_wait)
                self.pool.lock.set_served(False)
                self._offer(None)
                await self._show_state()
        finally:
            self._cancel_timer()
            if self.drained:
                self._backend.remove(self)
            self.pool.has_lock = False
            self.pool.lock.release(self.pool)

    def _show_wait(self, reason: str) -> None:
        """Show for what it waits; kubelet may ask this instance for claims all the same."""
        self._offer(self._hooks.other_holders())
        self._hooks.set_state(State.WAITING, reason)

    async def _show_state(self) -> None:
        """Show how far the pool is published, until the lock is lost."""
        shown: tuple[State, str | None] | None = None
        while self.pool.has_lock:
            if (state := self._publishing_state()) != shown:
                shown = state
                self._hooks.set_state(*state)
            await self._backend.changed.wait()

    def _publishing_state(self) -> tuple[State, str | None]:
        """Return the state of the publication, and why, if it is not complete."""
        writer, registrar = self._backend.writer, self._backend.registrar
        if (reason := writer.problem or registrar.problem) is not None:
            return State.WAITING, reason
        if self.pool.problem is not None:
            return State.BACKING_OFF, self.pool.problem
        return (State.REGISTERED if self.pool.is_published else State.SERVING), None

    @property
    def status(self) -> PublicationStatus:
        """How many IDs are listed, and for how many claims."""
        backend, devices = self._backend, self._snapshot.devices.values()
        claims = [record.shown for record in backend.claims.of_resource(self.handler.name)]
        healthy = sum(device.healthy and not device.is_leaving for device in devices)
        names = ", ".join(sorted(self.taints.evicted))
        evicted = _EVICTED.format(names) if names else None
        warnings = self.pool.left_out, backend.writer.node_warning, evicted
        return PublicationStatus(
            listed=len(self.device_ids) * self._resource.replicas,
            healthy=healthy * self._resource.replicas,
            streams=int(backend.registrar.problem is None),
            lists_sent=0,
            warnings=tuple(filter(None, warnings)),
            dra=DraStatus(backend.driver, self.pool.name, claims),
        )

    def spec_changed(self) -> None:
        """Do nothing: kubelet has no options of a resource."""

    up_to_date = True

    # ── the IDs ──

    def publish(self, snapshot: Snapshot, resource: Resource) -> bool:
        """Offer the devices of a snapshot; return whether some have left."""
        before = self.device_ids
        self._snapshot, self._resource = snapshot, resource
        self._update_devices()
        self._backend.upkeep.compare(resource.name, snapshot)
        self._backend.health.report_change()
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
        records = self._backend.claims.of_resource(resource.name)
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
        self._cancel_timer()
        if (next_at := self.taints.next_at) is not None:
            self._timer = loop.call_at(next_at, self._update_devices)
        taints = self.taints.entries(self._backend.driver)
        ids = {name: self._shown_id(device) for name, device in claimed.items()}
        self._devices = device_entries(resource, listed, taints, ids)
        self._offer(self.blocked)

    def _shown_id(self, claimed: ClaimedDevice) -> str:
        is_capacity = self._resource.max_per_container == 1
        return offered_id(claimed.id).device if is_capacity else claimed.id

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def health_of(self, claimed: ClaimedDevice) -> DeviceHealth:
        """Return the health of a device that a claim has."""
        name = claimed.device
        device = self._snapshot.devices.get(offered_id(claimed.id).device)
        is_healthy, reason = None if device is None else True, ""
        if (taint := self.taints.by_name.get(name)) is not None:
            is_healthy, reason = False, taint.text
        elif device is not None and device.checked is not None and device.checked.unknown:
            is_healthy, reason = None, device.checked.unknown
        return DeviceHealth(self.pool.name, name, is_healthy, reason)

    def _offer(self, blocked: str | None) -> None:
        """Offer the devices by the pool, or none while that is blocked.

        What is published stays while nobody can tell yet whether it is to be blocked.
        """
        self.blocked, devices = blocked, self._devices if blocked is None else ()
        if devices != self.pool.devices and (blocked is None or self._hooks.holders_known()):
            self.pool.devices = devices
            self._backend.writer.compare_soon()
            self._backend.report_change()

    @property
    def device_ids(self) -> AbstractSet[str]:
        """The devices of the pool, healthy or not."""
        devices = self._snapshot.devices.values()
        return frozenset(device.id for device in devices if not device.is_leaving)

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
        backend = self._backend
        return not (
            self.device_ids
            or backend.writer.has_slices(self.pool)
            or backend.claims.of_resource(self.handler.name)
        )

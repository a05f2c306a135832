"""Offers resources by Dynamic Resource Allocation: the pools, claims and driver of a process."""

from collections.abc import Mapping
from pathlib import Path

from prometheus_client import Gauge

from devhost.api.drahealth.v1.drahealth_pb2 import DeviceHealth
from devhost.backends.backend import ClaimRecords, ResourceHandler, ResourceHooks, run_together
from devhost.backends.dra.api_client import ApiClient
from devhost.backends.dra.claim_servicer import DraServicer
from devhost.backends.dra.claim_upkeep import ClaimUpkeep
from devhost.backends.dra.health import HealthStreams
from devhost.backends.dra.plugin_watcher import DriverSockets, Registrar
from devhost.backends.dra.pool import pool_name
from devhost.backends.dra.prepared_claims import PreparedClaims
from devhost.backends.dra.publication import DraPublication, PoolOffer
from devhost.backends.dra.slices import NodeSlices, SliceWriter
from devhost.backends.podresources import ClaimedId, PodResources
from devhost.backends.resource_lock import ResourceLocks
from devhost.backends.share_ids import offered_id
from devhost.model.advertised import OfferedId
from devhost.model.config import Resource
from devhost.model.records import ClaimRecord
from devhost.watch.watcher import Watcher


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
        self.driver, self.node_name, self._api = driver, node_name, api
        self._offers: dict[str, PoolOffer] = {}  # by pool
        self.claims = PreparedClaims(api, driver, self._offers.get)
        self.claims.records.on_change = self._claim_changed
        self.upkeep = ClaimUpkeep(api, self.claims)
        self.health = HealthStreams(self._list_health)
        sockets, servicer = DriverSockets(kubelet_dir, driver), DraServicer(self.claims)
        on_change = self._kubelet_answered
        self.registrar = Registrar(sockets, locks, servicer, self.health, on_change)
        slices = NodeSlices(api, driver, node_name)
        self.writer = SliceWriter(slices, locks, lambda: self.registrar.problem)
        count_slices = Gauge("devhost_dra_slices", "ResourceSlices of this node.", registry=None)
        count_slices.set_function(lambda: len(slices))
        count_claims = Gauge("devhost_dra_claims", "Claims that are prepared.", registry=None)
        count_claims.set_function(lambda: len([*self.claims.records]))
        self.metrics = count_slices, count_claims, api.writes, servicer.seconds
        pods.claimed_ids = self._claimed_ids

    # ── for the node ──

    @property
    def restarts(self) -> int:
        """How often kubelet has registered the driver again."""
        return max(0, self.registrar.registrations - 1)

    def open(self, resource: Resource, hooks: ResourceHooks) -> DraPublication:
        """Return the publication of a resource, to be run."""
        pool = self.writer.pools.new(pool_name(self.node_name, resource.name), resource.name)
        offer = PoolOffer(self, resource, hooks, pool)
        self.add(offer)
        return DraPublication(self, offer, hooks)

    def offers(self, resource: Resource) -> bool:
        """Whether it is the backend of a resource on this node, by its configuration."""
        return resource.uses_dra(self.node_name)

    def has_slices(self, resource: str) -> bool:
        """Whether the API server has slices of a resource, as last read."""
        return pool_name(self.node_name, resource) in self.writer.slices.pools

    def look_up_by(self, resource: str, handler: ResourceHandler) -> None:
        """Set who answers for recorded claims of a resource, whichever backend offers that now."""
        self.claims.handlers[pool_name(self.node_name, resource)] = handler

    def add(self, offer: PoolOffer) -> None:
        """Publish a pool, which may have been removed."""
        name = offer.pool.name
        self._offers[name], self.writer.pools.here[name] = offer, offer.pool

    def remove(self, offer: PoolOffer) -> None:
        """Remove the pool of a resource that has ended."""
        del self._offers[offer.pool.name], self.writer.pools.here[offer.pool.name]

    async def run(self, watcher: Watcher, records: ClaimRecords) -> None:
        """Serve kubelet and publish devices until cancelled."""
        await self.claims.begin(records)
        try:
            await run_together(
                self.registrar.run(watcher),
                self.writer.run(),
                self.upkeep.run(),
            )
        finally:
            await self._api.close()

    def _claim_changed(self, record: ClaimRecord) -> None:
        """Take over that a claim has devices now, has other ones, or has ended."""
        for pool in {device.pool for device in record.devices} & self._offers.keys():
            self._offers[pool].update_claim(record)
        self.health.report_change()

    def _list_health(self) -> list[DeviceHealth]:
        """Return the health of the devices that claims have."""
        devices = (device for record in self.claims.records for device in record.devices)
        claimed = {(device.pool, device.device): device for device in devices}
        return [
            self._offers[pool].health_of(device)
            for (pool, _), device in claimed.items()
            if pool in self._offers
        ]

    def _claimed_ids(self) -> Mapping[ClaimedId, tuple[str, OfferedId]]:
        """Return the advertised IDs of devices, as kubelet's list of pods names these."""
        claimed: dict[ClaimedId, tuple[str, OfferedId]] = {}
        for pool, offer in self._offers.items():
            for name, ids in offer.ids.items():
                claimed[ClaimedId(self.driver, pool, name, None)] = offer.handler.name, ids[0]
        for record in self.claims.records.of_all_drivers():
            for device in record.devices:
                key = ClaimedId(record.driver, device.pool, device.device, device.share or "")
                claimed[key] = device.resource, offered_id(device.id)
        return claimed

    def _kubelet_answered(self) -> None:
        self.writer.compare_soon()
        self.writer.report_change()

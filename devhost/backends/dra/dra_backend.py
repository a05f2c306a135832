"""Offers resources by Dynamic Resource Allocation, or by device plugins: as each one says."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client import Gauge
from prometheus_client.registry import Collector

from devhost.api.drahealth.v1.drahealth_pb2 import DeviceHealth
from devhost.backends.backend import Backend, ClaimRecords, Publication, ResourceHooks, run_together
from devhost.backends.dra.api_client import ApiClient
from devhost.backends.dra.claim_servicer import DraServicer
from devhost.backends.dra.claim_upkeep import ClaimUpkeep
from devhost.backends.dra.health import HealthStreams
from devhost.backends.dra.plugin_watcher import DriverSockets, Registrar
from devhost.backends.dra.pool import pool_name
from devhost.backends.dra.prepared_claims import PreparedClaims
from devhost.backends.dra.publication import DraPublication, PoolOffer
from devhost.backends.dra.slices import NodeSlices, SliceWriter
from devhost.backends.podresources import ClaimedId
from devhost.backends.share_ids import offered_id
from devhost.model.advertised import OfferedId
from devhost.model.config import Resource
from devhost.model.records import ClaimRecord
from devhost.watch.watcher import Watcher

_SERVED_BY_PLUGIN: Final = "another instance of devhost serves it by a device plugin"
_IN_SLICES: Final = "its slices are not deleted yet"
_MAY_BE_HELD: Final = "kubelet has not told yet which pods have devices by the device plugin"


class DraBackend:
    """DRA beside device plugins: each resource is offered as its configuration says (a `Backend`).

    `plugins` is the backend of device plugins.
    """

    def __init__(
        self, driver: str, node_name: str, kubelet_dir: Path, api: ApiClient, plugins: Backend
    ) -> None:
        # Kubelet has one list of pods, and a resource one lock, whichever backend offers it.
        self.pods, self.locks, self.leave_after = plugins.pods, plugins.locks, plugins.leave_after
        self.pods.claimed_ids = self._claimed_ids
        self._plugins, self._offers = plugins, dict[str, PoolOffer]()  # the latter by pool
        self.claims = PreparedClaims(api, driver, self._offers.get)
        self.claims.records.on_change = self._claim_changed
        self.upkeep = ClaimUpkeep(api, self.claims)
        self.slices = NodeSlices(api, driver, node_name)
        self.writer = SliceWriter(self.slices, self.locks, lambda: self.registrar.problem)
        self.registrar = Registrar(
            DriverSockets(kubelet_dir, driver),
            self.locks,
            DraServicer(self.claims),
            HealthStreams(self._list_health),
            self._kubelet_answered,
        )

    def metrics(self) -> Sequence[Collector]:
        """Return what Prometheus may read of it."""
        count_slices = Gauge("devhost_dra_slices", "ResourceSlices of this node.", registry=None)
        count_slices.set_function(lambda: len(self.slices))
        count_claims = Gauge("devhost_dra_claims", "Claims that are prepared.", registry=None)
        count_claims.set_function(lambda: len([*self.claims.records]))
        seconds = self.registrar.servicer.seconds
        return count_slices, count_claims, self.slices.api.writes, seconds

    # ── for the node ──

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before, or has registered the driver again."""
        return max(self._plugins.restarts, self.registrar.registrations - 1)

    def publisher(self, resource: Resource) -> str:
        """Return the driver that publishes a resource; empty for the device plugin."""
        return self.slices.driver if resource.uses_dra(self.slices.node_name) else ""

    def open(self, resource: Resource, hooks: ResourceHooks) -> Publication:
        """Return the publication of a resource, to be run."""
        pool = pool_name(self.slices.node_name, resource.name)

        def in_slices() -> str | None:  # of the instance that had the lock before
            return _IN_SLICES if pool in self.slices.pools else hooks.other_holders()

        def held_by_plugin() -> str | None:  # another instance may not know DRA, or the file, yet
            if (reason := hooks.other_holders()) is not None:
                return reason
            if not self.locks.has_served(resource.name):
                return None
            if self.locks.locked_by_other(resource.name):
                return _SERVED_BY_PLUGIN
            return None if hooks.holders_known() else _MAY_BE_HELD

        self.claims.handlers[pool] = hooks.handler  # also of claims from before a switch
        if not self.publisher(resource):
            return self._plugins.open(resource, replace(hooks, other_holders=in_slices))
        for_dra = replace(hooks, other_holders=held_by_plugin)
        offer = PoolOffer(self, resource, for_dra, self.writer.pools.new(pool, resource.name))
        self.add(offer)
        return DraPublication(self, offer, for_dra)

    async def run(self, watcher: Watcher, records: ClaimRecords) -> None:
        """Keep up with kubelet until cancelled; raise `BackendGoneError` if that is hopeless."""
        await run_together(
            self._plugins.run(watcher, records), self._serve_driver(watcher, records)
        )

    async def _serve_driver(self, watcher: Watcher, records: ClaimRecords) -> None:
        await self.claims.begin(records)
        try:
            await run_together(self.registrar.run(watcher), self.writer.run(), self.upkeep.run())
        finally:
            await self.slices.api.close()

    # ── for pools and claims ──

    def add(self, offer: PoolOffer) -> None:
        """Publish a pool, which may have been removed."""
        name = offer.pool.name
        self._offers[name], self.writer.pools.here[name] = offer, offer.pool

    def remove(self, offer: PoolOffer) -> None:
        """Remove the pool of a resource that has ended."""
        del self._offers[offer.pool.name], self.writer.pools.here[offer.pool.name]

    def _claim_changed(self, record: ClaimRecord) -> None:
        """Take over that a claim has devices now, has other ones, or has ended."""
        for pool in {device.pool for device in record.devices} & self._offers.keys():
            self._offers[pool].update_claim(record)
        self.registrar.health.report_change()

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
                key = ClaimedId(self.slices.driver, pool, name, None)
                claimed[key] = offer.handler.name, ids[0]
        for record in self.claims.records.of_all_drivers():
            for device in record.devices:
                key = ClaimedId(record.driver, device.pool, device.device, device.share or "")
                claimed[key] = device.resource, offered_id(device.id)
        return claimed

    def _kubelet_answered(self) -> None:
        self.writer.compare_soon()
        self.writer.report_change()

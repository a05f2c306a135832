"""The dry run of DRA: the pool of a resource, and what a claim brings; pure."""

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from devhost.allocation import cdi
from devhost.backends.dra.claim_content import Scope, claim_kind, completed
from devhost.backends.dra.pool import PoolKey, device_entries, pool_devices, pool_name
from devhost.backends.dra.taints import PoolTaints
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.records import ClaimedDevice, ClaimRecord

_Json = dict[str, Any]
_UID: Final = "UID"  # in the place of those that a cluster makes


class PlannedDriver(NamedTuple):
    """A driver on a node, as it would be."""

    driver: str
    node_name: str

    def offer(self, resource: Resource, snapshot: Snapshot) -> _Json:
        """Return which backend offers a resource, and how, in the shape of ``plan -o json``."""
        if not resource.uses_dra(self.node_name):
            return {"backend": "devicePlugin"}
        pool = pool_name(self.node_name, resource.name)
        devices = pool_devices(resource, snapshot)
        taints = PoolTaints()
        taints.update(resource, devices, {}, 0.0)
        entries = device_entries(resource, devices, taints.entries(self.driver), {})
        slices = PoolKey(self.driver, self.node_name, _UID, pool).slices(entries, 1)
        dra = {"driver": self.driver, "pool": pool, "slices": [*slices.values()]}
        return {"backend": "dra", "dra": dra}

    def claim(
        self, allocation: Allocation, ids: Sequence[OfferedId], edits: cdi.OwnedEdits
    ) -> _Json:
        """Return the CDI names and the CDI spec of a claim that was given devices, in JSON."""
        kind = claim_kind(self.driver)
        # Neither pool nor device is in what a claim brings.
        devices = [
            ClaimedDevice(
                resource="", id=device.id, request="r", pool="", device=device.id, cdi=[], scope=0
            )
            for device in ids
        ]
        started = ClaimRecord(
            claim=_UID,
            driver=self.driver,
            namespace="",
            name="",
            boot="",
            state="started",
            devices=devices,
            entries={},
        )
        record = completed(started, kind, {0: Scope(edits, allocation.cdi_owners, {})})
        names = dict.fromkeys(name for device in record.devices for name in device.cdi)
        return {"cdiDevices": [*names], "cdiSpec": cdi.spec_of(kind, record.entries)}

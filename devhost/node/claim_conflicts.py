"""The claims that are in conflict with a device: who else may have a node of it, and why."""

import itertools
from collections.abc import Iterable, Mapping

from devhost.backends.backend import Backend
from devhost.errors import AllocationError
from devhost.model.advertised import AdvertisedName
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.node.claim_ends import ClaimEnds, ListedResource
from devhost.node.holders import Holders
from devhost.node.listed_nodes import ListedNodes, owned_keys, present_keys
from devhost.node.record_table import Holding, RecordTable


class ClaimConflicts:
    """Finds the claim on a node under another name.

    Attributes:
        listed_nodes: The names under which nodes are listed.
        overlap: Which resources of the file have ``overlap: allow``.
        unaccounted: A device that a pod holds without a record, of which the nodes are not known.
        unrecorded: What pods have with claims without a record, where the nodes are known.
    """

    def __init__(
        self,
        table: RecordTable,
        listings: Mapping[str, ListedResource],
        ends: ClaimEnds,
        holders: Holders,
        backend: Backend,
    ) -> None:
        self._table, self._listings, self._ends = table, listings, ends
        self._holders, self._backend = holders, backend
        self.listed_nodes = ListedNodes()
        self.overlap: Mapping[str, bool] = {}
        self.unaccounted: AdvertisedName | None = None
        self.unrecorded: dict[AdvertisedName, list[Holding]] = {}
        self._unrecorded_by_node: dict[str, list[Holding]] = {}

    @property
    def possible(self) -> bool:
        """Whether a device that is as it was may have one now."""
        return bool(self._table or self.unrecorded) or self.unaccounted is not None

    def reason(
        self, resource: Resource, device: HostDevice, devices: Mapping[str, HostDevice]
    ) -> str | None:
        """Return under which name another pod may have a node of a device, and why."""
        if (holding := self.find(resource, device, devices)) is not None:
            return self._why_held(holding, frozenset(owned_keys(device)))
        reason = self._listing(resource, device, devices)
        if reason is not None or (held := self.unaccounted) is None or resource.overlap == "allow":
            return reason
        name, holding_pods = advertised_name(resource, device), self._holders.pods_of_device
        if self._table.has_nodes(name) or holding_pods(name) or not any(device.owned_nodes):
            return None
        pods = ", ".join(sorted(holding_pods(held)))
        return f"{held} is held by {pods}, and no record says which node that is: maybe this one"

    def refuse(self, resource: Resource, devices: Iterable[HostDevice], claim: str = "") -> None:
        """Raise `AllocationError` if a device was handed out under another name.

        With a `claim` (its name in messages) also if another claim is known to have the device.
        """
        listing = self._listings[resource.name]
        for device in devices:
            holding = self.find(resource, device, listing.devices) or self._other_claim(
                advertised_name(resource, device), claim
            )
            if holding is not None:
                listing.rescan()
                text = f"it was handed out as {holding}"
                raise AllocationError(f"{resource.name}: device {device.id}: {text}")

    def find(
        self, resource: Resource, device: HostDevice, devices: Mapping[str, HostDevice]
    ) -> Holding | None:
        """Return who has a node of a device under another name, or by another publisher.

        `devices` are all of the resource: of two nodes of one number a scan has made two of them.
        """
        if not self._table and not self.unrecorded:
            return None
        name, publisher = advertised_name(resource, device), self._backend.publisher(resource)
        keys = frozenset(owned_keys(device))
        unrecorded = (holding for key in keys for holding in self._unrecorded_by_node.get(key, ()))
        for holding in itertools.chain(self._table.by_node(keys), unrecorded):
            if holding.name == name and holding.driver != publisher:
                return holding  # it may be allocated once more: the publishers do not know
            if holding.name == name or self._may_share(resource, holding):
                continue
            beside = devices.get(holding.name.device)
            if beside is not None and holding.name == advertised_name(resource, beside):
                handed_keys = keys & holding.node_keys(self._table.boot)
                if not handed_keys.isdisjoint(present_keys(beside)):
                    continue
            return holding
        return None

    def set_unrecorded(self, holdings: Iterable[Holding]) -> None:
        """Set what pods have with claims of which there is no record."""
        self.unrecorded = {}
        self._unrecorded_by_node = {}
        for holding in holdings:
            self.unrecorded.setdefault(holding.name, []).append(holding)
            for key in holding.node_keys(self._table.boot):
                self._unrecorded_by_node.setdefault(key, []).append(holding)

    def _other_claim(self, name: AdvertisedName, claim: str) -> Holding | None:
        """Return another claim that has a device without a record, unless both may share it."""
        if not claim or name.shared:
            return None
        others = (holding for holding in self.unrecorded.get(name, ()) if holding.claim != claim)
        return next(others, None)

    def _may_share(self, resource: Resource, holding: Holding) -> bool:
        """Whether a resource may offer a node that was handed out."""
        if holding.name.resource == resource.name:
            return False
        overlap = self.overlap.get(holding.name.resource)
        if overlap is None:  # then both have to say so
            return holding.overlap and resource.overlap == "allow"
        return overlap or resource.overlap == "allow"

    def _listing(
        self, resource: Resource, device: HostDevice, devices: Mapping[str, HostDevice]
    ) -> str | None:
        """Return under which other name a node of a device is in the kubelet's list."""
        offered_ids = self._listings[resource.name].offered_ids
        if offered_ids.lists(device.id, shared=resource.replicas == 1):
            return "its former IDs are still in the kubelet's list"
        for name, device_id in self.listed_nodes.by_node(owned_keys(device)):
            if name == resource.name:
                beside = devices.get(device_id)
                waits = beside is not None and beside.is_leaving
            else:
                waits = resource.overlap != "allow" and not self.overlap.get(name)
            listing = self._listings[name].offered_ids
            if waits and any(listing.lists(device_id, shared=shared) for shared in (False, True)):
                return f"still in the kubelet's list as {name} {device_id}"
        return None

    def _why_held(self, holding: Holding, keys: frozenset[str]) -> str:
        """Return why a pod may have nodes that were handed out."""
        name, listing = holding.name, self._listings.get(holding.name.resource)
        if pods := self._holders.pods_of_device(name):
            return f"held as {name} by {', '.join(sorted(pods))}"
        if holding.claim:
            return f"held as {name} by claim {holding.claim}"
        if (
            listing is not None
            and listing.offered_ids.lists(name.device, shared=name.shared)
            and self._ends.is_allocatable(name, keys, listing)
        ):
            return f"still in the kubelet's list as {name}"
        if self._backend.locked_by_other(name.resource):
            return f"another instance of devhost serves {name.resource}, which had it as {name}"
        problem = self._holders.unavailable_reason
        reason = f" (pod-resources unavailable: {problem})" if problem else ""
        return f"it was handed out as {name}: waiting until no pod holds that{reason}"


def advertised_name(resource: Resource, device: HostDevice) -> AdvertisedName:
    """Return the name under which a device is advertised."""
    return AdvertisedName(resource.name, device.id, shared=resource.replicas > 1)

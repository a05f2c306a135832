"""The claims that are in conflict with a device: who else may have a node of it, and why."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from devhost.backends.backend import Backend
from devhost.errors import AllocationError
from devhost.model.advertised import AdvertisedName
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.node.claim_ends import ClaimEnds, ListedResource
from devhost.node.handouts import HandoutTable, Held, Record, held_by
from devhost.node.holders import Holders
from devhost.node.listed_nodes import ListedNodes, owned_keys, owned_nodes, present_keys

UNACCOUNTED: Final = (
    "without --pod-resources devhost cannot tell whether a pod still holds it: set "
    "--pod-resources, or drain the node and start devhost with --assume-free"
)


class ClaimConflicts:
    """Finds the claim on a node under another name.

    Attributes:
        listed_nodes: The names under which nodes are listed.
        overlap: Which resources of the file have ``overlap: allow``.
        unaccounted: A device that a pod holds without a record.
    """

    def __init__(
        self,
        table: HandoutTable,
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

    @property
    def possible(self) -> bool:
        """Whether a device that is as it was may have one now."""
        return bool(self._table) or self.unaccounted is not None

    def reason(
        self, resource: Resource, device: HostDevice, devices: Mapping[str, HostDevice]
    ) -> str | None:
        """Return under which name another pod may have a node of a device, and why."""
        if (handout := self.handout(resource, device, devices)) is not None:
            return self._why_held(handout)
        reason = self._listing(resource, device, devices)
        if reason is not None or (held := self.unaccounted) is None or resource.overlap == "allow":
            return reason
        name, holding = advertised_name(resource, device), self._holders.pods_of_device
        is_recorded = any(handout.nodes for handout in self._table.by_name(name))
        if is_recorded or holding(name) or not any(owned_nodes(device)):
            return None
        pods = ", ".join(sorted(holding(held)))
        return f"{held} is held by {pods}, and no record says which node that is: maybe this one"

    def refuse(
        self,
        resource: Resource,
        devices: Iterable[HostDevice],
        news: Sequence[Record] | None = None,
    ) -> None:
        """Raise `AllocationError` if a device was handed out under another name.

        With `news` only by these records; that may run in a thread, and changes nothing.
        """
        listing = self._listings[resource.name]
        held = None if news is None else [one for record in news for one in held_by(record)]
        for device in devices:
            handout = self.handout(resource, device, listing.devices, held)
            if handout is not None:
                if news is None:
                    listing.rescan()
                text = f"it was handed out as {handout}"
                raise AllocationError(f"{resource.name}: device {device.id}: {text}")

    def handout(
        self,
        resource: Resource,
        device: HostDevice,
        devices: Mapping[str, HostDevice],
        among: Iterable[Held] | None = None,
    ) -> Held | None:
        """Return who has a node of a device under another name, or by another publisher.

        `devices` are all of the resource: of two nodes of one number a scan has made two of them.
        """
        keys = owned_keys(device)
        if among is None:
            held = self._table.by_node(keys)
        else:
            boot = self._table.boot
            held = [one for one in among if not keys.isdisjoint(one.node_keys(boot))]
        if not held:
            return None
        name, publisher = advertised_name(resource, device), self._backend.publisher(resource)
        for handout in held:
            if handout.name == name and handout.publisher != publisher:
                return handout  # it may be allocated once more: the publishers do not know
            if handout.name == name or self._may_share(resource, handout):
                continue
            beside = devices.get(handout.name.device)
            if beside is not None and handout.name == advertised_name(resource, beside):
                handed_keys = keys & handout.node_keys(self._table.boot)
                if not handed_keys.isdisjoint(present_keys(beside)):
                    continue
            return handout
        return None

    def _may_share(self, resource: Resource, handout: Held) -> bool:
        """Whether a resource may offer a node that was handed out."""
        if handout.name.resource == resource.name:
            return False
        overlap = self.overlap.get(handout.name.resource)
        if overlap is None:  # then both have to say so
            return handout.overlap and resource.overlap == "allow"
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

    def _why_held(self, handout: Held) -> str:
        """Return why a pod may have what was handed out."""
        name, listing = handout.name, self._listings.get(handout.name.resource)
        if pods := self._holders.pods_of_device(name):
            return f"held as {name} by {', '.join(sorted(pods))}"
        if handout.claim:
            return f"held as {name} by claim {handout.shown}"
        if (
            listing is not None
            and listing.offered_ids.lists(name.device, shared=name.shared)
            and self._ends.is_allocatable(handout, listing)
        ):
            return f"still in the kubelet's list as {name}"
        if self._backend.locked_by_other(name.resource):
            return f"another instance of devhost serves {name.resource}, which had it as {name}"
        if not self._holders.enabled:
            return f"it was handed out as {name}, and {UNACCOUNTED}"
        problem = self._holders.unavailable_reason
        reason = f" (pod-resources unavailable: {problem})" if problem else ""
        return f"it was handed out as {name}: waiting until no pod holds that{reason}"


def advertised_name(resource: Resource, device: HostDevice) -> AdvertisedName:
    """Return the name under which a device is advertised."""
    return AdvertisedName(resource.name, device.id, shared=resource.replicas > 1)

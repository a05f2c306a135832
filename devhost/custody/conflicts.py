"""The conflicts of devices: who else may have a node of one, and why."""

from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from devhost.backends.backend import Backend
from devhost.custody.holders import Holders
from devhost.custody.listed_resources import ListedResources, owned_keys, present_keys
from devhost.custody.record_table import Holding, HoldingIndex, RecordTable
from devhost.errors import AllocationError
from devhost.model.advertised import AdvertisedName
from devhost.model.config import Resource
from devhost.model.device import HostDevice


class Conflicts:
    """Finds the pods that may have a node under another name, or by another publisher."""

    def __init__(
        self,
        table: RecordTable,
        listings: ListedResources,
        holders: Holders,
        backend: Backend,
    ) -> None:
        self.table, self.listings, self.holders, self.backend = table, listings, holders, backend
        self.overlap: Mapping[str, bool] = {}  # of each resource of the file
        # Devices that pods have without a record: the first whose nodes are not known, and, of
        # claims, those whose nodes are.
        self.unaccounted: AdvertisedName | None = None
        self.unrecorded = HoldingIndex(table.boot)

    @property
    def possible(self) -> bool:
        """Whether a device that is as it was may have one now."""
        return bool(self.table or self.unrecorded.by_name) or self.unaccounted is not None

    def refuse(self, resource: Resource, devices: Iterable[HostDevice], claim: str = "") -> None:
        """Raise `AllocationError` if a device was handed out under another name.

        With a `claim` (its name in messages) also if another claim is known to have the device.
        """
        listing = self.listings[resource.name]
        rivals = Rivals(self, resource, listing.devices)
        for device in devices:
            holding = rivals.find_holding(device)
            if claim and holding is None and resource.replicas == 1:
                unrecorded = self.unrecorded.by_name.get(advertised_name(resource, device), ())
                holding = next((held for held in unrecorded if held.claim != claim), None)
            if holding is not None:
                listing.rescan()
                text = f"it was handed out as {holding}"
                raise AllocationError(f"{resource.name}: device {device.id}: {text}")

    def may_share(self, resource: Resource, holding: Holding) -> bool:
        """Whether a resource may offer a node that another one has handed out."""
        overlap = self.overlap.get(holding.name.resource)
        if overlap is None:  # then both have to say so
            return holding.overlap and resource.overlap == "allow"
        return overlap or resource.overlap == "allow"

    def explain(self, holding: Holding, keys: frozenset[str]) -> str:
        """Return why a pod may have nodes that were handed out."""
        name, listing = holding.name, self.listings.get(holding.name.resource)
        if pods := self.holders.pods_of_device(name):
            return f"held as {name} by {', '.join(sorted(pods))}"
        if holding.claim:
            return f"held as {name} by claim {holding.claim}"
        if listing is not None and listing.lists(name) and listing.may_allocate(name, keys):
            return f"still in the kubelet's list as {name}"
        if self.backend.locks.locked_by_other(name.resource):
            return f"another instance of devhost serves {name.resource}, which had it as {name}"
        problem = self.holders.unavailable_reason
        reason = f" (pod-resources unavailable: {problem})" if problem else ""
        return f"it was handed out as {name}: waiting until no pod holds that{reason}"


class Rivals:
    """The pods that may have nodes of devices of one resource, which are as at one time."""

    def __init__(
        self, conflicts: Conflicts, resource: Resource, devices: Mapping[str, HostDevice]
    ) -> None:
        self._conflicts, self._resource, self._devices = conflicts, resource, devices
        self._publisher = conflicts.backend.publisher(resource)
        indexes = conflicts.table.index, conflicts.unrecorded
        self._by_name = [index.by_name for index in indexes]
        self._by_node = [index.by_node for index in indexes]
        self._suspects: dict[str, list[Holding]] = {}  # by node key
        self._present: dict[str, set[str]] = {}  # the node keys of devices

    def find_reason(self, device: HostDevice) -> str | None:
        """Return under which name another pod may have a node of a device, and why."""
        conflicts, keys = self._conflicts, owned_keys(device)
        if (holding := self.find_holding(device)) is not None:
            return conflicts.explain(holding, keys)
        reason, held = self._find_listed(device, keys), conflicts.unaccounted
        if reason is not None or held is None or self._resource.overlap == "allow":
            return reason
        name, pods_of = advertised_name(self._resource, device), conflicts.holders.pods_of_device
        if not keys or conflicts.table.has_nodes(name) or pods_of(name):
            return None
        pods = ", ".join(sorted(pods_of(held)))
        return f"{held} is held by {pods}, and no record says which node that is: maybe this one"

    def find_holding(self, device: HostDevice) -> Holding | None:
        """Return who has a node of a device under another name, or by another publisher."""
        if not any(self._by_name):
            return None
        name, keys = advertised_name(self._resource, device), owned_keys(device)
        if not keys:  # a token has a name alone
            holdings = (held for index in self._by_name for held in index.get(name, ()))
            return next((held for held in holdings if held.driver != self._publisher), None)
        for holding in (holding for key in keys for holding in self._find_suspects(key)):
            if holding.name == name:
                if holding.driver != self._publisher:
                    return holding  # it may be allocated once more: publishers do not know
            elif holding.name.resource != name.resource or not self._is_beside(holding, keys):
                return holding
        return None

    def _find_suspects(self, key: str) -> list[Holding]:
        """Return what was given of a node but for what may be shared, or is as it is listed.

        Of two nodes of one number a scan has made two devices, and each pod has its own.
        """
        if (suspects := self._suspects.get(key)) is None:
            suspects = self._suspects[key] = []
            for holding in (held for index in self._by_node for held in index.get(key, ())):
                if holding.name.resource != self._resource.name:
                    is_harmless = self._conflicts.may_share(self._resource, holding)
                else:
                    is_own = holding.driver == self._publisher
                    is_harmless = is_own and self._is_beside(holding, {key})
                if not is_harmless:
                    suspects.append(holding)
        return suspects

    def _is_beside(self, holding: Holding, keys: AbstractSet[str]) -> bool:
        """Whether a device is listed under the name of a holding, with these nodes of it."""
        device_id = holding.name.device
        beside = self._devices.get(device_id)
        if beside is None or holding.name != advertised_name(self._resource, beside):
            return False
        if (present := self._present.get(device_id)) is None:
            present = self._present[device_id] = present_keys(beside)
        handed = present & keys
        return bool(handed) and not handed.isdisjoint(holding.node_keys(self._conflicts.table.boot))

    def _find_listed(self, device: HostDevice, keys: frozenset[str]) -> str | None:
        """Return under which other name a node of a device is in the kubelet's list."""
        listings, name = self._conflicts.listings, self._resource.name
        if listings[name].offered_ids.lists(device.id, shared=self._resource.replicas == 1):
            return "its former IDs are still in the kubelet's list"
        for resource in sorted(listings.resources(keys)):
            shares = self._resource.overlap == "allow" or self._conflicts.overlap.get(resource)
            if resource != name and shares:
                continue
            listed_ids = listings[resource].offered_ids
            for leaving in (True,) if resource == name else (True, False):
                for device_id in listings.device_ids(keys, resource, leaving=leaving):
                    if resource == name:
                        beside = self._devices.get(device_id)
                        if beside is None or not beside.is_leaving:
                            continue
                    if any(listed_ids.lists(device_id, shared=shared) for shared in (False, True)):
                        return f"still in the kubelet's list as {resource} {device_id}"
        return None


def advertised_name(resource: Resource, device: HostDevice) -> AdvertisedName:
    """Return the name under which a device is advertised."""
    return AdvertisedName(resource.name, device.id, shared=resource.replicas > 1)

"""The lists that kubelet gets of the resources of this process, and which nodes are in them."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from devhost.backends.backend import OfferedIds
from devhost.custody.record_table import Index
from devhost.model.advertised import AdvertisedName
from devhost.model.device import HostDevice

_Devices = Mapping[str, HostDevice]


def owned_keys(device: HostDevice) -> frozenset[str]:
    """Return the keys (`NodeId.keys`) of the nodes of a device that no other may have."""
    return frozenset[str]().union(*(node.id.keys for node in device.owned_nodes))


def present_keys(device: HostDevice) -> set[str]:
    """Return the keys (`NodeId.keys`) of what a device has now; none if it is to leave."""
    nodes = () if device.is_leaving else device.owned_nodes
    return {key for node in nodes if device.has(node) for key in node.id.keys}


@dataclass(eq=False, slots=True)
class ListedResource:
    """The list of a resource."""

    offered_ids: OfferedIds
    rescan: Callable[[], None]
    devices: _Devices = field(default_factory=dict)  # as published last
    shared: bool = False  # they are advertised as shares
    withheld: bool = False  # a device waits, because a pod may have its nodes

    def lists(self, name: AdvertisedName) -> bool:
        """Whether a device is in the list under a name."""
        return self.offered_ids.lists(name.device, shared=name.shared)

    def may_allocate(self, name: AdvertisedName, node_keys: Iterable[str]) -> bool:
        """Whether an Allocate of nodes may begin, or run, by a name."""
        device = self.devices.get(name.device)
        if device and name.shared is self.shared and (keys := present_keys(device)):
            return not keys.isdisjoint(node_keys)
        now = asyncio.get_running_loop().time()
        return self.offered_ids.may_allocate(name.device, now, shared=name.shared)


class ListedResources(dict[str, ListedResource]):
    """The lists by resource, and an index of the nodes that nobody else may offer meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        # By node, then resource. Those that leave apart: of very many names of a node, few do.
        self._devices: dict[str, Index[tuple[str, bool], str]] = {}

    def resources(self, keys: Iterable[str]) -> set[str]:
        """Return the resources that list a node."""
        return {resource for key in keys for resource, _ in self._devices.get(key, ())}

    def device_ids(self, keys: Iterable[str], resource: str, *, leaving: bool) -> Iterator[str]:
        """Yield the devices of a resource that list a node, and leave the list or do not."""
        for key in keys:
            by_resource = self._devices.get(key, Index[tuple[str, bool], str]())
            yield from by_resource.get((resource, leaving), ())

    def set_devices(self, resource: str, devices: _Devices, *, shared: bool = False) -> _Devices:
        """Set what a resource lists; return what it has listed before."""
        listing = self[resource]
        former, listing.devices, listing.shared = listing.devices, devices, shared
        listing.withheld = any(device.is_withheld for device in devices.values())
        left, come = {*_listed_only_in(former, devices)}, [*_listed_only_in(devices, former)]
        for key, device_id, leaving in left:
            self._devices[key].remove((resource, leaving), device_id)
            if not self._devices[key]:
                del self._devices[key]
        for key, device_id, leaving in come:
            self._devices.setdefault(key, Index()).add((resource, leaving), device_id)
        if not {key for key, *_ in left} <= {key for key, *_ in come}:
            self.rescan_withheld()
        return former

    def rescan_withheld(self) -> None:
        """Scan the resources again whose devices may be free now."""
        for listing in self.values():
            if listing.withheld:
                listing.rescan()


def _listed_only_in(devices: _Devices, former: _Devices) -> Iterator[tuple[str, str, bool]]:
    """Yield the node keys that nobody else may offer while devices are listed that others are not.

    Each with the ID of its device, and whether that is leaving. A device that waits has none.
    """
    for device in devices.values():
        if former.get(device.id) is not device and not device.is_withheld:
            for node in device.owned_nodes:
                if device.is_leaving or device.has(node):
                    yield from ((key, device.id, device.is_leaving) for key in node.id.keys)

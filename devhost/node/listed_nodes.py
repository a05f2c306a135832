"""The names under which each node is in the list that kubelet gets; pure."""

from collections.abc import Iterable, Iterator, Mapping

from devhost.model.device import HostDevice

_Devices = Mapping[str, HostDevice]


def owned_keys(device: HostDevice) -> frozenset[str]:
    """Return the keys (`NodeId.keys`) of the nodes of a device that no other may have."""
    return frozenset[str]().union(*(node.id.keys for node in device.owned_nodes))


def present_keys(device: HostDevice) -> set[str]:
    """Return the keys (`NodeId.keys`) of what a device has now; none if it is to leave."""
    nodes = () if device.is_leaving else device.owned_nodes
    return {key for node in nodes if device.has(node) for key in node.id.keys}


class ListedNodes:
    """The devices that list each node, by its keys (`NodeId.keys`) and by resource."""

    def __init__(self) -> None:
        # Those that leave apart: of very many names of a node, few do.
        self._devices: dict[str, dict[tuple[str, bool], dict[str, None]]] = {}

    def resources(self, keys: Iterable[str]) -> set[str]:
        """Return the resources that list a node."""
        return {resource for key in keys for resource, _ in self._devices.get(key, ())}

    def device_ids(self, keys: Iterable[str], resource: str, *, leaving: bool) -> Iterator[str]:
        """Yield the devices of a resource that list a node, and leave the list or do not."""
        for key in keys:
            yield from self._devices.get(key, {}).get((resource, leaving), ())

    def update(self, resource: str, former: _Devices, devices: _Devices) -> bool:
        """Set what a resource lists; return whether it has given up a node."""
        left, come = {*_listed_only_in(former, devices)}, [*_listed_only_in(devices, former)]
        for key, device_id, leaving in left:
            by_resource = self._devices[key]
            del by_resource[resource, leaving][device_id]
            if not by_resource[resource, leaving]:
                del by_resource[resource, leaving]
            if not by_resource:
                del self._devices[key]
        for key, device_id, leaving in come:
            by_resource = self._devices.setdefault(key, {})
            by_resource.setdefault((resource, leaving), {})[device_id] = None
        return not {key for key, *_ in left} <= {key for key, *_ in come}


def _listed_only_in(devices: _Devices, former: _Devices) -> Iterator[tuple[str, str, bool]]:
    """Yield the node keys that nobody else may offer while devices are listed that others are not.

    Each with the ID of its device, and whether that is leaving. A device that waits has none.
    """
    for device in devices.values():
        if former.get(device.id) is not device and not device.is_withheld:
            for node in device.owned_nodes:
                if device.is_leaving or device.has(node):
                    yield from ((key, device.id, device.is_leaving) for key in node.id.keys)

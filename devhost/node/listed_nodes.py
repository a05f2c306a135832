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
        left, come = set[str](), set[str]()
        for device in former.values():
            if devices.get(device.id) is not device:
                place = resource, device.is_leaving
                for key in {*_listed_keys(device)}:
                    left.add(key)
                    by_resource = self._devices[key]
                    del by_resource[place][device.id]
                    if not by_resource[place]:
                        del by_resource[place]
                    if not by_resource:
                        del self._devices[key]
        for device in devices.values():
            if former.get(device.id) is not device:
                place = resource, device.is_leaving
                for key in _listed_keys(device):
                    come.add(key)
                    by_resource = self._devices.setdefault(key, {})
                    by_resource.setdefault(place, {})[device.id] = None
        return bool(left - come)


def _listed_keys(device: HostDevice) -> Iterator[str]:
    """Yield what nobody else may offer while a device is listed; nothing if it waits itself."""
    if not device.is_withheld:
        for node in device.owned_nodes:
            if device.is_leaving or device.has(node):
                yield from node.id.keys

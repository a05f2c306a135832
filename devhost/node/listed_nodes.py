"""The names under which each node is in the list that kubelet gets; pure."""

from collections.abc import Iterable, Iterator, Mapping

from devhost.model.device import HostDevice, Node

_Devices = Mapping[str, HostDevice]


def owned_nodes(device: HostDevice) -> Iterator[Node]:
    """Yield the nodes of a device that no other may have: those that the kernel knows."""
    return (node for node in device.nodes if node.state or node.hardware)


def owned_keys(device: HostDevice) -> frozenset[str]:
    """Return the keys (`NodeId.keys`) of the nodes of a device that no other may have."""
    return frozenset().union(*(node.id.keys for node in owned_nodes(device)))


def present_keys(device: HostDevice) -> set[str]:
    """Return the keys (`NodeId.keys`) of what a device has now; none if it is to leave."""
    nodes = () if device.is_leaving else owned_nodes(device)
    return {key for node in nodes if device.has(node) for key in node.id.keys}


class ListedNodes:
    """The resources and device IDs that list each node, by its keys (`NodeId.keys`)."""

    def __init__(self) -> None:
        self._listing: dict[str, tuple[tuple[str, str], ...]] = {}

    def by_node(self, keys: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the resources and the devices that list a node."""
        return (listed for key in keys for listed in self._listing.get(key, ()))

    def update(self, resource: str, former: _Devices, devices: _Devices) -> bool:
        """Set what a resource lists; return whether it has given up a node."""
        listing, left, come = self._listing, set[str](), set[str]()
        for device in former.values():
            if devices.get(device.id) is not device:
                listed = resource, device.id
                for key in _listed_keys(device):
                    left.add(key)
                    listing[key] = tuple(pair for pair in listing[key] if pair != listed)
        for device in devices.values():
            if former.get(device.id) is not device:
                for key in _listed_keys(device):
                    come.add(key)
                    listing[key] = (*listing.get(key, ()), (resource, device.id))
        for key in left - come:
            if not listing[key]:
                del listing[key]
        return bool(left - come)


def _listed_keys(device: HostDevice) -> Iterator[str]:
    """Yield what nobody else may offer while a device is listed; nothing if it waits itself."""
    if not device.is_withheld:
        for node in owned_nodes(device):
            if device.is_leaving or device.has(node):
                yield from node.id.keys

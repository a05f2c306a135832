"""What devhost sends to kubelet, as protobuf: device lists, and what a container receives.

A ListAndWatchResponse is the concatenation of its ``devices`` fields, so one change of a long
list costs the encoding of one device and a join.
"""

from collections.abc import Iterable
from typing import Final

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.immutable import immutable
from devhost.model.allocation import Allocation

# How much longer "Unhealthy" is than "Healthy": two letters, and the length may need one byte more.
_UNHEALTHY_EXTRA_BYTES: Final = 3


def encode_device(advertised_id: str, *, healthy: bool, numa_nodes: Iterable[int] = ()) -> bytes:
    """Return a list of one device, which is also its part of a longer list."""
    nodes = [pb.NUMANode(ID=node) for node in numa_nodes]
    device = pb.Device(
        ID=advertised_id,
        health="Healthy" if healthy else "Unhealthy",
        topology=pb.TopologyInfo(nodes=nodes) if nodes else None,
    )
    return pb.ListAndWatchResponse(devices=[device]).SerializeToString()


def container_response(allocation: Allocation) -> pb.ContainerAllocateResponse:
    """Return what a container receives, as kubelet takes it."""
    response = pb.ContainerAllocateResponse()
    # One by one: passing mostly empty lists and mappings to the constructor takes longer.
    for mount in allocation.mounts:
        response.mounts.add(
            container_path=mount.container_path,
            host_path=mount.host_path,
            read_only=mount.read_only,
        )
    for device in allocation.devices:
        response.devices.add(
            container_path=device.container_path,
            host_path=device.host_path,
            permissions=device.permissions,
        )
    for name in allocation.cdi_devices:
        response.cdi_devices.add(name=name)
    if allocation.envs:
        response.envs.update(allocation.envs)
    if allocation.annotations:
        response.annotations.update(allocation.annotations)
    return response


@immutable
class ListMessage:
    """A list as it is sent: its bytes, and which of its IDs are unhealthy."""

    data: bytes
    unhealthy: frozenset[str]


class EncodedList:
    """The encoded devices of one list.

    Attributes:
        max_size: The length of the whole if all devices were unhealthy, or a few bytes more.
        unhealthy: The IDs of the unhealthy devices.
    """

    __slots__ = ("_encoded", "_message", "_unhealthy_in_message", "max_size", "unhealthy")

    def __init__(self) -> None:
        self._encoded: dict[str, bytes] = {}
        self.unhealthy: set[str] = set()
        self._unhealthy_in_message: frozenset[str] | None = None
        self._message: ListMessage | None = None
        self.max_size = 0

    def put(self, advertised_id: str, *, healthy: bool, numa_nodes: Iterable[int] = ()) -> None:
        """Add or replace a device."""
        if advertised_id in self._encoded:
            self._subtract(advertised_id)
        encoded = encode_device(advertised_id, healthy=healthy, numa_nodes=numa_nodes)
        self.max_size += len(encoded) + (_UNHEALTHY_EXTRA_BYTES if healthy else 0)
        self._encoded[advertised_id] = encoded
        self._message = None
        if healthy is (advertised_id in self.unhealthy):
            self._unhealthy_in_message = None
            (self.unhealthy.discard if healthy else self.unhealthy.add)(advertised_id)

    def remove(self, advertised_id: str) -> None:
        """Remove a device."""
        self._subtract(advertised_id)
        del self._encoded[advertised_id]
        self._message = None
        if advertised_id in self.unhealthy:
            self._unhealthy_in_message = None
            self.unhealthy.discard(advertised_id)

    def _subtract(self, advertised_id: str) -> None:
        extra = 0 if advertised_id in self.unhealthy else _UNHEALTHY_EXTRA_BYTES
        self.max_size -= len(self._encoded[advertised_id]) + extra

    def message(self) -> ListMessage:
        """Return the list; the same object until something changes."""
        if self._unhealthy_in_message is None:
            self._unhealthy_in_message = frozenset(self.unhealthy)
        if self._message is None:
            data = b"".join(self._encoded.values())
            self._message = ListMessage(data, self._unhealthy_in_message)
        return self._message

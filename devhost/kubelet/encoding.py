"""A device list as the bytes that the kubelet is sent, kept in step with its changes.

A ListAndWatchResponse is the concatenation of its ``devices`` fields, so one change of a long
list costs the encoding of one device and a join.
"""

from collections.abc import Iterable
from typing import Final

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.immutable import immutable

_UNHEALTHY_MORE: Final = 3  # bytes: two letters, and its length may need one


def encode_device(advertised_id: str, *, healthy: bool, numa_nodes: Iterable[int] = ()) -> bytes:
    """Return a list of one device, which is also its part of a longer list."""
    nodes = [pb.NUMANode(ID=node) for node in numa_nodes]
    device = pb.Device(
        ID=advertised_id,
        health="Healthy" if healthy else "Unhealthy",
        topology=pb.TopologyInfo(nodes=nodes) if nodes else None,
    )
    return pb.ListAndWatchResponse(devices=[device]).SerializeToString()


@immutable
class Message:
    """A list as it is sent: its bytes, and which of its IDs are unhealthy."""

    data: bytes
    unhealthy: frozenset[str]


class EncodedList:
    """The encoded devices of one list, and all of them joined once they are asked for.

    Attributes:
        longest: The length of the whole, if all devices were unhealthy, or a little more.
    """

    __slots__ = ("_fields", "_message", "_told_unhealthy", "_unhealthy", "longest")

    def __init__(self) -> None:
        self._fields: dict[str, bytes] = {}
        self._unhealthy: set[str] = set()
        self._told_unhealthy: frozenset[str] | None = None
        self._message: Message | None = None
        self.longest = 0

    def put(self, advertised_id: str, *, healthy: bool, numa_nodes: Iterable[int] = ()) -> None:
        """Add a device, or set it anew."""
        if advertised_id in self._fields:
            self._shorten(advertised_id)
        encoded = encode_device(advertised_id, healthy=healthy, numa_nodes=numa_nodes)
        self.longest += len(encoded) + (_UNHEALTHY_MORE if healthy else 0)
        self._fields[advertised_id] = encoded
        self._message = None
        if healthy is (advertised_id in self._unhealthy):
            self._told_unhealthy = None
            (self._unhealthy.discard if healthy else self._unhealthy.add)(advertised_id)

    def drop(self, advertised_id: str) -> None:
        """Take a device out."""
        self._shorten(advertised_id)
        del self._fields[advertised_id]
        self._message = None
        if advertised_id in self._unhealthy:
            self._told_unhealthy = None
            self._unhealthy.discard(advertised_id)

    def _shorten(self, advertised_id: str) -> None:
        more = 0 if advertised_id in self._unhealthy else _UNHEALTHY_MORE
        self.longest -= len(self._fields[advertised_id]) + more

    def message(self) -> Message:
        """Return the list; the same objects until something changes."""
        if self._told_unhealthy is None:
            self._told_unhealthy = frozenset(self._unhealthy)
        if self._message is None:
            self._message = Message(b"".join(self._fields.values()), self._told_unhealthy)
        return self._message

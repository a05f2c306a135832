"""Between the host's values and protobuf messages; pure."""

from typing import Final

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet.encoding import encode_device
from devhost.kubelet.listing import Advertised, Listing
from devhost.model.answer import Allocation

_DEVICE_BYTES_MAX: Final = 400  # 63 characters of four bytes, two NUMA nodes, a share


def truncated(wanted: dict[str, Advertised], listing: Listing) -> dict[str, Advertised]:
    """Leave out new devices that would make the list larger than the kubelet takes.

    Args:
        wanted: What should be advertised, all of it or a part.
        listing: What is in the list already stays, whatever the size; so do those that are
            leaving, until they have left.
    """
    room = listing.room
    if len(wanted) * _DEVICE_BYTES_MAX <= room:
        return wanted
    kept = {}
    for key, entry in wanted.items():
        if key not in listing:
            room -= len(encode_device(key, healthy=False, numa_nodes=entry.numa_nodes))
            if room < 0:
                continue
        kept[key] = entry
    return kept


def container_response(allocation: Allocation) -> pb.ContainerAllocateResponse:
    """Return an allocation as the kubelet takes it."""
    response = pb.ContainerAllocateResponse()
    # One by one: empty mappings and lists would cost more than all that most answers have.
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

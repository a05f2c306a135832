"""What devhost sends to kubelet, as protobuf: device lists, and what a container receives."""

from collections.abc import Mapping

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet.device_list import AdvertisedDevice
from devhost.model.allocation import Allocation


def list_response(entries: Mapping[str, AdvertisedDevice]) -> pb.ListAndWatchResponse:
    """Return a list of devices, as kubelet takes it."""
    response = pb.ListAndWatchResponse()
    for advertised_id, entry in entries.items():
        device = response.devices.add(
            ID=advertised_id, health="Healthy" if entry.healthy else "Unhealthy"
        )
        for node in entry.numa_nodes:
            device.topology.nodes.add(ID=node)
    return response


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

"""Between the host's values and protobuf messages; pure."""

from collections.abc import Container, Mapping
from typing import Final

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet.listing import Advertised
from devhost.model.answer import Allocation

# The kubelet's client takes 4 MiB (grpc-go's default) and cuts the stream beyond, in silence.
LIST_BYTES_MAX: Final = 4 * 1024 * 1024 - 4096
_DEVICE_BYTES_MAX: Final = 400  # 63 characters of four bytes, two NUMA nodes, a share


def device_list(entries: Mapping[str, Advertised]) -> pb.ListAndWatchResponse:
    """Return a list as the kubelet takes it."""
    return pb.ListAndWatchResponse(
        devices=[
            pb.Device(
                ID=advertised_id,
                health="Healthy" if entry.healthy else "Unhealthy",
                topology=pb.TopologyInfo(nodes=[pb.NUMANode(ID=node) for node in entry.numa_nodes])
                if entry.numa_nodes
                else None,
            )
            for advertised_id, entry in entries.items()
        ]
    )


def truncated(wanted: Mapping[str, Advertised], listed: Container[str]) -> dict[str, Advertised]:
    """Leave out new devices that would make the list larger than the kubelet takes.

    Args:
        wanted: What should be advertised.
        listed: The IDs that are in the list already: they stay, whatever the size.
    """
    if len(wanted) * _DEVICE_BYTES_MAX <= LIST_BYTES_MAX:
        return dict(wanted)
    sizes = {key: device_list({key: entry}).ByteSize() for key, entry in wanted.items()}
    room = LIST_BYTES_MAX - sum(size for key, size in sizes.items() if key in listed)
    kept = {}
    for key, entry in wanted.items():
        if key not in listed:
            room -= sizes[key]
            if room < 0:
                continue
        kept[key] = entry
    return kept


def container_response(allocation: Allocation) -> pb.ContainerAllocateResponse:
    """Return an allocation as the kubelet takes it."""
    return pb.ContainerAllocateResponse(
        envs=allocation.envs,
        mounts=[
            pb.Mount(
                container_path=mount.container_path,
                host_path=mount.host_path,
                read_only=mount.read_only,
            )
            for mount in allocation.mounts
        ],
        devices=[
            pb.DeviceSpec(
                container_path=device.container_path,
                host_path=device.host_path,
                permissions=device.permissions,
            )
            for device in allocation.devices
        ],
        annotations=allocation.annotations,
        cdi_devices=[pb.CDIDevice(name=name) for name in allocation.cdi_devices],
    )

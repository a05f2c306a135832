"""What a container receives from all its plugins together, as the stand-in kubelet merges it.

As k8s.io/kubernetes v1.37.1, pkg/kubelet/cm/devicemanager/pod_devices.go,
deviceRunContainerOptions.
"""

from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import TypedDict

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.standin.state import HeldDevices, shuffled


class ContainerMount(TypedDict):
    """A path of the host in a container."""

    hostPath: str
    containerPath: str
    readOnly: bool


class ContainerDevice(TypedDict):
    """A device node of the host in a container."""

    hostPath: str
    containerPath: str
    permissions: str


class Answer(TypedDict):
    """What a container receives, merged over its resources."""

    deviceIds: dict[str, list[str]]
    envs: dict[str, str]
    mounts: list[ContainerMount]
    devices: list[ContainerDevice]
    annotations: dict[str, str]
    cdiDevices: list[str]


def merged(held: Mapping[str, HeldDevices]) -> Answer:
    """Merge the stored answers of a container's resources; the first value of a key wins."""
    responses = [held[resource].response for resource in shuffled(held)]
    mounts: dict[str, ContainerMount] = {}
    nodes: dict[str, ContainerDevice] = {}
    for response in responses:
        for mount in response.mounts:
            mounts.setdefault(mount.container_path, _mount(mount))
        for node in response.devices:
            nodes.setdefault(node.container_path, _device_node(node))
    return Answer(
        deviceIds={resource: sorted(held[resource].ids) for resource in sorted(held)},
        envs=_first_wins(response.envs for response in responses),
        mounts=list(mounts.values()),
        devices=list(nodes.values()),
        annotations=_first_wins(response.annotations for response in responses),
        cdiDevices=list(dict.fromkeys(c.name for r in responses for c in r.cdi_devices)),
    )


def _first_wins(maps: Iterable[Mapping[str, str]]) -> dict[str, str]:
    # Copies, because looking up a key in a protobuf map adds it.
    return dict(ChainMap(*(dict(each) for each in maps)))


def _mount(wire: pb2.Mount) -> ContainerMount:
    host, container = wire.host_path, wire.container_path
    return ContainerMount(hostPath=host, containerPath=container, readOnly=wire.read_only)


def _device_node(wire: pb2.DeviceSpec) -> ContainerDevice:
    host, container = wire.host_path, wire.container_path
    return ContainerDevice(hostPath=host, containerPath=container, permissions=wire.permissions)

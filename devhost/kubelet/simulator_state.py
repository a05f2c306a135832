"""What the stand-in kubelet remembers of plugins, devices and pods: nothing here does I/O.

Modelled on k8s.io/kubernetes v1.37.1, pkg/kubelet/cm/devicemanager (manager.go,
pod_devices.go, plugin/v1beta1/handler.go).
"""

import random
from collections import ChainMap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypedDict

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.model.names import resource_name_problem

_VERSION: Final = "v1beta1"
_HEALTHY: Final = "Healthy"
# Go's maps and sets have no order; an order of ours would be relied on.
_RANDOM: Final = random.SystemRandom()

Ids = frozenset[str]


class AdmissionError(Exception):
    """A pod that the kubelet refused; the text is what its user would see."""


class Mount(TypedDict):
    """A path of the host in a container."""

    hostPath: str
    containerPath: str
    readOnly: bool


class DeviceNode(TypedDict):
    """A device node of the host in a container."""

    hostPath: str
    containerPath: str
    permissions: str


class Answer(TypedDict):
    """What a container receives, merged over its resources."""

    deviceIds: dict[str, list[str]]
    envs: dict[str, str]
    mounts: list[Mount]
    devices: list[DeviceNode]
    annotations: dict[str, str]
    cdiDevices: list[str]


class RefusedError(Exception):
    """A registration that the kubelet refused."""


def check(request: pb2.RegisterRequest) -> None:
    """Refuse a registration for what its request says."""
    if request.version != _VERSION:
        raise RefusedError(
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{_VERSION}"]'
        )
    if resource_name_problem(request.resource_name) is not None:
        raise RefusedError(f'the ResourceName "{request.resource_name}" is invalid')


@dataclass(slots=True, eq=False)
class Endpoint:
    """One connection to one plugin."""

    resource: str
    socket: Path
    channel: grpc.aio.Channel
    stub: "pb2_grpc.DevicePluginAsyncStub"
    options: pb2.DevicePluginOptions = field(default_factory=pb2.DevicePluginOptions)
    stopped: bool = False

    @property
    def key(self) -> tuple[str, Path]:
        """What tells connections apart for the kubelet."""
        return self.resource, self.socket


@dataclass(slots=True)
class Endpoints:
    """The connections whose end will be noticed, those that count as alive, and who gets calls."""

    watched: list[Endpoint] = field(default_factory=list)
    connected: dict[tuple[str, Path], Endpoint] = field(default_factory=dict)
    primary: dict[str, Endpoint] = field(default_factory=dict)

    def connect(self, endpoint: Endpoint) -> None:
        """Count a connection as alive; it gets its resource's calls from now on."""
        if endpoint.key in self.connected:
            raise RefusedError(f"device plugin already connected: {endpoint.socket}")
        self.connected[endpoint.key] = self.primary[endpoint.resource] = endpoint

    def unwatch(self, endpoint: Endpoint) -> bool:
        """Stop watching all connections that share resource and socket, if there are any.

        So does kubelet 1.37: a refused second registration hides the end of the first.
        """
        before = len(self.watched)
        self.watched = [each for each in self.watched if each.key != endpoint.key]
        return len(self.watched) < before

    def disconnect(self, endpoint: Endpoint) -> bool:
        """Take a connection out, promote another one; return whether it was the last."""
        gone = self.connected.pop(endpoint.key, None)
        if gone is None:
            return False
        gone.stopped = True
        others = [each for each in self.connected.values() if each.resource == gone.resource]
        if others:
            self.primary[gone.resource] = others[0]
        return not others

    def options(self, resource: str) -> pb2.DevicePluginOptions:
        """Return a resource's options; after a restart of the kubelet they are unknown."""
        endpoint = self.primary.get(resource)
        return endpoint.options if endpoint else pb2.DevicePluginOptions()

    def stub(self, resource: str) -> "pb2_grpc.DevicePluginAsyncStub":
        """Return where a resource's calls go."""
        endpoint = self.primary.get(resource)
        if endpoint is None or endpoint.stopped:
            raise AdmissionError(f"endpoint of {resource} has been stopped")
        return endpoint.stub


@dataclass(frozen=True, slots=True)
class DeviceTable:
    """The devices of one resource: ID to health as last listed, and how each ID counts."""

    listed: Mapping[str, str] = field(default_factory=dict)
    healthy: Ids = frozenset()
    unhealthy: Ids = frozenset()

    @classmethod
    def of(cls, devices: Iterable[pb2.Device]) -> "DeviceTable":
        """Build the table of a list message; an ID listed twice can count as both."""
        pairs = [(device.ID, device.health) for device in devices]
        return cls(
            dict(pairs),
            frozenset(device for device, health in pairs if health == _HEALTHY),
            frozenset(device for device, health in pairs if health != _HEALTHY),
        )

    def counts(self) -> tuple[int, int]:
        """Return capacity and allocatable."""
        return len(self.healthy) + len(self.unhealthy), len(self.healthy)


@dataclass(frozen=True, slots=True)
class Allocation:
    """The devices of one resource that a container holds, and the plugin's answer for them."""

    ids: Ids
    response: pb2.ContainerAllocateResponse


@dataclass(slots=True)
class Ledger:
    """The device tables, and which container of which pod holds what."""

    tables: dict[str, DeviceTable] = field(default_factory=dict)
    pods: dict[str, dict[str, dict[str, Allocation]]] = field(default_factory=dict)

    def table(self, resource: str) -> DeviceTable:
        """Return a resource's table, an empty one if it is unknown."""
        return self.tables.get(resource, DeviceTable())

    def reload(self) -> None:
        """Keep what the checkpoint keeps: the pods, and the resources without their devices."""
        self.tables = dict.fromkeys(self.tables, DeviceTable())

    def orphan(self, resource: str) -> None:
        """Count all devices as unhealthy: the resource's last plugin has gone."""
        table = self.table(resource)
        every = table.healthy | table.unhealthy
        self.tables[resource] = DeviceTable(table.listed, unhealthy=every)

    def container(self, pod: str, container: str) -> dict[str, Allocation]:
        """Return what a container holds; it becomes known by this."""
        return self.pods.setdefault(pod, {}).setdefault(container, {})

    def available(self, pod: str, container: str, resource: str, count: int) -> Ids:
        """Return the devices to choose from; none if the container needs no further ones."""
        held = self.container(pod, container).get(resource)
        if held and len(held.ids) != count:
            raise AdmissionError(
                f'pod "{pod}" container "{container}" changed request for resource '
                f'"{resource}" from {len(held.ids)} to {count}'
            )
        table = self.tables.get(resource)
        if table is None:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        reason = f"cannot allocate unhealthy devices {resource}"
        if not table.healthy:
            raise AdmissionError(f"no healthy devices present; {reason}")
        if held and not held.ids <= table.healthy:
            raise AdmissionError(f"previously allocated devices are no longer healthy; {reason}")
        free = table.healthy - self._in_use(resource)
        if held or not count:
            return frozenset()
        if len(free) < count:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {count}, Available: {len(free)}"
            )
        return free

    def _in_use(self, resource: str) -> Ids:
        holders = (held for pod in self.pods.values() for held in pod.values())
        ids = (held[resource].ids for held in holders if resource in held)
        return Ids().union(*ids)

    def health(self, pod: str) -> dict[str, dict[str, dict[str, str]]]:
        """Return container, resource and ID to health; what is not listed counts as healthy."""
        return {
            container: {name: self._health(name, it.ids) for name, it in held.items()}
            for container, held in self.pods[pod].items()
        }

    def _health(self, resource: str, ids: Ids) -> dict[str, str]:
        listed = self.table(resource).listed
        healthy = {device: listed.get(device, _HEALTHY) == _HEALTHY for device in sorted(ids)}
        return {device: _HEALTHY if well else "Unhealthy" for device, well in healthy.items()}

    def answer(self, pod: str, container: str) -> Answer:
        """Merge the stored answers of a container's resources; the first value of a key wins."""
        held = self.pods[pod][container]
        responses = [held[resource].response for resource in shuffled(held)]
        mounts: dict[str, Mount] = {}
        nodes: dict[str, DeviceNode] = {}
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
    # Copies, because looking up a key in a protobuf map creates it.
    return dict(ChainMap(*(dict(each) for each in maps)))


def _mount(wire: pb2.Mount) -> Mount:
    host, container = wire.host_path, wire.container_path
    return Mount(hostPath=host, containerPath=container, readOnly=wire.read_only)


def _device_node(wire: pb2.DeviceSpec) -> DeviceNode:
    host, container = wire.host_path, wire.container_path
    return DeviceNode(hostPath=host, containerPath=container, permissions=wire.permissions)


def shuffled(values: Iterable[str]) -> list[str]:
    """Return the values in an order that changes from call to call."""
    order = list(values)
    _RANDOM.shuffle(order)
    return order


def choose(available: Ids, preferred: Ids, count: int) -> Ids:
    """Choose devices as the kubelet does: any of the preferred ones, then any of the others."""
    order = shuffled(available & preferred) + shuffled(available - preferred)
    return frozenset(order[:count])


def in_go(error: grpc.aio.AioRpcError) -> str:
    """Write an error as Go's gRPC does."""
    code = error.code().name.title().replace("_", "").replace("Cancelled", "Canceled")
    return f"rpc error: code = {code} desc = {error.details()}"

"""The state of the stand-in kubelet: plugins, devices and pods; pure.

Modelled on k8s.io/kubernetes v1.37.1, pkg/kubelet/cm/devicemanager (manager.go,
pod_devices.go, plugin/v1beta1/handler.go).
"""

import random
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.immutable import immutable
from devhost.model.names import resource_name_problem

_VERSION: Final = "v1beta1"
_HEALTHY: Final = "Healthy"
_NO_NUMA_NODE: Final = -1
# Go's maps and sets have no order, and nobody should come to rely on one of ours.
_RANDOM: Final = random.SystemRandom()

Ids = frozenset[str]


class AdmissionError(Exception):
    """The kubelet refused a pod; the text is what its user would see."""


class RefusedError(Exception):
    """The kubelet refused a registration."""


def check(request: pb2.RegisterRequest) -> None:
    """Refuse a registration with an invalid request (plugin/v1beta1/server.go, Register)."""
    if request.version != _VERSION:
        raise RefusedError(
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{_VERSION}"]'
        )
    if resource_name_problem(request.resource_name) is not None:
        raise RefusedError(f'the ResourceName "{request.resource_name}" is invalid')


@dataclass(slots=True, eq=False)
class PluginEndpoint:
    """One connection to one plugin (plugin/v1beta1/client.go)."""

    resource: str
    socket: Path
    channel: grpc.aio.Channel
    stub: "pb2_grpc.DevicePluginAsyncStub"
    options: pb2.DevicePluginOptions = field(default_factory=pb2.DevicePluginOptions)
    stopped: bool = False

    @property
    def key(self) -> tuple[str, Path]:
        """What identifies a connection for the kubelet."""
        return self.resource, self.socket


@dataclass(slots=True)
class PluginEndpoints:
    """The connections to plugins.

    Attributes:
        watched: Those whose end will be noticed.
        connected: Those that count as alive.
        primary: Those that get the calls, by resource.
    """

    watched: list[PluginEndpoint] = field(default_factory=list)
    connected: dict[tuple[str, Path], PluginEndpoint] = field(default_factory=dict)
    primary: dict[str, PluginEndpoint] = field(default_factory=dict)

    def connect(self, endpoint: PluginEndpoint) -> None:
        """Count a connection as alive; it gets the calls of its resource (PluginConnected)."""
        if endpoint.key in self.connected:
            raise RefusedError(f"device plugin already connected: {endpoint.socket}")
        self.connected[endpoint.key] = self.primary[endpoint.resource] = endpoint

    def unwatch(self, endpoint: PluginEndpoint) -> bool:
        """Stop watching all connections that share resource and socket, if there are any.

        So does kubelet 1.37 (plugin/v1beta1/handler.go, deregisterClient): a refused second
        registration hides the end of the first.
        """
        before = len(self.watched)
        self.watched = [each for each in self.watched if each.key != endpoint.key]
        return len(self.watched) < before

    def disconnect(self, endpoint: PluginEndpoint) -> bool:
        """Remove a connection, promote another one; return whether it was the last."""
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


@immutable
class DeviceTable:
    """The devices of one resource: ID to health as last listed, and how each ID counts.

    `numa_nodes` has the IDs that were listed with a topology.
    """

    listed: Mapping[str, str] = field(default_factory=dict)
    healthy: Ids = frozenset()
    unhealthy: Ids = frozenset()
    numa_nodes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, devices: Iterable[pb2.Device]) -> "DeviceTable":
        """Build the table of a list message; an ID listed twice can count as both."""
        every = tuple(devices)
        pairs = [(device.ID, device.health) for device in every]
        return cls(
            dict(pairs),
            frozenset(device for device, health in pairs if health == _HEALTHY),
            frozenset(device for device, health in pairs if health != _HEALTHY),
            {
                device.ID: tuple(node.ID for node in device.topology.nodes)
                for device in every
                if device.HasField("topology")
            },
        )

    def counts(self) -> tuple[int, int]:
        """Return capacity and allocatable."""
        return len(self.healthy) + len(self.unhealthy), len(self.healthy)


@immutable
class HeldDevices:
    """The devices of one resource that a container holds, and the plugin's answer for them.

    Each device has the NUMA nodes that it had at that moment.
    """

    devices: Mapping[str, tuple[int, ...]]
    response: pb2.ContainerAllocateResponse

    @property
    def ids(self) -> Ids:
        """The devices, as kubelet and plugin name them."""
        return frozenset(self.devices)


@dataclass(slots=True)
class Pod:
    """An active pod: what each of its containers holds, by resource.

    Attributes:
        containers: In the order in which the kubelet admits and starts them.
        init: The ordinary init containers: what they hold is handed to later containers too.
        sidecars: The init containers that go on running, with devices of their own.
    """

    containers: dict[str, dict[str, HeldDevices]] = field(default_factory=dict)
    init: Ids = frozenset()
    sidecars: Ids = frozenset()

    @property
    def listed(self) -> dict[str, dict[str, HeldDevices]]:
        """The containers that the pod-resources API shows."""
        return {name: held for name, held in self.containers.items() if name not in self.init}


@dataclass(slots=True)
class Ledger:
    """The device tables, and which container of which pod holds what."""

    tables: dict[str, DeviceTable] = field(default_factory=dict)
    pods: dict[str, Pod] = field(default_factory=dict)

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
        self.tables[resource] = DeviceTable(
            table.listed, unhealthy=every, numa_nodes=table.numa_nodes
        )

    def activate(
        self, name: str, containers: Iterable[str], init: Collection[str], sidecars: Collection[str]
    ) -> Pod:
        """Add a pod, init containers first; a known one keeps what it holds."""
        pod = self.pods.setdefault(name, Pod())
        pod.sidecars = frozenset(sidecars)
        pod.init = frozenset(init) - pod.sidecars
        first = pod.init | pod.sidecars
        for container in sorted(containers, key=lambda one: one not in first):
            pod.containers.setdefault(container, {})
        return pod

    def needs(self, pod: str, container: str, resource: str, count: int) -> bool:
        """Whether a container has yet to be given devices of a resource."""
        held = self.pods[pod].containers[container].get(resource)
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
        return not held and count > 0

    def free(self, resource: str, count: int, among: Iterable[str] | None = None) -> Ids:
        """Return the devices of which `count` are to be chosen, of these IDs if given."""
        free = self.table(resource).healthy - self._in_use(resource)
        if among is not None:
            free &= frozenset(among)
        if len(free) < count:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {count}, Available: {len(free)}"
            )
        return free

    def _in_use(self, resource: str) -> Ids:
        holders = (held for pod in self.pods.values() for held in pod.containers.values())
        ids = (held[resource].ids for held in holders if resource in held)
        return Ids().union(*ids)

    def allocation(
        self, resource: str, ids: Ids, response: pb2.ContainerAllocateResponse
    ) -> HeldDevices:
        """Return what the kubelet stores of a plugin's answer."""
        nodes = self.table(resource).numa_nodes
        devices = {
            device: tuple(node for node in nodes.get(device, ()) if node != _NO_NUMA_NODE)
            for device in ids
        }
        return HeldDevices(devices, response)

    def health(self, pod: str) -> dict[str, dict[str, dict[str, str]]]:
        """Return container, resource and ID to health; what is not listed counts as healthy.

        A pod's status has app containers only (UpdateAllocatedResourcesStatus).
        """
        active = self.pods[pod]
        return {
            container: {name: self._health(name, it.ids) for name, it in held.items()}
            for container, held in active.listed.items()
            if container not in active.sidecars
        }

    def _health(self, resource: str, ids: Ids) -> dict[str, str]:
        listed = self.table(resource).listed
        healthy = {device: listed.get(device, _HEALTHY) == _HEALTHY for device in sorted(ids)}
        return {device: _HEALTHY if well else "Unhealthy" for device, well in healthy.items()}


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

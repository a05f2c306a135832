"""The state of the stand-in kubelet: devices and pods, and what their containers receive.

Modelled on k8s.io/kubernetes v1.37.1, pkg/kubelet/cm/devicemanager (manager.go, pod_devices.go).
"""

import asyncio
import functools
import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, TypedDict, TypeVar

from google.protobuf.json_format import MessageToDict

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2

HEALTHY: Final = "Healthy"
UNHEALTHY: Final = "Unhealthy"
# Go's maps and sets have no order, and nobody should come to rely on one of ours.
_RANDOM: Final = random.SystemRandom()

T = TypeVar("T")
Ids = frozenset[str]


class AdmissionError(Exception):
    """The kubelet refused a pod; the text is what its user would see."""


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """The devices of one resource that a container holds, and the plugin's answer for them."""

    ids: Ids
    response: pb2.ContainerAllocateResponse


Container = dict[str, HeldDevices]
"""The devices of a container, by resource."""


@dataclass(slots=True)
class Ledger:
    """The health of each resource's devices, and which container of which pod holds what.

    Attributes:
        changed: Set, and replaced, after each list, registration and disconnection.
    """

    knows_pods: bool = True
    tables: dict[str, dict[str, str]] = field(default_factory=dict)
    pods: dict[str, dict[str, Container]] = field(default_factory=dict)
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def notify(self) -> None:
        """Wake those who wait for a change."""
        self.changed.set()
        self.changed = asyncio.Event()

    def healthy(self, resource: str) -> Ids:
        """Return the devices that can be given to containers."""
        table = self.tables.get(resource, {})
        return frozenset(device for device, health in table.items() if health == HEALTHY)

    def needs(self, pod: str, container: str, resource: str, count: int) -> bool:
        """Whether a container has yet to be given devices of a resource."""
        held = self.pods[pod][container].get(resource)
        if resource not in self.tables:
            raise AdmissionError(f"cannot allocate unregistered device {resource}")
        healthy = self.healthy(resource)
        reason = f"cannot allocate unhealthy devices {resource}"
        if not healthy:
            raise AdmissionError(f"no healthy devices present; {reason}")
        if held and not held.ids <= healthy:
            raise AdmissionError(f"previously allocated devices are no longer healthy; {reason}")
        return not held and count > 0

    def free(self, resource: str, count: int) -> Ids:
        """Return the devices of which `count` are to be chosen."""
        containers = (container for pod in self.pods.values() for container in pod.values())
        in_use = (container[resource].ids for container in containers if resource in container)
        free = self.healthy(resource).difference(*in_use)
        if len(free) < count:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {count}, Available: {len(free)}"
            )
        return free


def shuffled(values: Iterable[str]) -> list[str]:
    """Return the values in an order that changes from call to call."""
    order = list(values)
    _RANDOM.shuffle(order)
    return order


def choose(available: Ids, preferred: Ids, count: int) -> Ids:
    """Choose devices as the kubelet does: any of the preferred ones, then any of the others."""
    order = shuffled(available & preferred) + shuffled(available - preferred)
    return frozenset(order[:count])


class Answer(TypedDict):
    """The answer to a container, merged over its resources."""

    deviceIds: dict[str, list[str]]
    envs: dict[str, str]
    mounts: list[dict[str, Any]]
    devices: list[dict[str, Any]]
    annotations: dict[str, str]
    cdiDevices: list[str]


def answer(held: Container) -> Answer:
    """Merge the plugins' answers for a container; the first value of a key wins."""
    replies = [held[resource].response for resource in shuffled(held)]
    mounts = _first((mount.container_path, mount) for reply in replies for mount in reply.mounts)
    nodes = _first((node.container_path, node) for reply in replies for node in reply.devices)
    as_json = functools.partial(MessageToDict, always_print_fields_with_no_presence=True)
    return Answer(
        deviceIds={resource: sorted(held[resource].ids) for resource in sorted(held)},
        envs=_first(pair for reply in replies for pair in reply.envs.items()),
        mounts=[as_json(mount) for mount in mounts.values()],
        devices=[as_json(node) for node in nodes.values()],
        annotations=_first(pair for reply in replies for pair in reply.annotations.items()),
        cdiDevices=list(dict.fromkeys(cdi.name for reply in replies for cdi in reply.cdi_devices)),
    )


def _first(pairs: Iterable[tuple[str, T]]) -> dict[str, T]:
    values: dict[str, T] = {}
    for key, value in pairs:
        values.setdefault(key, value)
    return values

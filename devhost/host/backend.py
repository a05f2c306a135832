"""What the node asks of a backend, which publishes devices to kubelet.

It publishes what a scan has found, and says what it may still hand out of a resource, whether a
resource is drained, which pods hold devices, and how a resource is doing. It asks the node for
three things in turn: to allocate, to prefer and to prepare devices (`devhost.host.resource`).
`devhost.kubelet` is the backend for device plugins; nothing else of it is known in the node, except
where the process is put together (`devhost.host.host`).
"""

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Protocol

from devhost.model.device import Snapshot
from devhost.model.resource_state import HeldBy, Published


class Backend(Protocol):
    """The backend of a process."""

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""
        ...

    def locked_by_other(self, resource: str) -> bool:
        """Whether another instance of devhost serves a resource."""
        ...

    def has_served(self, resource: str) -> bool:
        """Whether an instance of devhost has served a resource on this node."""
        ...


class Pods(Protocol):
    """Tells which pods hold devices."""

    @property
    def allocating(self) -> bool:
        """Whether kubelet waits for an Allocate."""
        ...

    async def holders(self) -> tuple[object, Mapping[str, HeldBy]]:
        """Return which kubelet says, by resource, which pods hold an ID; raise `KubeletError`."""
        ...


class ListedDevices(Protocol):
    """What is offered of a resource, and what is on its way out: pods may still get both."""

    def publish(self, snapshot: Snapshot, replicas: int) -> bool:
        """Offer the devices of a snapshot; return whether some have left immediately."""
        ...

    def __contains__(self, advertised_id: object, /) -> bool: ...

    @property
    def leaving(self) -> AbstractSet[str]:
        """Those that are on their way out."""
        ...

    @property
    def device_ids(self) -> AbstractSet[str]:
        """The devices of all of it."""
        ...

    @property
    def drained(self) -> bool:
        """Whether there are none, and kubelet knows."""
        ...

    def is_settled_unhealthy(self, advertised_id: str, now: float) -> bool:
        """Whether kubelet knows an ID as unhealthy, so that no pod gets it."""
        ...


class Publication(Protocol):
    """One resource at a backend."""

    @property
    def device_list(self) -> ListedDevices:
        """What it may hand out."""
        ...

    def spec_changed(self) -> None:
        """Take note of another declaration."""
        ...

    @property
    def state(self) -> Published:
        """How it is doing."""
        ...

    async def run(self) -> None:
        """Serve it until cancelled."""
        ...

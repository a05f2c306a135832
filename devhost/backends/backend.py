"""The protocol of a backend, which offers devices to pods.

It publishes what a scan has found, says what a pod may still be given, and which pods hold devices.
It asks the node for three things in turn: to allocate, to prefer and to prepare devices
(`devhost.backends.plugin_handler`). Backends are handed to the node by name; it imports none.
"""

from collections.abc import Awaitable, Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Protocol

from devhost.backends.plugin_handler import DEVICE_PLUGIN, PluginHandler
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.resource_state import HeldBy, PublicationStatus, SetState
from devhost.watch.inotify import Watcher


@dataclass(frozen=True, slots=True)
class ResourceHooks:
    """The parts of the node that a backend uses for one resource.

    Attributes:
        handler: Answers the calls of pods.
        set_state: Shows the state of the publication, and why.
        held: Returns the IDs that pods hold, as far as that is known.
        refresh: Asks again which pods hold devices.
        on_left: Called when IDs have left the list.
        exclusive: Whether to wait while a program other than devhost serves the resource.
    """

    handler: PluginHandler
    set_state: SetState
    held: Callable[[], AbstractSet[str]]
    refresh: Callable[[], Awaitable[None]]
    on_left: Callable[[], None]
    exclusive: bool


class PodLister(Protocol):
    """Tells which pods hold devices."""

    @property
    def allocating(self) -> bool:
        """Whether kubelet waits for an Allocate."""
        ...

    async def holders(self) -> tuple[object, Mapping[str, HeldBy]]:
        """Return which kubelet says, by resource, which pods hold an ID; raise `KubeletError`."""
        ...


class OfferedIds(Protocol):
    """The IDs of a resource on offer, and those on their way out: pods may still get both."""

    def publish(self, snapshot: Snapshot, replicas: int) -> bool:
        """Offer the devices of a snapshot; return whether some have left immediately."""
        ...

    def lists(self, device_id: str, *, shared: bool) -> bool:
        """Whether a device is there, as itself or as shares."""
        ...

    def may_allocate(self, device_id: str, now: float, *, shared: bool) -> bool:
        """Whether a pod may still get a device; not if kubelet has settled it as unhealthy."""
        ...

    @property
    def device_ids(self) -> AbstractSet[str]:
        """The devices of all of them."""
        ...

    @property
    def drained(self) -> bool:
        """Whether there are none, and kubelet knows."""
        ...


class Publication(Protocol):
    """One resource at a backend."""

    @property
    def offered_ids(self) -> OfferedIds:
        """The IDs that a pod may get."""
        ...

    def spec_changed(self) -> None:
        """Register again, if another specification needs that."""
        ...

    @property
    def status(self) -> PublicationStatus:
        """How many IDs are listed, and what is wrong with the list."""
        ...

    async def run(self) -> None:
        """Serve it until cancelled."""
        ...


class Backend(Protocol):
    """One way to offer devices to pods, for all resources of a process."""

    @property
    def name(self) -> str:
        """Its name in log lines."""
        ...

    @property
    def leave_after(self) -> float:
        """The time between an ID's Unhealthy and its end, in seconds."""
        ...

    @property
    def pods(self) -> PodLister | None:
        """Tells which pods hold devices; ``None`` where it may not be asked."""
        ...

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""
        ...

    def open(self, hooks: ResourceHooks) -> Publication:
        """Return the publication of a resource, to be run."""
        ...

    def locked_by_other(self, resource: str) -> bool:
        """Whether another instance of devhost serves a resource; may be asked in any thread."""
        ...

    def has_served(self, resource: str) -> bool:
        """Whether an instance of devhost has served a resource on this node."""
        ...

    async def run(self, watcher: Watcher) -> None:
        """Keep up with kubelet until cancelled; raise `BackendGoneError` if that is hopeless."""
        ...

    async def close(self) -> None:
        """End what is running."""
        ...


class Backends:
    """The backends of a process, by name."""

    def __init__(self, by_name: Mapping[str, Backend]) -> None:
        self.by_name = by_name

    def backend_of(self, _resource: Resource) -> Backend:
        """Return the backend that offers a resource."""
        return self.by_name[DEVICE_PLUGIN]

    @property
    def leave_after(self) -> float:
        """The longest time between an ID's Unhealthy and its end, in seconds."""
        return max(backend.leave_after for backend in self.by_name.values())

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""
        return max(backend.restarts for backend in self.by_name.values())

    @property
    def pods(self) -> PodLister | None:
        """Tells which pods hold devices; ``None`` where it may not be asked."""
        return next((backend.pods for backend in self.by_name.values() if backend.pods), None)

    def locked_by_other(self, resource: str) -> bool:
        """Whether another instance of devhost serves a resource; may be asked in any thread."""
        return any(backend.locked_by_other(resource) for backend in self.by_name.values())

    def has_served(self, resource: str) -> bool:
        """Whether an instance of devhost has served a resource on this node."""
        return any(backend.has_served(resource) for backend in self.by_name.values())

"""The protocol of a backend, which offers devices to pods.

It publishes what a scan has found, says what a pod may still be given, and which pods hold devices.
It asks the node for three things in turn: to allocate, to prefer and to prepare devices
(`PluginHandler`). The node is given a backend; it imports none.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Protocol

from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation
from devhost.model.device import Snapshot
from devhost.model.resource_state import HeldBy, PublicationStatus, SetState
from devhost.watch.inotify import Watcher

ALLOCATE_RESULTS: Final = ("ok", "refused", "timeout", "error", "cancelled")


class PluginHandler(Protocol):
    """Answers the calls of kubelet for one resource."""

    @property
    def name(self) -> str:
        """The resource's name."""

    @property
    def pre_start_required(self) -> bool:
        """Whether kubelet has to call PreStartContainer before each container start."""

    async def allocate(self, ids: Sequence[OfferedId], *, pre_start: bool) -> Allocation:
        """Return what a container receives, or raise `AllocationError`.

        `pre_start` says whether kubelet will call PreStartContainer for the devices.
        """

    def observe_allocate(self, result: str, seconds: float) -> None:
        """Record the end of an Allocate: its result, of `ALLOCATE_RESULTS`, and duration."""

    async def prefer(
        self, available: Sequence[OfferedId], must_include: Sequence[OfferedId], size: int
    ) -> Sequence[OfferedId]:
        """Return which IDs a container should get; none to leave the choice to kubelet."""

    async def prepare(self, ids: Sequence[OfferedId]) -> None:
        """Prepare devices for a container that starts, or raise `PreStartError`."""


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

    async def holders(self) -> tuple[object, Mapping[str, HeldBy]]:
        """Return which kubelet says, by resource, which pods hold an ID; raise `KubeletError`."""


class OfferedIds(Protocol):
    """The IDs of a resource on offer, and those on their way out: pods may still get both."""

    def publish(self, snapshot: Snapshot, replicas: int) -> bool:
        """Offer the devices of a snapshot; return whether some have left immediately."""

    def lists(self, device_id: str, *, shared: bool) -> bool:
        """Whether a device is there, as itself or as shares."""

    def may_allocate(self, device_id: str, now: float, *, shared: bool) -> bool:
        """Whether a pod may still get a device; not if kubelet has settled it as unhealthy."""

    @property
    def device_ids(self) -> AbstractSet[str]:
        """The devices of all of them."""

    @property
    def drained(self) -> bool:
        """Whether there are none, and kubelet knows."""


class Publication(Protocol):
    """One resource at a backend."""

    @property
    def offered_ids(self) -> OfferedIds:
        """The IDs that a pod may get."""

    def spec_changed(self) -> None:
        """Register again, if another specification needs that."""

    @property
    def status(self) -> PublicationStatus:
        """How many IDs are listed, and what is wrong with the list."""

    async def run(self) -> None:
        """Serve it until cancelled."""


class Backend(Protocol):
    """One way to offer devices to pods, for all resources of a process."""

    leave_after: float  # seconds between an ID's Unhealthy and its end

    @property
    def pods(self) -> PodLister | None:
        """Tells which pods hold devices; ``None`` where it may not be asked."""

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""

    def open(self, hooks: ResourceHooks) -> Publication:
        """Return the publication of a resource, to be run."""

    def locked_by_other(self, resource: str) -> bool:
        """Whether another instance of devhost serves a resource; may be asked in any thread."""

    def has_served(self, resource: str) -> bool:
        """Whether an instance of devhost has served a resource on this node."""

    async def run(self, watcher: Watcher) -> None:
        """Keep up with kubelet until cancelled; raise `BackendGoneError` if that is hopeless."""

    async def close(self) -> None:
        """End what is running."""

"""The protocol of a backend, which offers devices to pods.

It publishes what a scan has found, says what a pod may still be given, and which pods hold devices.
It asks the node for three things in turn: to allocate, to prefer and to prepare devices
(`ResourceHandler`). The node is given a backend; it imports none.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final, Protocol

from devhost.allocation.cdi import CdiNode, OwnedEdits
from devhost.backends.podresources import PodResources
from devhost.backends.resource_lock import ResourceLocks
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation, DeviceSpec
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot
from devhost.model.records import ClaimedDevice, ClaimRecord, RecordedNodes
from devhost.model.resource_state import PublicationStatus, SetState
from devhost.watch.threads import wait_at_most
from devhost.watch.watcher import Watcher

FREE_POLL_S: Final = 5.0  # in addition to the event, which another instance has not


class ResourceHandler(Protocol):
    """Answers the calls of kubelet for one resource, of device plugins and for claims.

    What it answers for claims is recorded, and outlives that it does.
    """

    @property
    def name(self) -> str:
        """The resource's name."""

    @property
    def pre_start_required(self) -> bool:
        """Whether kubelet has to call PreStartContainer before each container start."""

    @property
    def drain_reason(self) -> str | None:
        """Why no devices are given any longer, if they are not."""

    @property
    def devices(self) -> Mapping[str, HostDevice]:
        """The devices on offer."""

    @property
    def naming(self) -> str:
        """The definition of their IDs, as a hash: by another one, IDs may be exchanged."""

    async def allocate(self, ids: Sequence[OfferedId], *, pre_start: bool) -> Allocation:
        """Return what a container receives, or raise `AllocationError`.

        `pre_start` says whether kubelet will call PreStartContainer for the devices.
        """

    def observe_allocate(self, result: str, seconds: float) -> None:
        """Record the end of an Allocate: its result, for the metrics, and duration."""

    async def prefer(
        self, available: Sequence[OfferedId], must_include: Sequence[OfferedId], size: int
    ) -> Sequence[OfferedId]:
        """Return which IDs a container should get; none to leave the choice to kubelet."""

    async def prepare(self, ids: Sequence[OfferedId], *, fresh: bool = False) -> None:
        """Prepare devices for a container that starts, or raise `PreStartError`.

        They are `fresh` if that is known; else the record of the Allocate tells.
        """

    async def render(self, ids: Sequence[OfferedId], *, watching: bool) -> Allocation:
        """Return what a container receives, or raise `AllocationError`; it is not recorded.

        For who is `watching` what another one has, it may be unhealthy.
        """

    def claim_nodes(self, offered: OfferedId, claim: str) -> tuple[RecordedNodes, bool]:
        """Return the nodes of what a claim gets, and whether others may have them, too.

        Raises:
            AllocationError: Others have them.
        """

    async def locate(self, nodes: Sequence[DeviceSpec]) -> Sequence[CdiNode]:
        """Return nodes of the host as CDI has them now, or raise `AllocationError`."""

    async def cdi_edits(self, allocation: Allocation) -> OwnedEdits:
        """Return an allocation as edits of a container, or raise `AllocationError`."""


@dataclass(frozen=True, slots=True)
class ResourceHooks:
    """The parts of the node that a backend uses for one resource.

    Attributes:
        handler: Answers the calls of pods.
        set_state: Shows the state of the publication, and why.
        held: Returns the IDs that pods hold, as far as that is known.
        other_holders: Returns why the resource may not be offered yet: who has devices of it by
            another backend. The scheduler would count these pods against the wrong devices.
        holders_changed: Returns an event that is set when `other_holders` may have another answer.
        holders_known: Returns whether kubelet has told of all devices that device plugins gave.
        refresh: Asks again which pods hold devices.
        on_locked: Called when this process has taken the lock of the resource.
        on_left: Called when IDs have left the list.
        save: Writes what was given, which only who has the lock of the resource may do.
        exclusive: Whether to wait while a program other than devhost serves the resource.
        refusal: Why the resource is not offered at all, if so.
    """

    handler: ResourceHandler
    set_state: SetState
    held: Callable[[], AbstractSet[str]]
    other_holders: Callable[[], str | None]
    holders_changed: Callable[[], asyncio.Event]
    holders_known: Callable[[], bool]
    refresh: Callable[[], Awaitable[None]]
    on_locked: Callable[[], None]
    on_left: Callable[[], None]
    save: Callable[[], Awaitable[None]]
    exclusive: bool
    refusal: str | None = None

    async def wait_until_free(self, waiting: Callable[[str], object]) -> None:
        """Wait while pods have devices by another backend; `waiting` gets the reason."""
        while (reason := self.other_holders()) is not None:
            waiting(reason)
            await wait_at_most(FREE_POLL_S, self.holders_changed().wait)


class ClaimRecords(Protocol):
    """The records of claims, which outlive the process, and their CDI files."""

    boot: str  # the kernel's ID of this boot
    # They get the CDI files that there are, and write again those that are missing.
    file_checks: set[Callable[[AbstractSet[str]], Awaitable[None]]]

    @property
    def by_id(self) -> Mapping[str, ClaimRecord]:
        """The records, also those that other instances have made."""

    async def refresh(self, within: float) -> bool:
        """Read what other instances have written; return whether that was done in time."""

    async def reserve(self, choose: Callable[[], ClaimRecord], within: float) -> ClaimRecord:
        """Keep the record that is chosen beside all others, also those just made elsewhere.

        Raises:
            AllocationError: There is no choice, or it is not written in so many seconds.
        """

    async def save(self, record: ClaimRecord, within: float) -> None:
        """Keep a record, or raise `AllocationError` if it is not written in so many seconds."""

    def drop(self, record: ClaimRecord) -> None:
        """End a record."""

    def find_rival(
        self, record: ClaimRecord, device: ClaimedDevice, nodes: RecordedNodes
    ) -> str | None:
        """Return who else has a node of a device in this boot, and may not share it."""

    def confirmed_free(self, resource: str, offered: OfferedId, since: float) -> bool:
        """Whether no pod has a device, by two lists requested since a moment."""

    async def write_file(self, name: str, content: bytes | None) -> None:
        """Write a CDI file, or remove it; raise `OSError` if that fails."""


class OfferedIds(Protocol):
    """The IDs of a resource on offer, and those on their way out: pods may still get both."""

    def publish(self, snapshot: Snapshot, resource: Resource) -> bool:
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
    def up_to_date(self) -> bool:
        """Whether kubelet has what the specification in force needs."""

    @property
    def status(self) -> PublicationStatus:
        """How many IDs are listed, and what is wrong with the list."""

    async def run(self) -> None:
        """Serve it until cancelled."""


class Backend(Protocol):
    """One way to offer devices to pods, for all resources of a process, or both of them."""

    leave_after: float  # seconds between an ID's Unhealthy and its end
    pods: PodResources  # tells which pods hold devices
    locks: ResourceLocks  # of all resources, by whichever backend they are offered

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""

    def open(self, resource: Resource, hooks: ResourceHooks) -> Publication:
        """Return the publication of a resource, to be run."""

    def publisher(self, resource: Resource) -> str:
        """Return the driver that publishes a resource; empty for the device plugin."""

    async def run(self, watcher: Watcher, records: ClaimRecords) -> None:
        """Keep up with kubelet until cancelled; raise `BackendGoneError` if that is hopeless."""


async def run_together(*works: Awaitable[None]) -> None:
    """Run until the first of several ends, or raise what has ended it; then cancel the others.

    A task group of Python before 3.13 loses a cancellation that comes while an error ends it.
    """
    running = [*map(asyncio.ensure_future, works)]
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in ended:
            task.result()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

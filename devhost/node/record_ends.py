"""The end of handouts: kubelet can no longer allocate by a name, and no pod has it."""

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

from devhost.backends.backend import OfferedIds
from devhost.model.advertised import AdvertisedName
from devhost.model.device import HostDevice
from devhost.model.records import Handout, RecordKey
from devhost.node.holders import Holders
from devhost.node.listed_nodes import present_keys

_POLL_S: Final = 10.0  # at most: what another instance serves has no event


@dataclass(eq=False, slots=True)
class ListedResource:
    """The list of a resource of this process."""

    offered_ids: OfferedIds
    rescan: Callable[[], None]
    devices: Mapping[str, HostDevice] = field(default_factory=dict)  # as published last
    shared: bool = False  # they are advertised as shares
    withheld: bool = False  # a device waits, because a pod may have its nodes


@dataclass(eq=False, slots=True)
class _Life:
    """The times of a handout, in seconds on the event loop's clock."""

    allocated_at: float | None = None  # the last time, as far as this process can tell
    ended_at: float | None = None  # from when kubelet cannot allocate it
    offered: HostDevice | None = None  # the device on offer that has its node


class RecordEnds:
    """Finds the handouts that have ended, by the lists of kubelet and by what pods hold."""

    def __init__(
        self,
        listings: Mapping[str, ListedResource],
        holders: Holders,
        boot: str,
        leave_after: float,
    ) -> None:
        self._listings, self._holders, self._boot = listings, holders, boot
        self._leave_after = leave_after
        self._lives: dict[RecordKey, _Life] = {}

    def handed_out(self, handouts: Iterable[Handout]) -> None:
        """Record that IDs are allocated now."""
        now = asyncio.get_running_loop().time()
        self._lives |= {handout.key: _Life(now) for handout in handouts}

    def find_free(self, handouts: Iterable[Handout]) -> tuple[list[Handout], float]:
        """Return which of all handouts have ended, and in how many seconds there may be more."""
        # Without those that another instance has ended.
        self._lives = {handout.key: self._life(handout) for handout in handouts}
        now, pause, free = asyncio.get_running_loop().time(), _POLL_S, list[Handout]()
        for handout in handouts:
            since = self._unallocatable_since(handout, now)
            if since > now:
                pause = min(pause, since - now) if since < math.inf else 0.0
            elif self._is_free(handout, since):
                free.append(handout)
        return free, pause

    def rest(self, handout: Handout) -> Handout | None:
        """Return what stays of a handout that has ended.

        A pod may still start its containers again: its steps stay while its name is listed, as
        pod-resources does not show init containers.
        """
        name, listing = handout.name, self._listings.get(handout.resource)
        is_listed = listing is not None and listing.offered_ids.lists(
            name.device, shared=name.shared
        )
        if handout.steps == "none" or not is_listed:
            return None
        return handout.model_copy(update={"nodes": ()})

    def is_allocatable(
        self, name: AdvertisedName, node_keys: AbstractSet[str], listing: ListedResource
    ) -> bool:
        """Whether an Allocate of nodes may begin, or run, by a name."""
        device = listing.devices.get(name.device)
        if device and name.shared is listing.shared and (keys := present_keys(device)):
            return not keys.isdisjoint(node_keys)
        now = asyncio.get_running_loop().time()
        return listing.offered_ids.may_allocate(name.device, now, shared=name.shared)

    def _life(self, handout: Handout) -> _Life:
        return self._lives.setdefault(handout.key, _Life())

    def _unallocatable_since(self, handout: Handout, now: float) -> float:
        """Return from when it can be asked whether a pod has what was handed out.

        That is never (infinity) while kubelet may allocate by it, but for what is on offer under
        its name: if that is allocated again, it is recorded again.
        """
        life, listing = self._life(handout), self._listings.get(handout.resource)
        if listing is not None:
            device = listing.devices.get(handout.device)
            if device is not None and self._is_on_offer(handout, device, listing, life):
                life.ended_at = None
                if life.allocated_at is None:
                    # By another instance, it may have been allocated until now.
                    life.allocated_at = now + self._leave_after
                return life.allocated_at
            life.offered = None
            if self.is_allocatable(handout.name, handout.node_keys(self._boot), listing):
                life.ended_at = now
                return math.inf
        if life.ended_at is None:
            # What another instance, or an earlier list, offered may be in an Allocate that runs.
            life.ended_at = now + self._leave_after
        return life.ended_at

    def _is_on_offer(
        self, handout: Handout, device: HostDevice, listing: ListedResource, life: _Life
    ) -> bool:
        """Whether a device has a node of a handout, under its name."""
        if handout.name.shared is not listing.shared:
            return False
        if life.offered is not device:
            if handout.nodes:
                if handout.node_keys(self._boot).isdisjoint(present_keys(device)):
                    return False
            elif not device.is_present:
                return False
            life.offered = device
        return True

    def _is_free(self, handout: Handout, since: float) -> bool:
        """Whether no pod has what was handed out, by what kubelet says since a time."""
        name = handout.name
        if self._holders.confirmed_free(name, since):
            return True
        if not self._holders.pods_of_device(name):
            self._holders.ask_soon.set()
        return False

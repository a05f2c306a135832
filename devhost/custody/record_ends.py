"""The end of handouts: kubelet can no longer allocate by a name, and no pod has it."""

import asyncio
import functools
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from devhost.backends.backend import Backend
from devhost.custody.holders import Holders
from devhost.custody.listed_resources import ListedResource, ListedResources, present_keys
from devhost.model.device import HostDevice
from devhost.model.records import Changes, Handout, RecordKey

_POLL_S: Final = 10.0  # at most: what another instance serves has no event


@dataclass(eq=False, slots=True)
class _Life:
    """The times of a handout, in seconds on the event loop's clock."""

    allocated_at: float | None = None  # the last time, as far as this process can tell
    ended_at: float | None = None  # from when kubelet cannot allocate it
    offered: HostDevice | None = None  # the device on offer that has its node


class RecordEnds:
    """Finds the handouts that have ended, by the lists of kubelet and by what pods hold."""

    def __init__(
        self, listings: ListedResources, holders: Holders, backend: Backend, boot: str
    ) -> None:
        self._listings, self._holders, self._backend = listings, holders, backend
        self._boot = boot
        self._lives: dict[RecordKey, _Life] = {}

    def handed_out(self, handouts: Iterable[Handout]) -> None:
        """Record that IDs are allocated now."""
        now = asyncio.get_running_loop().time()
        self._lives |= {handout.key: _Life(now) for handout in handouts}

    def find_ended(self, handouts: Iterable[Handout]) -> tuple[Changes, float]:
        """Return what is left of the handouts that have ended, and when there may be more.

        That is the number of seconds, if nothing happens meanwhile.
        """
        # Without those that another instance has ended.
        self._lives = {handout.key: self._life(handout) for handout in handouts}
        locked_by_other = functools.cache(self._backend.locks.locked_by_other)
        now, pause = asyncio.get_running_loop().time(), _POLL_S
        ended: dict[RecordKey, Handout | None] = {}
        for handout in handouts:
            since = self._unallocatable_since(handout, now)
            if since > now:
                pause = min(pause, since - now) if since < math.inf else 0.0
            elif self._is_free(handout, since):
                rest = self._rest(handout)
                if rest != handout and not locked_by_other(handout.resource):
                    ended[handout.key] = rest
        return ended, pause

    def _rest(self, handout: Handout) -> Handout | None:
        """Return what stays of a handout that has ended.

        A pod may still start its containers again: its steps stay while its name is listed, as
        pod-resources does not show init containers.
        """
        listing = self._listings.get(handout.resource)
        if handout.steps == "none" or listing is None or not listing.lists(handout.name):
            return None
        return handout.model_copy(update={"nodes": ()})

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
                    life.allocated_at = now + self._backend.leave_after
                return life.allocated_at
            life.offered = None
            if listing.may_allocate(handout.name, handout.node_keys(self._boot)):
                life.ended_at = now
                return math.inf
        if life.ended_at is None:
            # What another instance, or an earlier list, offered may be in an Allocate that runs.
            life.ended_at = now + self._backend.leave_after
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

"""The list of a resource's devices for kubelet, and when an ID may leave it; without IO.

Since 1.34 kubelet dereferences nil and dies if an ID that it has picked vanishes from the list
during Allocate or GetPreferredAllocation (k8s.io/kubernetes v1.37.1
pkg/kubelet/cm/devicemanager/manager.go, allocateContainerResources). So an ID leaves only when it
was sent as Unhealthy long enough ago on every open stream, and no call that began before that is
still running. An ID that a pod holds does not leave either: kubelet would report it as healthy
(UpdateAllocatedResourcesStatus, in the same file).
"""

import logging
import math
from collections.abc import Callable, Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from devhost.backends.share_ids import advertised_ids, offered_id
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.limits import LISTS_BURST, LISTS_PER_S

LEAVE_AFTER_S: Final = 10.0
# Kubelet's client takes 4 MiB (the default of grpc-go) and ends the stream beyond, without a log
# line (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go, dial).
LIST_BYTES_MAX: Final = 4 * 1024 * 1024 - 4096
_LOG: Final = logging.getLogger(__name__)


class AdvertisedDevice(NamedTuple):
    """One device of a list."""

    healthy: bool
    numa_nodes: tuple[int, ...] = ()


def _unhealthy(entries: Mapping[str, AdvertisedDevice]) -> set[str]:
    return {advertised_id for advertised_id, entry in entries.items() if not entry.healthy}


@dataclass(eq=False, slots=True)
class Stream:
    """One open ListAndWatch; `wake` is called when the list is another one."""

    wake: Callable[[], object]
    # since when kubelet knows each unhealthy ID by it
    unhealthy_since: dict[str, float] = field(default_factory=dict)
    burst_until: float = -math.inf  # when all lists were due that were sent, at `LISTS_PER_S`


class ListStreams:
    """The streams on which kubelet gets one list, and its knowledge of the IDs in it.

    `inflight_since` are the times at which calls of kubelet began that work with IDs: Allocate and
    GetPreferredAllocation.
    """

    def __init__(self, leave_after: float, inflight_since: list[float]) -> None:
        self._leave_after = leave_after
        self.inflight_since = inflight_since
        self.last_answer_at = -math.inf  # to one of those calls
        self.lists_sent = 0
        self._open: set[Stream] = set()
        self.known_ids: set[str] = set()  # those that kubelet may know, listed or not
        self.kubelet_has_devices = False

    def __len__(self) -> int:
        return len(self._open)

    def open(self, wake: Callable[[], object]) -> Stream:
        """Add a new stream."""
        stream = Stream(wake)
        self._open.add(stream)
        return stream

    def close(self, stream: Stream) -> None:
        """Remove a stream that has ended."""
        self._open.discard(stream)

    def wake(self) -> None:
        """Wake all streams: the list is another one."""
        for stream in self._open:
            stream.wake()

    def may_know(self, advertised_ids: Collection[str]) -> None:
        """Record IDs that kubelet may know from now on, whether they are listed or not."""
        self.known_ids.update(advertised_ids)
        self.kubelet_has_devices = self.kubelet_has_devices or bool(advertised_ids)

    def send_delay(self, stream: Stream, now: float) -> float:
        """Return in how many seconds the list may be sent on a stream; 0 counts it as sent."""
        until = max(stream.burst_until, now - LISTS_BURST / LISTS_PER_S) + 1 / LISTS_PER_S
        if until > now:
            return until - now
        stream.burst_until = until
        return 0.0

    def list_sent(self, stream: Stream, entries: Mapping[str, AdvertisedDevice]) -> None:
        """Record that a list is on its way.

        From now on kubelet may know its IDs, and take those as healthy that are so in it.
        """
        self.may_know(entries.keys())
        for advertised_id in stream.unhealthy_since.keys() - _unhealthy(entries):
            del stream.unhealthy_since[advertised_id]

    def list_received(
        self, stream: Stream, entries: Mapping[str, AdvertisedDevice], now: float
    ) -> None:
        """Record that a list has gone out on a stream."""
        self.kubelet_has_devices = bool(entries)
        self.lists_sent += 1
        for advertised_id in _unhealthy(entries) - stream.unhealthy_since.keys():
            stream.unhealthy_since[advertised_id] = now

    def is_settled_unhealthy(self, advertised_id: str, now: float) -> bool:
        """Whether kubelet knows a listed ID as unhealthy, and no call can still use it."""
        times = [stream.unhealthy_since.get(advertised_id, math.inf) for stream in self._open]
        latest = max(times, default=math.inf)
        return now - latest >= self._leave_after and all(
            began > latest for began in self.inflight_since
        )


class DeviceList:
    """The list of one resource, with the IDs that are about to leave it.

    `entries` is the list as it is to be sent, and another one when it changes; what is `leaving` is
    no longer offered but still in it, as unhealthy, and `on_leaving` is called.
    """

    def __init__(
        self, leave_after: float = LEAVE_AFTER_S, inflight_since: list[float] | None = None
    ) -> None:
        self.streams = ListStreams(leave_after, [] if inflight_since is None else inflight_since)
        self.on_leaving: Callable[[], object] = int
        self.ids_held_by_pods: Callable[[], AbstractSet[str]] = frozenset
        self.entries: Mapping[str, AdvertisedDevice] = {}
        self.leaving: AbstractSet[str] = frozenset()
        self.omitted = 0  # how many IDs did not fit into it

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, advertised_id: object) -> bool:
        return advertised_id in self.entries

    @property
    def device_ids(self) -> AbstractSet[str]:
        """The devices that are listed, also those that are leaving."""
        return {offered_id(advertised_id).device for advertised_id in self.entries}

    @property
    def drained(self) -> bool:
        """Whether nothing is listed, and kubelet knows."""
        return not self.entries and not self.streams.kubelet_has_devices

    def publish(self, snapshot: Snapshot, resource: Resource) -> bool:
        """List the devices of a snapshot; return whether IDs have left that kubelet cannot know."""
        before, omitted = self.entries, self.omitted
        wanted: dict[str, AdvertisedDevice] = {}
        for device in snapshot.devices.values():
            if not device.is_leaving:
                entry = AdvertisedDevice(device.healthy, device.numa_nodes)
                for advertised_id in advertised_ids(device.id, resource.replicas):
                    wanted[advertised_id] = entry
        self.update(wanted)
        if self.omitted and self.omitted != omitted:
            fields = {"resource": resource.name, "left_out": self.omitted}
            _LOG.warning("list truncated", extra={"fields": fields})
        if self.leaving:
            self.on_leaving()
        return not before.keys() <= self.entries.keys()

    def update(self, wanted: Mapping[str, AdvertisedDevice]) -> None:
        """Set what is to be advertised.

        New devices that would make the list larger than kubelet takes are left out. What is listed
        stays, whatever the size; so do the IDs that are leaving, until they have left.
        """
        # What a pod holds is listed even if it was gone before this process came: kubelet may know
        # it. What kubelet does not know need not leave slowly.
        held = self.ids_held_by_pods() - wanted.keys()
        self.streams.may_know(held)
        kept = self._fitting({**wanted, **dict.fromkeys(held, AdvertisedDevice(False))})
        former = {**kept, **self.entries}
        leaving = (former.keys() - wanted.keys()) & self.streams.known_ids
        # One device with NUMA nodes makes kubelet align those that have none (v1.37.1
        # pkg/kubelet/cm/devicemanager/topology_hints.go, deviceHasTopologyAlignment).
        aligned = not wanted or any(entry.numa_nodes for entry in wanted.values())
        entries = {
            advertised_id: AdvertisedDevice(False, entry.numa_nodes if aligned else ())
            for advertised_id, entry in former.items()
            if advertised_id in leaving
        }
        self._replace({**kept, **entries}, leaving)

    def _fitting(self, wanted: Mapping[str, AdvertisedDevice]) -> Mapping[str, AdvertisedDevice]:
        new = wanted.keys() - self.entries.keys()
        size = sum(_size_max(*pair) for pair in self.entries.items()) if new else 0
        kept = {}
        for advertised_id, entry in wanted.items():
            if advertised_id in new:
                size += _size_max(advertised_id, entry)
                if size > LIST_BYTES_MAX:
                    continue
            kept[advertised_id] = entry
        self.omitted = len(wanted) - len(kept)
        return kept

    def _replace(self, entries: Mapping[str, AdvertisedDevice], leaving: AbstractSet[str]) -> bool:
        self.leaving = leaving
        if entries == self.entries:
            return False
        self.entries = entries
        self.streams.wake()
        return True

    def removable_at(self, now: float) -> AbstractSet[str]:
        """Return the leaving IDs that may go."""
        return {
            advertised_id
            for advertised_id in self.leaving - self.ids_held_by_pods()
            if self.streams.is_settled_unhealthy(advertised_id, now)
        }

    def remove_unlisted(self, now: float) -> bool:
        """Remove the leaving IDs that may go; return whether the list changed."""
        removable = self.removable_at(now)
        self.streams.known_ids -= removable
        entries = {key: entry for key, entry in self.entries.items() if key not in removable}
        return self._replace(entries, self.leaving - removable)

    def lists(self, device_id: str, *, shared: bool) -> bool:
        """Whether a device is listed, as itself or as shares."""
        if not shared:
            return device_id in self.entries
        if _first_share(device_id) in self.entries:
            return True
        # The first share may leave before one that a pod holds.
        leaving = map(offered_id, self.leaving - {device_id})
        return any(offered.device == device_id for offered in leaving)

    def may_allocate(self, device_id: str, now: float, *, shared: bool) -> bool:
        """Whether a pod may still get a device; not if kubelet has settled it as unhealthy."""
        first = _first_share(device_id) if shared else device_id
        if first in self.entries and first not in self.leaving:
            return not self.streams.is_settled_unhealthy(first, now)
        return self.lists(device_id, shared=shared)


def _first_share(device_id: str) -> str:
    return advertised_ids(device_id, 2)[0]


def _size_max(advertised_id: str, entry: AdvertisedDevice) -> int:
    """Return the bytes of a device in a list, also when it is unhealthy, or a few more.

    It has an ID and "Unhealthy" (9), NUMA nodes of up to 10 bytes, and protobuf's tags and lengths.
    """
    return len(advertised_id.encode()) + 22 + 13 * len(entry.numa_nodes)

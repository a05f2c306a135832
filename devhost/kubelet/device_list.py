"""The list of a resource's devices for kubelet, and when an ID may leave it; pure.

Since 1.34 kubelet dereferences nil and dies if an ID that it has picked vanishes from the list
during Allocate or GetPreferredAllocation (k8s.io/kubernetes v1.37.1
pkg/kubelet/cm/devicemanager/manager.go, allocateContainerResources). So an ID leaves only when it
was sent as Unhealthy long enough ago on every open stream, and no call that began before that is
still running. An ID that a pod holds does not leave either: kubelet would report it as healthy
(UpdateAllocatedResourcesStatus, in the same file).
"""

import functools
import math
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from devhost.immutable import immutable
from devhost.limits import LISTS_BURST, LISTS_PER_S
from devhost.token_bucket import TokenBucket

LEAVE_AFTER_S: Final = 10.0
# Kubelet's client takes 4 MiB (the default of grpc-go) and ends the stream beyond, without a log
# line (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/plugin/v1beta1/client.go, dial).
LIST_BYTES_MAX: Final = 4 * 1024 * 1024 - 4096
_DEVICE_BYTES_MAX: Final = 400  # 63 characters of four bytes, two NUMA nodes, a share


@immutable
class AdvertisedDevice:
    """One device of a list."""

    healthy: bool
    numa_nodes: tuple[int, ...] = ()


@functools.cache
def _shared(healthy: bool, numa_nodes: tuple[int, ...]) -> AdvertisedDevice:
    """Return one object for all equal entries: few differ, and a list may have thousands."""
    return AdvertisedDevice(healthy, numa_nodes)


def _unhealthy(entries: Mapping[str, AdvertisedDevice]) -> set[str]:
    return {advertised_id for advertised_id, entry in entries.items() if not entry.healthy}


def _size_max(advertised_id: str, entry: AdvertisedDevice) -> int:
    """Return the bytes of a device in a list, also when it is unhealthy, or a few more.

    It has an ID and "Unhealthy" (9), NUMA nodes of up to 10 bytes, and protobuf's tags and lengths.
    """
    return len(advertised_id.encode()) + 22 + 13 * len(entry.numa_nodes)


def _bucket() -> TokenBucket:
    return TokenBucket(LISTS_BURST, LISTS_PER_S)


@dataclass(eq=False, slots=True)
class Stream:
    """One open ListAndWatch: since when kubelet knows each unhealthy ID by it, and its pace.

    Attributes:
        paused: Whether its list has to wait.
    """

    unhealthy_since: dict[str, float] = field(default_factory=dict)
    any_lists: TokenBucket = field(default_factory=_bucket)
    urgent_lists: TokenBucket = field(default_factory=_bucket)
    paused: bool = False


@dataclass(eq=False, slots=True)
class Call:
    """One running Allocate or GetPreferredAllocation."""

    began: float


class DeviceList:
    """The list of one resource, with the IDs that are about to leave it.

    Attributes:
        ids_held_by_pods: Returns the IDs that pods hold, as far as that is known.
        last_call_ended: When the last Allocate or GetPreferredAllocation ended.
        version: Goes up when the list changes.
        lists_sent: How many lists were sent, on all streams.
        left_count: How many IDs have left the list.
        omitted: How many IDs did not fit into it; set by the publisher.
    """

    __slots__ = (
        "__weakref__",
        "_calls",
        "_entries",
        "_entries_shared",
        "_known_unlisted",
        "_kubelet_has_devices",
        "_leave_after",
        "_leaving",
        "_never_sent",
        "_numa_counts",
        "_streams",
        "ids_held_by_pods",
        "last_call_ended",
        "left_count",
        "lists_sent",
        "omitted",
        "version",
    )

    def __init__(self, leave_after: float = LEAVE_AFTER_S) -> None:
        self._leave_after = leave_after
        self._entries: dict[str, AdvertisedDevice] = {}
        self._entries_shared = False  # the dict was returned by `entries`: copy before a change
        self._leaving: set[str] = set()
        self._never_sent: set[str] = set()  # listed, but kubelet cannot know them
        self._known_unlisted: set[str] = set()  # not listed, but kubelet may know them
        self._numa_counts = [0, 0]  # entries with NUMA nodes: those that stay, those that leave
        self._kubelet_has_devices = False
        self._streams: set[Stream] = set()
        self._calls: set[Call] = set()
        self.ids_held_by_pods: Callable[[], AbstractSet[str]] = frozenset
        self.last_call_ended = -math.inf
        self.version = 0
        self.lists_sent = 0
        self.left_count = 0
        self.omitted = 0

    @property
    def entries(self) -> Mapping[str, AdvertisedDevice]:
        """The list as it is to be sent, with the leaving IDs as unhealthy; never changes."""
        self._entries_shared = True
        return MappingProxyType(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, advertised_id: object) -> bool:
        return advertised_id in self._entries

    @property
    def leaving(self) -> AbstractSet[str]:
        """The IDs that are no longer declared but still listed; changes with the list."""
        return self._leaving

    @property
    def stream_count(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    @property
    def drained(self) -> bool:
        """Whether nothing is listed, and kubelet knows."""
        return not self._entries and not self._kubelet_has_devices

    # ── what is to be advertised ──

    def fitting(self, wanted: dict[str, AdvertisedDevice]) -> dict[str, AdvertisedDevice]:
        """Leave out new devices that would make the list larger than kubelet takes.

        Args:
            wanted: What should be advertised, all of it or a part. What is listed stays, whatever
                the size; so do the IDs that are leaving, until they have left.
        """
        listed = self._entries
        if len(listed.keys() | wanted.keys()) * _DEVICE_BYTES_MAX <= LIST_BYTES_MAX:
            return wanted
        size = sum(_size_max(*one) for one in listed.items())
        kept = {}
        for advertised_id, entry in wanted.items():
            if advertised_id not in listed:
                size += _size_max(advertised_id, entry)
                if size > LIST_BYTES_MAX:
                    continue
            kept[advertised_id] = entry
        return kept

    def update(self, wanted: Mapping[str, AdvertisedDevice]) -> bool:
        """Set what is to be advertised; return whether the list changed."""
        entries = self._entries
        differing = {
            advertised_id: entry
            for advertised_id, entry in wanted.items()
            if advertised_id in self._leaving
            or ((former := entries.get(advertised_id)) is not entry and former != entry)
        }
        changed = False
        for advertised_id in entries.keys() - wanted.keys():
            if advertised_id in self._never_sent:
                self._remove(advertised_id)
                changed = True
            elif advertised_id in self._entries and advertised_id not in self._leaving:
                numa_nodes = self._entries[advertised_id].numa_nodes
                changed |= self._put(advertised_id, _shared(False, numa_nodes), leaving=True)
        for advertised_id, entry in differing.items():
            changed |= self._put(advertised_id, entry, leaving=False)
        staying, leaving = self._numa_counts
        if leaving and not staying and len(self._entries) > len(self._leaving):
            # One device with NUMA nodes makes kubelet align those that have none (v1.37.1
            # pkg/kubelet/cm/devicemanager/topology_hints.go, deviceHasTopologyAlignment).
            for advertised_id in tuple(self._leaving):
                changed |= self._put(advertised_id, _shared(False, ()), leaving=True)
        self.version += changed
        return changed

    def prune(self, now: float) -> bool:
        """Remove the leaving IDs that may go; return whether the list changed."""
        due = [*self._due(now)]
        for advertised_id in due:
            self._remove(advertised_id)
        self.version += bool(due)
        return bool(due)

    def prunable(self, now: float) -> bool:
        """Whether `prune` would remove an ID."""
        return next(self._due(now), None) is not None

    def _put(self, advertised_id: str, entry: AdvertisedDevice, *, leaving: bool) -> bool:
        """Set an entry; return whether it differs from before."""
        former = self._entries.get(advertised_id)
        if former is not None and former.numa_nodes:
            self._numa_counts[advertised_id in self._leaving] -= 1
        if entry.numa_nodes:
            self._numa_counts[leaving] += 1
        (self._leaving.add if leaving else self._leaving.discard)(advertised_id)
        if former == entry:
            return False
        if former is None and advertised_id not in self._known_unlisted:
            self._never_sent.add(advertised_id)
        self._known_unlisted.discard(advertised_id)
        self._copy_shared_entries()
        self._entries[advertised_id] = _shared(entry.healthy, entry.numa_nodes)
        return True

    def _remove(self, advertised_id: str) -> None:
        self._copy_shared_entries()
        if self._entries.pop(advertised_id).numa_nodes:
            self._numa_counts[advertised_id in self._leaving] -= 1
        self._leaving.discard(advertised_id)
        self._never_sent.discard(advertised_id)
        self.left_count += 1

    def _copy_shared_entries(self) -> None:
        if self._entries_shared:
            self._entries, self._entries_shared = self._entries.copy(), False

    def _due(self, now: float) -> Iterator[str]:
        held = self.ids_held_by_pods() if self._leaving else ()
        return (one for one in self._leaving if one not in held and self.may_leave(one, now))

    def may_leave(self, advertised_id: str, now: float) -> bool:
        """Whether kubelet knows a listed ID as unhealthy, and no call can still use it."""
        times = [stream.unhealthy_since.get(advertised_id) for stream in self._streams]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times):
            return False
        latest = max(known)
        return now - latest >= self._leave_after and all(
            call.began > latest for call in self._calls
        )

    # ── streams and calls of kubelet ──

    def open_stream(self) -> Stream:
        """Record a new stream."""
        stream = Stream()
        self._streams.add(stream)
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Record the end of a stream."""
        self._streams.discard(stream)

    def may_be_known(self, advertised_ids: Collection[str]) -> None:
        """Record IDs that kubelet may know from now on, whether they are listed or not."""
        self._never_sent.difference_update(advertised_ids)
        self._known_unlisted.update(one for one in advertised_ids if one not in self._entries)
        self._kubelet_has_devices = self._kubelet_has_devices or bool(advertised_ids)

    @property
    def paused(self) -> bool:
        """Whether a list has to wait, because there were many."""
        return any(stream.paused for stream in self._streams)

    def pause(self, stream: Stream, now: float) -> float:
        """Return in how many seconds the list may be sent on a stream; 0 counts it as sent."""
        seconds = stream.any_lists.take(now)
        if seconds and not _unhealthy(self._entries) <= stream.unhealthy_since.keys():
            seconds = min(seconds, stream.urgent_lists.take(now))
        stream.paused = seconds > 0
        return seconds

    def begin_send(self, stream: Stream) -> Mapping[str, AdvertisedDevice]:
        """Return the list to be sent on a stream.

        From now on kubelet may know its IDs, and take those as healthy that are so in it.
        """
        self._never_sent.clear()
        self._kubelet_has_devices = self._kubelet_has_devices or bool(self._entries)
        for recovered in stream.unhealthy_since.keys() - _unhealthy(self._entries):
            del stream.unhealthy_since[recovered]
        return self.entries

    def end_send(self, stream: Stream, sent: Mapping[str, AdvertisedDevice], now: float) -> None:
        """Record that a list was sent on a stream."""
        self._kubelet_has_devices = bool(sent)
        self.lists_sent += 1
        for fallen in _unhealthy(sent) - stream.unhealthy_since.keys():
            stream.unhealthy_since[fallen] = now

    def begin_call(self, now: float) -> Call:
        """Record a call that works with IDs of the list."""
        call = Call(now)
        self._calls.add(call)
        return call

    def end_call(self, call: Call, now: float) -> None:
        """Record the end of a call."""
        self._calls.discard(call)
        self.last_call_ended = now

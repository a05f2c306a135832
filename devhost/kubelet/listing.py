"""What the kubelet has been told of a resource, and when an ID may leave; pure.

Since 1.34 the kubelet dereferences nil and dies if an ID that it has picked vanishes from
the list during Allocate or GetPreferredAllocation (k8s.io/kubernetes v1.37.1
pkg/kubelet/cm/devicemanager/manager.go, allocateContainerResources). So an ID leaves only
when its Unhealthy was sent long enough ago on every open stream, and no call that began
before that is still running. Nor does one leave that a pod holds: the kubelet would call it
healthy (UpdateAllocatedResourcesStatus, in the same file).

All is kept in step with each change, so that one device of ten thousand costs what one of ten
does.
"""

import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from devhost.immutable import immutable
from devhost.kubelet.encoding import EncodedList, Message

LEAVE_AFTER_S: Final = 10.0
# The kubelet's client takes 4 MiB (grpc-go's default) and cuts the stream beyond, in silence.
LIST_BYTES_MAX: Final = 4 * 1024 * 1024 - 4096


@immutable
class Advertised:
    """One device of a list."""

    healthy: bool
    numa_nodes: tuple[int, ...] = ()


@functools.cache
def advertised(healthy: bool, numa_nodes: tuple[int, ...]) -> Advertised:
    """Return the one entry of its kind: few differ, and each would be an object."""
    return Advertised(healthy, numa_nodes)


@dataclass(eq=False, slots=True)
class Stream:
    """One open ListAndWatch: since when each unhealthy ID is known there."""

    unhealthy_since: dict[str, float] = field(default_factory=dict)
    unhealthy: frozenset[str] = frozenset()


@dataclass(eq=False, slots=True)
class Call:
    """One running Allocate or GetPreferredAllocation."""

    began: float


class Listing:
    """The list of one resource, with the IDs that are about to leave it.

    Attributes:
        held: Tells the IDs that pods hold, as far as that is known.
        version: Goes up when the list changes.
        lists_sent: How many lists went out, on all streams.
        left: How many IDs have left the list.
        left_out: How many IDs found no room in it, by who sets what is to be advertised.
    """

    __slots__ = (
        "__weakref__",
        "_aligned",
        "_calls",
        "_encoded",
        "_entries",
        "_known",
        "_leave_after",
        "_leaving",
        "_lent",
        "_streams",
        "_told",
        "_unsent",
        "held",
        "left",
        "left_out",
        "lists_sent",
        "version",
    )

    def __init__(self, leave_after: float = LEAVE_AFTER_S) -> None:
        self._leave_after = leave_after
        self._entries: dict[str, Advertised] = {}
        self._lent = False  # somebody has the dict of entries as it is now
        self._encoded = EncodedList()
        self._leaving: set[str] = set()
        self._unsent: set[str] = set()  # listed, but the kubelet cannot know them
        self._known: set[str] = set()  # not listed, but the kubelet may know them
        self._aligned = [0, 0]  # how many have NUMA nodes: of those that stay, of those leaving
        self._told = False  # that there are devices
        self._streams: set[Stream] = set()
        self._calls: set[Call] = set()
        self.held: Callable[[], AbstractSet[str]] = frozenset
        self.version = 0
        self.lists_sent = 0
        self.left = 0
        self.left_out = 0

    @property
    def entries(self) -> Mapping[str, Advertised]:
        """The list as it is to be sent, leaving IDs (unhealthy) included; it stays as it is."""
        self._lent = True
        return MappingProxyType(self._entries)

    def __contains__(self, advertised_id: object) -> bool:
        return advertised_id in self._entries

    @property
    def leaving(self) -> AbstractSet[str]:
        """The IDs that are declared no more but still listed, at any time."""
        return self._leaving

    @property
    def room(self) -> int:
        """How many bytes the list may grow until the kubelet would not take it.

        It is to be taken also when all devices are unhealthy, which is the longer word.
        """
        return LIST_BYTES_MAX - self._encoded.longest

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    @property
    def drained(self) -> bool:
        """Whether nothing is listed, and the kubelet knows."""
        return not self._entries and not self._told

    def resend(self) -> None:
        """Have every stream send the list once more."""
        self.version += 1

    # ── what is to be advertised ──

    def update(self, wanted: Mapping[str, Advertised]) -> bool:
        """Set what is to be advertised; return whether the list changed."""
        entries, leaving = self._entries, self._leaving
        differing = {
            advertised_id: entry
            for advertised_id, entry in wanted.items()
            if advertised_id in leaving
            or ((former := entries.get(advertised_id)) is not entry and former != entry)
        }
        return self.change(differing, entries.keys() - wanted.keys())

    def change(self, wanted: Mapping[str, Advertised], gone: Collection[str]) -> bool:
        """Set a part of what is to be advertised; return whether the list changed.

        Args:
            wanted: Those that are new or may be different.
            gone: Those that are to be advertised no more; none of `wanted`.
        """
        changed = False
        for advertised_id in gone:
            if advertised_id in self._unsent:
                changed = self._drop(advertised_id)
            elif advertised_id in self._entries and advertised_id not in self._leaving:
                numa_nodes = self._entries[advertised_id].numa_nodes
                changed |= self._put(advertised_id, advertised(False, numa_nodes), leaving=True)
        for advertised_id, entry in wanted.items():
            changed |= self._put(advertised_id, entry, leaving=False)
        stay, leave = self._aligned
        if leave and not stay and len(self._entries) > len(self._leaving):
            # One device with NUMA nodes makes the kubelet align the others too, in vain.
            for advertised_id in tuple(self._leaving):
                changed |= self._put(advertised_id, advertised(False, ()), leaving=True)
        self.version += changed
        return changed

    def prune(self, now: float) -> bool:
        """Drop the leaving IDs that may go; return whether the list changed."""
        due = [*self._due(now)]
        for advertised_id in due:
            self._drop(advertised_id)
        self.version += bool(due)
        return bool(due)

    def prunable(self, now: float) -> bool:
        """Whether `prune` would drop an ID."""
        return next(self._due(now), None) is not None

    def _put(self, advertised_id: str, entry: Advertised, *, leaving: bool) -> bool:
        """Set an entry; return whether it is another than before."""
        former = self._entries.get(advertised_id)
        if former is not None and former.numa_nodes:
            self._aligned[advertised_id in self._leaving] -= 1
        if entry.numa_nodes:
            self._aligned[leaving] += 1
        (self._leaving.add if leaving else self._leaving.discard)(advertised_id)
        if former == entry:
            return False
        if former is None and advertised_id not in self._known:
            self._unsent.add(advertised_id)
        self._known.discard(advertised_id)
        self._own()
        self._entries[advertised_id] = advertised(entry.healthy, entry.numa_nodes)
        self._encoded.put(advertised_id, healthy=entry.healthy, numa_nodes=entry.numa_nodes)
        return True

    def _drop(self, advertised_id: str) -> bool:
        self._own()
        if self._entries.pop(advertised_id).numa_nodes:
            self._aligned[advertised_id in self._leaving] -= 1
        self._leaving.discard(advertised_id)
        self._unsent.discard(advertised_id)
        self._encoded.drop(advertised_id)
        self.left += 1
        return True

    def _own(self) -> None:
        """Leave the entries that somebody has been given as they are."""
        if self._lent:
            self._entries, self._lent = self._entries.copy(), False

    def _due(self, now: float) -> Iterator[str]:
        held = self.held() if self._leaving else ()
        return (one for one in self._leaving if one not in held and self.may_leave(one, now))

    def may_leave(self, advertised_id: str, now: float) -> bool:
        """Whether the kubelet has a listed ID as unhealthy, and no call can still use it."""
        times = [stream.unhealthy_since.get(advertised_id) for stream in self._streams]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times):
            return False
        latest = max(known)
        return now - latest >= self._leave_after and all(
            call.began > latest for call in self._calls
        )

    # ── what happens on the wire ──

    def open(self) -> Stream:
        """Note a new stream."""
        stream = Stream()
        self._streams.add(stream)
        return stream

    def sending(self, advertised_ids: Collection[str]) -> None:
        """Note IDs that the kubelet may know from now on, if they are listed or not."""
        self._unsent.difference_update(advertised_ids)
        self._known.update(one for one in advertised_ids if one not in self._entries)
        self._told = self._told or bool(advertised_ids)

    def message(self, stream: Stream) -> Message:
        """Return the list to be sent on a stream, the same object until it changes.

        It is on its way: from now on the kubelet may know its IDs, and take for healthy which
        are so in it.
        """
        self._unsent.clear()
        self._told = self._told or bool(self._entries)
        message = self._encoded.message()
        if stream.unhealthy is not message.unhealthy:
            for recovered in stream.unhealthy_since.keys() - message.unhealthy:
                del stream.unhealthy_since[recovered]
        return message

    def sent(self, stream: Stream, message: Message, now: float) -> None:
        """Note that a list has gone out on a stream."""
        self._told = bool(message.data)
        self.lists_sent += 1
        if stream.unhealthy is not message.unhealthy:
            for fallen in message.unhealthy - stream.unhealthy_since.keys():
                stream.unhealthy_since[fallen] = now
            stream.unhealthy = message.unhealthy

    def close(self, stream: Stream) -> None:
        """Note the end of a stream."""
        self._streams.discard(stream)

    def begin(self, now: float) -> Call:
        """Note a call that works with IDs of the list."""
        call = Call(now)
        self._calls.add(call)
        return call

    def end(self, call: Call) -> None:
        """Note the end of a call."""
        self._calls.discard(call)

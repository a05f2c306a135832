"""What the kubelet has been told of a resource, and when an ID may leave; pure.

Since 1.34 the kubelet dereferences nil and dies if an ID that it has picked vanishes from
the list during Allocate or GetPreferredAllocation (k8s.io/kubernetes v1.37.1
pkg/kubelet/cm/devicemanager/manager.go, allocateContainerResources). So an ID leaves only
when its Unhealthy was sent long enough ago on every open stream, and no call that began
before that is still running. Nor does one leave that a pod holds: the kubelet would call it
healthy (UpdateAllocatedResourcesStatus, in the same file).
"""

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final

LEAVE_AFTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Advertised:
    """One device of a list."""

    healthy: bool
    numa_nodes: tuple[int, ...] = ()


@dataclass(eq=False, slots=True)
class Stream:
    """One open ListAndWatch: since when each unhealthy ID is known there."""

    unhealthy_since: dict[str, float] = field(default_factory=dict)


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
    """

    def __init__(self, leave_after: float = LEAVE_AFTER_S) -> None:
        self._leave_after = leave_after
        self._wanted: dict[str, Advertised] = {}
        self._leaving: dict[str, Advertised] = {}
        self._ever_sent: set[str] = set()
        self._told = False  # that there are devices
        self._streams: set[Stream] = set()
        self._calls: set[Call] = set()
        self.held: Callable[[], AbstractSet[str]] = frozenset
        self.version = 0
        self.lists_sent = 0

    @property
    def entries(self) -> dict[str, Advertised]:
        """The list as it is to be sent, leaving IDs (unhealthy) included."""
        return {**self._wanted, **self._leaving}

    def __contains__(self, advertised_id: object) -> bool:
        return advertised_id in self._wanted or advertised_id in self._leaving

    @property
    def leaving(self) -> frozenset[str]:
        """The IDs that are declared no more but still listed."""
        return frozenset(self._leaving)

    @property
    def streams(self) -> int:
        """How many streams are open."""
        return len(self._streams)

    @property
    def drained(self) -> bool:
        """Whether nothing is listed, and the kubelet knows."""
        return not self.entries and not self._told

    def resend(self) -> None:
        """Have every stream send the list once more."""
        self.version += 1

    def update(self, wanted: Mapping[str, Advertised]) -> bool:
        """Set what is to be advertised; return whether the list changed."""
        before = self.entries
        for advertised_id, entry in before.items():
            if advertised_id not in wanted and advertised_id in self._ever_sent:
                self._leaving[advertised_id] = Advertised(False, entry.numa_nodes)
        for advertised_id in wanted:
            self._leaving.pop(advertised_id, None)
        self._wanted = dict(wanted)
        if wanted and not any(entry.numa_nodes for entry in wanted.values()):
            # One device with NUMA nodes makes the kubelet align the others too, in vain.
            self._leaving = dict.fromkeys(self._leaving, Advertised(False))
        return self._changed(before)

    def prune(self, now: float) -> bool:
        """Drop the leaving IDs that may go; return whether the list changed."""
        before = self.entries
        for advertised_id in [*self._due(now)]:
            del self._leaving[advertised_id]
            self._ever_sent.discard(advertised_id)
        return self._changed(before)

    def prunable(self, now: float) -> bool:
        """Whether `prune` would drop an ID."""
        return next(self._due(now), None) is not None

    def _changed(self, before: Mapping[str, Advertised]) -> bool:
        if self.entries == before:
            return False
        self.version += 1
        return True

    def _due(self, now: float) -> Iterator[str]:
        held = self.held() if self._leaving else ()
        return (one for one in self._leaving if one not in held and self._may_leave(one, now))

    def _may_leave(self, advertised_id: str, now: float) -> bool:
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

    def sending(self, entries: Mapping[str, Advertised]) -> None:
        """Note that a list is on its way: from now on the kubelet may know its IDs."""
        self._ever_sent.update(entries)
        self._told = self._told or bool(entries)

    def sent(self, stream: Stream, entries: Mapping[str, Advertised], now: float) -> None:
        """Note that a list has gone out on a stream."""
        self.sending(entries)
        self._told = bool(entries)
        self.lists_sent += 1
        stream.unhealthy_since = {
            advertised_id: stream.unhealthy_since.get(advertised_id, now)
            for advertised_id, entry in entries.items()
            if not entry.healthy
        }

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

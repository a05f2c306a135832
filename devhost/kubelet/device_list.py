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

from devhost.model.device import Snapshot
from devhost.model.limits import LISTS_BURST, LISTS_PER_S
from devhost.model.names import share_ids, without_share

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


def _size_max(advertised_id: str, entry: AdvertisedDevice) -> int:
    """Return the bytes of a device in a list, also when it is unhealthy, or a few more.

    It has an ID and "Unhealthy" (9), NUMA nodes of up to 10 bytes, and protobuf's tags and lengths.
    """
    return len(advertised_id.encode()) + 22 + 13 * len(entry.numa_nodes)


@dataclass(eq=False, slots=True)
class Stream:
    """One open ListAndWatch; `wake` is called when the list is another one."""

    wake: Callable[[], object]
    # since when kubelet knows each unhealthy ID by it
    unhealthy_since: dict[str, float] = field(default_factory=dict)
    lists_until: float = -math.inf  # when all lists were due that were sent, at `LISTS_PER_S`


class DeviceList:
    """The list of one resource, with the IDs that are about to leave it.

    `entries` is the list as it is to be sent, and another one when it changes; what is `leaving` is
    no longer declared but still in it, as unhealthy, and `on_leaving` is called. `unanswered` are
    the times at which calls of kubelet began that work with IDs: Allocate and
    GetPreferredAllocation.
    """

    def __init__(
        self,
        leave_after: float = LEAVE_AFTER_S,
        unanswered: list[float] | None = None,
        resource: str = "",
    ) -> None:
        self._leave_after, self._resource = leave_after, resource
        self.on_leaving: Callable[[], object] = int
        self.unanswered: list[float] = [] if unanswered is None else unanswered
        self.entries: Mapping[str, AdvertisedDevice] = {}
        self.leaving: AbstractSet[str] = frozenset()
        self._known: set[str] = set()  # the IDs that kubelet may know, listed or not
        self._kubelet_has_devices = False
        self.streams: set[Stream] = set()
        self.ids_held_by_pods: Callable[[], AbstractSet[str]] = frozenset
        self.last_answer_at = -math.inf  # to one of those calls
        self.lists_sent = 0
        self.omitted = 0  # how many IDs did not fit into it

    def __len__(self) -> int:
        return len(self.entries)

    def __contains__(self, advertised_id: object) -> bool:
        return advertised_id in self.entries

    @property
    def device_ids(self) -> AbstractSet[str]:
        """The devices that are listed, also those that are leaving."""
        return set(map(without_share, self.entries))

    @property
    def drained(self) -> bool:
        """Whether nothing is listed, and kubelet knows."""
        return not self.entries and not self._kubelet_has_devices

    # ── what is to be advertised ──

    def publish(self, snapshot: Snapshot, replicas: int) -> bool:
        """List the devices of a snapshot; return whether IDs have left that kubelet cannot know."""
        before, omitted = self.entries, self.omitted
        wanted: dict[str, AdvertisedDevice] = {}
        for device in snapshot.devices.values():
            if not device.replaced:
                entry = AdvertisedDevice(device.healthy, device.numa_nodes)
                wanted |= dict.fromkeys(share_ids(device.id, replicas), entry)
        held = self.ids_held_by_pods() - wanted.keys() - before.keys()
        self.update(wanted)
        if held:
            # What a pod holds is listed, as on its way out, even if it was gone before this
            # process came: kubelet may know it.
            self.may_be_known(held)
            self.update(wanted | dict.fromkeys(held, AdvertisedDevice(False)))
            self.update(wanted)
        if self.omitted and self.omitted != omitted:
            fields = {"resource": self._resource, "left_out": self.omitted}
            _LOG.warning("list truncated", extra={"fields": fields})
        if self.leaving:
            self.on_leaving()
        return not before.keys() <= self.entries.keys()

    def update(self, wanted: Mapping[str, AdvertisedDevice]) -> bool:
        """Set what is to be advertised; return whether the list changed.

        New devices that would make the list larger than kubelet takes are left out. What is listed
        stays, whatever the size; so do the IDs that are leaving, until they have left.
        """
        wanted = self._fitting(wanted)
        # What kubelet does not know need not leave slowly.
        leaving = (self.entries.keys() - wanted.keys()) & self._known
        # One device with NUMA nodes makes kubelet align those that have none (v1.37.1
        # pkg/kubelet/cm/devicemanager/topology_hints.go, deviceHasTopologyAlignment).
        aligned = not wanted or any(entry.numa_nodes for entry in wanted.values())
        entries = {
            advertised_id: AdvertisedDevice(False, entry.numa_nodes if aligned else ())
            for advertised_id, entry in self.entries.items()
            if advertised_id in leaving
        }
        return self._replace({**wanted, **entries}, leaving)

    def _fitting(self, wanted: Mapping[str, AdvertisedDevice]) -> Mapping[str, AdvertisedDevice]:
        new = wanted.keys() - self.entries.keys()
        size = sum(_size_max(*one) for one in self.entries.items()) if new else 0
        kept = {}
        for advertised_id, entry in wanted.items():
            if advertised_id in new:
                size += _size_max(advertised_id, entry)
                if size > LIST_BYTES_MAX:
                    continue
            kept[advertised_id] = entry
        self.omitted = len(wanted) - len(kept)
        return kept

    def prune(self, now: float) -> bool:
        """Remove the leaving IDs that may go; return whether the list changed."""
        due = self.prunable(now)
        self._known -= due
        entries = {key: entry for key, entry in self.entries.items() if key not in due}
        return self._replace(entries, self.leaving - due)

    def _replace(self, entries: Mapping[str, AdvertisedDevice], leaving: AbstractSet[str]) -> bool:
        self.leaving = leaving
        if entries == self.entries:
            return False
        self.entries = entries
        for stream in self.streams:
            stream.wake()
        return True

    def prunable(self, now: float) -> AbstractSet[str]:
        """Return the leaving IDs that may go."""
        held = self.ids_held_by_pods() if self.leaving else ()
        return {
            one for one in self.leaving if one not in held and self.is_settled_unhealthy(one, now)
        }

    def is_settled_unhealthy(self, advertised_id: str, now: float) -> bool:
        """Whether kubelet knows a listed ID as unhealthy, and no call can still use it."""
        times = [stream.unhealthy_since.get(advertised_id) for stream in self.streams]
        known = [time for time in times if time is not None]
        if not known or len(known) < len(times):
            return False
        latest = max(known)
        return now - latest >= self._leave_after and all(
            began > latest for began in self.unanswered
        )

    # ── streams of kubelet ──

    def open_stream(self, wake: Callable[[], object]) -> Stream:
        """Record a new stream."""
        stream = Stream(wake)
        self.streams.add(stream)
        return stream

    def close_stream(self, stream: Stream) -> None:
        """Record the end of a stream."""
        self.streams.discard(stream)

    def may_be_known(self, advertised_ids: Collection[str]) -> None:
        """Record IDs that kubelet may know from now on, whether they are listed or not."""
        self._known.update(advertised_ids)
        self._kubelet_has_devices = self._kubelet_has_devices or bool(advertised_ids)

    def pause(self, stream: Stream, now: float) -> float:
        """Return in how many seconds the list may be sent on a stream; 0 counts it as sent."""
        until = max(stream.lists_until, now - LISTS_BURST / LISTS_PER_S) + 1 / LISTS_PER_S
        if until > now:
            return until - now
        stream.lists_until = until
        return 0.0

    def begin_send(self, stream: Stream) -> Mapping[str, AdvertisedDevice]:
        """Return the list to be sent on a stream.

        From now on kubelet may know its IDs, and take those as healthy that are so in it.
        """
        self.may_be_known(self.entries.keys())
        for recovered in stream.unhealthy_since.keys() - _unhealthy(self.entries):
            del stream.unhealthy_since[recovered]
        return self.entries

    def end_send(self, stream: Stream, sent: Mapping[str, AdvertisedDevice], now: float) -> None:
        """Record that a list was sent on a stream."""
        self._kubelet_has_devices = bool(sent)
        self.lists_sent += 1
        for fallen in _unhealthy(sent) - stream.unhealthy_since.keys():
            stream.unhealthy_since[fallen] = now

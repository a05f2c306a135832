"""What was handed out, and under what name; that outlives the process.

A thing that a pod may have is not given to another one under a second resource or ID. It is
recorded when it is allocated, before Allocate is answered: only what a pod has can be in two pods.
It is free when kubelet can no longer allocate it under the former name, and no pod holds that.
Records belong to the machine: all instances of devhost on it share them through the state
directory, and of two that hand out one thing at a time the second is refused.

What is not allocated is not recorded. Under a second name of this process it waits only until the
first one has left kubelet's list, so that no pod asks for what it would not get.

"Free" is decided here, for another name of a device. Two other rules look similar and differ:
`DeviceList.may_leave` only says that kubelet has seen an ID as unhealthy, which running pods may
still hold. `Preparation` needs proof that the device is new to the pod, which no list of pods
gives, because it may be incomplete; there an Allocate is the proof.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from devhost.errors import AllocationError
from devhost.host.holders import Holders
from devhost.host.ownership.record_store import Known, RecordStore
from devhost.host.ownership.records import Owner, Record, keys_now, keys_of, thing_of
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.directory import PluginDirectory
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Node, Snapshot
from devhost.model.names import distinct, share_ids

WITHHELD: Final = "withheld"  # how the reason begins
_TICK_S: Final = 0.5
_UNACCOUNTED: Final = (
    "without --pod-resources devhost cannot tell whether a pod still holds it: set "
    "--pod-resources, or drain the node and start devhost with --assume-free"
)


@dataclass(eq=False, slots=True)
class _Served:
    """A resource of this process.

    Attributes:
        device_list: What kubelet gets.
        rescan: Has the resource scanned again.
        devices: What was published last, by ID, and under what name.
        withheld: How many of its devices are withheld.
    """

    device_list: DeviceList
    rescan: Callable[[], None]
    devices: dict[str, tuple[HostDevice, Owner]] = field(default_factory=dict)
    withheld: int = 0


class Owners:
    """The records of one process. All methods belong to the event loop.

    Args:
        holders: Which pods hold what.
        directory: Tells whether another instance of devhost serves a resource.
        state_dir: Where records outlive the process; ``None`` where they do not.
        assume_free: Whether an ID that has left the list counts as held by no pod, where
            pod-resources cannot be asked.
        leave_after: Seconds between an ID's Unhealthy and its leaving the list.
    """

    def __init__(
        self,
        holders: Holders,
        directory: PluginDirectory,
        state_dir: Path | None,
        *,
        assume_free: bool,
        leave_after: float,
    ) -> None:
        self._holders, self._directory = holders, directory
        self._assume_free, self._leave_after = assume_free, leave_after
        self.records = RecordStore(state_dir, self._refused)
        self._served: dict[str, _Served] = {}
        self._listed: dict[str, set[Owner]] = {}  # by `keys_now`, of all resources
        self._overlap: Mapping[str, bool] = {}

    # ── resources ──

    def declare(self, resources: Iterable[Resource]) -> None:
        """Set the resources of the configuration in force."""
        before, self._overlap = self._overlap, {r.name: r.overlap == "allow" for r in resources}
        self.records.reload()  # a resource may have another name now
        if before != self._overlap:
            self._look_again()  # a device may wait for one that shares its nodes now

    def serve(self, name: str, device_list: DeviceList, rescan: Callable[[], None]) -> None:
        """Add a resource that is served."""
        self._served[name] = _Served(device_list, rescan)

    def end(self, name: str) -> None:
        """Remove a resource that is no longer served."""
        self._update(self._served[name], {})
        del self._served[name]

    def has(self, name: str) -> bool:
        """Whether devices of a resource were handed out, and may be in pods."""
        return any(known.record.owner.resource == name for known in self.records)

    def withheld(self, name: str) -> int:
        """Return how many devices of a resource are withheld."""
        return self._served[name].withheld

    # ── what kubelet may learn ──

    async def load(self) -> Mapping[str, frozenset[str]]:
        """Read the records; return, by resource, the nodes (`Node.key`) that are its own."""
        await self.records.loaded()
        found: dict[str, set[str]] = {}
        for known in self.records:
            if not known.record.overlap:
                found.setdefault(known.record.owner.resource, set()).add(known.record.key)
        return {resource: frozenset(keys) for resource, keys in found.items()}

    def judged(self, resource: Resource, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot in which devices are unhealthy whose nodes may belong to others."""
        devices: dict[str, HostDevice] = {}
        for device in snapshot.devices.values():
            if device.healthy and not device.replaced:
                reason = self._why(resource, device, snapshot)
                if reason is not None:
                    devices[device.id] = replace(device, reason=f"{WITHHELD}: {reason}")
        return replace(snapshot, devices={**snapshot.devices, **devices}) if devices else snapshot

    def published(self, resource: Resource, snapshot: Snapshot) -> None:
        """Note what the list of a resource has now, as judged."""
        served, shared = self._served[resource.name], resource.replicas > 1
        devices = {}
        for device in snapshot.devices.values():
            before = served.devices.get(device.id)
            if before is not None and device.replaced:
                before = device, before[1]  # it has the name under which it is leaving
            elif before is None or before[0] is not device or before[1].shared is not shared:
                before = device, owner_of(resource, device)
            devices[device.id] = before
        served.withheld = sum(map(is_withheld, snapshot.devices.values()))
        self._update(served, devices)
        for known in self.records:
            found = devices.get(known.record.owner.device)
            if found is not None and found[1] == known.record.owner:
                self._follow(known, found[0])

    def _update(self, served: _Served, devices: dict[str, tuple[HostDevice, Owner]]) -> None:
        before, served.devices = served.devices, devices
        ended = False
        for one in before.keys() | devices.keys():
            old, new = before.get(one), devices.get(one)
            if old is new:
                continue
            had, has = _listed(old), _listed(new)
            for thing, owner in had - has:
                self._listed[thing].discard(owner)
                if not self._listed[thing]:
                    del self._listed[thing]
                ended = True
            for thing, owner in has - had:
                self._listed.setdefault(thing, set()).add(owner)
            for thing, owner in _present(old) - _present(new):
                self._lose(thing, owner)
        if ended:
            self._look_again()

    def _lose(self, thing: str, owner: Owner) -> None:
        """Note that a device has lost a thing, which a running Allocate may still use."""
        for known in self.records.at([thing]):
            if known.record.owner == owner:
                known.since = asyncio.get_running_loop().time() + self._leave_after

    def _follow(self, known: Known, device: HostDevice) -> None:
        """Update what is known of a record by what a scan has found of its device."""
        record = known.record
        if device.missing_since is not None:
            known.gone = not device.replaced and record.key not in device.remaining
        elif record.boot == self.records.boot:
            known.gone = known.gone and record.thing not in map(thing_of, _owned(device))
        else:
            self._follow_boot(record, device)

    def _follow_boot(self, record: Record, device: HostDevice) -> None:
        for node in _owned(device):
            # The machine has booted since; its path leads to what the pod gets now.
            if not {node.key, node.path}.isdisjoint(record.keys(self.records.boot)):
                self.records.drop(record)
                self._put(self._record(record.owner, node, overlap=record.overlap))
                return

    # ── Allocate ──

    async def allocated(self, resource: Resource, devices: Iterable[HostDevice]) -> None:
        """Record that devices are handed out, before a container has them.

        It waits at most 0.25 s, and not at all for devices that are recorded. What could not be
        written by then is written later.

        Raises:
            AllocationError: Something of it was handed out under another name.
        """
        fresh: list[Record] = []
        for device in devices:
            for node in _owned(device):
                if (other := self._other(resource, device, node)) is not None:
                    self._served[resource.name].rescan()
                    text = f"{node.shown} was handed out as {other.record.owner}"
                    raise AllocationError(f"{resource.name}: device {device.id}: {text}")
                overlap = resource.overlap == "allow"
                record = self._record(owner_of(resource, device), node, overlap=overlap)
                if not self.records.has(record):
                    fresh.append(record)
        for record in fresh:
            self._put(record)
        if fresh:
            await self.records.saved()
        if refused := [one for one in fresh if one not in self.records]:
            text = "another instance of devhost has handed it out under another name"
            raise AllocationError(f"{resource.name}: device {refused[0].owner.device}: {text}")

    def _record(self, owner: Owner, node: Node, *, overlap: bool) -> Record:
        return Record(owner, thing_of(node), node.path, node.key, self.records.boot, overlap)

    def _put(self, record: Record) -> None:
        self.records.put(record, since=self._leave_after)

    # ── the end of records ──

    async def run(self) -> None:
        """Drop records of what is free, until cancelled."""
        try:
            while True:
                self.drop_free()
                await asyncio.sleep(min(_TICK_S, self._leave_after / 3))
        finally:
            await self.records.close()

    def drop_free(self) -> None:
        """Drop records of what kubelet can no longer allocate by them, and that no pod holds."""
        free = [known.record for known in self.records if self._is_free(known)]
        for record in free:
            self.records.drop(record)
        if free:
            self._look_again()

    def _is_free(self, known: Known) -> bool:
        owner, now = known.record.owner, asyncio.get_running_loop().time()
        if served := self._served.get(owner.resource):
            found = served.devices.get(owner.device)
            present = {thing for thing, its in _present(found) if its == owner}
            if known.record.thing in present:
                return False
            if not present and _offers(served.device_list, owner, now):
                known.since = now
                return False
        if now < known.since or self._elsewhere(owner):
            return False
        if not self._holders.asked:
            return self._assume_free or known.gone
        held = {"shared": owner.shared}
        if self._holders.unheld(owner.resource, owner.device, since=known.since, **held):
            return True
        if not self._holders.holding(owner.resource, owner.device, **held):
            self._holders.ask_soon()
        return False

    def _elsewhere(self, owner: Owner) -> bool:
        return self._directory.lock(owner.resource).elsewhere

    def _other(self, resource: Resource, device: HostDevice, node: Node) -> Known | None:
        """Return a record of a node under another name."""
        owner = owner_of(resource, device)
        for known in self.records.at(keys_of(node)):
            if known.record.owner != owner and not self._may_share(resource, known.record):
                return known
        return None

    def _may_share(self, resource: Resource, record: Record) -> bool:
        """Whether ``overlap`` of one of the two allows a resource to offer a node of the other."""
        name, allow = record.owner.resource, resource.overlap == "allow"
        if name == resource.name:
            return False
        if name in self._overlap:
            return allow or self._overlap[name]
        return allow and record.overlap

    def _why(self, resource: Resource, device: HostDevice, snapshot: Snapshot) -> str | None:
        """Return why a device cannot be offered; ``None`` where it can."""
        former = Owner(resource.name, device.id, shared=resource.replicas <= 1)
        if _lists(self._served[resource.name].device_list, former):
            return "its former IDs are still in the kubelet's list"
        for node in _owned(device):
            if (known := self._other(resource, device, node)) is not None:
                return self._why_not_free(known)
            for key in keys_now(node):
                for other in self._listed.get(key, ()):
                    if self._waits_for(other, resource, snapshot):
                        return f"still in the kubelet's list as {other}"
        return None

    def _waits_for(self, other: Owner, resource: Resource, snapshot: Snapshot) -> bool:
        """Whether a device waits until another one with the same node has left the list."""
        if not _lists(self._served[other.resource].device_list, other):
            return False
        if other.resource == resource.name:
            # Of two that are there the scan has made two devices; each may have the other's node.
            device = snapshot.devices.get(other.device)
            return device is None or device.replaced
        return resource.overlap != "allow" and not self._overlap.get(other.resource)

    def _why_not_free(self, known: Known) -> str:
        owner = known.record.owner
        served = self._served.get(owner.resource)
        if pods := self._holders.holding(owner.resource, owner.device, shared=owner.shared):
            return f"held as {owner} by {', '.join(pods)}"
        if served and _offers(served.device_list, owner, asyncio.get_running_loop().time()):
            return f"still in the kubelet's list as {owner}"
        if self._elsewhere(owner):
            return f"another instance of devhost serves {owner.resource}, which had it as {owner}"
        if not self._holders.asked:
            return f"it was handed out as {owner}, and {_UNACCOUNTED}"
        unknown = self._holders.unknown
        reason = f" (pod-resources unavailable: {unknown})" if unknown else ""
        return f"it was handed out as {owner}: waiting until no pod holds that{reason}"

    def _refused(self) -> None:
        """Have all scanned: another instance has handed out what one of them was about to."""
        for served in self._served.values():
            served.rescan()

    def _look_again(self) -> None:
        """Have those scanned whose devices may be free now."""
        for served in self._served.values():
            if served.withheld:
                served.rescan()


def owner_of(resource: Resource, device: HostDevice) -> Owner:
    """Return the name under which a device is advertised."""
    return Owner(resource.name, device.id, shared=resource.replicas > 1)


def is_withheld(device: HostDevice) -> bool:
    """Whether a device waits, because its nodes may be another one's."""
    return device.reason is not None and device.reason.startswith(WITHHELD)


def _owned(device: HostDevice) -> Iterator[Node]:
    """Yield the nodes of a device that no other may have: those that the kernel knows."""
    return (node for node in device.nodes if node.state or node.hardware)


def _present(published: tuple[HostDevice, Owner] | None) -> set[tuple[str, Owner]]:
    """Return what a device has now, with its name."""
    if published is None or published[0].replaced:
        return set()
    device, owner = published
    return {
        (thing_of(node), owner)
        for node in _owned(device)
        if device.missing_since is None or node.key in device.remaining
    }


def _listed(published: tuple[HostDevice, Owner] | None) -> set[tuple[str, Owner]]:
    """Return what kubelet may allocate by a device, or what is leaving its list with it."""
    if published is None or is_withheld(published[0]):
        return set()
    device, owner = published
    return {
        (key, owner)
        for node in _owned(device)
        if device.replaced or device.missing_since is None or node.key in device.remaining
        for key in keys_now(node)
    }


def _lists(device_list: DeviceList, owner: Owner) -> bool:
    """Whether the kubelet's list has a device."""
    return _first(owner) in device_list or (
        owner.shared and owner.device in distinct(device_list.leaving - {owner.device})
    )


def _offers(device_list: DeviceList, owner: Owner, now: float) -> bool:
    """Whether kubelet may allocate a device, or its ID is about to leave the list."""
    first = _first(owner)
    stays = first in device_list and first not in device_list.leaving
    return not device_list.may_leave(first, now) if stays else _lists(device_list, owner)


def _first(owner: Owner) -> str:
    """Return the ID, or that of the first share, under which the list has a device."""
    return share_ids(owner.device, 2)[0] if owner.shared else owner.device

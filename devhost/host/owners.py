"""Whose a node is: under what name it was handed out.

A node that a pod may have is not given to another one under a second resource or ID. It is
recorded when it is allocated, before Allocate is answered: only what a pod has can be in two pods.
It is free when kubelet can no longer allocate it under the former name, and no pod holds that.
All instances of devhost on the machine share the records: of two that hand out one node, the second
is refused.

What is not allocated is not recorded. Under a second name of this process it waits only until the
first one has left kubelet's list, so that no pod asks for what it would not get.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from devhost.errors import AllocationError
from devhost.host.backend import Backend, MayHandOut
from devhost.host.holders import Holders
from devhost.host.records import Allocated, Identity, Mark, Owner, Records, key_of, names_of
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Node, Snapshot
from devhost.model.names import distinct, share_ids, without_share

WITHHELD: Final = "withheld"  # how the reason begins
_TICK_S: Final = 0.5
_NODES_S: Final = 0.25  # Allocate waits for it
_MARKS_S: Final = 2.0  # it fails without, which ends the pod: a busy disk takes longer
_LOAD_S: Final = 2.0
_UNACCOUNTED: Final = (
    "without --pod-resources devhost cannot tell whether a pod still holds it: set "
    "--pod-resources, or drain the node and start devhost with --assume-free"
)
_Find = Callable[[str], HostDevice | None]  # a device of a resource, by its ID
# A device as it was published, and by which keys (`_keys`) nobody else may offer its nodes.
_Listed = tuple[HostDevice, Owner, tuple[str, ...]]


@dataclass(eq=False, slots=True)
class _Served:
    """A resource of this process: its list, and what was published last."""

    device_list: MayHandOut
    rescan: Callable[[], None]
    devices: dict[str, _Listed] = field(default_factory=dict)
    withheld: int = 0

    def find(self, device_id: str) -> HostDevice | None:
        return self.devices[device_id][0] if device_id in self.devices else None


class Owners:
    """The owners of nodes, as one process knows them. All methods belong to the event loop.

    With `assume_free` an ID that has left the list counts as held by no pod, where pod-resources
    cannot be asked. An ID leaves the list `leave_after` seconds after it was Unhealthy there.
    """

    def __init__(
        self,
        holders: Holders,
        backend: Backend,
        state_dir: Path | None,
        *,
        assume_free: bool,
        leave_after: float,
    ) -> None:
        self._holders, self._backend = holders, backend
        self._assume_free, self._leave_after = assume_free, leave_after
        self.records = Records(state_dir, self._refused)
        self._since: dict[Identity, float] = {}  # from when kubelet cannot allocate by a record
        self._gone: set[Identity] = set()  # the device is missing, and its node too
        self._served: dict[str, _Served] = {}
        self._listing: dict[str, list[Owner]] = {}  # who lists a node, by `_keys`
        self._overlap: Mapping[str, bool] = {}

    # ── resources ──

    def declare(self, resources: Iterable[Resource]) -> None:
        """Set the resources of the configuration in force."""
        before, self._overlap = self._overlap, {r.name: r.overlap == "allow" for r in resources}
        self.records.reload()  # a resource may have another name now
        if before != self._overlap:
            self._look_again()  # a device may wait for one that shares its nodes now

    def serve(self, name: str, device_list: MayHandOut, rescan: Callable[[], None]) -> None:
        """Add a resource that is served."""
        self._served[name] = _Served(device_list, rescan)

    def end(self, name: str) -> None:
        """Remove a resource that is no longer served."""
        self._list({}, self._served.pop(name).devices)
        self._look_again()

    def has(self, name: str) -> bool:
        """Whether devices of a resource were handed out, and may be in pods."""
        return any(record.resource == name for record in self.records.allocated)

    def withheld(self, name: str) -> int:
        """Return how many devices of a resource are withheld."""
        return self._served[name].withheld

    # ── what kubelet may learn ──

    async def load(self) -> Mapping[str, frozenset[str]]:
        """Read the records; return, by resource, the nodes (`Node.key`) that are its own."""
        await self.records.sync(_LOAD_S)
        found: dict[str, frozenset[str]] = {}
        for record in self.records.allocated:
            if not record.overlap:
                found[record.resource] = found.get(record.resource, frozenset()) | record.names
        return found

    def judged(self, resource: Resource, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot in which devices are unhealthy whose nodes may belong to others."""
        devices = dict[str, HostDevice]()
        for device in snapshot.devices.values():
            if device.reason is None and not device.replaced:
                reason = self._why(resource, device, snapshot.devices.get)
                if reason is not None:
                    devices[device.id] = replace(device, reason=f"{WITHHELD}: {reason}")
        return replace(snapshot, devices={**snapshot.devices, **devices}) if devices else snapshot

    def published(self, resource: Resource, snapshot: Snapshot) -> None:
        """Note what the list of a resource has now, as judged."""
        served = self._served[resource.name]
        former, served.devices = served.devices, {}
        for device_id, device in snapshot.devices.items():
            before = former.get(device_id)
            if before is not None and before[0] is device:
                served.devices[device_id] = before
                continue
            owner = before[1] if before and device.replaced else owner_of(resource, device)
            self._follow(device, owner)
            served.devices[device_id] = device, owner, _taken(device)
        waiting = [one for one in snapshot.devices.values() if one.reason is not None]
        served.withheld = sum(map(is_withheld, waiting))
        if self._list(served.devices, former):
            self._look_again()

    def _list(self, now: Mapping[str, _Listed], former: Mapping[str, _Listed]) -> bool:
        """Enter who lists nodes, as far as that has changed; return whether a node has one fewer.

        Another one may list it still, which who waits may share it with.
        """
        left, come = set[tuple[str, Owner]](), set[tuple[str, Owner]]()
        for device_id, listed in former.items():
            if now.get(device_id) is not listed:
                for key in listed[2]:
                    self._listing[key].remove(listed[1])
                    left.add((key, listed[1]))
        for device_id, listed in now.items():
            if former.get(device_id) is not listed:
                for key in listed[2]:
                    self._listing.setdefault(key, []).append(listed[1])
                    come.add((key, listed[1]))
        for key in {key for key, _ in left if not self._listing[key]}:
            del self._listing[key]
        return not left <= come

    def _follow(self, device: HostDevice, owner: Owner) -> None:
        """Update what is known of a device's records by what a scan has found of it."""
        for node in _owned(device):
            for record in self.records.at(node):
                if record.owner != owner:
                    continue
                gone = not device.replaced and not _is_there(device, node)
                (self._gone.add if gone else self._gone.discard)(record.identity)
                if record.boot != self.records.boot and device.missing_since is None:
                    # The machine has booted since; its path leads to what the pod gets now.
                    self.records.drop([record])
                    self.records.put([self._record(owner, node, overlap=record.overlap)])

    # ── Allocate ──

    async def allocated(
        self, resource: Resource, devices: Iterable[HostDevice], fresh: Sequence[Mark] = ()
    ) -> None:
        """Record that devices are handed out, before a container has them, and that some are fresh.

        It waits at most 0.25 s, for nothing that is recorded, and 2 s for what is fresh. Nodes that
        could not be written by then are written later.

        Raises:
            AllocationError: Something of it was handed out under another name, or that it is fresh
                could not be written by then.
        """
        served, new = self._served[resource.name], list[Allocated]()
        overlap = resource.overlap == "allow"
        for device in devices:
            for node in _owned(device):
                if (other := self._other(resource, device, node, served.find)) is not None:
                    served.rescan()
                    text = f"{node.shown} was handed out as {other.owner}"
                    raise AllocationError(f"{resource.name}: device {device.id}: {text}")
                record = self._record(owner_of(resource, device), node, overlap=overlap)
                if not self.records.has(record):
                    new.append(record)
        within = _MARKS_S if fresh else _NODES_S
        problem = await self.records.save([*new, *fresh], within) if new or fresh else None
        if refused := [one for one in new if not self.records.has(one)]:
            text = "another instance of devhost has handed it out under another name"
            raise AllocationError(f"{resource.name}: device {refused[0].device}: {text}")
        if problem is not None:
            ids = ", ".join(one.id for one in fresh)
            raise AllocationError(f"{resource.name}: cannot mark {ids} as fresh: {problem}")

    def _record(self, owner: Owner, node: Node, *, overlap: bool) -> Allocated:
        its = {"key": key_of(node), "names": names_of(node), "boot": self.records.boot}
        return Allocated.model_validate({**owner._asdict(), **its, "overlap": overlap})

    # ── the end of records ──

    async def run(self) -> None:
        """Drop records of what is free, and write what could not be written, until cancelled."""
        try:
            while True:
                self.drop_free()
                if self.records.problem is not None:
                    self.records.reload()
                await asyncio.sleep(min(_TICK_S, self._leave_after / 3))
        finally:
            await self.records.close()

    def drop_free(self) -> None:
        """Drop records of what kubelet can no longer allocate by them, and that no pod holds."""
        free = [record for record in self.records.allocated if self._is_free(record)]
        for record in free:
            del self._since[record.identity]
            self._gone.discard(record.identity)
            served = self._served.get(record.resource)
            if self._holders.asked and not (served and _lists(served.device_list, record.owner)):
                marks = self.records.marks(record.resource).values()
                self.records.drop(one for one in marks if without_share(one.id) == record.device)
        if free:
            self.records.drop(free)
            self._look_again()

    def _is_free(self, record: Allocated) -> bool:
        owner, identity, now = record.owner, record.identity, asyncio.get_running_loop().time()
        if (until := self._allocatable_until(record, now)) is not None:
            self._since[identity] = until
            return False
        # What another instance offered may be in an Allocate that still runs.
        since = self._since.setdefault(identity, now + self._leave_after)
        if now < since or self._elsewhere(owner):
            return False
        if not self._holders.asked:
            return self._assume_free or identity in self._gone
        held = {"shared": owner.shared}
        if self._holders.unheld(owner.resource, owner.device, since=since, **held):
            return True
        if not self._holders.holding(owner.resource, owner.device, **held):
            self._holders.ask_soon()
        return False

    def _allocatable_until(self, record: Allocated, now: float) -> float | None:
        """Return when the last Allocate by a record has ended, if one may begin now."""
        if (served := self._served.get(record.resource)) is None:
            return None
        device, owner, _ = served.devices.get(record.device, (None, None, ()))
        if device is not None and owner == record.owner and (there := _present(device)):
            stays = not there.isdisjoint(record.keys(self.records.boot))
            return now + self._leave_after if stays else None
        return now if _offers(served.device_list, record.owner, now) else None

    def _elsewhere(self, owner: Owner) -> bool:
        return self._backend.served_elsewhere(owner.resource)

    # ── who else may have a node ──

    def _other(
        self, resource: Resource, device: HostDevice, node: Node, find: _Find
    ) -> Allocated | None:
        """Return a record of a node under another name."""
        for record in self.records.at(node):
            owner = owner_of(resource, device)
            if record.owner == owner or self._may_share(resource, record.owner, record.overlap):
                continue
            if (record.resource, record.shared) == (owner.resource, owner.shared):
                beside = find(record.device)
                if beside is not None and not record.keys(self.records.boot).isdisjoint(
                    _present(beside)
                ):
                    continue  # of two nodes of one number the scan has made two devices
            return record
        return None

    def _may_share(self, resource: Resource, other: Owner, overlap: bool) -> bool:
        """Whether a resource may offer a node of another one; `overlap` is what that one said."""
        if other.resource == resource.name:
            return False
        declared = self._overlap.get(other.resource)
        if declared is None:  # then both have to say so
            return overlap and resource.overlap == "allow"
        return declared or resource.overlap == "allow"

    def _why(self, resource: Resource, device: HostDevice, find: _Find) -> str | None:
        """Return why a device cannot be offered; ``None`` where it can."""
        served = self._served[resource.name]
        keys = None
        if (listed := served.devices.get(device.id)) is not None and listed[0] is device:
            keys = listed[2]  # it has waited for what this declaration was before
        elif _lists(
            served.device_list, Owner(resource.name, device.id, shared=resource.replicas <= 1)
        ):
            return "its former IDs are still in the kubelet's list"
        for node in _owned(device):
            if (record := self._other(resource, device, node, find)) is not None:
                return self._why_not_free(record)
            for other in (it for key in keys or _keys(node) for it in self._listing.get(key, ())):
                if other.resource == resource.name:
                    beside = find(other.device)
                    waits = beside is not None and beside.replaced
                else:
                    waits = not self._may_share(resource, other, overlap=True)
                if waits and _lists(self._served[other.resource].device_list, other):
                    return f"still in the kubelet's list as {other}"
        return None

    def _why_not_free(self, record: Allocated) -> str:
        owner, now = record.owner, asyncio.get_running_loop().time()
        served, by_it = self._served.get(owner.resource), self._allocatable_until(record, now)
        if pods := self._holders.holding(owner.resource, owner.device, shared=owner.shared):
            return f"held as {owner} by {', '.join(pods)}"
        if served and by_it is not None and _offers(served.device_list, owner, now):
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


def _is_there(device: HostDevice, node: Node) -> bool:
    return device.missing_since is None or node.key in device.remaining


def _present(device: HostDevice) -> set[str]:
    """Return what a device has now; nothing if it is to leave."""
    nodes = () if device.replaced else _owned(device)
    there = [node for node in nodes if _is_there(device, node)]
    return {key for node in there for key in _keys(node)}


def _taken(device: HostDevice) -> tuple[str, ...]:
    """Return what nobody else may offer while a device is listed; nothing if it waits itself."""
    nodes = () if is_withheld(device) else _owned(device)
    there = (node for node in nodes if device.replaced or _is_there(device, node))
    return tuple(key for node in there for key in _keys(node))


def _keys(node: Node) -> tuple[str, str]:
    """Return what a node is: a file is another one with each change, but has its path."""
    return key_of(node), node.key


def _lists(device_list: MayHandOut, owner: Owner) -> bool:
    """Whether the kubelet's list has a device."""
    return _first(owner) in device_list or (
        owner.shared and owner.device in distinct(device_list.leaving - {owner.device})
    )


def _offers(device_list: MayHandOut, owner: Owner, now: float) -> bool:
    """Whether kubelet may allocate a device, or its ID is about to leave the list."""
    first = _first(owner)
    stays = first in device_list and first not in device_list.leaving
    return not device_list.may_leave(first, now) if stays else _lists(device_list, owner)


def _first(owner: Owner) -> str:
    """Return the ID, or that of the first share, under which the list has a device."""
    return share_ids(owner.device, 2)[0] if owner.shared else owner.device

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
from devhost.host.backend import Backend, ListedDevices
from devhost.host.holders import Holders
from devhost.host.records import Allocated, Identity, Mark, Owner, Records
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Node, Snapshot
from devhost.model.names import distinct, share_ids, without_share

WITHHELD: Final = "withheld"  # how the reason begins
_TICK_S: Final = 0.5
_WAIT_S: Final = 0.25  # in all, an Allocate waits for a reload and the state directory
_WRITE_S: Final = 0.1  # of it, for the latter at least
_LOAD_S: Final = 2.0
_UNACCOUNTED: Final = (
    "without --pod-resources devhost cannot tell whether a pod still holds it: set "
    "--pod-resources, or drain the node and start devhost with --assume-free"
)


@dataclass(eq=False, slots=True)
class _Served:
    """A resource of this process: its list, and what was published last."""

    device_list: ListedDevices
    rescan: Callable[[], None]
    devices: Mapping[str, HostDevice] = field(default_factory=dict)
    shared: bool = False  # whether they are advertised as shares

    @property
    def withheld(self) -> bool:
        """Whether a device waits, because a pod may have its nodes."""
        return any((one.reason or "").startswith(WITHHELD) for one in self.devices.values())


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
        self.records = Records(state_dir, backend.served_elsewhere)
        self._since: dict[Identity, float] = {}  # from when kubelet cannot allocate by a record
        self._gone: set[Identity] = set()  # the device is missing, and its node too
        self._served: dict[str, _Served] = {}
        self._listing: dict[str, tuple[tuple[str, str], ...]] = {}  # who lists a node, by `_taken`
        self._overlap: Mapping[str, bool] = {}
        holders.subscribe(self._look_again)  # the reason may be another one

    # ── resources ──

    def declare(self, resources: Iterable[Resource]) -> None:
        """Set the resources of the configuration in force."""
        self._overlap = {one.name: one.overlap == "allow" for one in resources}
        self.records.reload()  # a resource may have another name now
        self._look_again()  # a device may wait for one that shares its nodes now

    def serve(self, name: str, device_list: ListedDevices, rescan: Callable[[], None]) -> None:
        """Add a resource that is served."""
        self._served[name] = _Served(device_list, rescan)

    def end(self, name: str) -> None:
        """Remove a resource that is no longer served."""
        self._list(name, self._served.pop(name).devices, {})

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
        """Return a snapshot in which devices are unhealthy whose nodes others may have."""
        served, devices = self._served[resource.name], dict[str, HostDevice]()
        for device in snapshot.devices.values():
            known = not self.records.entries and served.devices.get(device.id) is device
            if device.reason is None and not device.replaced and not known:
                if (record := self._other(resource, device, snapshot.devices)) is not None:
                    reason: str | None = self._why_not_free(record)
                else:
                    reason = self._still_listed(resource, device, snapshot.devices)
                if reason is not None:
                    devices[device.id] = replace(device, reason=f"{WITHHELD}: {reason}")
        return replace(snapshot, devices={**snapshot.devices, **devices}) if devices else snapshot

    def published(self, resource: Resource, snapshot: Snapshot) -> None:
        """Note what the list of a resource has now, as judged."""
        served = self._served[resource.name]
        former, served.devices = served.devices, snapshot.devices
        served.shared = resource.replicas > 1
        self._list(resource.name, former, snapshot.devices)
        for device in snapshot.devices.values() if self.records.entries else ():
            if former.get(device.id) is not device:
                self._follow(device, owner_of(resource, device))

    def _list(
        self, name: str, former: Mapping[str, HostDevice], now: Mapping[str, HostDevice]
    ) -> None:
        """Enter which nodes a resource lists now."""
        listing, left, come = self._listing, set[str](), set[str]()
        for one in former.values():
            if now.get(one.id) is not one:
                for key in _taken(one):
                    left.add(key)
                    listing[key] = tuple(it for it in listing[key] if it != (name, one.id))
        for one in now.values():
            if former.get(one.id) is not one:
                entry = name, one.id
                for key in _taken(one):
                    come.add(key)
                    listing[key] = (*listing.get(key, ()), entry)
        for key in left - come:
            if not listing[key]:
                del listing[key]
        if left - come:
            self._look_again()

    def _still_listed(
        self, resource: Resource, device: HostDevice, devices: Mapping[str, HostDevice]
    ) -> str | None:
        """Return under which other name a node of a device is in the kubelet's list."""
        own = self._served[resource.name].device_list
        if _lists(own, device.id, shared=resource.replicas == 1):
            return "its former IDs are still in the kubelet's list"
        keys = [key for node in _owned(device) for key in node.id.keys]
        for name, other in (one for key in keys for one in self._listing.get(key, ())):
            if name == resource.name:
                beside = devices.get(other)
                waits = beside is not None and beside.replaced
            else:
                waits = resource.overlap != "allow" and not self._overlap.get(name)
            device_list = self._served[name].device_list
            if waits and any(_lists(device_list, other, shared=it) for it in (False, True)):
                return f"still in the kubelet's list as {name} {other}"
        return None

    def _follow(self, device: HostDevice, owner: Owner) -> None:
        """Update what is known of a device's records by what a scan has found of it."""
        for node in _owned(device):
            for record in self.records.at(node.id.keys):
                if record.owner != owner:
                    continue
                gone = not device.replaced and not _is_there(device, node)
                (self._gone.add if gone else self._gone.discard)(record.identity)
                if record.boot != self.records.boot and device.missing_since is None:
                    # The machine has booted since; its path leads to what the pod gets now.
                    self.records.drop([record])
                    self.records.put([self._record(owner, node, overlap=record.overlap)])
                    self._look_again()

    # ── Allocate ──

    async def allocated(
        self,
        resource: Resource,
        devices: Iterable[HostDevice],
        fresh: Sequence[Mark] = (),
        waited: float = 0.0,
    ) -> None:
        """Record that devices are handed out, before a container has them, and that some are fresh.

        It waits at most 0.25 s for a slow disk, less those that the call has `waited` before.

        Raises:
            AllocationError: Something of it was handed out under another name, or it could not be
                written that it is fresh.
        """
        devices, overlap = tuple(devices), resource.overlap == "allow"
        self._refuse_others(resource, devices)
        records = (
            self._record(owner_of(resource, device), node, overlap=overlap)
            for device in devices
            for node in _owned(device)
        )
        new = [record for record in records if not self.records.has(record)]
        if not (new or fresh):
            return
        problem = await self.records.save([*new, *fresh], max(_WAIT_S - waited, _WRITE_S))
        try:  # of two instances, the second finds what the first has written
            self._refuse_others(resource, devices)
        except AllocationError:
            self.records.drop(new)
            raise
        if not all(map(self.records.has, fresh)):
            ids = ", ".join(one.id for one in fresh)
            raise AllocationError(f"{resource.name}: cannot mark {ids} as fresh: {problem}")

    def _refuse_others(self, resource: Resource, devices: Iterable[HostDevice]) -> None:
        served = self._served[resource.name]
        for device in devices:
            if (record := self._other(resource, device, served.devices)) is not None:
                served.rescan()
                text = f"it was handed out as {record.owner}"
                raise AllocationError(f"{resource.name}: device {device.id}: {text}")

    def _record(self, owner: Owner, node: Node, *, overlap: bool) -> Allocated:
        return Allocated(
            **owner._asdict(),
            key=node.id.entity,
            names=node.id.names,
            boot=self.records.boot,
            overlap=overlap,
        )

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
            if self._holders.asked and not (
                served and _lists(served.device_list, record.device, shared=record.shared)
            ):
                marks = self.records.marks(record.resource).values()
                self.records.drop(one for one in marks if without_share(one.id) == record.device)
        if free:
            self.records.drop(free)
            self._look_again()

    def _is_free(self, record: Allocated) -> bool:
        owner, identity, now = record.owner, record.identity, asyncio.get_running_loop().time()
        if (until := self._allocatable_until(record)) is not None:
            self._since[identity] = until
            return False
        # What another instance offered may be in an Allocate that still runs.
        since = self._since.setdefault(identity, now + self._leave_after)
        if now < since or self._backend.served_elsewhere(owner.resource):
            return False
        if not self._holders.asked:
            return self._assume_free or identity in self._gone
        held = {"shared": owner.shared}
        if self._holders.unheld(owner.resource, owner.device, since=since, **held):
            return True
        if not self._holders.holding(owner.resource, owner.device, **held):
            self._holders.soon.set()
        return False

    def _allocatable_until(self, record: Allocated) -> float | None:
        """Return when the last Allocate by a record has ended, if one may begin now."""
        if (served := self._served.get(record.resource)) is None:
            return None
        device, now = served.devices.get(record.device), asyncio.get_running_loop().time()
        if device is not None and record.shared is served.shared and (there := _present(device)):
            stays = not there.isdisjoint(record.keys(self.records.boot))
            return now + self._leave_after if stays else None
        first = share_ids(record.device, 2)[0] if record.shared else record.device
        stays = first in served.device_list and first not in served.device_list.leaving
        if stays:
            return None if served.device_list.may_leave(first, now) else now
        return now if _lists(served.device_list, record.device, shared=record.shared) else None

    # ── who else may have a node ──

    def _other(
        self, resource: Resource, device: HostDevice, devices: Mapping[str, HostDevice]
    ) -> Allocated | None:
        """Return the record of a node of a device under another name.

        `devices` are all of the resource: of two nodes of one number a scan has made two of them.
        """
        if not self.records.entries:
            return None
        owner, nodes = owner_of(resource, device), _owned(device)
        for record in (record for node in nodes for record in self.records.at(node.id.keys)):
            if record.owner == owner or self._may_share(resource, record):
                continue
            if (record.resource, record.shared) == (owner.resource, owner.shared):
                beside, keys = devices.get(record.device), record.keys(self.records.boot)
                if beside is not None and not keys.isdisjoint(_present(beside)):
                    continue
            return record
        return None

    def _may_share(self, resource: Resource, record: Allocated) -> bool:
        """Whether a resource may offer a node that was handed out by a record."""
        if record.resource == resource.name:
            return False
        declared = self._overlap.get(record.resource)
        if declared is None:  # then both have to say so
            return record.overlap and resource.overlap == "allow"
        return declared or resource.overlap == "allow"

    def _why_not_free(self, record: Allocated) -> str:
        owner, served = record.owner, self._served.get(record.resource)
        if pods := self._holders.holding(owner.resource, owner.device, shared=owner.shared):
            return f"held as {owner} by {', '.join(pods)}"
        listed = served and _lists(served.device_list, record.device, shared=record.shared)
        if listed and self._allocatable_until(record) is not None:
            return f"still in the kubelet's list as {owner}"
        if self._backend.served_elsewhere(owner.resource):
            return f"another instance of devhost serves {owner.resource}, which had it as {owner}"
        if not self._holders.asked:
            return f"it was handed out as {owner}, and {_UNACCOUNTED}"
        unknown = self._holders.unknown
        reason = f" (pod-resources unavailable: {unknown})" if unknown else ""
        return f"it was handed out as {owner}: waiting until no pod holds that{reason}"

    def _look_again(self) -> None:
        """Have those scanned whose devices may be free now."""
        for served in self._served.values():
            if served.withheld:
                served.rescan()


def owner_of(resource: Resource, device: HostDevice) -> Owner:
    """Return the name under which a device is advertised."""
    return Owner(resource.name, device.id, shared=resource.replicas > 1)


def _owned(device: HostDevice) -> Iterator[Node]:
    """Yield the nodes of a device that no other may have: those that the kernel knows."""
    return (node for node in device.nodes if node.state or node.hardware)


def _is_there(device: HostDevice, node: Node) -> bool:
    return device.missing_since is None or node.key in device.remaining


def _present(device: HostDevice) -> set[str]:
    """Return what a device has now (`NodeId.keys`); nothing if it is to leave."""
    nodes = () if device.replaced else _owned(device)
    return {key for node in nodes if _is_there(device, node) for key in node.id.keys}


def _taken(device: HostDevice) -> Iterator[str]:
    """Yield what nobody else may offer while a device is listed; nothing if it waits itself."""
    if not (device.reason or "").startswith(WITHHELD):
        for node in _owned(device):
            if device.replaced or _is_there(device, node):
                yield from node.id.keys


def _lists(listed: ListedDevices, device_id: str, *, shared: bool) -> bool:
    """Whether the list has a device; of shares, the first may leave before one that a pod holds."""
    if not shared:
        return device_id in listed
    leaving = distinct(listed.leaving - {device_id})
    return share_ids(device_id, 2)[0] in listed or device_id in leaving

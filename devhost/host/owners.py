"""Whose a node is: under what name it was handed out.

A node that a pod may have is not given to another one under a second resource or ID. It is
recorded when it is allocated, before Allocate is answered: only what a pod has can be in two pods.
It is free when kubelet can no longer allocate it under the former name, and no pod holds that.
All instances of devhost on the machine share the records: of two that hand out one node, the second
is refused.

What is not allocated is not recorded. Under a second name of this process it waits only until the
first one has left kubelet's list, so that no pod asks for what it would not get.

A record may be missing: the file was lost, or the disk was full. While a pod holds a device of
devhost under a name for which there is no record, it may have any node: a device waits, unless it
has a record, or a pod holds it, too.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from devhost.errors import AllocationError
from devhost.host.backend import Backend, ListedDevices
from devhost.host.holders import Holders
from devhost.host.records import Allocated, Identity, Mark, Owner, Records
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice, Node, Snapshot, Verdict
from devhost.model.names import distinct, share_ids, without_share
from devhost.model.node_id import NodeId

_TICK_S: Final = 0.5  # at least, between two looks for records of what is free
_POLL_S: Final = 10.0  # at most: what another instance serves has no event
_WAIT_S: Final = 0.25  # in all, an Allocate waits for a reload and the state directory
_WRITE_S: Final = 0.1  # of it, for the latter at least
_MARK_S: Final = 1.0  # for the latter, where it fails without
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
    withheld: bool = False  # whether a device waits, because a pod may have its nodes


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
        self.records = Records(state_dir, backend.locked_by_other, self._records_read)
        self._handed_out: dict[Identity, float] = {}  # when a record was allocated last
        self._ended: dict[Identity, float] = {}  # from when kubelet cannot allocate by a record
        self._gone: set[Identity] = set()  # the device is missing, and its node too
        self._on_offer: dict[Identity, HostDevice] = {}  # by which a record's node is on offer
        self._unaccounted: Owner | None = None  # a device that a pod holds without a record
        self._served: dict[str, _Served] = {}
        self._listing: dict[str, tuple[tuple[str, str], ...]] = {}  # who lists a node, by `_taken`
        self._overlap: Mapping[str, bool] = {}
        self._due = asyncio.Event()  # a record may be one of what is free, or one may be missing
        holders.subscribe(self._look_again)  # the reason may be another one
        holders.on_list = self._due.set

    # ── resources ──

    def declare(self, resources: Iterable[Resource]) -> None:
        """Set the resources of the configuration in force."""
        self._overlap = {one.name: one.overlap == "allow" for one in resources}
        self.records.reload()  # a resource may have another name now
        self._look_again()  # a device may wait for one that shares its nodes now

    def serve(self, name: str, device_list: ListedDevices, rescan: Callable[[], None]) -> None:
        """Add a resource that is served."""
        self._served[name] = _Served(device_list, rescan)
        self._due.set()

    def end(self, name: str) -> None:
        """Remove a resource that is no longer served."""
        self._list(name, self._served.pop(name).devices, {})
        self._due.set()

    # ── what kubelet may learn ──

    async def load(self) -> Mapping[str, frozenset[str]]:
        """Read the records; return, by resource, the nodes (`Node.key`) that are its own."""
        await asyncio.gather(self.records.sync(_LOAD_S), self._holders.refresh())
        self._account()
        found: dict[str, frozenset[str]] = {}
        for record in self.records.allocated:
            if not record.overlap:
                found[record.resource] = found.get(record.resource, frozenset()) | record.names
        return found

    def judged(self, resource: Resource, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot in which devices are unhealthy whose nodes others may have."""
        served, devices = self._served[resource.name], dict[str, HostDevice]()
        for device in snapshot.devices.values():
            known = not (self.records.entries or self._unaccounted)
            known = known and served.devices.get(device.id) is device
            if device.healthy and not device.is_leaving and not known:
                if (record := self._other(resource, device, snapshot.devices)) is not None:
                    reason: str | None = self._why_not_free(record)
                else:
                    reason = self._still_listed(resource, device, snapshot.devices)
                    reason = reason or self._why_unaccounted(resource, device)
                if reason is not None:
                    verdict = Verdict(Cause.WITHHELD, f"withheld: {reason}")
                    devices[device.id] = replace(device, verdict=verdict)
        return replace(snapshot, devices={**snapshot.devices, **devices}) if devices else snapshot

    def published(self, resource: Resource, snapshot: Snapshot) -> None:
        """Note what the list of a resource has now, as judged."""
        self._due.set()
        served = self._served[resource.name]
        former, served.devices = served.devices, snapshot.devices
        served.shared = resource.replicas > 1
        served.withheld = any(device.is_withheld for device in snapshot.devices.values())
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
                waits = beside is not None and beside.is_leaving
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
                gone = not device.is_leaving and not device.has(node)
                (self._gone.add if gone else self._gone.discard)(record.identity)
                if record.boot != self.records.boot and device.is_present:
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

        It waits at most 0.25 s for a slow disk, and a second if something is fresh, less those that
        the call has `waited` before.

        Raises:
            AllocationError: Something of it was handed out under another name, or it could not be
                written that it is fresh.
        """
        devices, overlap = tuple(devices), resource.overlap == "allow"
        self._refuse_others(resource, devices)
        records = [
            self._record(owner_of(resource, device), node, overlap=overlap)
            for device in devices
            for node in tuple(_owned(device)) or (None,)
        ]
        new = [record for record in records if not self.records.has(record)]
        now = asyncio.get_running_loop().time()
        self._handed_out |= {record.identity: now for record in records}
        if not any(record.key for record in new) and not fresh:
            self.records.put(new)  # no other pod can have what has no node: do not wait
            return
        within = max((_MARK_S if fresh else _WAIT_S) - waited, _WRITE_S)
        problem = await self.records.save([*new, *fresh], within)
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

    def _record(self, owner: Owner, node: Node | None, *, overlap: bool) -> Allocated:
        node_id = NodeId("", frozenset()) if node is None else node.id
        return Allocated(
            **owner._asdict(),
            key=node_id.entity,
            names=node_id.names,
            boot=self.records.boot,
            overlap=overlap,
        )

    # ── what pods hold without a record ──

    def _account(self) -> None:
        """Record what pods hold of what is offered under its name, and note what cannot be."""
        has_served = functools.cache(self._backend.has_served)
        before, self._unaccounted = self._unaccounted, None
        for owner in self._holders.by_owner:
            if self.records.has_owner(owner):
                continue
            served = self._served.get(owner.resource)
            if served is not None and (device := served.devices.get(owner.device)) is not None:
                nodes = tuple(_owned(device)) or (None,)
                overlap = self._overlap.get(owner.resource, False)
                self.records.put(self._record(owner, node, overlap=overlap) for node in nodes)
            elif has_served(owner.resource):
                self._unaccounted = self._unaccounted or owner
        if before != self._unaccounted:
            for served in self._served.values():
                served.rescan()

    def _why_unaccounted(self, resource: Resource, device: HostDevice) -> str | None:
        """Return why a device waits that may be what a pod holds under another name."""
        if (other := self._unaccounted) is None or resource.overlap == "allow":
            return None
        owner = owner_of(resource, device)
        if self.records.has_owner(owner) or self._holders.holding(owner) or not any(_owned(device)):
            return None
        pods = ", ".join(sorted(self._holders.holding(other)))
        return f"{other} is held by {pods}, and no record says which node that is: maybe this one"

    def _records_read(self, records: Iterable[Allocated]) -> None:
        """Look again at what another instance has handed out, or has no longer."""
        self._due.set()
        names = {
            name
            for record in records
            for key in record.keys(self.records.boot)
            for name, _ in self._listing.get(key, ())
        }
        for name in names:
            self._served[name].rescan()
        self._look_again()

    # ── the end of records ──

    async def run(self) -> None:
        """Drop records of what is free, and write what could not be written, until cancelled."""
        while True:
            self._due.clear()
            self._account()
            pause = self.drop_free()
            if self.records.problem is not None:
                self.records.reload()
                pause = 0.0
            await asyncio.sleep(min(_TICK_S, self._leave_after / 3))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._due.wait()

    def drop_free(self) -> float:
        """Drop records of what kubelet can no longer allocate by them, and that no pod holds.

        Returns in how many seconds there may be more, if nothing happens.
        """
        now, pause, free = asyncio.get_running_loop().time(), _POLL_S, list[Allocated]()
        elsewhere = functools.cache(self._backend.locked_by_other)
        for record in self.records.allocated:
            since = self._since(record, now)
            if since is None:
                pause = 0.0
            elif since > now:
                pause = min(pause, since - now)
            elif self._is_free(record, since) and not elsewhere(record.resource):
                free.append(record)
        if free:
            self.records.drop([*free, *self._marks_of(free)])
            for record in free:
                self._forget(record.identity)
            self._look_again()
        return pause

    def _marks_of(self, free: Iterable[Allocated]) -> list[Mark]:
        """Return the marks of devices that no pod has and none can get as they are."""
        owners = {(it.resource, it.device): it.owner for it in free} if self._holders.asked else {}
        marks = []
        for mark in self.records.entries.values() if owners else ():
            if isinstance(mark, Mark) and (
                owner := owners.get((mark.resource, without_share(mark.id)))
            ):
                served = self._served.get(owner.resource)
                if served is None or not _lists(
                    served.device_list, owner.device, shared=owner.shared
                ):
                    marks.append(mark)
        return marks

    def _forget(self, identity: Identity) -> None:
        for noted in (self._handed_out, self._ended, self._on_offer):
            noted.pop(identity, None)
        self._gone.discard(identity)

    def _since(self, record: Allocated, now: float) -> float | None:
        """Return from when it can be asked whether a pod has what was allocated by a record.

        That is ``None`` while kubelet may allocate by it, but for what is on offer under its name:
        if that is allocated again, it is recorded again.
        """
        identity, served = record.identity, self._served.get(record.resource)
        if served is not None:
            device = served.devices.get(record.device)
            if device is not None and self._is_on_offer(record, device, served):
                self._ended.pop(identity, None)
                # By another instance, it may have been allocated until now.
                return self._handed_out.setdefault(identity, now + self._leave_after)
            self._on_offer.pop(identity, None)
            if self._may_be_allocated(record, served, now):
                self._ended[identity] = now
                return None
        # What another instance, or an earlier list, offered may be in an Allocate that still runs.
        return self._ended.setdefault(identity, now + self._leave_after)

    def _is_on_offer(self, record: Allocated, device: HostDevice, served: _Served) -> bool:
        """Whether a device has the node of a record, under its name."""
        if record.shared is not served.shared:
            return False
        if self._on_offer.get(record.identity) is not device:
            if record.key:
                if record.keys(self.records.boot).isdisjoint(_present(device)):
                    return False
            elif not device.is_present:
                return False
            self._on_offer[record.identity] = device
        return True

    def _is_free(self, record: Allocated, since: float) -> bool:
        if not self._holders.asked:
            if record.identity in self._on_offer:
                return False  # it cannot be told
            return self._assume_free or record.identity in self._gone
        if self._holders.unheld(record.owner, since):
            return True
        if not self._holders.holding(record.owner):
            self._holders.soon.set()
        return False

    def _may_be_allocated(self, record: Allocated, served: _Served, now: float) -> bool:
        """Whether an Allocate may begin, or run, by a record."""
        device = served.devices.get(record.device)
        if device and record.shared is served.shared and (keys := _present(device)):
            return not keys.isdisjoint(record.keys(self.records.boot))
        first = share_ids(record.device, 2)[0] if record.shared else record.device
        if first in served.device_list and first not in served.device_list.leaving:
            return not served.device_list.is_settled_unhealthy(first, now)
        return _lists(served.device_list, record.device, shared=record.shared)

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
        if pods := self._holders.holding(owner):
            return f"held as {owner} by {', '.join(sorted(pods))}"
        listed = served and _lists(served.device_list, record.device, shared=record.shared)
        now = asyncio.get_running_loop().time()
        if listed and served and self._may_be_allocated(record, served, now):
            return f"still in the kubelet's list as {owner}"
        if self._backend.locked_by_other(owner.resource):
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


def _present(device: HostDevice) -> set[str]:
    """Return what a device has now (`NodeId.keys`); nothing if it is to leave."""
    nodes = () if device.is_leaving else _owned(device)
    return {key for node in nodes if device.has(node) for key in node.id.keys}


def _taken(device: HostDevice) -> Iterator[str]:
    """Yield what nobody else may offer while a device is listed; nothing if it waits itself."""
    if not device.is_withheld:
        for node in _owned(device):
            if device.is_leaving or device.has(node):
                yield from node.id.keys


def _lists(listed: ListedDevices, device_id: str, *, shared: bool) -> bool:
    """Whether the list has a device; of shares, the first may leave before one that a pod holds."""
    if not shared:
        return device_id in listed
    leaving = distinct(listed.leaving - {device_id})
    return share_ids(device_id, 2)[0] in listed or device_id in leaving

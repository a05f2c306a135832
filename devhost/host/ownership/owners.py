"""Which resource and ID a node belongs to, and belonged to; that outlives the process.

A node is not offered under a second resource or ID before the first one is free: kubelet's list no
longer has it, and no pod holds it. Records belong to the machine: all instances of devhost on it
share them through the state directory.

"Free" is decided here, for another name of a device. Two other rules look similar and differ:
`DeviceList.may_leave` only says that kubelet has seen an ID as unhealthy, which running pods may
still hold. `Preparation` needs proof that the device is new to the pod, which no list of pods
gives, because it may be incomplete; there an Allocate is the proof.
"""

import asyncio
import functools
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from devhost.host.holders import Holders
from devhost.host.ownership.owner_file import (
    JournalWriter,
    NodeIdentity,
    Owner,
    OwnerRecord,
    identity_of,
    keys_of,
)
from devhost.host.ownership.owner_index import Entry, OwnerIndex
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.instances import Instances
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Node, Snapshot
from devhost.model.names import distinct, share_ids

WITHHELD: Final = "withheld"  # how the reason begins
_TICK_S: Final = 0.5
_SLICE: Final = 500
_UNACCOUNTED: Final = (
    "without --pod-resources devhost cannot tell whether a pod still holds it: set "
    "--pod-resources, or drain the node and start devhost with --assume-free"
)


@dataclass(eq=False, slots=True)
class _Served:
    """A resource of this process."""

    device_list: DeviceList
    rescan: Callable[[], None]
    withheld: int = 0


class Owners:
    """The records of one process. All methods belong to the event loop.

    Args:
        holders: Which pods hold what.
        instances: The other instances of devhost on the node.
        state_dir: Where records outlive the process; ``None`` where they do not.
        assume_free: Whether an ID that has left the list counts as held by no pod, where
            pod-resources cannot be asked.
        leave_after: Seconds between an ID's Unhealthy and its leaving the list.
    """

    def __init__(
        self,
        holders: Holders,
        instances: Instances,
        state_dir: Path | None,
        *,
        assume_free: bool,
        leave_after: float,
    ) -> None:
        self._holders, self._instances = holders, instances
        self._assume_free, self._leave_after = assume_free, leave_after
        self._journal = JournalWriter(state_dir, self._learn)
        self._index = OwnerIndex()
        self._freed = False  # a node, since the waiting resources were last scanned
        self._served: dict[str, _Served] = {}
        self._overlap: Mapping[str, bool] = {}

    @property
    def problem(self) -> str | None:
        """Why the state directory does not have the records; ``None`` where it has."""
        return self._journal.problem

    # ── resources ──

    def declare(self, resources: Iterable[Resource]) -> None:
        """Set the resources of the configuration in force."""
        before, self._overlap = self._overlap, {r.name: r.overlap == "allow" for r in resources}
        if before != self._overlap:
            self._freed = True  # a node may wait for one that shares its nodes now

    def serve(self, name: str, device_list: DeviceList, rescan: Callable[[], None]) -> None:
        """Add a resource that is served."""
        self._served[name] = _Served(device_list, rescan)

    def end(self, name: str) -> None:
        """Remove a resource that is no longer served."""
        self._served.pop(name, None)
        self.offered(name, ())

    def has(self, name: str) -> bool:
        """Whether a resource has devices with nodes, now."""
        owners = self._index.owners(name)
        return any(not one.former for owner in owners for one in self._index.of(owner))

    def withheld(self, name: str) -> int:
        """Return how many devices of a resource are withheld."""
        served = self._served.get(name)
        return served.withheld if served else 0

    # ── before kubelet learns of devices ──

    async def load(self) -> Mapping[str, frozenset[str]]:
        """Read the records; return, by resource, the nodes (`Node.key`) that are its own."""
        await self._journal.read()
        return self._index.realpaths()

    async def keep(self, resource: Resource, devices: Collection[HostDevice]) -> None:
        """Record the nodes of devices, unless they are known to belong to another device.

        To be awaited before kubelet learns of them. Never fails; waits as `JournalWriter.saved`.
        """
        await self._journal.read()
        for note in (self._refresh, self._enter):
            for number, device in enumerate(devices, 1):
                note(resource, device)
                if number % _SLICE == 0:
                    await asyncio.sleep(0)  # ten thousand take a quarter of a second
        await self._journal.saved()

    def offered(self, name: str, owners: Collection[Owner]) -> None:
        """Set the devices of a resource; all others of it no longer have nodes."""
        for owner in set(self._index.owners(name)) - set(owners):
            self.left(owner)

    def left(self, owner: Owner) -> None:
        """Note that a device is gone."""
        for entry in self._index.of(owner):
            self._leave(entry)

    def judged(self, resource: Resource, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot in which devices are unhealthy whose nodes may belong to others."""
        devices: dict[str, HostDevice] = {}
        for device in snapshot.devices.values():
            if device.healthy and not device.replaced and (reason := self._why(resource, device)):
                devices[device.id] = replace(device, reason=reason)
        return replace(snapshot, devices={**snapshot.devices, **devices}) if devices else snapshot

    def count(self, name: str, snapshot: Snapshot) -> None:
        """Count the withheld devices of a resource."""
        if served := self._served.get(name):
            served.withheld = sum(
                device.reason is not None and device.reason.startswith(WITHHELD)
                for device in snapshot.devices.values()
            )

    # ── the end of records ──

    async def run(self) -> None:
        """Drop records of free nodes, until cancelled."""
        try:
            while True:
                self.drop_free()
                await asyncio.sleep(min(_TICK_S, self._leave_after / 3))
        finally:
            await self._journal.close()

    def drop_free(self) -> None:
        """Drop records of devices that kubelet can no longer allocate and that no pod holds."""
        has_left = functools.cache(self._index.has_left)  # a device may have thousands of nodes
        for entry in [one for one in self._index.former if self._is_free(one, has_left)]:
            self._drop(entry)
        if self._freed:
            self._freed = False
            for served in self._served.values():
                if served.withheld:
                    served.rescan()

    def _is_free(self, entry: Entry, has_left: Callable[[Owner], bool]) -> bool:
        owner, now = entry.record.owner, asyncio.get_running_loop().time()
        served = self._served.get(owner.resource)
        if served and has_left(owner) and _offers(served.device_list, owner, now):
            entry.since, entry.listed = now, True
            return False
        if entry.listed:  # another reason counts from now on
            entry.listed, self._freed = False, True
        if self._elsewhere(owner.resource) or now < entry.since:
            return False
        if not self._holders.asked:
            return self._assume_free or entry.gone
        held = {"shared": owner.shared}
        if self._holders.unheld(owner.resource, owner.device, since=entry.since, **held):
            return True
        if not self._holders.holding(owner.resource, owner.device, **held):
            self._holders.ask_soon()
        return False

    def _elsewhere(self, resource: str) -> bool:
        return self._instances.newer(resource) or bool(self._instances.older(resource))

    # ── one device ──

    def _refresh(self, resource: Resource, device: HostDevice) -> None:
        """Update the known nodes of a device by what a scan has found."""
        owner = owner_of(resource, device)
        own = self._index.of(owner)
        if not own:
            return
        if device.missing_since is not None:
            for entry in own:
                entry.gone = not device.replaced and entry.record.realpath not in device.remaining
                if entry.gone:  # the file may have another name now, in another resource
                    self._lose(entry)
            return
        former = [entry for entry in own if entry.record.boot != self._index.boot]
        paths = {path for node in device.nodes for path in (node.path, node.key)}
        for entry in former:
            # The machine has rebooted since; its path leads to the node that is found now.
            if not paths.isdisjoint((entry.record.path, entry.record.realpath)):
                self._index.forget(entry)

    def _enter(self, resource: Resource, device: HostDevice) -> None:
        if device.missing_since is not None or device.replaced:
            return
        nodes = {node.key: node for node in _owned(device)}
        if not nodes:
            return
        if self._other(resource, device) is None:
            self._record(resource, device, nodes)
        # Also if it is withheld, or two devices that exchange their nodes wait for each other.
        own = self._index.of(owner_of(resource, device))
        for entry in own:
            if entry.record.realpath not in nodes:
                self._lose(entry)

    def _record(self, resource: Resource, device: HostDevice, nodes: Mapping[str, Node]) -> None:
        owner, allow = owner_of(resource, device), resource.overlap == "allow"
        own = {entry.record.realpath: entry for entry in self._index.of(owner)}
        unknown = all(entry.unknown for entry in own.values())
        for realpath, node in nodes.items():
            identity, entry = identity_of(node), own.get(realpath)
            if entry is not None and self._same(entry.record, node, identity, allow=allow):
                entry.former = entry.gone = False
                self._index.former.discard(entry)
                continue
            if entry is not None:
                self._index.forget(entry)
            record = OwnerRecord(
                owner, node.path, realpath, identity, self._index.boot, overlap=allow
            )
            self._index.add(Entry(record, unknown=unknown))
            self._journal.put(record)

    def _same(
        self, record: OwnerRecord, node: Node, identity: NodeIdentity, *, allow: bool
    ) -> bool:
        return (
            record.identity == identity
            and record.path == node.path
            and record.boot == self._index.boot
            and record.overlap == allow
        )

    def _other(self, resource: Resource, device: HostDevice) -> Entry | None:
        """Return a record of one of a device's nodes under another name."""
        owner = owner_of(resource, device)
        for node in _owned(device):
            for entry in self._index.at(keys_of(node)):
                if entry.record.owner != owner and not self._may_share(resource, entry.record):
                    return entry
        return None

    def _may_share(self, resource: Resource, record: OwnerRecord) -> bool:
        """Whether ``overlap`` allows a resource to offer a node of another one.

        Where both are declared it is enough that one of them allows it.
        """
        name, allow = record.owner.resource, resource.overlap == "allow"
        if name == resource.name:
            return False
        if name in self._overlap:
            return allow or self._overlap[name]
        return allow and record.overlap

    def _why(self, resource: Resource, device: HostDevice) -> str | None:
        """Return why a device cannot be offered; ``None`` where it can."""
        other = self._other(resource, device)
        if other is None:
            former = Owner(resource.name, device.id, shared=resource.replicas <= 1)
            if (served := self._served.get(resource.name)) and _lists(served.device_list, former):
                return f"{WITHHELD}: its former IDs are still in the kubelet's list"
            own = self._index.of(owner_of(resource, device))
            recorded = {entry.record.realpath for entry in own if not entry.former}
            if all(node.key in recorded for node in _owned(device)):
                return None
            return f"{WITHHELD}: its nodes are about to be recorded"
        owner = other.record.owner
        served = self._served.get(owner.resource)
        pods = self._holders.holding(owner.resource, owner.device, shared=owner.shared)
        if pods:
            why = f"held as {owner} by {', '.join(pods)}"
        elif served and (
            _offers(served.device_list, owner, asyncio.get_running_loop().time())
            if other.former
            else _lists(served.device_list, owner)
        ):
            why = f"still in the kubelet's list as {owner}"
        elif self._elsewhere(owner.resource):
            why = f"another instance of devhost serves {owner.resource}, which had it as {owner}"
        elif not self._holders.asked:
            why = f"it was offered as {owner}, and {_UNACCOUNTED}"
        else:
            unknown = self._holders.unknown
            reason = f" (pod-resources unavailable: {unknown})" if unknown else ""
            why = f"it was offered as {owner}: waiting until no pod holds that{reason}"
        return f"{WITHHELD}: {why}"

    # ── the records in memory ──

    def _drop(self, entry: Entry) -> None:
        """Drop a record, on the disk too."""
        self._index.forget(entry)
        self._freed = True
        self._journal.put(replace(entry.record, dropped=True))
        self._journal.start()

    def _lose(self, entry: Entry) -> None:
        """Note that a listed device has lost a node, which a running Allocate may still use."""
        self._leave(entry, asyncio.get_running_loop().time() + self._leave_after)

    def _leave(self, entry: Entry, since: float | None = None) -> None:
        if not entry.former:
            owner = entry.record.owner
            served = self._served.get(owner.resource)
            if entry.unknown and served and not _lists(served.device_list, owner):
                self._drop(entry)  # kubelet never learned of it
                return
            entry.former = True
            entry.since = asyncio.get_running_loop().time() if since is None else since
            self._index.former.add(entry)

    # ── records of other instances ──

    def _learn(self, others: Iterable[OwnerRecord], refused: Iterable[OwnerRecord]) -> None:
        """Adopt the records of other instances."""
        now = asyncio.get_running_loop().time()
        for record in others:
            known = self._index.known(record)
            if known is not None and not known.former:
                if record.dropped:
                    self._journal.put(known.record)
                continue
            if known is not None:
                self._index.forget(known)
            if not record.dropped:
                self._index.add(Entry(record, former=True, since=now))
        for record in refused:
            known = self._index.known(record)
            if known is not None and known.record is record:
                self._index.forget(known)
                if served := self._served.get(record.owner.resource):
                    served.rescan()


def owner_of(resource: Resource, device: HostDevice) -> Owner:
    """Return the name under which a device is advertised."""
    return Owner(resource.name, device.id, shared=resource.replicas > 1)


def _owned(device: HostDevice) -> Iterator[Node]:
    """Yield the nodes of a device that no other may have: those that the kernel knows."""
    return (node for node in device.nodes if node.state or node.hardware)


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

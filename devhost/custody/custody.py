"""The custody of nodes: no node is in two pods, under any name, and after any restart.

Two facts speak against a device: kubelet may still allocate a node of it under another name, and a
pod may have the node under that name. What was allocated is recorded before Allocate is answered
(`devhost.custody.record_files`). All instances of devhost on the machine share the records: of two
that hand out one node, the second is refused.

What is not allocated is not recorded. Under a second name of this process it waits only until the
first one has left kubelet's list, so that no pod asks for what it would not get.

A record may be missing: the file was lost, or the disk was full. While a pod holds a device of
devhost under a name for which there is no record, it may have any node: a device waits, unless it
has a record, or a pod holds it, too.
"""

import asyncio
import functools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from devhost.backends.backend import Backend, OfferedIds
from devhost.custody.conflicts import Conflicts, Rivals, advertised_name
from devhost.custody.holders import Holders
from devhost.custody.listed_resources import ListedResource, ListedResources, owned_keys
from devhost.custody.record_ends import RecordEnds
from devhost.custody.record_files import RecordFiles
from devhost.custody.record_table import Holding, HoldingIndex, holdings
from devhost.errors import AllocationError
from devhost.model.advertised import AdvertisedName, OfferedId
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice, Snapshot, Verdict
from devhost.model.records import (
    CLAIM,
    Handout,
    Record,
    RecordedNode,
    RecordedNodes,
    Steps,
    nodes_of,
    with_new_nodes,
)
from devhost.watch.threads import wait_at_most

_TICK_S: Final = 0.5  # at least, between two looks for records that have ended
_WAIT_S: Final = 0.25  # an Allocate waits for the state directory
_STEPS_S: Final = 1.0  # where it fails without
_LOAD_S: Final = 2.0


class Custody:
    """The custody of one process. All methods belong to the event loop."""

    def __init__(self, holders: Holders, backend: Backend, files: RecordFiles) -> None:
        self._holders, self._backend = holders, backend
        self._files, self._table = files, files.table
        self._listings = ListedResources()
        self._ends = RecordEnds(self._listings, holders, backend, self._table.boot)
        self._conflicts = Conflicts(self._table, self._listings, holders, backend)
        self._pause = min(_TICK_S, backend.leave_after / 3)
        self._due = asyncio.Event()  # a record may have ended, or be missing
        self.holders_changed = asyncio.Event()  # by a list, a record: then it is another one
        files.on_change = self._records_changed
        holders.on_change.append(self._listings.rescan_withheld)  # the reason may be another one
        holders.on_list, backend.pods.may_hold = self._report_holders, files.may_hold

    # ── resources ──

    def reconfigure(self, resources: Iterable[Resource]) -> None:
        """Set the resources of the configuration in force."""
        self._conflicts.overlap = {
            resource.name: resource.overlap == "allow" for resource in resources
        }
        self._files.sync_soon()  # a resource may have another name now
        self._listings.rescan_withheld()  # a device may wait for one that shares its nodes now

    def add(self, name: str, offered_ids: OfferedIds, rescan: Callable[[], None]) -> None:
        """Add a resource that is served."""
        self._listings[name] = ListedResource(offered_ids, rescan)
        self._due.set()

    def remove(self, name: str) -> None:
        """Remove a resource that is no longer served."""
        self._listings.set_devices(name, {})
        del self._listings[name]
        self._due.set()

    async def reserved(self) -> Mapping[str, AbstractSet[str]]:
        """Read the records; return, by resource, the nodes (`Node.key`) that are its own."""
        await asyncio.gather(self._files.sync(_LOAD_S), self._holders.refresh())
        self._record_held()
        nodes = defaultdict[str, set[str]](set)
        for record in self._table.snapshot().values():
            for holding in holdings(record):
                names = (node.names for node in holding.nodes if not holding.overlap)
                nodes[holding.name.resource].update(*names)
        return nodes

    # ── the list that kubelet gets ──

    def judge(self, resource: Resource, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot in which devices are unhealthy whose nodes others may have."""
        former = self._listings[resource.name].devices
        may_change = self._conflicts.possible
        rivals = Rivals(self._conflicts, resource, snapshot.devices)
        devices = dict[str, HostDevice]()
        for device in snapshot.devices.values():
            is_new = may_change or former.get(device.id) is not device
            is_judged = is_new and device.healthy and not device.is_leaving
            if is_judged and (reason := rivals.find_reason(device)) is not None:
                verdict = Verdict(Cause.WITHHELD, f"withheld: {reason}")
                devices[device.id] = replace(device, verdict=verdict)
        return replace(snapshot, devices={**snapshot.devices, **devices}) if devices else snapshot

    def set_listed(self, resource: Resource, offered: Snapshot) -> None:
        """Set the devices in the list of a resource, as judged."""
        self._due.set()
        is_shared = resource.replicas > 1
        former = self._listings.set_devices(resource.name, offered.devices, shared=is_shared)
        for device in offered.devices.values() if self._table else ():
            if former.get(device.id) is not device:
                self._follow(device, advertised_name(resource, device))

    def _follow(self, device: HostDevice, name: AdvertisedName) -> None:
        """Update the records of a device by what a scan has found of it.

        If it comes again with another number, a container that starts again gets that.
        """
        boot, keys = self._table.boot, owned_keys(device)
        for handout in self._table.handouts(name):
            # By another name alone, it is another device: an edit has given it the ID.
            if device.is_present and any(node.id.keys & keys for node in handout.nodes):
                renewed = tuple(_renewed(node, device, boot) for node in handout.nodes)
                nodes = with_new_nodes(renewed, device, boot)
                if nodes != handout.nodes:
                    self._files.set({handout.key: handout.model_copy(update={"nodes": nodes})})
                    self._listings.rescan_withheld()

    # ── Allocate ──

    async def hand_out(
        self,
        resource: Resource,
        devices: Mapping[str, HostDevice],
        ids: Sequence[OfferedId],
        *,
        steps: Steps = "none",
    ) -> None:
        """Record that IDs of devices are handed out, before a container has them.

        It waits at most 0.25 s for a slow disk, and a second if there are steps.

        Raises:
            AllocationError: A node was handed out under another name, or it could not be written
                that there are steps to run.
        """
        chosen = [devices[device_id] for device_id in {offered.device for offered in ids}]
        table = self._table
        overlap = resource.overlap == "allow"
        handouts = [
            table.renew(resource.name, offered.id, devices[offered.device], overlap, steps)
            for offered in ids
        ]
        new = [handout for handout in handouts if handout not in table or steps != "none"]
        self._ends.handed_out(handouts)

        def check() -> Sequence[Handout]:
            self._conflicts.refuse(resource, chosen)
            if self._backend.locks.locked_by_other(resource.name):
                raise AllocationError(f"{resource.name}: another instance of devhost serves it")
            return new

        problem = await self._files.give(check, _WAIT_S if steps == "none" else _STEPS_S)
        if steps != "none" and any(table.find(handout.key) is not handout for handout in new):
            shown = ", ".join(handout.id for handout in new)
            raise AllocationError(f"{resource.name}: cannot mark {shown} as fresh: {problem}")

    def claim_nodes(self, resource: Resource, device: HostDevice, claim: str) -> RecordedNodes:
        """Return the nodes that a claim is given with a device.

        Raises:
            AllocationError: Others have the device, or its pods have it already, without a record,
                so that it cannot be told which steps were run.
        """
        self._conflicts.refuse(resource, [device], claim)
        name = advertised_name(resource, device)
        holds = any(shown == claim for _, shown in self._holders.claims(name))
        recorded = {holding.claim for holding in self._table.index.by_name.get(name, ())}
        if holds and resource.pre_start and claim not in recorded:
            raise AllocationError(f"{resource.name}: {unknown_steps(device.id)}")
        return nodes_of(device, self._table.boot)

    # ── records that are missing, and the end of records ──

    async def run(self) -> None:
        """Make records that are missing, and end others, until cancelled."""
        while True:
            self._due.clear()
            self._record_held()
            pause = self.end_free()
            await asyncio.sleep(self._pause)
            await wait_at_most(pause, self._due.wait)

    def end_free(self) -> float:
        """End the records of what kubelet can no longer allocate, and that nobody holds.

        Returns in how many seconds there may be more, if nothing happens.
        """
        ended, pause = self._ends.find_ended(self._table)
        if ended:
            self._files.set(ended)
            self._listings.rescan_withheld()
        return pause

    def _record_held(self) -> None:
        """Record what pods hold without a record; find what cannot be.

        What is held with a claim is recorded when the claim is prepared again.
        """
        unaccounted, unrecorded = list[AdvertisedName](), HoldingIndex(self._table.boot)
        has_served = functools.cache(self._backend.locks.has_served)
        for name, ids in self._holders.by_name.items():
            records = self._table.by_name(name)
            claims = self._holders.claims(name) if not records else ()
            if self._table.has_nodes(name) or (records and not self._table.handouts(name)):
                continue
            listing = self._listings.get(name.resource)
            device = listing.devices.get(name.device) if listing is not None else None
            overlap = self._conflicts.overlap.get(name.resource, False)
            if device is not None and claims:
                nodes = nodes_of(device, self._table.boot)
                for claim in claims:
                    unrecorded.add(Holding((CLAIM, claim[1]), name, nodes, overlap, *claim))
            elif device is not None and not self._backend.locks.locked_by_other(name.resource):
                handouts = [
                    self._table.renew(name.resource, offered.id, device, overlap) for offered in ids
                ]
                if new := [handout for handout in handouts if handout not in self._table]:
                    self._files.set({handout.key: handout for handout in new})
                    self._records_changed(new)
            elif device is None and not records and (claims or has_served(name.resource)):
                unaccounted.append(name)
        conflicts, first = self._conflicts, min(unaccounted, default=None)  # in no order
        if (first, unrecorded) != (conflicts.unaccounted, conflicts.unrecorded):
            conflicts.unaccounted, conflicts.unrecorded = first, unrecorded
            for listing in self._listings.values():
                listing.rescan()

    def _records_changed(self, records: Iterable[Record]) -> None:
        """Scan again what may be in conflict with what another instance has made or ended."""
        self._report_holders()
        boot = self._table.boot
        keys = {
            key
            for record in records
            for holding in holdings(record)
            for key in holding.node_keys(boot)
        }
        for name in self._listings.resources(keys):
            self._listings[name].rescan()
        self._listings.rescan_withheld()

    def _report_holders(self) -> None:
        self._due.set()
        changed, self.holders_changed = self.holders_changed, asyncio.Event()
        changed.set()


def _renewed(handed: RecordedNode, device: HostDevice, boot: str) -> RecordedNode:
    """Return a node that was handed out before a boot as its device has it now.

    Its path leads to what the pod gets now.
    """
    if handed.boot == boot:
        return handed
    keys = handed.keys(boot)
    nodes = (node.id for node in device.owned_nodes if not keys.isdisjoint(node.id.keys))
    return next((RecordedNode.of(node_id, boot) for node_id in nodes), handed)


def unknown_steps(device_id: str) -> str:
    """Return why a container must not start with a device of which no record tells the steps."""
    return (
        f"cannot tell whether device {device_id} was prepared (no record of its "
        "allocation): delete the pod to get a fresh device"
    )

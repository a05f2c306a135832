"""The claims on nodes: the names under which they were handed out, or are listed.

A claim on a node is two independent facts: kubelet may still allocate it under a name, and a pod
may have it under that name. It ends when both have ended. What was allocated is recorded before
Allocate is answered (`devhost.node.handouts`): only what a pod has can be in two pods. All
instances of devhost on the machine share the records: of two that hand out one node, the second is
refused.

What is not allocated is not recorded. Under a second name of this process it waits only until the
first one has left kubelet's list, so that no pod asks for what it would not get.

A record may be missing: the file was lost, or the disk was full. While a pod holds a device of
devhost under a name for which there is no record, it may have any node: a device waits, unless it
has a record, or a pod holds it, too.
"""

import asyncio
import contextlib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from devhost.backends.backend import Backend, OfferedIds
from devhost.errors import AllocationError
from devhost.model.advertised import AdvertisedName, OfferedId
from devhost.model.claim_record import HandedNode
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice, Snapshot, Verdict
from devhost.node.claim_conflicts import ClaimConflicts, advertised_name
from devhost.node.claim_ends import ClaimEnds, ListedResource
from devhost.node.handout_file import HandoutFile
from devhost.node.handouts import Handout, Record, Steps, held_by
from devhost.node.holders import Holders
from devhost.node.listed_nodes import owned_nodes

_TICK_S: Final = 0.5  # at least, between two looks for claims that have ended
_WAIT_S: Final = 0.25  # in all, an Allocate waits for a reload and the state directory
_WRITE_S: Final = 0.1  # of it, for the latter at least
_STEPS_S: Final = 1.0  # for the latter, where it fails without
_LOAD_S: Final = 2.0


class Claims:
    """The claims on nodes, as one process knows them. All methods belong to the event loop.

    With `assume_free` an ID that has left the list counts as held by no pod, where pod-resources
    cannot be asked.
    """

    def __init__(
        self,
        holders: Holders,
        backend: Backend,
        handouts: HandoutFile,
        *,
        assume_free: bool,
    ) -> None:
        self._holders, self._backend = holders, backend
        self._file, self._table = handouts, handouts.table
        self._listings: dict[str, ListedResource] = {}
        self._ends = ClaimEnds(
            self._listings, holders, self._table.boot, backend.leave_after, assume_free=assume_free
        )
        self._conflicts = ClaimConflicts(self._table, self._listings, self._ends, holders, backend)
        self._pause = min(_TICK_S, backend.leave_after / 3)
        self._due = asyncio.Event()  # a claim may have ended, or a record may be missing
        self.holders_changed = asyncio.Event()  # by a list, a record: then it is another one
        handouts.on_read = self._handouts_read
        holders.subscribe(self._rescan_withheld)  # the reason may be another one
        holders.on_list = self._report_holders

    # ── resources ──

    def reconfigure(self, resources: Iterable[Resource]) -> None:
        """Set the resources of the configuration in force."""
        self._conflicts.overlap = {
            resource.name: resource.overlap == "allow" for resource in resources
        }
        self._file.sync_soon()  # a resource may have another name now
        self._rescan_withheld()  # a device may wait for one that shares its nodes now

    def add(self, name: str, offered_ids: OfferedIds, rescan: Callable[[], None]) -> None:
        """Add a resource that is served."""
        self._listings[name] = ListedResource(offered_ids, rescan)
        self._due.set()

    def remove(self, name: str) -> None:
        """Remove a resource that is no longer served."""
        if self._conflicts.listed_nodes.update(name, self._listings.pop(name).devices, {}):
            self._rescan_withheld()
        self._due.set()

    async def reserved(self) -> Mapping[str, frozenset[str]]:
        """Read the records; return, by resource, the nodes (`Node.key`) that are its own."""
        await asyncio.gather(self._file.sync(_LOAD_S), self._holders.refresh())
        self._record_held()
        nodes: dict[str, frozenset[str]] = {}
        for held in self._table.held():
            names = (node.names for node in held.nodes if not held.overlap)
            nodes[held.name.resource] = nodes.get(held.name.resource, frozenset()).union(*names)
        return nodes

    # ── the list that kubelet gets ──

    def judge(self, resource: Resource, snapshot: Snapshot) -> Snapshot:
        """Return a snapshot in which devices are unhealthy whose nodes others may have."""
        former = self._listings[resource.name].devices
        may_change = self._conflicts.possible
        devices = dict[str, HostDevice]()
        for device in snapshot.devices.values():
            is_new = may_change or former.get(device.id) is not device
            if is_new and device.healthy and not device.is_leaving:
                reason = self._conflicts.reason(resource, device, snapshot.devices)
                if reason is not None:
                    verdict = Verdict(Cause.WITHHELD, f"withheld: {reason}")
                    devices[device.id] = replace(device, verdict=verdict)
        return replace(snapshot, devices={**snapshot.devices, **devices}) if devices else snapshot

    def set_listed(self, resource: Resource, offered: Snapshot) -> None:
        """Set the devices in the list of a resource, as judged."""
        self._due.set()
        listing = self._listings[resource.name]
        former, listing.devices = listing.devices, offered.devices
        listing.shared = resource.replicas > 1
        listing.withheld = any(device.is_withheld for device in offered.devices.values())
        if self._conflicts.listed_nodes.update(resource.name, former, offered.devices):
            self._rescan_withheld()
        for device in offered.devices.values() if self._table else ():
            if former.get(device.id) is not device:
                self._follow(device, advertised_name(resource, device))

    def _follow(self, device: HostDevice, name: AdvertisedName) -> None:
        """Update the records of a device by what a scan has found of it."""
        for handout in self._table.handouts(name):
            self._ends.observe(handout, device)
            boot = self._table.boot
            nodes = tuple(dict.fromkeys(_renewed(node, device, boot) for node in handout.nodes))
            if device.is_present and nodes != handout.nodes:
                self._file.set({handout.key: handout.model_copy(update={"nodes": nodes})})
                self._rescan_withheld()

    # ── Allocate ──

    async def hand_out(
        self,
        resource: Resource,
        devices: Mapping[str, HostDevice],
        ids: Sequence[OfferedId],
        *,
        steps: Steps = "none",
        waited: float = 0.0,
    ) -> None:
        """Record that IDs of devices are handed out, before a container has them.

        It waits at most 0.25 s for a slow disk, and a second if there are steps, less those that
        the call has `waited` before.

        Raises:
            AllocationError: A node was handed out under another name, or it could not be written
                that there are steps to run.
        """
        chosen = [devices[device_id] for device_id in {offered.device for offered in ids}]
        self._conflicts.refuse(resource, chosen)
        overlap = resource.overlap == "allow"
        handouts = [
            self._handout(resource.name, offered.id, devices[offered.device], overlap, steps)
            for offered in ids
        ]
        new = [handout for handout in handouts if handout not in self._table or steps != "none"]
        self._ends.handed_out(handouts)
        if not any(handout.nodes for handout in new) and steps == "none":
            # No other pod can have what has no node: do not wait.
            self._file.set({handout.key: handout for handout in new})
            return
        within = max((_WAIT_S if steps == "none" else _STEPS_S) - waited, _WRITE_S)

        def check(news: Sequence[Record]) -> Sequence[Record]:
            self._conflicts.refuse(resource, chosen, news)
            return new

        problem = await self._file.save(new, within, check)
        if steps != "none" and any(self._table.find(one.key) is not one for one in new):
            shown = ", ".join(handout.id for handout in new)
            raise AllocationError(f"{resource.name}: cannot mark {shown} as fresh: {problem}")

    def given(
        self, resource: Resource, device: HostDevice, news: Sequence[Record]
    ) -> Mapping[str, Any]:
        """Return the nodes that a claim is given, or raise `AllocationError` if others have them.

        That is so by what is known, or by `news` alone, records that others have just made.
        """
        self._conflicts.refuse(resource, [device], news or None)
        boot = self._table.boot
        nodes = tuple(HandedNode.of(node.id, boot) for node in owned_nodes(device))
        return {"nodes": nodes, "overlap": resource.overlap == "allow"}

    def _handout(
        self,
        resource: str,
        advertised_id: str,
        device: HostDevice,
        overlap: bool,
        steps: Steps | None = None,
    ) -> Handout:
        """Return the record of an ID.

        Nodes that it had before stay; so do its steps, without others.
        """
        former = self._table.find((resource, advertised_id))
        boot = self._table.boot
        handed = (HandedNode.of(node.id, boot) for node in owned_nodes(device))
        nodes = {
            (node.boot, node.id.lasting): node
            for node in (*(former.nodes if former else ()), *handed)
        }
        return Handout(
            resource=resource,
            id=advertised_id,
            device=device.id,
            nodes=tuple(nodes.values()),
            overlap=overlap,
            steps=steps or (former.steps if former else "none"),
        )

    # ── records that are missing, and the end of claims ──

    async def run(self) -> None:
        """End claims, and write what could not be written, until cancelled."""
        while True:
            self._due.clear()
            self._record_held()
            pause = self.end_free()
            if self._file.problem is not None:
                self._file.sync_soon()
                pause = 0.0
            await asyncio.sleep(self._pause)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._due.wait()

    def end_free(self) -> float:
        """End the claims of what kubelet can no longer allocate, and that nobody holds.

        Returns in how many seconds there may be more, if nothing happens.
        """
        locked_by_other = functools.cache(self._backend.locked_by_other)
        free, pause = self._ends.find_free(self._table)
        ended = {
            handout.key: rest
            for handout in free
            if (rest := self._ends.rest(handout)) != handout
            and not locked_by_other(handout.resource)
        }
        if ended:
            self._file.set(ended)
            self._ends.forget(ended)
            self._rescan_withheld()
        return pause

    def _record_held(self) -> None:
        """Record what pods hold of what is offered under its name; find what cannot be."""
        has_served = functools.cache(self._backend.has_served)
        conflicts = self._conflicts
        before, unaccounted = conflicts.unaccounted, list[AdvertisedName]()
        for name, ids in self._holders.by_name.items():
            records = self._table.by_name(name)
            if any(held.nodes for held in records) or any(held.claim for held in records):
                continue
            pods, by_plugin = self._holders.pods_of_device(name), self._holders.plugin_pods
            if pods.isdisjoint(by_plugin(name.resource)):
                continue  # with a claim: it is prepared again
            listing = self._listings.get(name.resource)
            if listing is not None and (device := listing.devices.get(name.device)) is not None:
                overlap = conflicts.overlap.get(name.resource, False)
                handouts = [
                    self._handout(name.resource, offered.id, device, overlap) for offered in ids
                ]
                new = [handout for handout in handouts if handout not in self._table]
                self._file.set({handout.key: handout for handout in new})
            elif not records and has_served(name.resource):
                unaccounted.append(name)
        conflicts.unaccounted = min(unaccounted, default=None)  # kubelet's list is in no order
        if before != conflicts.unaccounted:
            for listing in self._listings.values():
                listing.rescan()

    def _handouts_read(self, records: Iterable[Record]) -> None:
        """Scan again what may be in conflict with what another instance has made or ended."""
        self._report_holders()
        held = [one for record in records for one in held_by(record)]
        keys = {key for one in held for key in one.node_keys(self._table.boot)}
        for name in {name for name, _ in self._conflicts.listed_nodes.by_node(keys)}:
            self._listings[name].rescan()
        self._rescan_withheld()

    def _report_holders(self) -> None:
        self._due.set()
        changed, self.holders_changed = self.holders_changed, asyncio.Event()
        changed.set()

    def _rescan_withheld(self) -> None:
        """Scan the resources again whose devices may be free now."""
        for listing in self._listings.values():
            if listing.withheld:
                listing.rescan()


def _renewed(handed: HandedNode, device: HostDevice, boot: str) -> HandedNode:
    """Return a node that was handed out before a boot as its device has it now.

    Its path leads to what the pod gets now.
    """
    if handed.boot == boot:
        return handed
    keys = handed.keys(boot)
    nodes = (node.id for node in owned_nodes(device) if not keys.isdisjoint(node.id.keys))
    return next((HandedNode.of(node_id, boot) for node_id in nodes), handed)

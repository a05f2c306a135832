"""Chooses the devices of new claims, and finds where those of recorded claims are now."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from devhost.allocation.cdi import CdiNode, Edits
from devhost.backends.backend import ResourceHandler
from devhost.backends.dra import claim_content
from devhost.backends.dra.claim_content import Result, Scope, scoped_devices
from devhost.backends.dra.publication import PoolOffer
from devhost.backends.dra.recorded_claims import RecordedClaims
from devhost.backends.share_ids import offered_id
from devhost.errors import AllocationError
from devhost.model.advertised import OfferedId
from devhost.model.device import HostDevice
from devhost.model.device_node import Node
from devhost.model.records import (
    ClaimedDevice,
    ClaimRecord,
    RecordedNode,
    RecordedNodes,
    with_new_nodes,
)


class HeldError(AllocationError):
    """A claim was given what another one has, which may have ended unnoticed."""


FindPool = Callable[[str], PoolOffer | None]


class ClaimAllocator:
    """Chooses and finds the devices of one driver's claims.

    `pool_of` returns the pool of a name, if DRA offers it here, and `handlers` has who answers for
    its resource, by whichever backend that is offered.
    """

    def __init__(
        self,
        pool_of: FindPool,
        handlers: Mapping[str, ResourceHandler],
        records: RecordedClaims,
    ) -> None:
        self._pool_of, self._handlers, self._records = pool_of, handlers, records

    def choose(self, empty: ClaimRecord, groups: Iterable[Sequence[Result]]) -> ClaimRecord:
        """Return the record of a claim with a free ID of each device; of shares, the lowest.

        Raises:
            AllocationError: Others have a device, or it is not offered; `HeldError` if a claim has
                it.
        """
        devices, users = list[ClaimedDevice](), dict[tuple[str, str], str]()
        for record in self._records.of_all_drivers():
            if record.id != empty.id:
                for device in record.devices:
                    if not device.admin:
                        users[device.resource, device.id] = record.shown
        for number, results in enumerate(groups):
            pool = self._pool(results[0].pool)
            resource = pool.handler.name
            if pool.blocked is not None and not results[0].admin:
                raise AllocationError(f"{resource}: {pool.blocked}")
            for result in results:
                offered = _free_id(pool, result, users)
                nodes: RecordedNodes = ()
                overlap = False
                if not result.admin:
                    nodes, overlap = pool.handler.claim_nodes(offered, empty.shown)
                    users[resource, offered.id] = empty.shown
                device = ClaimedDevice(
                    resource=resource,
                    id=offered.id,
                    scope=number,
                    nodes=nodes,
                    overlap=overlap,
                    naming=pool.handler.naming,
                    **result._asdict(),
                )
                devices.append(device)
        return empty.model_copy(update={"devices": devices})

    def is_outdated(self, record: ClaimRecord) -> bool:
        """Whether an ID is only reserved, and an edit may have given it to another device."""
        return record.state == "started" and any(
            (handler := self._handlers.get(device.pool)) and handler.naming != device.naming
            for device in record.devices
        )

    async def complete(self, record: ClaimRecord, *, run_steps: bool) -> ClaimRecord:
        """Return the record of a claim with what its containers get, after its steps if they run.

        Raises:
            AllocationError: A container would not get it; so does a `PreStartError`.
        """
        brought = dict[int, Scope]()
        for number, devices in scoped_devices(record).items():
            handler = self._pool(devices[0].pool).handler
            ids = [offered_id(device.id) for device in devices]
            watching = devices[0].admin
            allocation = await handler.render(ids, watching=watching)
            if run_steps and handler.pre_start_required and not watching:
                await handler.prepare(ids, fresh=True)
            edits = await handler.cdi_edits(allocation)
            brought[number] = Scope(edits, allocation.cdi_owners, handler.devices)
        return claim_content.completed(record, self._records.kind, brought)

    # ── where the devices are now ──

    async def renew(self, record: ClaimRecord, *, is_running: bool) -> ClaimRecord:
        """Return a record with the nodes of its devices where they are now.

        Containers that are running keep the nodes that they have: then devices that are elsewhere
        are `moved`, and others as they were. In the boot of the record, a node is where it was if
        nobody tells any longer where it is, as the configuration has changed.

        Raises:
            AllocationError: A node is not there.
        """
        boot, entries, devices = self._records.table.boot, dict(record.entries), []
        for number, device in enumerate(record.devices):
            entry_name = claim_content.own_entry(record.claim, number)
            entry, listed = entries.get(entry_name, {}), self._find_device(device, boot)
            located: Mapping[str, CdiNode] = {}
            if not is_running or (listed is not None and listed.is_present):
                located = self._locate_own(record, device, entry, listed, boot)
            present = claim_content.with_nodes(entry, located)
            if is_running and claim_content.numbers(present) == claim_content.numbers(entry):
                devices.append(device)
                continue
            if entry:
                entries[entry_name] = present
            common = claim_content.common_entry(record.claim, device.scope)
            for name in (entry_name, common) if record.boot != boot else ():
                if name in entries:
                    entries[name] = await self._with_located_paths(device, entries[name])
            nodes = (
                ()
                if device.admin
                else self._nodes(device, entries.get(entry_name, {}), listed, boot)
            )
            if record.boot != boot and (
                rival := self._records.table.find_rival(record, device, nodes)
            ):
                # In the boot before, both had the same name.
                raise HeldError(f"{device.resource}: {device.device} was handed out as {rival}")
            update = {"nodes": nodes or device.nodes, "moved": is_running}
            devices.append(device.model_copy(update=update))
        return record.model_copy(update={"boot": boot, "devices": devices, "entries": entries})

    def _find_device(self, device: ClaimedDevice, boot: str) -> HostDevice | None:
        """Return a device of a claim, which may be missing, unless nobody looks for it."""
        handler = self._handlers.get(device.pool)
        devices = handler.devices if handler is not None else {}
        listed = devices.get(offered_id(device.id).device)
        if handler is None or listed is None or listed.is_leaving:
            return None
        if handler.naming != device.naming:  # an edit may have given its ID to another device
            keys = {key for node in device.nodes for key in node.keys(boot)}
            elsewhere = (node for node in self._present_nodes() if node not in listed.nodes)
            if any(not keys.isdisjoint(node.id.keys) for node in elsewhere):
                return None
        return listed

    def _present_nodes(self) -> Iterator[Node]:
        for handler in self._handlers.values():
            for device in handler.devices.values():
                if device.is_present:
                    yield from device.owned_nodes

    def _nodes(
        self, device: ClaimedDevice, entry: Edits, listed: HostDevice | None, boot: str
    ) -> RecordedNodes:
        """Return the nodes of a device in a boot, also those that only its containers have."""
        nodes = tuple(node for node in device.nodes if node.boot == boot)
        if listed is not None and listed.is_present:
            nodes = with_new_nodes(nodes, listed, boot)
            if self._handlers[device.pool].naming != device.naming:  # it may be a larger one now
                names = frozenset[str]().union(*(node.names for node in device.nodes))
                nodes = tuple(node for node in nodes if not names.isdisjoint(node.names))
        entities = {*map(claim_content.entity, claim_content.device_nodes(entry))}
        entities -= {node.entity for node in nodes}
        present = {node.id.entity: node.id for node in self._present_nodes() if entities}
        located = (RecordedNode.of(present[entity], boot) for entity in entities & present.keys())
        return (*nodes, *located)

    def _locate_own(
        self,
        record: ClaimRecord,
        device: ClaimedDevice,
        entry: Edits,
        listed: HostDevice | None,
        boot: str,
    ) -> Mapping[str, CdiNode]:
        """Return the nodes of a device where they are now, by path in the container."""
        moved: dict[str, CdiNode] = {}
        for node in claim_content.device_nodes(entry):
            path = node["path"]
            if (place := device.places.get(path)) is not None:
                if listed is not None and not listed.is_present:
                    raise AllocationError(_not_there(device, path))
                located = listed.located.get(place) if listed is not None else None
                if located is None and record.boot != boot:
                    located = self._find_by_name(record, device, node)
                if located is not None:
                    moved[path] = claim_content.moved_node(node, *located)
        return moved

    def _find_by_name(
        self, record: ClaimRecord, device: ClaimedDevice, node: CdiNode
    ) -> tuple[tuple[int, int], str]:
        """Return the number and the path of a node of another boot, by what lasts of it."""
        former = claim_content.entity(node), record.boot
        names = {
            name
            for recorded in device.nodes
            if (recorded.entity, recorded.boot) == former
            for name in recorded.names
        }
        for present in self._present_nodes():
            if present.state and present.state.number and names & present.id.names:
                return present.state.number, present.state.realpath
        raise AllocationError(_not_there(device, node["path"]))

    async def _with_located_paths(self, device: ClaimedDevice, entry: Edits) -> Edits:
        """Return an entry with the nodes where they are now that are paths, and no device's."""
        nodes = claim_content.device_nodes(entry)
        specs = [claim_content.spec_of(node) for node in nodes if node["path"] not in device.places]
        if not specs:
            return entry
        if (handler := self._handlers.get(device.pool)) is None:
            raise AllocationError(f"{device.resource} is not served on this node")
        located = {node["path"]: node for node in await handler.locate(specs)}
        return claim_content.with_nodes(entry, located)

    def _pool(self, name: str) -> PoolOffer:
        if (pool := self._pool_of(name)) is None:
            reason = "its resource is served by the device plugin here, or not at all"
            raise AllocationError(f"there is no pool {name} on this node: {reason}")
        return pool


def _free_id(pool: PoolOffer, result: Result, users: Mapping[tuple[str, str], str]) -> OfferedId:
    resource, ids = pool.handler.name, pool.ids.get(result.device, ())
    if not ids:
        reason = pool.handler.drain_reason or f"there is no device {result.device}"
        raise AllocationError(f"{resource}: {reason}")
    for offered in ids:
        if result.admin or (resource, offered.id) not in users:
            return offered
    shown = ", ".join(sorted({users[resource, offered.id] for offered in ids}))
    raise HeldError(f"{resource}: {result.device} is held by claim {shown}")


def _not_there(device: ClaimedDevice, path: str) -> str:
    return f"{device.resource}: what the claim has as {path} is not there"

"""Allocates the devices of new claims, and looks up where those of recorded claims are now."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from devhost.allocation.cdi import Edits, OwnedEdits
from devhost.backends.backend import ClaimHandler
from devhost.backends.dra import claim_content
from devhost.backends.dra.claim_content import Result, Scope
from devhost.backends.share_ids import offered_id
from devhost.errors import AllocationError
from devhost.model.advertised import OfferedId
from devhost.model.claim_record import ClaimedDevice, ClaimRecord, claim_id


class HeldError(AllocationError):
    """A claim was given what another one has, which may have ended unnoticed."""


class OfferedPool(Protocol):
    """The pool of a resource: who answers for it, and its devices, healthy or not.

    `ids` are those of which a claim for a device gets one, by the device's name, and `blocked` is
    why none does yet.
    """

    handler: ClaimHandler
    ids: Mapping[str, Sequence[OfferedId]]
    blocked: str | None


FindPool = Callable[[str], OfferedPool | None]


class ClaimAllocator:
    """Hands out and looks up the devices of one driver's claims.

    `pool_of` returns the pool of a name, if DRA offers it here, `handlers` has who answers for its
    resource, by whichever backend that is offered, and `of_resource` returns the records that have
    a device of a resource.
    """

    def __init__(
        self,
        driver: str,
        pool_of: FindPool,
        handlers: Mapping[str, ClaimHandler],
        of_resource: Callable[[str], Iterable[ClaimRecord]],
    ) -> None:
        self._driver, self._pool_of, self._of_resource = driver, pool_of, of_resource
        self._handlers = handlers
        self._chosen: dict[tuple[str, str], str] = {}  # UIDs of claims without a record yet

    def is_preparing(self, resource: str) -> bool:
        """Whether a claim without a record yet is being given a device of a resource."""
        return any(key[0] == resource for key in self._chosen)

    async def allocate(
        self, uid: str, kind: str, groups: Iterable[Sequence[Result]]
    ) -> tuple[list[ClaimedDevice], dict[str, Edits]]:
        """Hand out what a claim has by scope; return its devices, and their edits by name."""
        try:
            return claim_content.claimed(
                uid, kind, [await self._hand_out(uid, results) for results in groups]
            )
        finally:
            self._chosen = {key: user for key, user in self._chosen.items() if user != uid}

    async def _hand_out(self, uid: str, results: Sequence[Result]) -> Scope:
        """Hand out the devices of a scope; an administrator's are only looked at."""
        pool, is_admin = self._pool(results[0].pool), results[0].admin
        handler = pool.handler
        if pool.blocked is not None and not is_admin:
            raise AllocationError(f"{handler.name}: {pool.blocked}")
        ids = self._choose(uid, pool, results)
        if is_admin:
            allocation = await handler.look_up(ids)
        else:
            has_steps, holder = handler.pre_start_required, claim_id(self._driver, uid)
            allocation = await handler.allocate(ids, pre_start=has_steps, holder=holder)
            if has_steps:
                await handler.prepare(ids)
        edits = await handler.cdi_edits(allocation)
        return Scope(handler.name, results, ids, edits, allocation.cdi_devices)

    def _choose(
        self, uid: str, pool: OfferedPool, results: Iterable[Result]
    ) -> Sequence[OfferedId]:
        """Return an ID of each device that no other claim has; of shares, the lowest."""
        resource, chosen = pool.handler.name, list[OfferedId]()
        holders = {key[1]: user for key, user in self._chosen.items() if key[0] == resource}
        for record in self._of_resource(resource):
            holders |= dict.fromkeys(record.held_ids(resource), record.shown)
        for result in results:
            ids = pool.ids.get(result.device, ())
            if not ids:
                reason = pool.handler.drain_reason or f"there is no device {result.device}"
                raise AllocationError(f"{resource}: {reason}")
            free = (offered for offered in ids if result.admin or offered.id not in holders)
            if (offered := next(free, None)) is None:
                shown = ", ".join(sorted({holders[offered.id] for offered in ids}))
                raise HeldError(f"{resource}: {result.device} is held by claim {shown}")
            if not result.admin:
                holders[offered.id] = self._chosen[resource, offered.id] = uid
            chosen.append(offered)
        return chosen

    async def renewed_entries(self, record: ClaimRecord, boot: str) -> dict[str, Edits]:
        """Return the edits of a record with the nodes of its devices where they are now.

        In the boot of the record, those of a resource that ends are where they were.
        """
        now: dict[str, Edits] = {}
        for number, devices in claim_content.members(record).items():
            handler = self._handlers.get(next(iter(devices.values())).pool)
            if (handler is None or handler.drain_reason is not None) and record.boot == boot:
                continue  # nobody looks for them any longer
            common = claim_content.common_entry(record.claim, number)
            if any("deviceNodes" in record.entries.get(name, {}) for name in (common, *devices)):
                edits = await _look_up(handler, [*devices.values()])
                now[common] = edits.common
                for name, device in devices.items():
                    now[name] = edits.by_device.get(offered_id(device.id).device, {})
        return claim_content.with_nodes_of(record.entries, now)

    def _pool(self, name: str) -> OfferedPool:
        if (pool := self._pool_of(name)) is None:
            reason = "its resource is served by the device plugin here, or not at all"
            raise AllocationError(f"there is no pool {name} on this node: {reason}")
        return pool


async def _look_up(handler: ClaimHandler | None, devices: Sequence[ClaimedDevice]) -> OwnedEdits:
    if handler is None:
        raise AllocationError(f"{devices[0].resource} is not served on this node")
    allocation = await handler.look_up([offered_id(device.id) for device in devices])
    return await handler.cdi_edits(allocation)

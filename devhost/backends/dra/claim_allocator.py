"""Chooses the devices of new claims, and looks up where those of recorded claims are now."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from devhost.backends.backend import ClaimHandler
from devhost.backends.dra import claim_content
from devhost.backends.dra.claim_content import Result, Scope
from devhost.backends.share_ids import offered_id
from devhost.errors import AllocationError
from devhost.model.advertised import OfferedId
from devhost.model.claim_record import ClaimedDevice, ClaimRecord


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
    """Chooses and looks up the devices of one driver's claims.

    `pool_of` returns the pool of a name, if DRA offers it here, `handlers` has who answers for its
    resource, by whichever backend that is offered, and `all_claims` returns the records of claims,
    also of other drivers.
    """

    def __init__(
        self,
        pool_of: FindPool,
        handlers: Mapping[str, ClaimHandler],
        all_claims: Callable[[], Iterable[ClaimRecord]],
    ) -> None:
        self._pool_of, self._handlers, self._all_claims = pool_of, handlers, all_claims

    def choose(
        self, empty: ClaimRecord, groups: Iterable[Sequence[Result]], news: Sequence[object] = ()
    ) -> ClaimRecord:
        """Return the record of a claim with a free ID of each device; of shares, the lowest.

        `news` are records that others have just made. It changes nothing, and may run in a thread.
        """
        made = [record for record in news if isinstance(record, ClaimRecord)]
        for record in made:
            if record.id == empty.id:
                return record  # another instance has begun to prepare it
        devices, users = list[ClaimedDevice](), dict[tuple[str, str], str]()
        for record in (*self._all_claims(), *made):
            if record.id != empty.id:
                for device in record.devices:
                    if not device.admin:
                        users[device.resource, device.id] = record.shown
        for number, results in enumerate(groups):
            pool = self._pool(results[0])
            resource = pool.handler.name
            for result in results:
                offered = _free_id(pool, result, users)
                given = {} if result.admin else pool.handler.given(offered, news)
                if not result.admin:
                    users[resource, offered.id] = empty.shown
                device = ClaimedDevice(
                    resource=resource,
                    id=offered.id,
                    cdi=[],
                    scope=number,
                    **result._asdict(),
                    **given,
                )
                devices.append(device)
        return empty.model_copy(update={"devices": devices})

    async def render(self, record: ClaimRecord) -> None:
        """Raise `AllocationError` if a container would not get the devices of a claim."""
        for devices in _scopes(record).values():
            watching = devices[0].admin
            await self._handler(devices).render(_ids(devices), watching=watching)

    async def complete(self, record: ClaimRecord, kind: str) -> ClaimRecord:
        """Run the steps of a claim; return its record with what its containers get."""
        brought = dict[int, Scope]()
        for number, devices in _scopes(record).items():
            handler, ids = self._handler(devices), _ids(devices)
            allocation = await handler.render(ids, watching=devices[0].admin)
            if handler.pre_start_required and not devices[0].admin:
                await handler.prepare(ids, fresh=True)
            edits = await handler.cdi_edits(allocation)
            brought[number] = Scope(edits, allocation.cdi_devices, handler.devices)
        return claim_content.completed(record, kind, brought)

    def renewed(self, record: ClaimRecord, boot: str) -> ClaimRecord:
        """Return a record with the nodes of its devices where they are now.

        In the boot of the record, those of a resource that ends are where they were.
        """
        for resource, pool in {(device.resource, device.pool) for device in record.devices}:
            handler = self._handlers.get(pool)
            if (handler is None or handler.drain_reason is not None) and record.boot == boot:
                continue  # nobody looks for them any longer
            if handler is None:
                raise AllocationError(f"{resource} is not served on this node")
            entries = claim_content.with_located_nodes(record, handler.devices, resource)
            record = record.model_copy(update={"entries": entries})
        return record.model_copy(update={"boot": boot})

    def _handler(self, devices: Sequence[ClaimedDevice]) -> ClaimHandler:
        if (pool := self._pool_of(devices[0].pool)) is None:
            raise AllocationError(_no_pool(devices[0].pool))
        return pool.handler

    def _pool(self, result: Result) -> OfferedPool:
        if (pool := self._pool_of(result.pool)) is None:
            raise AllocationError(_no_pool(result.pool))
        if pool.blocked is not None and not result.admin:
            raise AllocationError(f"{pool.handler.name}: {pool.blocked}")
        return pool


def _free_id(pool: OfferedPool, result: Result, users: Mapping[tuple[str, str], str]) -> OfferedId:
    resource, ids = pool.handler.name, pool.ids.get(result.device, ())
    if not ids:
        reason = pool.handler.drain_reason or f"there is no device {result.device}"
        raise AllocationError(f"{resource}: {reason}")
    for offered in ids:
        if result.admin or (resource, offered.id) not in users:
            return offered
    shown = ", ".join(sorted({users[resource, offered.id] for offered in ids}))
    raise HeldError(f"{resource}: {result.device} is held by claim {shown}")


def _scopes(record: ClaimRecord) -> dict[int, list[ClaimedDevice]]:
    by_scope: dict[int, list[ClaimedDevice]] = {}
    for device in record.devices:
        by_scope.setdefault(device.scope, []).append(device)
    return by_scope


def _ids(devices: Iterable[ClaimedDevice]) -> list[OfferedId]:
    return [offered_id(device.id) for device in devices]


def _no_pool(name: str) -> str:
    reason = "its resource is served by the device plugin here, or not at all"
    return f"there is no pool {name} on this node: {reason}"

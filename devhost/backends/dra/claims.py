"""The claims of a node: prepared once, recorded, and answered from the record from then on.

A record holds what the containers of the claim's pods get; an edit of the configuration does not
change it. Only where the nodes of its devices are is looked up again: `/dev/ttyUSB0` may be another
stick by now. A CDI file that a container restarts with asks nobody, so it is written again, by the
same names, at each prepare and when the process starts.
"""

import asyncio
import contextlib
import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, Protocol

from devhost.allocation import cdi
from devhost.backends.backend import ClaimHandler, ClaimRecords
from devhost.backends.dra.client import ApiClient, ApiError
from devhost.backends.share_ids import offered_id
from devhost.errors import AllocationError
from devhost.model.advertised import OfferedId
from devhost.model.claim_record import ClaimedDevice, ClaimRecord, claim_id
from devhost.model.device import Snapshot

Json = dict[str, Any]
_CLAIM_PATH: Final = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims/{}"
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
_REFRESH_S: Final = 1.0  # to read what another instance has recorded
_SAVE_S: Final = 10.0
_LOOK_S: Final = 3600.0  # between two looks for claims that have gone
_CONFIRM_S: Final = 5.0
_PLACE: Final = ("hostPath", "type", "major", "minor")  # of a device node: where it is now
_LOG: Final = logging.getLogger(__name__)


class ClaimName(NamedTuple):
    """A claim as kubelet names it; its name may be that of another one later."""

    namespace: str
    name: str
    uid: str

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return f"{self.namespace}/{self.name}"


class OfferedPool(Protocol):
    """The pool of a resource: who answers for it, and its devices, healthy or not, by name."""

    handler: ClaimHandler
    ids: Mapping[str, OfferedId]


class Result(NamedTuple):
    """A device that the scheduler has given to a request of a claim."""

    request: str
    pool: str
    device: str
    share: str | None
    admin: bool


def scopes(claim: Json, driver: str) -> list[list[Result]]:
    """Return what a claim has of a driver, by what one container is to a device plugin.

    Of a claim for extended resources that is a request: one container's of one resource. Which
    containers use the requests of any other claim stands in the pod, which devhost does not read.
    """
    is_extended = (claim["metadata"].get("annotations") or {}).get(_EXTENDED) == "true"
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    for config in devices.get("config") or ():
        if (config.get("opaque") or {}).get("driver") == driver:
            raise AllocationError(f"it has parameters for {driver}, which takes none")
    by_scope: dict[tuple[object, ...], list[Result]] = {}
    for given in devices.get("results") or ():
        if given["driver"] != driver:
            continue
        request = given["request"].partition("/")[0]  # not that of the alternative in it
        result = Result(
            request,
            given["pool"],
            given["device"],
            given.get("shareID"),
            bool(given.get("adminAccess")),
        )
        key = result.pool, result.admin, request if is_extended else None
        by_scope.setdefault(key, []).append(result)
    return [*by_scope.values()]


class PreparedClaims:
    """Prepares and unprepares the claims of one driver on this node.

    `pool_of` returns the pool of a name, and `pool_for` that of a resource, if DRA offers it here.
    """

    def __init__(
        self,
        api: ApiClient,
        driver: str,
        pool_of: Callable[[str], OfferedPool | None],
        pool_for: Callable[[str], OfferedPool | None],
    ) -> None:
        self._api, self._driver = api, driver
        self._pool_of, self._pool_for = pool_of, pool_for
        self._records: ClaimRecords | None = None  # set when they have been read
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._moved: set[str] = set()  # records whose devices have other numbers
        self._due = asyncio.Event()
        self._look_at = 0.0  # on the event loop's clock

    def __iter__(self) -> Iterator[ClaimRecord]:
        """Yield the records of this driver."""
        records = self._records.by_id.values() if self._records is not None else ()
        return (record for record in tuple(records) if record.driver == self._driver)

    @property
    def is_loaded(self) -> bool:
        """Whether the records have been read: nothing is prepared before."""
        return self._records is not None

    def of_resource(self, resource: str) -> list[ClaimRecord]:
        """Return the records that have a device of a resource."""
        return [one for one in self if any(device.resource == resource for device in one.devices)]

    async def begin(self, records: ClaimRecords) -> None:
        """Read the records, and write the CDI files of this boot, before anything is served."""
        while not await records.refresh(_SAVE_S):  # noqa: ASYNC110 (a disk has no event)
            await asyncio.sleep(_REFRESH_S)
        self._records = records
        for record in self:
            if record.boot == records.boot:  # of an earlier one, kubelet prepares all again
                with contextlib.suppress(OSError):
                    await self._write_file(record)

    async def run(self) -> None:
        """Follow devices that move, and end records whose claims have gone, until cancelled."""
        clock, gone = asyncio.get_running_loop().time, dict[str, float]()
        while True:
            self._due.clear()
            moved, self._moved = self._moved, set()
            for record in [record for record in self if record.id in moved]:
                try:
                    async with self._lock(record.claim):
                        await self._renew(record)
                except (AllocationError, OSError) as error:
                    _log_claim(logging.WARNING, "claim not renewed", record, str(error))
            if clock() >= self._look_at:
                self._look_at = clock() + _LOOK_S
                gone = {record.id: clock() for record in self if await self._is_gone(record)}
            for record in [record for record in self if record.id in gone]:
                if self._is_unused(record, gone[record.id]):
                    _log_claim(logging.WARNING, "claim ended", record, "its claim has gone")
                    await self.unprepare(record.claim)
            timeout = _CONFIRM_S if gone.keys() & {record.id for record in self} else _LOOK_S
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout):
                    await self._due.wait()

    # ── for kubelet ──

    async def prepare(self, claim: ClaimName) -> ClaimRecord:
        """Return what a claim was given; raise `AllocationError` or `ApiError` where it cannot be.

        A claim that is recorded needs no API server.
        """
        async with self._lock(claim.uid):
            record = await self._find(claim.uid)
            if record is not None:
                return await self._renew(record)
            record = await self._allocate(claim)
            await self._loaded.save(record, _SAVE_S)
            await self._write_file(record)
            return record

    async def unprepare(self, uid: str) -> ClaimRecord | None:
        """End the record of a claim, and return it if there was one."""
        async with self._lock(uid):
            record = await self._find(uid)
            await self._loaded.write_file(self._file_name(uid), None)
            if record is not None:
                self._loaded.drop(record)
                await self._loaded.refresh(_REFRESH_S)  # which writes what has changed
            return record

    @property
    def _loaded(self) -> ClaimRecords:
        if self._records is None:
            raise AllocationError("the records of claims are not read yet")
        return self._records

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _find(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim, also one that another instance has just made."""
        key = claim_id(self._driver, uid)
        if key not in self._loaded.by_id:
            await self._loaded.refresh(_REFRESH_S)
        return self._loaded.by_id.get(key)

    async def _allocate(self, claim: ClaimName) -> ClaimRecord:
        """Return the record of a claim by what the scheduler has given it."""
        content = await self._api.call("GET", _CLAIM_PATH.format(claim.namespace, claim.name))
        if content["metadata"]["uid"] != claim.uid:
            raise AllocationError(f"{claim.shown} is another claim now")
        given: list[ClaimedDevice] = []
        entries: dict[str, Mapping[str, Any]] = {}
        for number, scope in enumerate(scopes(content, self._driver)):
            pool = self._offered_pool(scope[0].pool)
            ids = [_id_of(pool, result) for result in scope]
            edits, named = await self._brought(claim.uid, pool, ids, is_admin=scope[0].admin)
            common = f"c{claim.uid}-s{number}"
            entries[common] = edits.common
            seen: set[str] = set()
            for result, offered in zip(scope, ids, strict=True):
                own = f"c{claim.uid}-{len(given)}"
                entries[own] = edits.by_device.get(offered.device, {})
                cdi_names = [f"{self._kind}={own}"] if entries[own] else []
                if result.request not in seen:
                    cdi_names += [f"{self._kind}={common}"] if entries[common] else []
                    cdi_names += named
                seen.add(result.request)
                device = ClaimedDevice(
                    resource=pool.handler.name,
                    id=offered.id,
                    cdi=cdi_names,
                    scope=number,
                    **result._asdict(),
                )
                given.append(device)
        return ClaimRecord(
            claim=claim.uid,
            driver=self._driver,
            namespace=claim.namespace,
            name=claim.name,
            boot=self._loaded.boot,
            devices=given,
            entries={name: brought for name, brought in entries.items() if brought},
        )

    async def _brought(
        self, uid: str, pool: OfferedPool, ids: Sequence[OfferedId], *, is_admin: bool
    ) -> tuple[cdi.OwnedEdits, Sequence[str]]:
        """Hand out devices; return the edits that they bring, and names of other CDI specs."""
        handler = pool.handler
        if is_admin:
            allocation = await handler.look_up(ids)
        else:
            self._refuse_held(handler.name, uid, ids)
            has_steps, holder = handler.pre_start_required, claim_id(self._driver, uid)
            allocation = await handler.allocate(ids, pre_start=has_steps, holder=holder)
            if has_steps:
                await handler.prepare(ids)
        return await handler.cdi_edits(allocation), allocation.cdi_devices

    def _offered_pool(self, name: str) -> OfferedPool:
        if (pool := self._pool_of(name)) is None:
            raise AllocationError(f"there is no pool {name} on this node")
        return pool

    def _refuse_held(self, resource: str, uid: str, ids: Sequence[OfferedId]) -> None:
        """Refuse devices that another claim has; it may have gone unnoticed."""
        wanted = {offered.id for offered in ids}
        for record in self.of_resource(resource):
            held = {one.id for one in record.devices if one.resource == resource and not one.admin}
            if record.claim != uid and held & wanted:
                self._look_at = 0.0
                self._due.set()
                shown = ", ".join(sorted(held & wanted))
                raise AllocationError(f"{resource}: {shown} is held by claim {record.shown}")

    # ── what is recorded ──

    async def _renew(self, record: ClaimRecord) -> ClaimRecord:
        """Return a record whose nodes are where its devices have them now, and write its file."""
        entries = dict(record.entries)
        for scope in dict.fromkeys(device.scope for device in record.devices):
            await self._renew_scope(record, scope, entries)
        renewed = record.model_copy(update={"entries": entries, "boot": self._loaded.boot})
        await self._loaded.save(renewed, _SAVE_S)
        await self._write_file(renewed)
        return renewed

    async def _renew_scope(
        self, record: ClaimRecord, scope: int, entries: dict[str, Mapping[str, Any]]
    ) -> None:
        """Look up the nodes of what was allocated together, in the entries of a record."""
        prefix = f"c{record.claim}-"
        members = [
            (f"{prefix}{number}", device)
            for number, device in enumerate(record.devices)
            if device.scope == scope
        ]
        common = f"{prefix}s{scope}"
        names = [common, *(name for name, _ in members)]
        if not any(entries.get(name, {}).get("deviceNodes") for name in names):
            return
        resource = members[0][1].resource
        if (pool := self._pool_for(resource)) is None:
            raise AllocationError(f"{resource} is no longer offered by DRA on this node")
        ids = [offered_id(device.id) for _, device in members]
        edits = await pool.handler.cdi_edits(await pool.handler.look_up(ids))
        now = {common: edits.common}
        now |= {
            name: edits.by_device.get(offered.device, {})
            for (name, _), offered in zip(members, ids, strict=True)
        }
        for name in names:
            if recorded := entries.get(name, {}).get("deviceNodes"):
                present = now[name].get("deviceNodes", ())
                nodes = [_moved_node(resource, node, present) for node in recorded]
                entries[name] = {**entries[name], "deviceNodes": nodes}

    def follow(self, resource: str, snapshot: Snapshot) -> None:
        """Renew, soon, the records of this boot whose devices a scan has found elsewhere."""
        boot = self._records and self._records.boot
        for record in self.of_resource(resource):
            for number, device in enumerate(record.devices):
                found = snapshot.devices.get(offered_id(device.id).device)
                entry = record.entries.get(f"c{record.claim}-{number}", {})
                recorded = {_number(node) for node in entry.get("deviceNodes", ())}
                is_moved = found and found.is_present and recorded - {*found.numbers.values()}
                if device.resource == resource and record.boot == boot and is_moved:
                    self._moved.add(record.id)
                    self._due.set()

    @property
    def _kind(self) -> str:
        return f"dra.{self._driver}/claim"

    def _file_name(self, uid: str) -> str:
        return f"{self._driver}-claim_{uid}.json"

    async def _write_file(self, record: ClaimRecord) -> None:
        content = cdi.serialize_spec(cdi.spec_of(self._kind, record.entries))
        await self._loaded.write_file(self._file_name(record.claim), content)

    # ── claims that have gone while nobody told ──

    async def _is_gone(self, record: ClaimRecord) -> bool:
        """Whether the API server says that there is no such claim; never because of an error."""
        try:
            path = _CLAIM_PATH.format(record.namespace, record.name)
            return bool((await self._api.call("GET", path))["metadata"]["uid"] != record.claim)
        except ApiError as error:
            return error.status == 404

    def _is_unused(self, record: ClaimRecord, since: float) -> bool:
        return all(
            self._loaded.confirmed_free(device.resource, offered_id(device.id), since)
            for device in record.devices
        )


def _id_of(pool: OfferedPool, result: Result) -> OfferedId:
    if (offered := pool.ids.get(result.device)) is None:
        raise AllocationError(f"{pool.handler.name}: there is no device {result.device}")
    return offered


def _number(node: Mapping[str, Any]) -> tuple[int, int]:
    return node["major"], node["minor"]


def _moved_node(
    resource: str, node: Mapping[str, Any], present: Sequence[Any]
) -> Mapping[str, Any]:
    """Return a recorded node as it is now: by its path in the container, else by its number."""
    by_path = {found["path"]: found for found in present}
    if (found := by_path.get(node["path"])) is not None:
        kept = {key: value for key, value in node.items() if key not in _PLACE}
        return {**kept, **{key: found[key] for key in _PLACE if key in found}}
    if _number(node) in map(_number, present):
        return node
    raise AllocationError(f"{resource}: what the claim has as {node['path']} is not there")


def _log_claim(level: int, message: str, record: ClaimRecord, reason: str) -> None:
    fields = {"claim": record.shown, "uid": record.claim, "reason": reason}
    _LOG.log(level, message, extra={"fields": fields})

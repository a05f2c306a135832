"""The claims of a node: prepared once, recorded, and answered from the record from then on.

A record holds what the containers of the claim's pods get; an edit of the configuration does not
change it. Only where the nodes of its devices are is looked up again: `/dev/ttyUSB0` may be another
stick by now. A CDI file that a container restarts with asks nobody, so it is written again, by the
same names, at each prepare and when the process starts.
"""

import asyncio
import contextlib
import re
import weakref
from collections.abc import Iterator
from typing import Final, NamedTuple
from urllib.parse import quote

from devhost.allocation import cdi
from devhost.backends.backend import ClaimHandler, ClaimRecords
from devhost.backends.dra import claim_content
from devhost.backends.dra.api_client import ApiClient, reading_answer
from devhost.backends.dra.claim_allocator import ClaimAllocator, FindPool, HeldError
from devhost.errors import AllocationError
from devhost.model.limits import CLAIM_BYTES_MAX
from devhost.model.records import ClaimRecord, claim_id

_REFRESH_S: Final = 1.0  # to read what another instance has recorded
_SAVE_S: Final = 10.0
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


class ClaimName(NamedTuple):
    """A claim as kubelet names it; its name may be that of another one later."""

    namespace: str
    name: str
    uid: str

    @property
    def shown(self) -> str:
        """Its name in messages."""
        return f"{self.namespace}/{self.name}"

    @property
    def path(self) -> str:
        """Its place at the API server."""
        namespace, name = quote(self.namespace, safe=""), quote(self.name, safe="")
        return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims/{name}"


class PreparedClaims:
    """Prepares and unprepares the claims of one driver on this node.

    `pool_of` returns the pool of a name, if DRA offers it here.

    Attributes:
        handlers: Who answers for the resource of a pool, by whichever backend that is offered.
        records: The records; ``None`` before they have been read: then nothing is prepared.
        conflict: Set when a claim was given what another one still has.
        unwritten: The IDs of records whose CDI file is not as they are.
    """

    def __init__(self, api: ApiClient, driver: str, pool_of: FindPool) -> None:
        self._api, self._driver = api, driver
        self.handlers: dict[str, ClaimHandler] = {}
        self._allocator = ClaimAllocator(pool_of, self.handlers, lambda: self._loaded)
        self.records: ClaimRecords | None = None
        self.conflict = asyncio.Event()
        self.unwritten: set[str] = set()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._kind = claim_content.claim_kind(driver)

    def __iter__(self) -> Iterator[ClaimRecord]:
        """Yield the records of this driver."""
        return (record for record in self.all_drivers() if record.driver == self._driver)

    def of_resource(self, resource: str) -> list[ClaimRecord]:
        """Return the records that have a device of a resource."""
        return [record for record in self if resource in record.resources]

    def uses(self, resource: str) -> bool:
        """Whether a claim has a device of a resource, or is being prepared with one."""
        return bool(self.of_resource(resource))

    async def begin(self, records: ClaimRecords) -> None:
        """Read the records, and write the CDI files of this boot, before anything is served."""
        while not await records.refresh(_SAVE_S):  # noqa: ASYNC110 (a disk has no event)
            await asyncio.sleep(_REFRESH_S)
        self.records = records
        for record in self:
            # Of an earlier boot, kubelet prepares all again.
            if record.boot == records.boot and record.state == "completed":
                self.unwritten.add(record.id)
                with contextlib.suppress(OSError):
                    await self._write_file(record)

    # ── for kubelet ──

    async def prepare(self, claim: ClaimName) -> ClaimRecord:
        """Return what a claim was given; raise `AllocationError` or `ApiError` where it cannot be.

        A claim that is recorded needs no API server.
        """
        _file_name(self._driver, claim.uid)  # which checks it
        async with self._lock(claim.uid):
            record = await self._find(claim.uid)
            if record is not None and self._allocator.is_outdated(record):
                await self._drop(record)
                record = None
            record = record or await self._reserve(claim)
            if record.state == "completed":
                record = await self._allocator.renew(record, self._loaded.boot)
            else:
                record = await self._complete(record)
            await self._keep(record)
            return record

    async def renew(self, record: ClaimRecord) -> None:
        """Write where the devices of a claim are now, if it is still prepared."""
        async with self._lock(record.claim):
            present = await self._find(record.claim)
            if present is not None and present.state == "completed":
                await self._keep(await self._allocator.renew(present, self._loaded.boot))

    async def unprepare(self, uid: str) -> ClaimRecord | None:
        """End the record of a claim, and return it if there was one."""
        async with self._lock(uid):
            record = await self._find(uid)
            await self._loaded.write_file(_file_name(self._driver, uid), None)
            if record is not None:
                await self._drop(record)
            return record

    async def end(self, record: ClaimRecord) -> None:
        """End the record of a claim of any driver, which may not run any longer."""
        async with self._lock(record.claim):
            await self._loaded.write_file(_file_name(record.driver, record.claim), None)
            await self._drop(record)

    async def _drop(self, record: ClaimRecord) -> None:
        self.unwritten.discard(record.id)
        self._loaded.drop(record)
        await self._loaded.refresh(_REFRESH_S)  # which writes what has changed

    def all_drivers(self) -> tuple[ClaimRecord, ...]:
        """Return the records of all drivers; none before they have been read."""
        return tuple(self.records.by_id.values()) if self.records is not None else ()

    @property
    def _loaded(self) -> ClaimRecords:
        if self.records is None:
            raise AllocationError("the records of claims are not read yet")
        return self.records

    def _lock(self, uid: str) -> asyncio.Lock:
        return self._locks.setdefault(uid, asyncio.Lock())

    async def _find(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim, also one that another instance has just made."""
        record_id = claim_id(self._driver, uid)
        if record_id not in self._loaded.by_id:
            await self._loaded.refresh(_REFRESH_S)
        return self._loaded.by_id.get(record_id)

    async def _keep(self, record: ClaimRecord) -> None:
        """Save a record, then write its CDI file; if that fails, a scan has it done again."""
        self.unwritten.add(record.id)
        await self._loaded.save(record, _SAVE_S)
        await self._write_file(record)

    async def _write_file(self, record: ClaimRecord) -> None:
        content = cdi.serialize_spec(cdi.spec_of(self._kind, record.entries))
        await self._loaded.write_file(_file_name(self._driver, record.claim), content)
        self.unwritten.discard(record.id)

    async def _reserve(self, claim: ClaimName) -> ClaimRecord:
        """Reserve what the scheduler has given a claim; return the record."""
        content = await self._api.call("GET", claim.path)
        with reading_answer():
            if content["metadata"]["uid"] != claim.uid:
                raise AllocationError(f"{claim.shown} is another claim now")
            groups = claim_content.scopes(content, self._driver)
        empty = ClaimRecord(
            claim=claim.uid,
            driver=self._driver,
            namespace=claim.namespace,
            name=claim.name,
            boot=self._loaded.boot,
            state="started",
            devices=[],
        )
        chosen: list[ClaimRecord] = []

        def choose() -> ClaimRecord:
            recorded = self._loaded.by_id.get(empty.id)
            if recorded is not None and recorded not in chosen:
                return recorded  # another instance has begun to prepare it
            chosen[:] = [self._allocator.choose(empty, groups)]
            return chosen[0]

        try:
            # Before it is reserved, it is seen that its containers would get it.
            planned = self._allocator.choose(empty, groups)
            _check_size(await self._allocator.complete(planned, self._kind, run_steps=False))
            return await self._loaded.reserve(choose, _SAVE_S)
        except HeldError:
            self.conflict.set()
            raise

    async def _complete(self, record: ClaimRecord) -> ClaimRecord:
        """Complete what is reserved; it stays so where a step has failed."""
        await self._loaded.save(record, _SAVE_S)  # before a step runs
        record = record.model_copy(update={"boot": self._loaded.boot})
        record = await self._allocator.complete(record, self._kind, run_steps=True)
        _check_size(record)
        return record


def _check_size(record: ClaimRecord) -> None:
    """Raise `AllocationError` if a record is larger than one may be."""
    if (size := len(record.model_dump_json())) > CLAIM_BYTES_MAX:
        most = f"at most {CLAIM_BYTES_MAX >> 10} KiB"
        raise AllocationError(
            f"claim {record.shown}: what its containers would get takes {size >> 10} KiB: {most}"
        )


def _file_name(driver: str, uid: str) -> str:
    if not _UID.fullmatch(uid):
        raise AllocationError(f"{uid!r} is no UID of a claim")
    return f"{driver}-claim_{uid}.json"

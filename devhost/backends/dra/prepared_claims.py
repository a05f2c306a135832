"""The claims of a node: prepared once, recorded, and answered from the record from then on.

A record holds what the containers of the claim's pods get; an edit of the configuration does not
change it. Only where the nodes of its devices are is looked up again: `/dev/ttyUSB0` may be another
stick by now. A CDI file that a container restarts with asks nobody, so it is written again, by the
same names, at each prepare, when the process starts, and when it was removed.
"""

import asyncio
import contextlib
import re
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final, NamedTuple
from urllib.parse import quote

from devhost.allocation import cdi
from devhost.backends.backend import ClaimRecords, ResourceHandler
from devhost.backends.dra import claim_content
from devhost.backends.dra.api_client import ApiClient, ApiError, reading_answer
from devhost.backends.dra.claim_allocator import ClaimAllocator, FindPool, HeldError
from devhost.errors import AllocationError
from devhost.model.limits import CLAIM_BYTES_MAX
from devhost.model.records import ClaimRecord, claim_id

_REFRESH_S: Final = 1.0  # to read what another instance has recorded
_SAVE_S: Final = 10.0
_FIRST_SCAN_S, _LOOK_S = 5.0, 0.05  # at most, and between two looks
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


class ClaimName(NamedTuple):
    """A claim as kubelet names it; its name may be that of another one later."""

    namespace: str
    name: str
    uid: str
    together: Collection[str] = ()  # the UIDs of those in the same call

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
        on_change: Called with a record that was kept or ended.
        unwritten: The IDs of records whose CDI file is not as they are.
    """

    def __init__(self, api: ApiClient, driver: str, pool_of: FindPool) -> None:
        self._api, self._driver, self._pool_of = api, driver, pool_of
        self.handlers: dict[str, ResourceHandler] = {}
        self._allocator = ClaimAllocator(pool_of, self.handlers, lambda: self._loaded)
        self.records: ClaimRecords | None = None
        self.conflict = asyncio.Event()
        self.on_change: Callable[[ClaimRecord], object] = id
        self.unwritten: set[str] = set()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()
        self._found_by = 0.0  # what there is, on the event loop's clock
        self._kind = claim_content.claim_kind(driver)

    def __iter__(self) -> Iterator[ClaimRecord]:
        """Yield the records of this driver."""
        return (record for record in self.all_drivers() if record.driver == self._driver)

    def are_offered(self) -> bool:
        """Whether DRA offers all resources of all claims here."""
        devices = (device for record in self.all_drivers() for device in record.devices)
        return all(self._pool_of(device.pool) is not None for device in devices)

    def of_resource(self, resource: str) -> list[ClaimRecord]:
        """Return the records with a device of a resource, also of claims being prepared."""
        return [record for record in self if resource in record.resources]

    async def begin(self, records: ClaimRecords) -> None:
        """Read the records, and write the CDI files of this boot, before anything is served."""
        while not await records.refresh(_SAVE_S):  # noqa: ASYNC110 (a disk has no event)
            await asyncio.sleep(_REFRESH_S)
        self.records = records
        self._found_by = asyncio.get_running_loop().time() + _FIRST_SCAN_S
        await self._restore_files(frozenset())
        records.file_checks.add(self._restore_files)

    async def _restore_files(self, names: AbstractSet[str]) -> None:
        """Write the CDI files of this boot that are not among those that there are."""
        missing = [
            record
            for record in self
            if record.entries
            and record.boot == self._loaded.boot  # of an earlier one, kubelet prepares all again
            and _file_name(self._driver, record.claim) not in names
        ]
        for record in missing:
            async with self._lock(record.claim):
                if record in self:
                    self.unwritten.add(record.id)
                    with contextlib.suppress(OSError):
                        await self._write_file(record)
        # Another instance that ends a claim ends the record before it removes the file.
        if missing and await self._loaded.refresh(_REFRESH_S):
            for record in missing:
                if record.id not in self._loaded.by_id:
                    await self._loaded.write_file(_file_name(self._driver, record.claim), None)

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
                record = await self._allocator.renew(record, self._loaded.boot, is_running=False)
            else:
                record = await self._complete(record)
            await self._keep(record)
        if record.pod:
            await self._refuse_clash(record, claim.together)
        return record

    async def _refuse_clash(self, record: ClaimRecord, together: Collection[str]) -> None:
        """Raise `AllocationError` where the pod of a record has another claim that clashes.

        Kubelet names together what is not prepared of a pod (k8s.io/kubernetes v1.37.1
        pkg/kubelet/cm/dra/manager.go, prepareResources).
        """
        for uid in together:
            async with self._lock(uid):  # until it is prepared, too
                pass
        for rival in self:
            reason = claim_content.clash(record, rival)
            if reason and (rival.claim in together or await self._may_use(record.pod, rival)):
                raise AllocationError(reason)

    async def _may_use(self, pod: str, record: ClaimRecord) -> bool:
        """Whether a pod may use a claim; not where the API server does not say."""
        with contextlib.suppress(ApiError), reading_answer():
            path = ClaimName(record.namespace, record.name, record.claim).path
            return pod in claim_content.pods(await self._api.call("GET", path))
        return False

    async def renew(self, record: ClaimRecord) -> None:
        """Write where the devices of a claim are now, if it is still prepared."""
        async with self._lock(record.claim):
            present = await self._find(record.claim)
            if present is not None and present.state == "completed":
                renewed = await self._allocator.renew(present, self._loaded.boot, is_running=True)
                if (
                    renewed != present or present.id in self.unwritten
                ):  # the disk may have been full
                    await self._keep(renewed)

    async def unprepare(self, uid: str) -> ClaimRecord | None:
        """End the record of a claim, and return it if there was one."""
        async with self._lock(uid):
            record = await self._find(uid)
            if record is not None:
                await self._drop(record)
            await self._loaded.write_file(_file_name(self._driver, uid), None)
            return record

    async def end(self, record: ClaimRecord) -> None:
        """End the record of a claim of any driver, which may not run any longer."""
        async with self._lock(record.claim):
            await self._drop(record)
            await self._loaded.write_file(_file_name(record.driver, record.claim), None)

    async def _drop(self, record: ClaimRecord) -> None:
        self.unwritten.discard(record.id)
        self._loaded.drop(record)
        self.on_change(record)
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
        self.on_change(record)
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
            pods = claim_content.pods(content) if claim_content.is_extended(content) else ()
        await self._wait_until_found({result.pool for results in groups for result in results})
        empty = ClaimRecord(
            claim=claim.uid,
            driver=self._driver,
            namespace=claim.namespace,
            name=claim.name,
            boot=self._loaded.boot,
            pod=next(iter(pods), ""),
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

    async def _wait_until_found(self, pools: Iterable[str]) -> None:
        """Wait, soon after the start, for devices that another instance has published already."""
        clock = asyncio.get_running_loop().time
        while clock() < self._found_by and not all(  # noqa: ASYNC110 (a scan has no event here)
            (pool := self._pool_of(name)) and pool.ids for name in pools
        ):
            await asyncio.sleep(_LOOK_S)

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

"""The claims of a node: prepared once, recorded, and answered from the record from then on.

Only where the nodes of its devices are is looked up again: `/dev/ttyUSB0` may be another stick by
now.
"""

import asyncio
import contextlib
from collections.abc import Collection, Iterable
from typing import NamedTuple
from urllib.parse import quote

from devhost.backends.backend import ClaimRecords, ResourceHandler
from devhost.backends.dra import claim_content
from devhost.backends.dra.api_client import ApiClient, ApiError, reading_answer
from devhost.backends.dra.claim_allocator import ClaimAllocator, FindPool, HeldError
from devhost.backends.dra.recorded_claims import SAVE_S, RecordedClaims, file_name
from devhost.errors import AllocationError
from devhost.model.limits import CLAIM_BYTES_MAX
from devhost.model.records import ClaimRecord

_FIRST_SCAN_S, _LOOK_S = 5.0, 0.05  # at most, and between two looks


class ClaimName(NamedTuple):
    """A claim as kubelet names it; its name may be that of another one later."""

    namespace: str
    name: str
    uid: str
    together: Collection[str] = ()  # the UIDs of those in the same call

    @classmethod
    def of(cls, record: ClaimRecord) -> "ClaimName":
        """Return the name of a claim that is recorded."""
        return cls(record.namespace, record.name, record.claim)

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
        conflict: Set when a claim was given what another one still has.
    """

    def __init__(self, api: ApiClient, driver: str, pool_of: FindPool) -> None:
        self._api, self._pool_of = api, pool_of
        self.handlers: dict[str, ResourceHandler] = {}
        self.records = RecordedClaims(driver)
        self._allocator = ClaimAllocator(pool_of, self.handlers, self.records)
        self.conflict = asyncio.Event()
        self._found_by = 0.0  # what there is, on the event loop's clock

    async def begin(self, table: ClaimRecords) -> None:
        """Read the records, before anything is served."""
        await self.records.begin(table)
        self._found_by = asyncio.get_running_loop().time() + _FIRST_SCAN_S

    def are_offered(self) -> bool:
        """Whether DRA offers all resources of all claims here."""
        devices = (device for record in self.records.of_all_drivers() for device in record.devices)
        return all(self._pool_of(device.pool) is not None for device in devices)

    async def prepare(self, claim: ClaimName) -> ClaimRecord:
        """Return what a claim was given; raise `AllocationError` or `ApiError` where it cannot be.

        A claim that is recorded needs no API server.
        """
        file_name(self.records.driver, claim.uid)  # which checks it
        async with self.records.lock(claim.uid):
            record = await self.records.find(claim.uid)
            if record is not None and self._allocator.is_outdated(record):
                await self.records.drop(record)
                record = None
            record = record or await self._reserve(claim)
            if record.state == "completed":
                record = await self._allocator.renew(record, is_running=False)
            else:
                record = await self._complete(record)
            await self.records.keep(record)
        if record.pod:
            await self._refuse_clash(record, claim.together)
        return record

    async def _refuse_clash(self, record: ClaimRecord, together: Collection[str]) -> None:
        """Raise `AllocationError` where the pod of a record has another claim that clashes.

        Kubelet names together what is not prepared of a pod (k8s.io/kubernetes v1.37.1
        pkg/kubelet/cm/dra/manager.go, prepareResources).
        """
        for uid in together:
            async with self.records.lock(uid):  # until it is prepared, too
                pass
        for rival in self.records:
            reason = claim_content.clash(record, rival)
            if reason and (rival.claim in together or await self._may_use(record.pod, rival)):
                raise AllocationError(reason)

    async def _may_use(self, pod: str, record: ClaimRecord) -> bool:
        """Whether a pod may use a claim; not where the API server does not say."""
        with contextlib.suppress(ApiError), reading_answer():
            content = await self._api.call("GET", ClaimName.of(record).path)
            return pod in claim_content.pods(content)
        return False

    async def renew(self, record: ClaimRecord) -> None:
        """Write where the devices of a claim are now, if it is still prepared."""
        records = self.records
        async with records.lock(record.claim):
            present = await records.find(record.claim)
            if present is not None and present.state == "completed":
                renewed = await self._allocator.renew(present, is_running=True)
                if renewed != present or present.id in records.unwritten:  # the disk was full
                    await records.keep(renewed)

    async def unprepare(self, uid: str) -> ClaimRecord | None:
        """End the record of a claim, and return it if there was one."""
        async with self.records.lock(uid):
            record = await self.records.find(uid)
            if record is not None:
                await self.records.drop(record)
            await self.records.remove_file(uid)
            return record

    async def end(self, record: ClaimRecord) -> None:
        """End the record of a claim of any driver, which may not run any longer."""
        async with self.records.lock(record.claim):
            await self.records.drop(record)
            await self.records.remove_file(record.claim, record.driver)

    async def _reserve(self, claim: ClaimName) -> ClaimRecord:
        """Reserve what the scheduler has given a claim; return the record."""
        content, records = await self._api.call("GET", claim.path), self.records
        with reading_answer():
            if content["metadata"]["uid"] != claim.uid:
                raise AllocationError(f"{claim.shown} is another claim now")
            groups = claim_content.scopes(content, records.driver)
            pods = claim_content.pods(content) if claim_content.is_extended(content) else ()
        await self._wait_until_found({result.pool for results in groups for result in results})
        empty = ClaimRecord(
            claim=claim.uid,
            driver=records.driver,
            namespace=claim.namespace,
            name=claim.name,
            boot=records.table.boot,
            pod=next(iter(pods), ""),
            state="started",
            devices=[],
        )
        chosen: list[ClaimRecord] = []

        def choose() -> ClaimRecord:
            recorded = records.table.by_id.get(empty.id)
            if recorded is not None and recorded not in chosen:
                return recorded  # another instance has begun to prepare it
            chosen[:] = [self._allocator.choose(empty, groups)]
            return chosen[0]

        try:
            # Before it is reserved, it is seen that its containers would get it.
            planned = self._allocator.choose(empty, groups)
            _check_size(await self._allocator.complete(planned, run_steps=False))
            return await records.table.reserve(choose, SAVE_S)
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
        table = self.records.table
        await table.save(record, SAVE_S)  # before a step runs
        record = record.model_copy(update={"boot": table.boot})
        record = await self._allocator.complete(record, run_steps=True)
        _check_size(record)
        return record


def _check_size(record: ClaimRecord) -> None:
    """Raise `AllocationError` if a record is larger than one may be."""
    if (size := len(record.model_dump_json())) > CLAIM_BYTES_MAX:
        most = f"at most {CLAIM_BYTES_MAX >> 10} KiB"
        raise AllocationError(
            f"claim {record.shown}: what its containers would get takes {size >> 10} KiB: {most}"
        )

"""The records of claims, and the CDI files that say the same to a container runtime.

A record holds what the containers of the claim's pods get; an edit of the configuration does not
change it. A CDI file that a container restarts with asks nobody, so it is written again, by the
same names, at each prepare, when the process starts, and when it was removed.
"""

import asyncio
import contextlib
import re
import weakref
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import Final

from devhost.allocation import cdi
from devhost.backends.backend import ClaimRecords
from devhost.backends.dra.claim_content import claim_kind
from devhost.errors import AllocationError
from devhost.model.records import ClaimRecord, claim_id

_REFRESH_S: Final = 1.0  # to read what another instance has recorded
SAVE_S: Final = 10.0
_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")


class RecordedClaims:
    """The records of claims on this node, and the CDI files of those of one driver.

    Attributes:
        kind: The ``vendor/class`` of its CDI specs.
        on_change: Called with a record that was kept or ended.
        unwritten: The IDs of records whose CDI file is not as they are.
    """

    def __init__(self, driver: str) -> None:
        self.driver, self.kind = driver, claim_kind(driver)
        self._table: ClaimRecords | None = None
        self.on_change: Callable[[ClaimRecord], object] = id
        self.unwritten: set[str] = set()
        self._locks: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    @property
    def table(self) -> ClaimRecords:
        """The records with those who keep them; until they have been read, nothing is prepared."""
        if self._table is None:
            raise AllocationError("the records of claims are not read yet")
        return self._table

    def of_all_drivers(self) -> tuple[ClaimRecord, ...]:
        """Return the records of all drivers; none before they have been read."""
        return tuple(self._table.by_id.values()) if self._table is not None else ()

    def __iter__(self) -> Iterator[ClaimRecord]:
        """Yield the records of this driver."""
        return (record for record in self.of_all_drivers() if record.driver == self.driver)

    def of_resource(self, resource: str) -> list[ClaimRecord]:
        """Return the records with a device of a resource, also of claims being prepared."""
        return [record for record in self if resource in record.resources]

    def lock(self, uid: str) -> asyncio.Lock:
        """Return the lock of a claim: it is prepared, renewed and ended at one time."""
        return self._locks.setdefault(uid, asyncio.Lock())

    async def begin(self, table: ClaimRecords) -> None:
        """Read the records, and write the CDI files of this boot, before anything is served."""
        while not await table.refresh(SAVE_S):  # noqa: ASYNC110 (a disk has no event)
            await asyncio.sleep(_REFRESH_S)
        self._table = table
        await self._restore_files(frozenset())
        table.file_checks.add(self._restore_files)

    async def _restore_files(self, names: AbstractSet[str]) -> None:
        """Write the CDI files of this boot that are not among those that there are."""
        missing = [
            record
            for record in self
            if record.entries
            and record.boot == self.table.boot  # of an earlier one, kubelet prepares all again
            and file_name(self.driver, record.claim) not in names
        ]
        for record in missing:
            async with self.lock(record.claim):
                if record in self:
                    self.unwritten.add(record.id)
                    with contextlib.suppress(OSError):
                        await self._write_file(record)
        # Another instance that ends a claim ends the record before it removes the file.
        if missing and await self.table.refresh(_REFRESH_S):
            for record in missing:
                if record.id not in self.table.by_id:
                    await self.remove_file(record.claim)

    async def find(self, uid: str) -> ClaimRecord | None:
        """Return the record of a claim, also one that another instance has just made."""
        record_id = claim_id(self.driver, uid)
        if record_id not in self.table.by_id:
            await self.table.refresh(_REFRESH_S)
        return self.table.by_id.get(record_id)

    async def keep(self, record: ClaimRecord) -> None:
        """Save a record, then write its CDI file; if that fails, a scan has it done again."""
        self.unwritten.add(record.id)
        await self.table.save(record, SAVE_S)
        self.on_change(record)
        await self._write_file(record)

    async def drop(self, record: ClaimRecord) -> None:
        """End a record; its CDI file stays."""
        self.unwritten.discard(record.id)
        self.table.drop(record)
        self.on_change(record)
        await self.table.refresh(_REFRESH_S)  # which writes what has changed

    async def _write_file(self, record: ClaimRecord) -> None:
        content = cdi.serialize_spec(cdi.spec_of(self.kind, record.entries))
        await self.table.write_file(file_name(self.driver, record.claim), content)
        self.unwritten.discard(record.id)

    async def remove_file(self, uid: str, driver: str | None = None) -> None:
        """Remove the CDI file of a claim, of this driver or another one."""
        await self.table.write_file(file_name(driver or self.driver, uid), None)


def file_name(driver: str, uid: str) -> str:
    """Return the name of a claim's CDI file, or raise `AllocationError` if that is no UID."""
    if not _UID.fullmatch(uid):
        raise AllocationError(f"{uid!r} is no UID of a claim")
    return f"{driver}-claim_{uid}.json"

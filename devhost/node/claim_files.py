"""The records of claims and their CDI files, for a backend that prepares claims."""

import functools
from collections.abc import Callable, Mapping, Sequence

from devhost.errors import AllocationError
from devhost.model.advertised import OfferedId
from devhost.model.claim_record import ClaimRecord
from devhost.node.cdi_files import CdiFiles
from devhost.node.handout_file import HandoutFile
from devhost.node.handouts import Record
from devhost.node.holders import Holders
from devhost.watch.threads import PATIENCE_S, BlockingCalls


class ClaimFiles:
    """Keeps records in the state file (`devhost.backends.backend.ClaimRecords`)."""

    def __init__(self, handouts: HandoutFile, holders: Holders, cdi_files: CdiFiles) -> None:
        self._handouts, self._holders, self._cdi_files = handouts, holders, cdi_files
        self.boot = handouts.table.boot
        # One at a time: a write that is late must not undo a later one.
        self._calls = BlockingCalls("claims", cdi_files.directory, serial=True)

    @property
    def by_id(self) -> Mapping[str, ClaimRecord]:
        """The records, also those that other instances have made."""
        return self._handouts.table.claims

    async def refresh(self, within: float) -> bool:
        """Read what other instances have written; return whether that was done in this time."""
        return await self._handouts.sync(within) is None

    async def reserve(
        self, choose: Callable[[Sequence[Record]], ClaimRecord], within: float
    ) -> ClaimRecord:
        """Keep a record that is chosen beside those that others have just made."""
        record = choose(())
        problem = await self._handouts.save_claim(record, within, lambda news: [choose(news)])
        if problem:
            raise AllocationError(f"claim {record.shown}: cannot be recorded: {problem}")
        return self.by_id[record.id]

    async def save(self, record: ClaimRecord, within: float) -> None:
        """Keep a record, or raise `AllocationError` if it is not written in so many seconds."""
        if record in self._handouts.table and self._handouts.is_saved(record):
            return
        if problem := await self._handouts.save_claim(record, within):
            raise AllocationError(f"claim {record.shown}: cannot be recorded: {problem}")

    def drop(self, record: ClaimRecord) -> None:
        """End a record."""
        self._handouts.set({record.key: None})
        self._handouts.on_read([record])  # what was withheld for it is free

    def confirmed_free(self, resource: str, offered: OfferedId, since: float) -> bool:
        """Whether no pod has a device, by two lists requested since a moment."""
        return self._holders.confirmed_free(offered.name(resource), since, offered)

    async def write_file(self, name: str, content: bytes | None) -> None:
        """Write a CDI file, or remove it; raise `OSError` if that fails."""
        work = functools.partial(self._cdi_files.write, name, content)
        await self._calls.run(work, patience=PATIENCE_S)

"""The records of claims and their CDI files, for a backend that prepares claims."""

import functools
from collections.abc import Callable, Mapping

from devhost.backends.share_ids import offered_id
from devhost.custody.holders import Holders
from devhost.custody.record_files import RecordFiles
from devhost.errors import AllocationError
from devhost.model.advertised import OfferedId
from devhost.model.records import ClaimedDevice, ClaimRecord, RecordedNodes
from devhost.node.cdi_files import CdiFiles
from devhost.watch.threads import PATIENCE_S, BlockingCalls


class ClaimFiles:
    """Keeps records in the state directory (`devhost.backends.backend.ClaimRecords`)."""

    def __init__(self, files: RecordFiles, holders: Holders, cdi_files: CdiFiles) -> None:
        self._files, self._holders, self._cdi_files = files, holders, cdi_files
        self.boot, self.file_checks = files.table.boot, cdi_files.checks
        # One at a time: a write that is late must not undo a later one.
        self._calls = BlockingCalls("claims", cdi_files.directory, serial=True)

    @property
    def by_id(self) -> Mapping[str, ClaimRecord]:
        """The records, also those that other instances have made."""
        return self._files.table.claims

    async def refresh(self, within: float) -> bool:
        """Read what other instances have written; return whether that was done in this time."""
        return await self._files.sync(within) is None

    async def reserve(self, choose: Callable[[], ClaimRecord], within: float) -> ClaimRecord:
        """Keep the record that is chosen beside all others, also those just made elsewhere."""
        # It may have a pod, if its record was lost; no list before tells of a device just found.
        await self._holders.refresh()
        return await self._give(choose, within)

    async def _give(self, choose: Callable[[], ClaimRecord], within: float) -> ClaimRecord:
        record: ClaimRecord

        def check() -> list[ClaimRecord]:
            nonlocal record
            record = choose()
            return [record]

        if problem := await self._files.give(check, within):
            raise AllocationError(f"claim {record.shown}: cannot be recorded: {problem}")
        return record

    async def save(self, record: ClaimRecord, within: float) -> None:
        """Keep a record."""
        if record not in self._files.table or not self._files.is_saved(record):
            await self._give(lambda: record, within)

    def drop(self, record: ClaimRecord) -> None:
        """End a record."""
        self._files.set({record.key: None})
        self._files.on_change([record])  # what was withheld for it is free

    def find_rival(
        self, record: ClaimRecord, device: ClaimedDevice, nodes: RecordedNodes
    ) -> str | None:
        """Return who else has a node of a device in this boot, and may not share it."""
        index, name = self._files.table.index, offered_id(device.id).name(device.resource)
        for key in {key for node in nodes for key in node.id.keys}:
            for holding in index.by_node.get(key, ()):
                is_own = (holding.name, holding.driver) == (name, record.driver)
                # Of an earlier boot, a claim has none, but a pod of a device plugin starts again.
                has_now = not holding.claim or any(n.boot == self.boot for n in holding.nodes)
                if has_now and not (is_own or holding.overlap or device.overlap):
                    return str(holding)
        return None

    def confirmed_free(self, resource: str, offered: OfferedId, since: float) -> bool:
        """Whether no pod has a device, by two lists requested since a moment."""
        return self._holders.confirmed_free(offered.name(resource), since, offered)

    async def write_file(self, name: str, content: bytes | None) -> None:
        """Write a CDI file, or remove it; raise `OSError` if that fails."""
        work = functools.partial(self._cdi_files.write, name, content)
        await self._calls.run(work, patience=PATIENCE_S)

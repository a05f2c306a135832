"""The records of what pods were given, which all instances on the machine keep in files.

What is given is written under the lock of the state directory, after what other instances have
given was read, and after a check beside that (`devhost.custody.record_store`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devhost.backends.resource_lock import LockState
from devhost.custody.record_store import Records, RecordStore, find_changes
from devhost.custody.record_table import RecordTable
from devhost.custody.state_dir import CLOSE_S, SUBDIRECTORIES, log_transition
from devhost.errors import AllocationError
from devhost.model.records import Changes, ClaimRecord, Handout, Record
from devhost.watch.threads import PATIENCE_S, call_on_loop, run_in_thread
from devhost.watch.watcher import Watcher, follow_directory

NO_ANSWER: Final = "the state directory does not answer"
_LOG: Final = logging.getLogger(__name__)

ChooseRecords = Callable[[], Sequence[Record]]
"""Return what may be given beside what is in the table, or raise `AllocationError`."""


@dataclass(eq=False, slots=True)
class _Gift:
    """Records to be given, in the table already; they are checked again before they are written."""

    table: RecordTable
    check: ChooseRecords
    records: Sequence[Record] = ()
    former: Changes = field(default_factory=dict)  # what the table had instead of them
    refusal: AllocationError | None = None
    is_late: bool = False  # the pod has them, because the disk was slow

    def choose(self) -> None:
        """Set what the check returns now, or raise `AllocationError`."""
        records = self.check()
        if list(records) != list(self.records):
            self._undo()
            self.former = {record.key: self.table.get(record.key) for record in records}
            self.records = records
            self.table.apply({record.key: record for record in records})

    def _undo(self) -> None:
        keys = (record.key for record in self.records if self.table.get(record.key) is record)
        self.table.apply({key: self.former[key] for key in keys})

    def recheck(self) -> None:
        """Choose again, beside what others have given meanwhile; a refusal undoes it."""
        if self.refusal is None:
            try:
                self.choose()
            except AllocationError as error:
                if self.is_late:
                    _LOG.error("%s: it was given all the same, as the disk was slow", error)
                else:
                    self.refusal = error
                    self._undo()

    def undo_unwritten(self, unwritten: Iterable[Record]) -> None:
        """Undo what must not be in force before it is written."""
        undone = (record.key for record in unwritten if self._is_undone(record))
        self.table.apply({key: self.former[key] for key in undone})

    def _is_undone(self, record: Record) -> bool:
        former = self.former[record.key]
        if isinstance(record, ClaimRecord):
            return former is None and not self.is_late  # it may be unprepared by another instance
        replaces_steps = isinstance(former, Handout) and former.steps not in ("none", record.steps)
        return record.steps != "none" and (replaces_steps or not self.is_late)


class RecordFiles:
    """The records in the state directory, and the table of them.

    All methods belong to the event loop. `lock_of` returns who has a resource's lock; it blocks.
    """

    def __init__(self, state_dir: Path | None, lock_of: Callable[[str], LockState]) -> None:
        self.table = RecordTable(boot_id())
        self._store = RecordStore(state_dir, lock_of) if state_dir is not None else None
        # Gets the records that another instance has made or ended.
        self.on_change: Callable[[Sequence[Record]], object] = len
        self.problem: str | None = None  # why the state directory does not have the records
        self.damage: str | None = None  # what has become of a file that was damaged
        self._gifts: list[_Gift] = []
        self._turn = asyncio.Lock()  # to write and read
        self._running: asyncio.Task[str | None] | None = None  # the attempt that has the turn
        self._next: asyncio.Task[str | None] | None = None  # the attempt that waits for it

    def may_hold(self, resource: str, advertised_id: str) -> bool:
        """Whether a pod may have an ID by a device plugin: it is recorded, or records are lost."""
        was_kept = self._store is not None and self._store.was_kept
        is_lost = not was_kept or self.problem is not None or self.damage is not None
        return is_lost or self.table.find((resource, advertised_id)) is not None

    def is_saved(self, record: Record) -> bool:
        """Whether the state directory, if there is one, has a record."""
        return self._store is None or self._store.records.get(record.key) == record

    def read_problem(self, resource: str) -> str | None:
        """Return why the records of a resource cannot be read."""
        return self._store.read_problem(resource) if self._store is not None else None

    def set(self, changes: Changes) -> None:
        """Set and end records; they are written soon."""
        if changes:
            self.table.apply(changes)
            self.sync_soon()

    async def give(self, check: ChooseRecords, within: float) -> str | None:
        """Set what a check returns, and write it; return why it is not written in so many seconds.

        The check is made now and once more before it is written, beside what other instances have
        given meanwhile. What is not written in time is written later. A new claim, or a handout
        with steps, that could not be written is as it was; if the disk is merely slow, only a
        handout that replaces other steps: those of a former pod must not be what the next process
        finds.

        Raises:
            AllocationError: The check refuses it; then nothing is written.
        """
        gift = _Gift(self.table, check)
        gift.choose()
        if self._store is not None:
            self._gifts.append(gift)
        problem = await self.sync(within)
        if gift.refusal is not None:
            raise gift.refusal
        late = [record for record in gift.records if not self.is_saved(record)]
        if not late:
            return None
        gift.is_late = problem == NO_ANSWER
        gift.undo_unwritten(late)
        return problem or self.problem or NO_ANSWER

    def sync_soon(self) -> None:
        """Write, soon, what has changed, and read what other instances have recorded."""
        if self._store is not None and (self._next is None or self._next.done()):
            self._next = asyncio.create_task(self._attempt(self._store), name="state")

    async def sync(self, within: float) -> str | None:
        """Write what has changed and read what others have written, in so many seconds.

        Returns why the files could not be read: `NO_ANSWER`, or an error.
        """
        self.sync_soon()
        if (attempt := self._next) is None:
            return None
        done, _ = await asyncio.wait({attempt}, timeout=within)
        return attempt.result() if done else NO_ANSWER

    async def flush(self) -> None:
        """Write what has changed, at most `CLOSE_S`."""
        await self.sync(CLOSE_S)

    async def follow(self, watcher: Watcher) -> None:
        """Read the files when others may have changed them, until cancelled."""
        if self._store is not None:
            where = self._store.directory, SUBDIRECTORIES
            async for _ in follow_directory(watcher, *where, required=False):
                self.sync_soon()

    async def close(self) -> None:
        """Write what has changed, and nothing more."""
        await self.flush()
        for attempt in filter(None, (self._running, self._next)):
            attempt.cancel()

    # ── an attempt to write and read ──

    async def _attempt(self, store: RecordStore) -> str | None:
        """Write and read after the former attempt; return why the files could not be read."""
        loop, path = asyncio.get_running_loop(), store.directory
        late = loop.call_later(PATIENCE_S, self._report, f"{path}: no answer in {PATIENCE_S:g} s")
        try:
            async with self._turn:
                self._running, self._next = self._next, None
                await self._update(store)
        except OSError as error:
            self._report(f"{path}: {error.strerror or NO_ANSWER}")
            return self.problem
        finally:
            late.cancel()
        return None

    async def _update(self, store: RecordStore) -> None:
        loop, path = asyncio.get_running_loop(), store.directory
        gifts, self._gifts = self._gifts, []

        def recheck() -> Records:
            for gift in gifts:
                gift.recheck()
            return self.table.snapshot()

        # What others have given may have been read since the first check.
        current, last = recheck(), store.records

        def merge(changes: Changes) -> Records:
            self._merge(changes, last)
            return recheck()

        outcome = await run_in_thread(
            "state",
            lambda: store.update(
                current, lambda changes: call_on_loop(loop, lambda: merge(changes))
            ),
        )
        changes = find_changes(outcome.current, store.records)
        taken = changes.keys() - outcome.unwritten
        self._merge({key: changes[key] for key in taken}, outcome.current)
        self.damage = outcome.damage or self.damage
        self._report(f"{path}: {outcome.failure.strerror}" if outcome.failure else None)

    def _merge(self, changes: Changes, before: Records) -> None:
        """Take over what others have changed, but for what has changed here since, too."""
        now = {key: self.table.get(key) for key in changes}
        taken = {key: record for key, record in changes.items() if now[key] == before.get(key)}
        self.table.apply(taken)
        if taken:
            changed = (record or now[key] for key, record in taken.items())
            self.on_change([record for record in changed if record is not None])

    def _report(self, problem: str | None) -> None:
        self.problem = log_transition("allocated devices", self.problem, problem)


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a number may be taken for that of an earlier boot

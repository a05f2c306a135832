"""The files of the state directory with the records of what pods and claims were given.

There is one for each resource, written by the instance that has its lock, and one for each claim,
written by the instance that is asked to prepare it; the others read. What is given is written under
the lock of the directory, after what others have changed was read. What is not in a file has ended:
nobody but its owner writes it again, and that only where it was lost. What a newer version has
written is kept.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from devhost.backends.backend import LockState
from devhost.errors import AllocationError
from devhost.model.claim_record import CLAIM, ClaimRecord
from devhost.node.handouts import Changes, Foreign, Handout, HandoutKey, HandoutTable, Record
from devhost.node.state_dir import (
    CLOSE_S,
    directory_lock,
    log_transition,
    move_aside,
    read_state,
    write_atomically,
)
from devhost.watch.inotify import Subscription, Watcher, WatchTarget
from devhost.watch.threads import PATIENCE_S, run_in_thread

RECORDS, CLAIMS = "records", "claims"
POLL_S: Final = 5.0  # in addition to the watch, which may miss something
NO_ANSWER: Final = "the state directory does not answer"
_NAME_MAX: Final = 200  # of a file, without its end
_LOG: Final = logging.getLogger(__name__)

Check = Callable[[Sequence[Record]], Sequence[Record]]
"""Return what may be given beside what others have given meanwhile, or raise `AllocationError`."""


@dataclass(eq=False, slots=True)
class _Give:
    """Records that are to be written if a check allows it."""

    records: Sequence[Record]
    check: Check
    former: Changes
    seen: Mapping[HandoutKey, Record]  # what the check has allowed them beside
    refusal: AllocationError | None = None
    is_late: bool = False  # the caller does not wait any longer


class HandoutFile:
    """The records in the state directory, and the table of them.

    All methods belong to the event loop. `lock_of` returns who has a resource's lock; it blocks.

    Attributes:
        on_read: Called with the records that another instance has made or ended.
        problem: Why the state directory does not have the records.
        damage: What has become of a file that was damaged.
    """

    def __init__(self, state_dir: Path | None, lock_of: Callable[[str], LockState]) -> None:
        self.table, self._lock_of = HandoutTable(boot_id()), lock_of
        self.on_read: Callable[[list[Record]], object] = len
        self.problem: str | None = None
        self.damage: str | None = None
        self._path = state_dir
        self._gives: list[_Give] = []
        self._files = _Files()  # as they were read or written last
        self._running: asyncio.Task[str | None] | None = None  # the last attempt to write and read
        self._next: asyncio.Task[str | None] | None = None  # an attempt that has not begun

    def is_saved(self, record: Record) -> bool:
        """Whether the state directory, if there is one, has a record."""
        return self._path is None or self._files.records.get(record.key) == record

    def set(self, changes: Changes) -> None:
        """Set and end records; they are written soon."""
        if changes:
            self.table.apply(changes)
            self.sync_soon()

    async def save(
        self, handouts: Iterable[Handout], within: float, check: Check | None = None
    ) -> str | None:
        """Set handouts, and write them in so many seconds; return why they are not written.

        One with steps that could not be written is as it was. If the disk is merely slow, one that
        replaces no other steps is written later, as nodes always are: the steps of a former pod
        must not be what the next process finds.

        Raises:
            AllocationError: The check has refused them: then nothing is written.
        """
        changes = {handout.key: handout for handout in handouts}
        former = {key: self.table.find(key) for key in changes}
        problem = await self._give(changes, former, within, check)
        late = [handout for handout in changes.values() if not self.is_saved(handout)]
        if not late:
            return None
        undone = {
            handout.key: former.get(handout.key)
            for handout in late
            if handout.steps != "none"
            and (problem != NO_ANSWER or _replaces_steps(former.get(handout.key), handout))
        }
        self.table.apply(undone)
        return problem or self.problem

    async def save_claim(
        self, claim: ClaimRecord, within: float, check: Check | None = None
    ) -> str | None:
        """Set a claim, and write it in so many seconds; return why it is not written yet.

        The table has what the check has chosen instead.
        """
        former: Changes = {claim.key: self.table.claims.get(claim.id)}
        problem = await self._give({claim.key: claim}, former, within, check)
        chosen = self.table.claims.get(claim.id)
        is_saved = chosen is not None and self.is_saved(chosen)
        return None if is_saved else problem or self.problem or NO_ANSWER

    async def _give(
        self,
        changes: Mapping[HandoutKey, Record],
        former: Changes,
        within: float,
        check: Check | None,
    ) -> str | None:
        """Set records, and write them if what others have given meanwhile allows it."""
        give = None
        if check is not None and self._path is not None:
            give = _Give([*changes.values()], check, former, self.table.snapshot())
            self._gives.append(give)
        self.set(changes)
        problem = await self.sync(within)
        if give is None:
            return problem
        if give.refusal is not None:
            raise give.refusal
        give.is_late = problem is not None
        if give in self._gives:
            self._gives.remove(give)
        return problem

    def sync_soon(self) -> None:
        """Write, soon, what has changed, and read what other instances have recorded."""
        if self._path is not None and (self._next is None or self._next.done()):
            work = self._attempt(self._path, self._running)
            self._next = asyncio.create_task(work, name="state")

    async def sync(self, within: float) -> str | None:
        """Write what has changed and read what others have written, in so many seconds.

        Returns why the files could not be read: `NO_ANSWER`, or an error.
        """
        self.sync_soon()
        if (attempt := self._next) is None:
            return None
        done, _ = await asyncio.wait({attempt}, timeout=within)
        return attempt.result() if done else NO_ANSWER

    async def follow(self, watcher: Watcher) -> None:
        """Read the files when they may have changed, until cancelled."""
        subscription = Subscription(watcher, self.sync_soon)
        try:
            while (path := self._path) is not None:
                targets = (str(path), str(path / RECORDS), str(path / CLAIMS))
                await subscription.watch(frozenset(map(WatchTarget, targets)))
                self.sync_soon()
                await asyncio.sleep(POLL_S)
        finally:
            subscription.close()

    async def close(self) -> None:
        """Write what has changed, at most `CLOSE_S`, and nothing more."""
        if self.table.snapshot() != self._files.records:
            await self.sync(CLOSE_S)
        for attempt in filter(None, (self._running, self._next)):
            attempt.cancel()

    async def _attempt(self, path: Path, former: "asyncio.Task[str | None] | None") -> str | None:
        """Write and read after the former attempt; return why the files could not be read."""
        late = asyncio.get_running_loop().call_later(
            PATIENCE_S, self._report, f"{path}: no answer in {PATIENCE_S:g} s"
        )
        try:
            if former is not None:
                await asyncio.wait({former})
            self._running, self._next = self._next, None
            known, last = self.table.snapshot(), self._files
            gives, self._gives = self._gives, []
            files = await run_in_thread(
                "state", lambda: _update(path, known, gives, last, self._lock_of)
            )
        except OSError as error:
            self._report(f"{path}: {error.strerror}")
            return self.problem
        finally:
            late.cancel()
        self._files = files
        kept = dict(files.unwritten)
        for give in filter(lambda give: give.refusal, gives):
            if give.is_late:
                kept |= {record.key: record for record in give.records}
                _LOG.error("%s: it was given all the same, as the disk was slow", give.refusal)
                self.sync_soon()
            else:
                self.table.apply(
                    {one.key: give.former[one.key] for one in give.records if one in self.table}
                )
        self._merge({**files.records, **kept}, known)
        self.damage = files.damage or self.damage
        self._report(f"{path}: {files.failure.strerror}" if files.failure else None)
        return None

    def _merge(self, read: Mapping[HandoutKey, Record], known: Mapping[HandoutKey, Record]) -> None:
        """Take over what is in the files, but for what has changed since it was known."""
        now = self.table.snapshot()
        changes: dict[HandoutKey, Record | None] = {
            key: read.get(key)
            for key in now.keys() | read.keys()
            if now.get(key) is known.get(key) and _differ(read.get(key), now.get(key))
        }
        self.table.apply(changes)
        if changes:
            made = (read.get(key) or now[key] for key in changes)
            self.on_read([*made])

    def _report(self, problem: str | None) -> None:
        self.problem = log_transition("allocated devices", self.problem, problem)


def _differ(record: Record | None, other: Record | None) -> bool:
    return record is not other and record != other  # mostly it is the same: the former is quicker


def _replaces_steps(former: Handout | None, handout: Handout) -> bool:
    return former is not None and former.steps not in ("none", handout.steps)


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a number may be taken for that of an earlier boot


def file_of(key: HandoutKey) -> str:
    """Return the name of the file, below the state directory, that has a record."""
    kind, name = key
    if kind == CLAIM:
        return f"{CLAIMS}/{name.replace(' ', '_')}.json"
    name = str(kind).replace("/", "_")
    if len(name) > _NAME_MAX:
        name = f"{name[:_NAME_MAX]}-{hashlib.sha256(str(kind).encode()).hexdigest()[:12]}"
    return f"{RECORDS}/{name}.json"


# ── in a thread ──

_Stamp = tuple[int, ...]


class _Content(NamedTuple):
    """A file: its entries, and what differs from one file to the next."""

    entries: Mapping[HandoutKey, Record | Foreign]
    stamp: _Stamp
    damage: str | None = None


class _Files(NamedTuple):
    """All files: by name, and which directories they are in.

    Attributes:
        unwritten: The records that could not be written, because of the failure.
        records: Those of all files.
    """

    content: Mapping[str, _Content] = {}
    records: Mapping[HandoutKey, Record] = {}
    directories: Mapping[str, _Stamp | None] = {}
    damage: str | None = None
    failure: OSError | None = None
    unwritten: Mapping[HandoutKey, Record] = {}


def _records(content: Mapping[str, _Content]) -> dict[HandoutKey, Record]:
    return {
        key: entry
        for one in content.values()
        for key, entry in one.entries.items()
        if isinstance(entry, Record)
    }


_CONTENT: Final = TypeAdapter(
    list[Annotated[Handout | ClaimRecord | Foreign, Field(union_mode="left_to_right")]]
)


def _update(
    path: Path,
    known: Mapping[HandoutKey, Record],
    gives: Sequence[_Give],
    last: _Files,
    lock_of: Callable[[str], LockState],
) -> _Files:
    """Write what this process has changed, and what was lost; return the content of all files.

    `known` are its records, and `last` the files as it has read or written them.
    """
    changes: dict[HandoutKey, Record | None] = {
        key: known.get(key)
        for key in known.keys() | last.records.keys()
        if _differ(known.get(key), last.records.get(key))
    }
    files, damaged = last, dict[str, str]()
    if not any(changes.values()):
        files = _read_all(path, last)
        damaged = _damaged(files)
        is_lost = damaged or _lost(files, known, last, lock_of, ())
        if not is_lost and not (changes and path.exists()):
            return files
    with directory_lock(path):
        files = _read_all(path, files)
        if damaged := damaged | _damaged(files):
            files = _without_damaged(path, files, damaged)
        for give in gives:
            _decide(give, files.records, changes)
        lost = _lost(files, known, last, lock_of, damaged)
        return _write(path, files, {**lost, **changes}, last, lock_of, lost)


def _decide(
    give: _Give,
    records: Mapping[HandoutKey, Record],
    changes: dict[HandoutKey, Record | None],
) -> None:
    """Let a check see what others have given; take from the changes what it refuses."""
    news = [one for key, one in records.items() if give.seen.get(key) != one]
    if not news:
        return
    try:
        changes.update({record.key: record for record in give.check(news)})
    except AllocationError as error:
        give.refusal = error
        for record in give.records:
            changes.pop(record.key, None)


def _lost(
    files: _Files,
    known: Mapping[HandoutKey, Record],
    last: _Files,
    lock_of: Callable[[str], LockState],
    damaged: Container[str],
) -> dict[HandoutKey, Record]:
    """Return the records that are in no file, but were not ended.

    A file was damaged, or is missing that only this process writes, or the whole directory is
    another one. Whether the steps are done cannot be told.
    """
    lost = dict[HandoutKey, Record]()
    for key in known.keys() & last.records.keys() - files.records.keys():
        record, name = known[key], file_of(key)
        directory = name.partition("/")[0]
        is_lost = last.directories.get(directory) != files.directories.get(directory)
        owner = lock_of(record.resource) if isinstance(record, Handout) else "free"
        if owner == "ours" or (owner == "free" and (is_lost or name in damaged)):
            lost[key] = record.with_steps("none") if isinstance(record, Handout) else record
    return lost


def _write(
    path: Path,
    files: _Files,
    changes: Changes,
    last: _Files,
    lock_of: Callable[[str], LockState],
    lost: Mapping[HandoutKey, Record],
) -> _Files:
    """Change files that this process may write, each as a whole."""
    content, unwritten, failure = dict(files.content), dict[HandoutKey, Record](), None
    by_file: dict[str, dict[HandoutKey, Record | None]] = {}
    for key, record in changes.items():
        owner = lock_of(str(key[0])) if key[0] != CLAIM else "free"
        is_as_it_was = files.records.get(key) == last.records.get(key)
        if owner == "ours" or key in lost or (owner == "free" and is_as_it_was):
            by_file.setdefault(file_of(key), {})[key] = record
    for name, changed in by_file.items():
        before = content[name].entries if name in content else {}
        entries = {key: entry for key, entry in {**before, **changed}.items() if entry is not None}
        try:
            if entries and entries != before:
                (path / name).parent.mkdir(exist_ok=True)
                write_atomically(path / name, _CONTENT.dump_json([*entries.values()], indent=1))
                content[name] = _Content(entries, _stamp((path / name).stat()))
            elif not entries:
                (path / name).unlink(missing_ok=True)
                content.pop(name, None)
        except OSError as error:
            failure = error
            unwritten |= {key: one for key, one in changed.items() if one is not None}
    if lost and not failure:
        _LOG.warning("%s had lost %d allocated devices: they are written again", path, len(lost))
    directories = {name: _directory(path / name) for name in (RECORDS, CLAIMS)}
    records = _records(content) if by_file else files.records
    return _Files(content, records, directories, files.damage, failure, unwritten)


def _damaged(files: _Files) -> dict[str, str]:
    return {name: one.damage for name, one in files.content.items() if one.damage}


def _read_all(path: Path, last: _Files) -> _Files:
    """Return the content of all files; those that are as they were are not read again."""
    content, is_new = dict[str, _Content](), False
    for directory in (RECORDS, CLAIMS):
        for name, stamp in _listed(path, directory):
            known = last.content.get(name)
            if known is not None and known.stamp == stamp:
                content[name] = known
            else:
                content[name], is_new = _read(path / name, stamp), True
    is_new = is_new or len(content) != len(last.content)
    records = _records(content) if is_new else last.records
    directories = {name: _directory(path / name) for name in (RECORDS, CLAIMS)}
    return _Files(content, records, directories)


def _listed(path: Path, directory: str) -> Iterator[tuple[str, _Stamp]]:
    try:
        with os.scandir(path / directory) as entries:
            for entry in entries:
                if entry.name.endswith(".json") and not entry.name.startswith("."):
                    try:
                        yield f"{directory}/{entry.name}", _stamp(entry.stat())
                    except FileNotFoundError:  # ended meanwhile
                        continue
    except (FileNotFoundError, NotADirectoryError):
        return


def _read(path: Path, stamp: _Stamp) -> _Content:
    raw, damage = read_state(path)
    if raw is None:
        return _Content({}, stamp, damage)
    try:
        entries = {entry.key: entry for entry in _CONTENT.validate_json(raw)}
    except ValidationError as error:
        return _Content({}, stamp, f"damaged ({error.errors()[0]['msg']})")
    if foreign := sum(isinstance(entry, Foreign) for entry in entries.values()):
        _LOG.info("%s: %d entries are of another version: they are kept", path, foreign)
    return _Content(entries, stamp)


def _without_damaged(path: Path, files: _Files, damaged: Mapping[str, str]) -> _Files:
    """Move damaged files aside; what was too large to be read is so already."""
    content, damage = dict(files.content), files.damage
    for name, why in damaged.items():
        damage = move_aside(path / name, why) if (path / name).exists() else why
        content.pop(name, None)
    return files._replace(content=content, records=_records(content), damage=damage)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _directory(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None  # reading it says why
    return status.st_dev, status.st_ino

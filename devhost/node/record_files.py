"""The files of the state directory with the records of what pods were given.

A resource has a file, which is written by who has the lock of the resource; a claim has one, which
is written by who is asked to prepare it. The others read. What is given is written under the lock
of the directory, after what others have changed was read and checked. What is not in a file has
ended: nobody writes it again but who may write the file, and only where it was lost. What a newer
version has added is kept.
"""

import asyncio
import contextlib
import hashlib
import json
import logging
import os
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from devhost.backends.backend import LockState
from devhost.errors import AllocationError
from devhost.model.records import (
    CLAIM,
    Changes,
    ClaimRecord,
    Handout,
    Record,
    RecordKey,
)
from devhost.node.record_table import RecordTable
from devhost.node.state_dir import (
    CLAIMS,
    CLOSE_S,
    RECORDS,
    SUBDIRECTORIES,
    TOO_LARGE,
    directory_lock,
    log_transition,
    make_private,
    move_aside,
    read_state,
    write_atomically,
)
from devhost.watch.inotify import Subscription, Watcher, WatchTarget
from devhost.watch.threads import PATIENCE_S, run_in_thread

POLL_S: Final = 5.0  # in addition to the watch, which may miss something
NO_ANSWER: Final = "the state directory does not answer"
_FORMER_FILE: Final = "state.json"  # of versions that were never released
_NAME_MAX: Final = 200  # of a file, without its end
_LOG: Final = logging.getLogger(__name__)

Check = Callable[[], Sequence[Record]]
"""Return what may be given beside what is in the table, or raise `AllocationError`."""


@dataclass(eq=False, slots=True)
class _Gift:
    """Records to be given, which the table has already; they are checked again before the writing.

    Attributes:
        former: What the table had instead of them.
        is_late: The pod has them, because the disk was slow.
    """

    check: Check
    records: Sequence[Record] = ()
    former: Changes = field(default_factory=dict)
    refusal: AllocationError | None = None
    is_late: bool = False


class RecordFiles:
    """The records in the state directory, and the table of them.

    All methods belong to the event loop. `lock_of` returns who has a resource's lock; it blocks.

    Attributes:
        on_change: Called with the records that another instance has made or ended.
        problem: Why the state directory does not have the records.
        damage: What has become of a file that was damaged.
    """

    def __init__(self, state_dir: Path | None, lock_of: Callable[[str], LockState]) -> None:
        self.table, self._lock_of = RecordTable(boot_id()), lock_of
        self.on_change: Callable[[Sequence[Record]], object] = len
        self.problem: str | None = None
        self.damage: str | None = None
        self._path = state_dir
        self._gifts: list[_Gift] = []
        self._content = _Content()  # as it was read or written last
        self._running: asyncio.Task[str | None] | None = None  # the last attempt to write and read
        self._next: asyncio.Task[str | None] | None = None  # an attempt that has not begun

    def is_saved(self, record: Record) -> bool:
        """Whether the state directory, if there is one, has a record."""
        return self._path is None or self._content.records.get(record.key) == record

    def read_problem(self, resource: str) -> str | None:
        """Return why the records of a resource cannot be read."""
        file = self._content.files.get(file_of((resource, "")))
        return f"{self._path}: {file.failure.strerror}" if file and file.failure else None

    def set(self, changes: Changes) -> None:
        """Set and end records; they are written soon."""
        if changes:
            self.table.apply(changes)
            self.sync_soon()

    async def give(self, check: Check, within: float) -> str | None:
        """Set what a check returns, and write it; return why it is not written in so many seconds.

        The check is made now and once more before it is written, beside what other instances have
        given meanwhile. What is not written in time is written later. A new claim, or a handout
        with steps, that could not be written is as it was; if the disk is merely slow, only a
        handout that replaces other steps: those of a former pod must not be what the next process
        finds.

        Raises:
            AllocationError: The check refuses it; then nothing is written.
        """
        gift = _Gift(check)
        self._choose(gift)
        self._gifts.append(gift)
        problem = await self.sync(within)
        if gift.refusal is not None:
            raise gift.refusal
        late = [record for record in gift.records if not self.is_saved(record)]
        if not late:
            return None
        gift.is_late = problem == NO_ANSWER
        undone = (record.key for record in late if _is_undone(record, gift))
        self.table.apply({key: gift.former[key] for key in undone})
        return problem or self.problem or NO_ANSWER

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

    async def flush(self) -> None:
        """Write what has changed, at most `CLOSE_S`."""
        if self._gifts or self.table.snapshot() != self._content.records:
            await self.sync(CLOSE_S)

    async def follow(self, watcher: Watcher) -> None:
        """Read the files when others may have changed them, until cancelled."""
        subscription = Subscription(watcher, self.sync_soon, ignores=self._is_own)
        try:
            while (path := self._path) is not None:
                targets = (str(path), str(path / RECORDS), str(path / CLAIMS))
                await subscription.watch(frozenset(map(WatchTarget, targets)))
                self.sync_soon()
                await asyncio.sleep(POLL_S)
        finally:
            subscription.close()

    def _is_own(self, name: str) -> bool:
        """Whether only this process is known to write a file; poll for what others do to it."""
        return name.startswith(".") or name in self._content.own

    async def close(self) -> None:
        """Write what has changed, and nothing more."""
        await self.flush()
        for attempt in filter(None, (self._running, self._next)):
            attempt.cancel()

    # ── an attempt to write and read ──

    async def _attempt(self, path: Path, former: "asyncio.Task[str | None] | None") -> str | None:
        """Write and read after the former attempt; return why the files could not be read."""
        loop = asyncio.get_running_loop()
        late = loop.call_later(PATIENCE_S, self._report, f"{path}: no answer in {PATIENCE_S:g} s")
        try:
            if former is not None:
                await asyncio.wait({former})
            self._running, self._next = self._next, None
            gifts, self._gifts = self._gifts, []
            self._recheck(gifts)  # what others have given may have been read since the first check
            known, last = self.table.snapshot(), self._content

            async def merge(changes: Changes) -> dict[RecordKey, Record]:
                nonlocal known
                self._merge(changes, last.records)
                self._recheck(gifts)
                known = self.table.snapshot()
                return known

            def merge_from_thread(changes: Changes) -> Mapping[RecordKey, Record]:
                return asyncio.run_coroutine_threadsafe(merge(changes), loop).result(PATIENCE_S)

            update = _Update(path, known, last, self._lock_of, merge_from_thread)
            self._content = content = await run_in_thread("state", update.run)
        except OSError as error:
            self._report(f"{path}: {error.strerror or NO_ANSWER}")
            return self.problem
        finally:
            late.cancel()
        self._merge(_difference(known, content.records, content.unwritten), known)
        self.damage = content.damage or self.damage
        self._report(f"{path}: {content.failure.strerror}" if content.failure else None)
        return None

    def _choose(self, gift: _Gift) -> None:
        """Have the table and a gift as its check has it now, or raise `AllocationError`."""
        records = gift.check()
        if list(records) != list(gift.records):
            self._undo(gift)
            gift.former = {record.key: self.table.get(record.key) for record in records}
            gift.records = records
            self.table.apply({record.key: record for record in records})

    def _undo(self, gift: _Gift) -> None:
        given = (record.key for record in gift.records if self.table.get(record.key) is record)
        self.table.apply({key: gift.former[key] for key in given})

    def _recheck(self, gifts: Iterable[_Gift]) -> None:
        for gift in gifts:
            if gift.refusal is None:
                try:
                    self._choose(gift)
                except AllocationError as error:
                    if gift.is_late:
                        _LOG.error("%s: it was given all the same, as the disk was slow", error)
                    else:
                        gift.refusal = error
                        self._undo(gift)

    def _merge(self, changes: Changes, before: Mapping[RecordKey, Record]) -> None:
        """Take over what others have changed, but for what has changed here since, too."""
        now = {key: self.table.get(key) for key in changes}
        taken = {key: record for key, record in changes.items() if now[key] == before.get(key)}
        self.table.apply(taken)
        if taken:
            changed = (record or now[key] for key, record in taken.items())
            self.on_change([record for record in changed if record is not None])

    def _report(self, problem: str | None) -> None:
        self.problem = log_transition("allocated devices", self.problem, problem)


def _is_undone(record: Record, gift: _Gift) -> bool:
    """Whether a record that is not written is as it was before it was given."""
    former = gift.former[record.key]
    if isinstance(record, ClaimRecord):
        return former is None and not gift.is_late  # it may be unprepared by another instance
    replaces_steps = isinstance(former, Handout) and former.steps not in ("none", record.steps)
    return record.steps != "none" and (replaces_steps or not gift.is_late)


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a number may be taken for that of an earlier boot


def file_of(key: RecordKey) -> str:
    """Return the name of the file, below the state directory, that has a record."""
    resource, name = key
    if resource == CLAIM:
        return f"{CLAIMS}/{name.replace(' ', '_')}.json"
    name = resource.replace("/", "_")
    if len(name) > _NAME_MAX:
        name = f"{name[:_NAME_MAX]}-{hashlib.sha256(resource.encode()).hexdigest()[:12]}"
    return f"{RECORDS}/{name}.json"


# ── in a thread ──

_Stamp = tuple[int, ...]
_Records = Mapping[RecordKey, Record]


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a resource or a claim.

    Attributes:
        stamp: Differs from one file to the next.
        rest: What is not understood of a resource's file: it is written by a newer version.
        damage: Why it cannot be used, and is to be moved aside.
        failure: Why it could not be read: the records are those that it had before.
    """

    stamp: _Stamp
    records: _Records = field(default_factory=dict)
    rest: Mapping[str, Any] = field(default_factory=dict)
    damage: str | None = None
    failure: OSError | None = None


@dataclass(frozen=True, slots=True)
class _Content:
    """All files, by their names below the state directory.

    Attributes:
        records: Those of all files.
        directories: The identities of the directories that they are in.
        own: The base names of the files that only this process is known to write.
        unwritten: What could not be changed, because of the failure.
        damage: What has become of a file that was damaged.
    """

    files: Mapping[str, _File] = field(default_factory=dict)
    records: _Records = field(default_factory=dict)
    directories: Mapping[str, _Stamp | None] = field(default_factory=dict)
    own: frozenset[str] = frozenset()
    unwritten: Changes = field(default_factory=dict)
    failure: OSError | None = None
    damage: str | None = None


@dataclass(frozen=True, slots=True)
class _Update:
    """An update of the files.

    Attributes:
        known: The records of this process.
        last: The files as it has read or written them last.
        merge: Takes over what others have changed; returns the records as they are then.
    """

    path: Path
    known: _Records
    last: _Content
    lock_of: Callable[[str], LockState]
    merge: Callable[[Changes], _Records]

    def run(self) -> _Content:
        """Write what this process has changed, and what was lost; return all files."""
        if not self.last.directories:  # the first update of this process
            make_private(self.path)
            if (former := self.path / _FORMER_FILE).exists():
                _LOG.info("%s is of a former version: it is not read", former)
        content = self._read(self.last)
        is_damaged = content is not self.last and any(map(_is_damaged, content.files.values()))
        if self.known == self.last.records and not is_damaged and not self._lost(content):
            return content  # there is nothing to write
        with directory_lock(self.path):
            content = self._read(content)
            lost, known = self._lost(content), self.known
            content = self._set_damaged_aside(content)
            if content is not self.last:
                known = self.merge(_difference(self.last.records, {**content.records, **lost}))
            return self._write(content, known, lost)

    # ── reading ──

    def _read(self, last: _Content) -> _Content:
        """Return all files; those that are as they were are not read again."""
        files, names = dict[str, _File](), dict[str, _Stamp]()
        for directory in SUBDIRECTORIES:
            names |= _list_files(self.path, directory)
        for name, stamp in names.items():
            former = last.files.get(name, _File(()))
            files[name] = former if former.stamp == stamp else self._read_file(name, stamp, former)
        directories = {name: _identity(self.path / name) for name in SUBDIRECTORIES}
        if directories == last.directories and files == last.files:
            return last
        same = {Path(name).name for name in files if files[name] is last.files.get(name)}
        return _Content(
            files,
            _all_records(files),
            directories,
            last.own & same,
            failure=next((file.failure for file in files.values() if file.failure), None),
        )

    def _read_file(self, name: str, stamp: _Stamp, former: _File) -> _File:
        """Return a file; what cannot be used has the records that it had before."""
        path = self.path / name
        try:
            raw = read_state(path)
        except OSError as error:
            return replace(former, stamp=(), failure=error)
        if raw is None:
            return _File(stamp, former.records, damage=TOO_LARGE)
        try:
            file = _parse(name, raw, stamp)
        except (ValueError, RecursionError) as error:
            return _File(stamp, former.records, damage=f"damaged ({error})")
        if unknown := len(file.rest.get(RECORDS, ())):
            _LOG.info("%s: %d records are of another version: they are kept", path, unknown)
        return file

    def _lost(self, content: _Content) -> dict[RecordKey, Record]:
        """Return the records that are in no file, but were not ended.

        A file was damaged, or is missing that only this process writes, or the directory is another
        one. Whether the steps are done cannot be told.
        """
        lost = dict[RecordKey, Record]()
        damaged = {name for name, file in content.files.items() if _is_damaged(file)}
        if not damaged and content is self.last:
            return lost
        for key, record in self.known.items():
            name = file_of(key)
            if key not in self.last.records or (key in content.records and name not in damaged):
                continue
            directory = name.partition("/")[0]
            is_other = self.last.directories.get(directory) != content.directories.get(directory)
            lock = "free" if key[0] == CLAIM else self.lock_of(key[0])
            if lock == "ours" or (lock == "free" and (is_other or name in damaged)):
                lost[key] = record.with_steps("none") if isinstance(record, Handout) else record
        return lost

    def _set_damaged_aside(self, content: _Content) -> _Content:
        """Rename the damaged files that this process may write; the others are used as before."""
        damage, files = content.damage, dict(content.files)
        for name, file in content.files.items():
            if file.damage and self.lock_of(_resource_of(name)) != "other":
                damage = move_aside(self.path / name, file.damage)
                del files[name]
        if len(files) == len(content.files):
            return content
        return replace(content, files=files, records=_all_records(files), damage=damage)

    # ── writing ──

    def _write(self, content: _Content, known: _Records, lost: _Records) -> _Content:
        """Change the files that this process may write, each as a whole."""
        by_file: dict[str, dict[RecordKey, Record | None]] = {}
        for key, record in _difference(content.records, known).items():
            if key in lost or self._may_write(key, content):
                by_file.setdefault(file_of(key), {})[key] = record
        files, own, unwritten = dict(content.files), set(content.own), dict(content.unwritten)
        failure = content.failure
        for name, changed in by_file.items():
            try:
                file = self._write_file(name, files.get(name, _File(())), changed)
            except OSError as error:
                failure = error
                unwritten |= changed
                continue
            own.add(Path(name).name)
            files.pop(name, None)
            if file is not None:
                files[name] = file
        if lost and not failure:
            _LOG.warning("%s had lost %d records: they are written again", self.path, len(lost))
        return replace(
            content,
            files=files,
            records={
                key: record for file in files.values() for key, record in file.records.items()
            },
            directories={name: _identity(self.path / name) for name in SUBDIRECTORIES},
            own=frozenset(own),
            unwritten=unwritten,
            failure=failure,
        )

    def _may_write(self, key: RecordKey, content: _Content) -> bool:
        """Whether this process may change a record in its file."""
        if key[0] == CLAIM:
            return True
        lock = self.lock_of(key[0])
        is_as_read = content.records.get(key) == self.last.records.get(key)
        return lock == "ours" or (lock == "free" and is_as_read)

    def _write_file(self, name: str, file: _File, changes: Changes) -> _File | None:
        """Replace a file, or remove it with its last record."""
        path, records = self.path / name, {**file.records, **changes}
        kept = {key: record for key, record in records.items() if record is not None}
        if not kept and not file.rest.get(RECORDS):
            path.unlink(missing_ok=True)
            return None
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, _serialize([*kept.values()], file.rest))
        return replace(file, stamp=_stamp(path.stat()), records=kept, damage=None, failure=None)


# ── the content of a file ──


def _parse(name: str, raw: bytes, stamp: _Stamp) -> _File:
    """Return the records of a file; raise `ValueError` if it is damaged."""
    content = json.loads(raw)
    if not isinstance(content, dict):
        raise ValueError("no object of JSON")  # noqa: TRY004 (as JSON's own errors)
    records, rest = list[Record](), list[Any]()
    if name.startswith(CLAIMS):
        with contextlib.suppress(ValidationError):  # then a newer version has written it
            records.append(ClaimRecord.model_validate(content, strict=False))
        return _File(stamp, {record.key: record for record in records})
    resource, entries = content.get("resource"), content.get(RECORDS)
    if not isinstance(resource, str) or not isinstance(entries, list):
        raise ValueError("no records of a resource")  # noqa: TRY004
    for entry in entries:
        try:
            records.append(Handout.model_validate({**entry, "resource": resource}, strict=False))
        except (TypeError, ValidationError):
            rest.append(entry)
    return _File(stamp, {record.key: record for record in records}, {**content, RECORDS: rest})


def _serialize(records: Sequence[Record], rest: Mapping[str, Any]) -> bytes:
    """Return the content of a file: a claim, or the records of a resource."""
    content = dict(rest)
    for record in records:
        if isinstance(record, ClaimRecord):
            return record.model_dump_json(indent=1).encode()
        content["resource"] = record.resource
    entries = [record.model_dump(mode="json") for record in records]
    content[RECORDS] = [*entries, *rest.get(RECORDS, ())]
    return json.dumps(content, indent=1).encode()


def _list_files(path: Path, directory: str) -> dict[str, _Stamp]:
    """Return the files of a directory, with what tells whether they have changed."""
    stamps: dict[str, _Stamp] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(path / directory) as entries:
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    stamps[f"{directory}/{entry.name}"] = _stamp(entry.stat())
    return stamps


def _difference(
    former: _Records, records: _Records, but: Container[RecordKey] = ()
) -> dict[RecordKey, Record | None]:
    """Return what makes records from former ones, but for some keys."""
    return {
        key: record
        for key in former.keys() | records.keys()
        if key not in but and (record := records.get(key)) != former.get(key)
    }


def _all_records(files: Mapping[str, _File]) -> _Records:
    return {key: record for file in files.values() for key, record in file.records.items()}


def _is_damaged(file: _File) -> bool:
    return file.damage is not None


def _resource_of(name: str) -> str:
    """Return the resource of a file whose content does not tell; a domain has no ``_``."""
    return Path(name).stem.replace("_", "/", 1)


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _identity(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None  # reading it says why
    return status.st_dev, status.st_ino

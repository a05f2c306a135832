"""The files of the state directory with the records of what pods were given. All of it blocks.

A resource has a file, which is written by who has the lock of the resource; a claim has one, which
is written by who is asked to prepare it. The others read. What is written is written under the lock
of the directory, after what others have changed was read. What is not in a file has ended: nobody
writes it again but who may write the file, and only where it was lost. What a newer version has
added is kept.
"""

import contextlib
import json
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from pydantic import ValidationError

from devhost.backends.resource_lock import LockState
from devhost.custody.state_dir import (
    CLAIMS,
    RECORDS,
    SUBDIRECTORIES,
    directory_lock,
    move_aside,
    read_state,
    write_atomically,
)
from devhost.model.names import text_hash
from devhost.model.records import CLAIM, Changes, ClaimRecord, Handout, Record, RecordKey

Records = Mapping[RecordKey, Record]
_Stamp = tuple[int, ...]
_NAME_MAX: Final = 200  # of a file, without its end
_LOG: Final = logging.getLogger(__name__)


def file_of(key: RecordKey) -> str:
    """Return the name of the file, below the state directory, that has a record."""
    resource, name = key
    if resource == CLAIM:
        return f"{CLAIMS}/{name.replace(' ', '_')}.json"
    name = resource.replace("/", "_")
    if len(name) > _NAME_MAX:
        name = f"{name[:_NAME_MAX]}-{text_hash(resource, 12)}"
    return f"{RECORDS}/{name}.json"


def find_changes(former: Records, records: Records) -> dict[RecordKey, Record | None]:
    """Return what makes records from former ones."""
    return {
        key: record
        for key in former.keys() | records.keys()
        if (record := records.get(key)) is not (before := former.get(key)) and record != before
    }


class Outcome(NamedTuple):
    """The outcome of an update of the files."""

    current: Records  # of the process, with what others have changed
    failure: OSError | None = None  # why a file could not be read or written
    unwritten: Collection[RecordKey] = ()  # which that has kept from the files
    damage: str | None = None  # what has become of a file that was damaged


@dataclass(frozen=True, slots=True)
class _File:
    """A file of a resource or a claim."""

    stamp: _Stamp = ()  # differs from one file to the next
    records: Records = field(default_factory=dict)  # from before, if it cannot be read now
    rest: Mapping[str, Any] = field(default_factory=dict)  # written by a newer version
    damage: Exception | None = None  # why it is to be moved aside
    failure: OSError | None = None  # why it could not be read


_NO_FILE: Final = _File()


class RecordStore:
    """The files, as this process has read or written them last; one update at a time.

    `lock_of` returns who has the lock of a resource.
    """

    def __init__(self, directory: Path, lock_of: Callable[[str], LockState]) -> None:
        self.directory, self._lock_of = directory, lock_of
        self.records: Records = {}  # of all files, as the last update has left them
        self.was_kept = False  # there were records of device plugins at the first reading
        self._files: dict[str, _File] = {}  # by name below the directory
        self._directories: Mapping[str, _Stamp | None] = {}  # when the last update ended

    def read_problem(self, resource: str) -> str | None:
        """Return why the records of a resource cannot be read."""
        failure = self._files.get(file_of((resource, "")), _NO_FILE).failure
        return f"{self.directory}: {failure.strerror}" if failure else None

    def update(self, current: Records, merge: Callable[[Changes], Records]) -> Outcome:
        """Write what this process has changed, and what was lost; read what others have changed.

        `current` are its records. What others have changed is taken over by `merge` before anything
        is written, which returns the records as they are then.
        """
        if not self._directories:  # the first update of this process
            self.was_kept = (self.directory / RECORDS).is_dir()
        if current == self.records:
            self._read()
            if not self._is_damaged and not self._find_lost(current):
                return self._end(Outcome(current))  # there is nothing to write
        with directory_lock(self.directory):
            self._read()
            lost, damage = self._find_lost(current), self._set_damaged_aside()
            if changes := find_changes(self.records, {**self._all_records(), **lost}):
                current = merge(changes)
            failure, unwritten = self._write(current, lost)
        return self._end(Outcome(current, failure, unwritten, damage))

    def _end(self, outcome: Outcome) -> Outcome:
        self.records, self._directories = self._all_records(), self._identify_directories()
        failures = (file.failure for file in self._files.values() if file.failure)
        return outcome._replace(failure=outcome.failure or next(failures, None))

    @property
    def _is_damaged(self) -> bool:
        return any(file.damage for file in self._files.values())

    def _all_records(self) -> dict[RecordKey, Record]:
        files = self._files.values()
        return {key: record for file in files for key, record in file.records.items()}

    def _identify_directories(self) -> Mapping[str, _Stamp | None]:
        return {name: _identity(self.directory / name) for name in SUBDIRECTORIES}

    # ── reading ──

    def _read(self) -> None:
        """Read the files that are not as they were."""
        files: dict[str, _File] = {}
        for directory in SUBDIRECTORIES:
            for name, stamp in _list_files(self.directory, directory).items():
                file = self._files.get(name, _NO_FILE)
                files[name] = file if file.stamp == stamp else self._read_file(name, stamp, file)
        self._files = files

    def _read_file(self, name: str, stamp: _Stamp, former: _File) -> _File:
        try:
            return _parse(name, read_state(self.directory / name), stamp)
        except OSError as error:
            return replace(former, stamp=(), failure=error)
        except (ValueError, RecursionError) as error:
            return _File(stamp, former.records, damage=error)

    def _find_lost(self, current: Records) -> dict[RecordKey, Record]:
        """Return the records that are in no file, but were not ended.

        A file was damaged, or is missing that only this process writes, or the directory is another
        one. Whether the steps are done cannot be told.
        """
        lost, present = dict[RecordKey, Record](), self._all_records()
        directories = self._identify_directories()
        for key in current.keys() & self.records.keys():
            record, name = current[key], file_of(key)
            is_damaged = self._files.get(name, _NO_FILE).damage is not None
            if key in present and not is_damaged:
                continue
            parent = name.partition("/")[0]
            is_other = directories[parent] != self._directories.get(parent)
            lock = "free" if key[0] == CLAIM else self._lock_of(key[0])
            if lock == "ours" or (lock == "free" and (is_other or is_damaged)):
                lost[key] = record.with_steps("none") if isinstance(record, Handout) else record
        return lost

    def _set_damaged_aside(self) -> str | None:
        """Rename the damaged files that this process may write; return a message of one."""
        damage = None
        for name, file in [*self._files.items()]:
            is_claim = name.startswith(f"{CLAIMS}/")  # which no lock protects
            if file.damage and (is_claim or self._lock_of(_resource_of(name)) != "other"):
                damage = move_aside(self.directory / name, file.damage)
                del self._files[name]
        return damage

    # ── writing ──

    def _write(self, current: Records, lost: Records) -> tuple[OSError | None, list[RecordKey]]:
        """Change the files that this process may write, each as a whole.

        Returns why that failed, and what could not be changed.
        """
        by_file: dict[str, dict[RecordKey, Record | None]] = {}
        present, failure, unwritten = self._all_records(), None, list[RecordKey]()
        for key, record in find_changes(present, current).items():
            if key in lost or self._may_write(key, present):
                by_file.setdefault(file_of(key), {})[key] = record
        for name, changes in by_file.items():
            try:
                self._write_file(name, changes)
            except OSError as error:
                failure = error
                unwritten += changes
        if lost and not failure:
            _LOG.warning("%s: %d lost records are written again", self.directory, len(lost))
        return failure, unwritten

    def _may_write(self, key: RecordKey, present: Records) -> bool:
        """Whether this process may change a record in its file."""
        if key[0] == CLAIM:
            return True
        lock = self._lock_of(key[0])
        return lock == "ours" or (lock == "free" and present.get(key) == self.records.get(key))

    def _write_file(self, name: str, changes: Changes) -> None:
        """Replace a file, or remove it with its last record."""
        path, file = self.directory / name, self._files.get(name, _NO_FILE)
        records = {**file.records, **changes}
        kept = {key: record for key, record in records.items() if record is not None}
        if not kept and not file.rest.get(RECORDS):
            path.unlink(missing_ok=True)
            self._files.pop(name, None)
            return
        path.parent.mkdir(mode=0o700, exist_ok=True)
        write_atomically(path, _serialize([*kept.values()], file.rest))
        self._files[name] = _File(_stamp(path.stat()), kept, file.rest)


# ── the content of a file ──


def _parse(name: str, raw: bytes, stamp: _Stamp) -> _File:
    """Return the records of a file; raise `ValueError` if it is damaged."""
    content, records, rest = json.loads(raw), list[Record](), list[Any]()
    if name.startswith(CLAIMS) and isinstance(content, dict):
        with contextlib.suppress(ValidationError):  # then a newer version has written it
            records.append(ClaimRecord.model_validate(content, strict=False))
        return _File(stamp, {record.key: record for record in records})
    if not isinstance(content, dict) or not isinstance(content.get(RECORDS), list):
        raise ValueError("no records")  # noqa: TRY004 (of the content)
    if file_of((str(content.get("resource")), "")) != name:
        raise ValueError("no records of this resource")
    for entry in content[RECORDS]:
        try:
            fields = {**entry, "resource": content.get("resource")}
            records.append(Handout.model_validate(fields, strict=False))
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


def _resource_of(name: str) -> str:
    """Return the resource of a file whose content does not tell; a domain has no ``_``."""
    return Path(name).stem.replace("_", "/", 1)


def _list_files(path: Path, directory: str) -> dict[str, _Stamp]:
    """Return the files of a directory, with what tells whether they have changed."""
    stamps: dict[str, _Stamp] = {}
    with contextlib.suppress(FileNotFoundError), os.scandir(path / directory) as entries:
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                with contextlib.suppress(FileNotFoundError):  # it was removed meanwhile
                    stamps[f"{directory}/{entry.name}"] = _stamp(entry.stat())
    return stamps


def _stamp(status: os.stat_result) -> _Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _identity(path: Path) -> _Stamp | None:
    try:
        status = path.stat()
    except OSError:
        return None  # reading it says why
    return status.st_dev, status.st_ino

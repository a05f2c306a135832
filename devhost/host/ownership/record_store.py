"""The records of one process, and the file that has them for all instances of devhost.

Only devices that were allocated are in the file, so it is small: it is read and replaced as a
whole, under a lock that all instances on the machine share.
"""

import asyncio
import contextlib
import json
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from devhost.host import json_text
from devhost.host.ownership.records import Owner, Place, Record, boot_id
from devhost.host.state_files import (
    StateWriter,
    locked,
    move_aside,
    read_state,
    write_atomically,
)
from devhost.threads import in_thread

_PATIENCE_S: Final = 2.0
_WRITTEN_WITHIN_S: Final = 0.25  # Allocate waits for it


@dataclass(eq=False, slots=True)
class Known:
    """A record, and what this process knows of it.

    Attributes:
        record: The record, in the file or to be written.
        since: On the event loop's clock, since when kubelet cannot allocate the thing by it.
        gone: Whether the device is missing, and its thing too.
    """

    record: Record
    since: float
    gone: bool = False


class RecordStore:
    """The records. All methods belong to the event loop.

    Args:
        state_dir: Where records outlive the process; ``None`` where they do not.
        refused: Called when another instance has handed out a thing, so that ours was dropped.

    Attributes:
        boot: The ID of this boot of the machine.
    """

    def __init__(self, state_dir: Path | None, refused: Callable[[], None]) -> None:
        self.boot, self._refused = boot_id(), refused
        self._known: dict[Place, Known] = {}
        self._by_key: dict[str, set[Place]] = {}
        self._unsaved: dict[Place, Record | None] = {}  # ``None`` to drop it
        self._writer: StateWriter | None = None
        if state_dir is not None:
            self._file = RecordFile(state_dir)
            self._writer = StateWriter(
                "allocated devices", self._file.path, self._write, patience=_PATIENCE_S
            )

    @property
    def problem(self) -> str | None:
        """Why the state directory does not have the records; ``None`` where it has."""
        return self._writer.problem if self._writer else None

    def __iter__(self) -> Iterator[Known]:
        """Iterate over the records as they are now."""
        return iter([*self._known.values()])

    def __contains__(self, record: Record) -> bool:
        """Whether there is a record, and it is or may be in the file."""
        return record.place in self._known

    def at(self, keys: Iterable[str]) -> Iterator[Known]:
        """Yield the records of a thing, by its keys."""
        return (self._known[place] for key in keys for place in self._by_key.get(key, ()))

    def has(self, record: Record) -> bool:
        """Whether an equal record is there, and in the file."""
        known = self._known.get(record.place)
        return known is not None and known.record == record and record.place not in self._unsaved

    def put(self, record: Record, since: float) -> None:
        """Add a record, or replace it; `Known.since` is so many seconds from now."""
        self._forget(record.place)
        self._keep(record, since)
        self._save(record.place, record)

    def drop(self, record: Record) -> None:
        """Drop a record, in the file too."""
        self._forget(record.place)
        self._save(record.place, None)

    def reload(self) -> None:
        """Read, soon, what other instances have recorded."""
        if self._writer is not None:
            self._writer.changed()

    async def loaded(self) -> None:
        """Wait until the file was read, unless it cannot be."""
        self.reload()
        if self._writer is not None:
            await self._writer.settled()

    async def saved(self) -> None:
        """Wait until all is written, at most 0.25 s; what is not by then is written later."""
        if self._writer is not None:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_WRITTEN_WITHIN_S):
                    await self._writer.settled()

    async def close(self) -> None:
        """Write what has changed, and nothing more."""
        if self._writer is not None:
            await self._writer.close()

    def _keep(self, record: Record, since: float = 0.0) -> None:
        now = asyncio.get_running_loop().time()
        self._known[record.place] = Known(record, now + since)
        for key in record.keys(self.boot):
            self._by_key.setdefault(key, set()).add(record.place)

    def _forget(self, place: Place) -> None:
        if (known := self._known.pop(place, None)) is not None:
            for key in known.record.keys(self.boot):
                places = self._by_key[key]
                places.discard(place)
                if not places:
                    del self._by_key[key]

    def _save(self, place: Place, record: Record | None) -> None:
        if self._writer is not None:
            self._unsaved[place] = record
            self._writer.changed()

    async def _write(self) -> None:
        """Write what has changed, and learn what other instances have recorded."""
        batch, known = dict(self._unsaved), {*self._known, *self._unsaved}
        put = [record for record in batch.values() if record is not None]
        dropped = {place for place, record in batch.items() if record is None}
        records, refused = await in_thread(
            "allocated devices", lambda: self._file.update(put, dropped, known)
        )
        for place, record in batch.items():
            if self._unsaved.get(place) is record:
                del self._unsaved[place]
        for one in refused:
            self._forget(one.place)
        for one in records:
            if one.place not in self._known and one.place not in self._unsaved:
                self._keep(one)
        if refused:
            self._refused()


class RecordFile:
    """The file. All methods block; one call at a time."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "allocated.json"

    def update(
        self, put: Collection[Record], dropped: Collection[Place], known: Collection[Place]
    ) -> tuple[list[Record], list[Record]]:
        """Add and drop records, unless another instance has handed out the same thing.

        Args:
            put: The records to add.
            dropped: The records to drop.
            known: Those that the caller has judged already.

        Returns:
            All records, and those that were not added. A damaged file is moved aside.

        Raises:
            OSError: The file cannot be read or written.
        """
        if not put and not self.path.exists():
            return [], []
        with locked(self.path.parent):
            before = self._read()
            records = {place: one for place, one in before.items() if place not in dropped}
            others = [one for place, one in records.items() if place not in known]
            refused = [one for one in put if any(map(one.conflicts, others))]
            records |= {one.place: one for one in put if one not in refused}
            if records != before:
                raw = json.dumps([_dumped(one) for one in records.values()], indent=0)
                write_atomically(self.path, raw.encode())
        return list(records.values()), refused

    def _read(self) -> dict[Place, Record]:
        if (raw := read_state(self.path)) is None:
            return {}
        try:
            return {one.place: one for one in map(_record, json_text.parse(raw))}
        except (ValueError, LookupError, TypeError) as error:
            move_aside(self.path, f"damaged ({type(error).__name__}: {error})")
            return {}


def _record(entry: Mapping[str, Any]) -> Record:
    texts = {key: entry[key] for key in ("thing", "path", "key", "boot")}
    names = entry["resource"], entry["device"]
    if not all(isinstance(one, str) for one in (*texts.values(), *names)):
        raise TypeError(f"{entry!r} is not a record")
    return Record(Owner(*names, entry["shared"] is True), **texts, overlap=entry["overlap"] is True)


def _dumped(record: Record) -> dict[str, object]:
    owner = record.owner
    return {
        "resource": owner.resource,
        "device": owner.device,
        "shared": owner.shared,
        "thing": record.thing,
        "path": record.path,
        "key": record.key,
        "boot": record.boot,
        "overlap": record.overlap,
    }

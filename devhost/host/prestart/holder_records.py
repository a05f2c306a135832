"""Records of which devices were allocated but not started yet, and which pod holds the others.

They outlive the process where there is a state directory. A damaged file must never look like
devices that were just allocated: those would be wiped.
"""

import errno
import hashlib
import json
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

from devhost.errors import PreStartError
from devhost.host import json_text
from devhost.host.state_files import locked, read_state, write_atomically
from devhost.immutable import immutable
from devhost.kubelet.podresources import HeldBy
from devhost.threads import PATIENCE_S, BlockingCalls

_PATIENCE_S: Final = 2.0  # Allocate waits for it
_PATIENCE_HANGING_S: Final = 0.1
_LOG: Final = logging.getLogger(__name__)


@immutable
class Fresh:
    """Allocated; no container has started with it since.

    Attributes:
        mark: Identifies the Allocate.
        former: The pods that held it all the same: for them it is not fresh, because it was not
            kubelet that allocated it.
    """

    mark: str
    former: frozenset[str] = frozenset()


@immutable
class Holder:
    """Prepared for a pod.

    Attributes:
        pod: ``namespace/name``.
        mark: The mark of the Allocate that gave it to the pod.
    """

    pod: str
    mark: str


HolderRecord = Fresh | Holder
Records = Mapping[str, HolderRecord]
RecordsChange = Callable[[dict[str, HolderRecord]], None]
_Updated = tuple[Records, str | None, bool]


@immutable
class _Unsaved:
    """A mark that may be missing on the disk.

    Attributes:
        fresh: The record.
        after: The marks that the disk may have instead; ``None`` for no record.
    """

    fresh: Fresh
    after: frozenset[str | None]


@immutable
class _Known:
    """What is known before the file is read."""

    memory: Records
    unsaved: Mapping[str, _Unsaved]
    forgetting: bool


class HolderRecords:
    """The records of one resource, by advertised ID.

    The file wins over memory, because another instance may have written it; where it does not
    exist, memory has the holders. It is used by one caller at a time, also of other processes.
    """

    def __init__(self, resource: str, state_dir: Path | None) -> None:
        self._resource = resource
        self._path: Path | None = None
        if state_dir is not None:
            name = hashlib.sha256(resource.encode()).hexdigest()[:16]
            self._path = state_dir / "holders" / f"{name}.json"
        self._memory: Records = {}
        self._unsaved: dict[str, _Unsaved] = {}
        self._forgetting = False
        self._calls = BlockingCalls(
            "holder records", self._path, patience_hanging=_PATIENCE_HANGING_S, serial=True
        )
        self._problem: str | None = None

    @property
    def durable(self) -> bool:
        """Whether there is a state directory."""
        return self._path is not None

    async def mark_fresh(self, ids: Iterable[str], held: HeldBy = MappingProxyType({})) -> None:
        """Mark IDs as allocated now; never fails.

        Args:
            ids: The IDs.
            held: The pods that hold some of them all the same.

        Where the state directory cannot be written within 2 s, the marks are in memory only,
        and that is logged once; the next call tries again.
        """
        marks = {one: Fresh(secrets.token_hex(8), held.get(one, frozenset())) for one in ids}
        try:
            await self._use(lambda records: records.update(marks))
        except OSError as error:
            self._log(f"cannot save which devices were allocated: {error}")
            for one, fresh in marks.items():
                self._unsaved[one] = _Unsaved(fresh, self._possible(one))

    def _possible(self, one: str) -> frozenset[str | None]:
        former, unsaved = self._memory.get(one), self._unsaved.get(one)
        after: frozenset[str | None] = frozenset([former.mark if former else None])
        return after | unsaved.after | {unsaved.fresh.mark} if unsaved else after

    async def read(self) -> Records:
        """Return the records.

        Marks that could not be written before are written now. If that fails again, it is logged.

        Raises:
            OSError: The state directory cannot be read, or did not answer within 2 s.
        """
        return await self._use(None)

    async def assign(self, fresh: Mapping[str, Fresh], pod: str) -> None:
        """Record that devices are prepared for a pod; it is on the disk when this returns.

        Args:
            fresh: Their records, as read before they were prepared.
            pod: ``namespace/name``.

        Raises:
            OSError: The record could not be written within 2 s.
            PreStartError: A device was allocated again meanwhile; nothing is changed.
        """

        def change(records: dict[str, HolderRecord]) -> None:
            for one, seen in fresh.items():
                if records.get(one) != seen:
                    raise PreStartError(f"device {one} was allocated again meanwhile")
                records[one] = Holder(pod, seen.mark)

        await self._use(change)

    async def drop(self, ids: Iterable[str]) -> None:
        """Drop the records of IDs, so that nothing is prepared for a container with them.

        Raises:
            OSError: The file could not be written within 2 s.
        """

        def change(records: dict[str, HolderRecord]) -> None:
            for one in ids:
                records.pop(one, None)

        await self._use(change)

    async def forget(self) -> None:
        """Drop all records, because containers start without records from now on; never fails.

        A mark that remained would look like a container that has not started yet, once the
        resource has steps for holders again.
        """
        try:
            await self._use(lambda records: records.clear(), only_if_exists=True)
            self._unsaved = {}
        except OSError as error:
            self._log(f"cannot drop the holder records: {error}")
            self._memory, self._unsaved, self._forgetting = {}, {}, True

    async def _use(self, change: RecordsChange | None, *, only_if_exists: bool = False) -> Records:
        """Apply a change to the records, in memory and on the disk, and return them.

        Without a change nothing has to be written.

        Raises:
            OSError: The state directory cannot be used, or did not answer in time.
        """
        if self._path is None:
            records = dict(self._memory)
            if change is not None:
                change(records)
            self._memory = records
            return records
        # Kubelet does not wait for `forget`, and at a start a thousand resources may ask.
        patience = PATIENCE_S if only_if_exists else _PATIENCE_S
        path, until = self._path, time.monotonic() + patience
        if self._calls.hanging:
            until = time.monotonic() + _PATIENCE_HANGING_S

        def update() -> tuple[_Known, _Updated]:
            # Not taken before it is this call's turn: the one before it changes them.
            known = _Known(self._memory, dict(self._unsaved), self._forgetting)
            return known, _update(path, self._resource, known, change, until, only_if_exists)

        known, updated = await self._calls.run(update, patience=patience)
        self._memory, problem, written = updated
        if written:
            self._forgetting = self._forgetting and not known.forgetting
            self._unsaved = {
                one: kept
                for one, kept in self._unsaved.items()
                if known.unsaved.get(one) is not kept
            }
        self._log(problem)
        return self._memory

    def _log(self, problem: str | None) -> None:
        """Log a problem once, as long as it lasts."""
        if problem is not None and problem != self._problem:
            _LOG.warning("%s", problem, extra={"fields": {"resource": self._resource}})
        self._problem = problem


# ── in a thread ──


def _update(
    path: Path,
    resource: str,
    known: _Known,
    change: RecordsChange | None,
    until: float,
    only_if_exists: bool,
) -> _Updated:
    """Return the new records, what is wrong with the file, and whether it has them."""
    if only_if_exists and not path.exists():
        return {}, None, True
    with locked(path.parent):
        # A late call must not undo what another instance has written meanwhile.
        if time.monotonic() > until:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), str(path))
        stored, problem = _load(path, resource)
        records = dict(_remembered(known.memory) if stored is None else stored)
        if known.forgetting:
            records.clear()
        for one, unsaved in known.unsaved.items() if problem is None else ():
            _catch_up(records, one, unsaved)
        if change is not None:
            change(records)
        try:
            if records != (stored or {}):
                write_atomically(path, _dumped(resource, records))
        except OSError as error:
            if change is not None:
                raise
            return records, f"cannot save which devices were allocated: {error}", False
    return records, problem, True


def _remembered(memory: Records) -> Records:
    # No marks: another instance may have prepared the device, by the lost file.
    return {one: record for one, record in memory.items() if isinstance(record, Holder)}


def _catch_up(records: dict[str, HolderRecord], one: str, unsaved: _Unsaved) -> None:
    """Add a mark that could not be written before, unless another instance has marked since."""
    found = records.get(one)
    mark = found.mark if found else None
    if mark == unsaved.fresh.mark:
        return  # it was written after all
    if mark in unsaved.after:
        records[one] = unsaved.fresh
    else:
        records.pop(one, None)  # it is unknown which of the two came last


def _load(path: Path, resource: str) -> tuple[dict[str, HolderRecord] | None, str | None]:
    """Return the file's records, ``None`` if it does not exist; and what is wrong with it."""
    raw = read_state(path)
    if raw is None:
        return None, None
    try:
        content = json_text.parse(raw)
        of = content["resource"]
        records = {one: _record(entry) for one, entry in content["devices"].items()}
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return {}, f"{path} ignored: {error}"
    return (records, None) if of == resource else ({}, f"{path} ignored: it is of {of}")


def _record(entry: dict[str, object]) -> HolderRecord:
    mark = entry.get("mark", "")
    if isinstance(mark, str):
        former = entry.get("former", [])
        if entry.get("fresh") is True and "holder" not in entry and isinstance(former, list):
            return Fresh(mark, frozenset(map(str, former)))
        if isinstance(pod := entry.get("holder"), str) and "fresh" not in entry:
            return Holder(pod, mark)
    raise ValueError(f"{entry!r} is not a record")


def _dumped(resource: str, records: Records) -> bytes:
    """Return the file's content."""
    devices: dict[str, dict[str, object]] = {
        one: {
            "fresh": True,
            "mark": record.mark,
            **({"former": sorted(record.former)} if record.former else {}),
        }
        if isinstance(record, Fresh)
        else {"holder": record.pod, "mark": record.mark}
        for one, record in sorted(records.items())
    }
    return (json.dumps({"resource": resource, "devices": devices}, indent=1) + "\n").encode()

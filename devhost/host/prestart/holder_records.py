"""Which devices kubelet has handed out but not started yet, and whose the others are.

A record outlives the process where there is a state directory. What is wrong with it must
never look like a device that was just handed out: that would be wiped.
"""

import asyncio
import errno
import functools
import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from devhost.errors import PreStartError
from devhost.host.prestart.holder_file import Fresh, Holder, Record, Records, dumped, load
from devhost.host.state_files import locked, write_atomically
from devhost.immutable import immutable
from devhost.threads import in_thread

_PATIENCE_S: Final = 2.0  # for the state directory: Allocate waits for it
_PATIENCE_HANGING_S: Final = 0.1  # when it has not answered before
_LOG: Final = logging.getLogger(__name__)


Change = Callable[[dict[str, Record]], None]
_Updated = tuple[Records, str | None, bool]


@immutable
class _Unsaved:
    """A mark that may not be on the disk.

    Attributes:
        fresh: The record.
        after: The marks of which the disk may still have one; ``None`` for no record.
    """

    fresh: Fresh
    after: frozenset[str | None]


@immutable
class _Known:
    """What a use of the file begins with, beside the file."""

    memory: Records
    unsaved: Mapping[str, _Unsaved]
    forgetting: bool


class HolderRecords:
    """The records of one resource, by advertised ID.

    The file wins over memory, because another instance may have written it; where there is
    none, memory tells the holders. One use at a time touches it, also of other processes.
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
        self._turn = asyncio.Lock()
        self._hangs = False
        self._work: asyncio.Future[_Updated] | None = None
        self._told: str | None = None

    @property
    def durable(self) -> bool:
        """Whether there is a state directory."""
        return self._path is not None

    async def mark_fresh(self, ids: Iterable[str]) -> None:
        """Note that kubelet hands IDs out now; never fails.

        Where the state directory cannot be written within 2 s, the marks are in memory only,
        and that is logged once; the next use tries again.
        """
        marks = {one: Fresh(secrets.token_hex(8)) for one in ids}
        try:
            await self._use(lambda records: records.update(marks))
        except OSError as error:
            self._tell(f"cannot keep which devices were handed out: {error}")
            for one, fresh in marks.items():
                self._unsaved[one] = _Unsaved(fresh, self._possible(one))

    def _possible(self, one: str) -> frozenset[str | None]:
        former, unsaved = self._memory.get(one), self._unsaved.get(one)
        after: frozenset[str | None] = frozenset([former.mark if former else None])
        return after | unsaved.after | {unsaved.fresh.mark} if unsaved else after

    async def read(self) -> Records:
        """Return the records.

        A mark that could not be written in its time is written now. Where that fails again,
        this is logged, and what was prepared before is known all the same.

        Raises:
            OSError: The state directory cannot be read, or did not answer within 2 s.
        """
        return await self._use(None)

    async def settle(self, fresh: Mapping[str, Fresh], pod: str) -> None:
        """Note that devices are prepared for a pod, on the disk when this returns.

        Args:
            fresh: Their records, as read before they were prepared.
            pod: ``namespace/name``.

        Raises:
            OSError: That could not be written within 2 s.
            PreStartError: One was handed out anew in the meantime; nothing is changed.
        """

        def change(records: dict[str, Record]) -> None:
            for one, seen in fresh.items():
                if records.get(one) != seen:
                    raise PreStartError(f"device {one} was handed out anew meanwhile")
                records[one] = Holder(pod, seen.mark)

        await self._use(change)

    async def drop(self, ids: Iterable[str]) -> None:
        """Forget what is known of IDs, so that nothing is done for who starts with them.

        Raises:
            OSError: That could not be written within 2 s.
        """

        def change(records: dict[str, Record]) -> None:
            for one in ids:
                records.pop(one, None)

        await self._use(change)

    async def forget(self) -> None:
        """Drop all records, because containers start without them from now on; never fails.

        A mark that stayed would look like a container that has not started yet, once the
        resource has steps for holders again.
        """
        try:
            await self._use(lambda records: records.clear(), only_if_there=True)
            self._unsaved = {}
        except OSError as error:
            self._tell(f"cannot drop the record of who holds devices: {error}")
            self._memory, self._unsaved, self._forgetting = {}, {}, True

    async def _use(self, change: Change | None, *, only_if_there: bool = False) -> Records:
        """Apply a change to what is known, in memory and on the disk; return what then is.

        Without a change nothing has to be written.

        Raises:
            OSError: The state directory cannot be used, or did not answer within 2 s.
        """
        if self._path is None:
            records = dict(self._memory)
            if change is not None:
                change(records)
            self._memory = records
            return records
        patience = _PATIENCE_HANGING_S if self._hangs else _PATIENCE_S
        until = time.monotonic() + patience
        try:
            async with asyncio.timeout(patience), self._turn:
                if self._work is not None:  # a former caller may have given up on it
                    await asyncio.wait([self._work])
                self._hangs = False
                known = _Known(self._memory, dict(self._unsaved), self._forgetting)
                update = functools.partial(
                    _update, self._path, self._resource, known, change, until, only_if_there
                )
                self._work = in_thread("holder records", update)
                self._work.add_done_callback(_retrieve)
                self._memory, problem, written = await asyncio.shield(self._work)
        except TimeoutError as error:
            if error.errno is not None:  # not ours: what the filesystem said
                raise
            self._hangs = True
            text = f"no answer in {_PATIENCE_S:g}s"
            raise TimeoutError(errno.ETIMEDOUT, text, str(self._path)) from None
        if written:
            self._forgetting = self._forgetting and not known.forgetting
            self._unsaved = {
                one: kept
                for one, kept in self._unsaved.items()
                if known.unsaved.get(one) is not kept
            }
        self._tell(problem)
        return self._memory

    def _tell(self, problem: str | None) -> None:
        """Log what is wrong, once as long as it is."""
        if problem is not None and problem != self._told:
            _LOG.warning("%s", problem, extra={"fields": {"resource": self._resource}})
        self._told = problem


def _retrieve(work: "asyncio.Future[_Updated]") -> None:
    if not work.cancelled():
        work.exception()  # perhaps nobody waits for it any more


# ── in a thread ────────────────────────────────────────────────────────────────────────


def _update(
    path: Path,
    resource: str,
    known: _Known,
    change: Change | None,
    until: float,
    only_if_there: bool,
) -> _Updated:
    """Return the new records, what is wrong with the file, and whether it has them."""
    if only_if_there and not path.exists():
        return {}, None, True
    with locked(path.parent):
        # One that is late must not undo what another instance has written meanwhile.
        if time.monotonic() > until:
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), str(path))
        stored, problem = load(path, resource)
        records = dict(_remembered(known.memory) if stored is None else stored)
        if known.forgetting:
            records.clear()
        for one, unsaved in known.unsaved.items() if problem is None else ():
            _catch_up(records, one, unsaved)
        if change is not None:
            change(records)
        try:
            if records != (stored or {}):
                write_atomically(path, dumped(resource, records))
        except OSError as error:
            if change is not None:
                raise
            return records, f"cannot keep which devices were handed out: {error}", False
    return records, problem, True


def _remembered(memory: Records) -> Records:
    # No marks: another instance may have prepared the device, in the file that is lost.
    return {one: record for one, record in memory.items() if isinstance(record, Holder)}


def _catch_up(records: dict[str, Record], one: str, unsaved: _Unsaved) -> None:
    """Add a mark that was not written in its time, unless another instance marked since."""
    found = records.get(one)
    mark = found.mark if found else None
    if mark == unsaved.fresh.mark:
        return  # it was written after all
    if mark in unsaved.after:
        records[one] = unsaved.fresh
    else:
        records.pop(one, None)  # which of the two came last cannot be told

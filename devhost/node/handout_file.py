"""The file of the state directory with the records of what pods and claims were given.

All instances on the machine share the file. Only what was allocated is in it, so it is small: it is
read and replaced as a whole. A record that this process has made and the file has lost is written
again, unless another instance serves the resource; whether its steps are done is lost. A claim may
be ended by any instance: it is written again only where the whole file was lost. What a newer
version has written is kept.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from devhost.model.claim_record import CLAIM, ClaimRecord, StateEntry
from devhost.node.handouts import (
    Changes,
    Foreign,
    HandedNode,
    Handout,
    HandoutKey,
    HandoutTable,
    Record,
)
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

FILE: Final = "state.json"
POLL_S: Final = 5.0  # in addition to the watch, which may miss something
NO_ANSWER: Final = "the state directory does not answer"
_LOG: Final = logging.getLogger(__name__)


class HandoutFile:
    """The file of the handouts, and the table of them. All methods belong to the event loop.

    `is_locked_by_other` tells whether another instance serves a resource, and blocks.

    Attributes:
        on_read: Called with the handouts that another instance has made or ended.
        problem: Why the state directory does not have the handouts.
        damage: What has become of a file that was damaged.
    """

    def __init__(
        self,
        state_dir: Path | None,
        is_locked_by_other: Callable[[str], bool],
    ) -> None:
        self.table, self._is_locked_by_other = HandoutTable(boot_id()), is_locked_by_other
        self.on_read: Callable[[list[Handout]], object] = len
        self.problem: str | None = None
        self.damage: str | None = None
        self._path = state_dir and state_dir / FILE
        self._unsaved: Changes = {}
        self._file = _File({})  # as it was read or written last
        self._running: asyncio.Task[str | None] | None = None  # the last attempt to write and read
        self._next: asyncio.Task[str | None] | None = None  # an attempt that has not begun

    def is_saved(self, record: Record) -> bool:
        """Whether the state directory, if there is one, has what is known of an ID or a claim."""
        return record.key not in self._unsaved

    def set(self, changes: Changes) -> None:
        """Set and end records; they are written soon."""
        if changes:
            self.table.apply(changes)
            if self._path is not None:
                self._unsaved = {**self._unsaved, **changes}
                self.sync_soon()

    async def save(self, handouts: Iterable[Handout], within: float) -> str | None:
        """Set handouts, and write them in so many seconds; return why they are not written.

        One with steps that could not be written is as it was. If the disk is merely slow, one that
        replaces no other steps is written later, as nodes always are: the steps of a former pod
        must not be what the next process finds.
        """
        changes = {handout.key: handout for handout in handouts}
        # What is known may be out of date if another instance has served the resource meanwhile,
        # so that an equal handout is written too.
        former, unsaved = {key: self.table.find(key) for key in changes}, self._unsaved
        self.set(changes)
        problem = await self.sync(within)
        late = [handout for handout in changes.values() if not self.is_saved(handout)]
        if not late:
            return None
        undone = {
            handout.key: former.get(handout.key)
            for handout in late
            if handout.steps != "none"
            and (problem != NO_ANSWER or _replaces_steps(former.get(handout.key), handout))
        }
        kept = {key: record for key, record in self._unsaved.items() if key not in undone}
        self._unsaved = kept | {key: unsaved[key] for key in undone.keys() & unsaved.keys()}
        self.table.apply(undone)
        return problem or self.problem

    async def save_claim(self, claim: ClaimRecord, within: float) -> str | None:
        """Set a claim, and write it in so many seconds; return why it is not written yet."""
        self.set({claim.key: claim})
        problem = await self.sync(within)
        return None if self.is_saved(claim) else problem or self.problem or NO_ANSWER

    def sync_soon(self) -> None:
        """Write, soon, what has changed, and read what other instances have recorded."""
        if self._path is not None and (self._next is None or self._next.done()):
            work = self._attempt(self._path, self._running)
            self._next = asyncio.create_task(work, name="state")

    async def sync(self, within: float) -> str | None:
        """Write what has changed and read what others have written, in so many seconds.

        Returns why the file could not be read: `NO_ANSWER`, or an error.
        """
        self.sync_soon()
        if (attempt := self._next) is None:
            return None
        done, _ = await asyncio.wait({attempt}, timeout=within)
        return attempt.result() if done else NO_ANSWER

    async def follow(self, watcher: Watcher) -> None:
        """Read the file when it may have changed, until cancelled."""
        subscription = Subscription(watcher, self.sync_soon)
        try:
            while self._path is not None:
                await subscription.watch(frozenset({WatchTarget(str(self._path.parent))}))
                self.sync_soon()
                await asyncio.sleep(POLL_S)
        finally:
            subscription.close()

    async def close(self) -> None:
        """Write what has changed, at most `CLOSE_S`, and nothing more."""
        if self._unsaved:
            await self.sync(CLOSE_S)
        for attempt in filter(None, (self._running, self._next)):
            attempt.cancel()

    async def _attempt(self, path: Path, former: "asyncio.Task[str | None] | None") -> str | None:
        """Write and read after the former attempt; return why the file could not be read."""
        late = asyncio.get_running_loop().call_later(
            PATIENCE_S, self._report, f"{path}: no answer in {PATIENCE_S:g} s"
        )
        try:
            if former is not None:
                await asyncio.wait({former})
            self._running, self._next = self._next, None
            changes, before, last = self._unsaved, self.table.snapshot(), self._file
            file = await run_in_thread(
                "state", lambda: _update(path, changes, before, last, self._is_locked_by_other)
            )
        except OSError as error:
            self._report(f"{path}: {error.strerror}")
            return self.problem
        finally:
            late.cancel()
        self._file = file
        if file.failure is None:
            self._unsaved = {
                key: handout
                for key, handout in self._unsaved.items()
                if changes.get(key, self) is not handout
            }
        self._merge(file, before)
        self.damage = file.damage or self.damage
        self._report(f"{path}: {file.failure.strerror}" if file.failure else None)
        return None

    def _merge(self, file: "_File", before: Mapping[HandoutKey, Record]) -> None:
        """Take over what other instances have made and ended."""
        entries: dict[HandoutKey, Record | None] = {
            key: entry for key, entry in file.entries.items() if isinstance(entry, Record)
        }
        for key in before.keys() - file.entries.keys():
            # What cannot be written again now stays.
            entries[key] = _lost(before[key]) if file.failure else None
        changes = {
            key: entry
            for key, entry in entries.items()
            if key not in self._unsaved and (entry is None or entry not in self.table)
        }
        ended = [before[key] for key, entry in changes.items() if entry is None and key in before]
        self.table.apply(changes)
        if changes:
            made = (*changes.values(), *ended)
            self.on_read([record for record in made if isinstance(record, Handout)])

    def _report(self, problem: str | None) -> None:
        self.problem = log_transition("allocated devices", self.problem, problem)


def _replaces_steps(former: Handout | None, handout: Handout) -> bool:
    return former is not None and former.steps not in ("none", handout.steps)


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a number may be taken for that of an earlier boot


# ── in a thread ──


class _File(NamedTuple):
    entries: Mapping[HandoutKey, Record | Foreign]
    stamp: tuple[int, ...] | None = None  # differs from one file to the next
    damage: str | None = None
    failure: OSError | None = None


def _update(
    path: Path,
    changes: Changes,
    records: Mapping[HandoutKey, Record],
    last: _File,
    is_locked_by_other: Callable[[str], bool],
) -> _File:
    """Change the file, write again what it has lost, and return its content.

    `records` are those of this process, and `last` the file as it has read or written it last.
    Of a resource that another instance serves, that one knows which steps are done, and what pods
    no longer have: only nodes are added.
    """
    if not (any(changes.values()) or records or path.exists()):
        return _File({})
    with directory_lock(path.parent):
        file = _read(path, last)
        lost = records.keys() - file.entries.keys() - changes.keys()
        resources = {str(resource) for resource, _ in (*lost, *changes) if resource != CLAIM}
        served_elsewhere = set(filter(is_locked_by_other, resources))
        if file.stamp is not None:
            served_elsewhere.add(CLAIM)
        again = {key: _lost(records[key]) for key in lost if key[0] not in served_elsewhere}
        new = {
            key: _merged(record, file.entries.get(key))
            if isinstance(record, Handout) and key[0] in served_elsewhere
            else record
            for key, record in changes.items()
        }
        wanted = {**file.entries, **again, **new}
        entries = {key: entry for key, entry in wanted.items() if entry is not None}
        if entries == file.entries:
            return file
        try:
            write_atomically(path, _CONTENT.dump_json([*entries.values()], indent=1))
        except OSError as error:
            return file._replace(failure=error)
        if again:
            _LOG.warning(
                "%s had lost %d allocated devices: they are written again", path, len(again)
            )
        return file._replace(entries=entries, stamp=_stamp(path))


def _lost(record: Record) -> Record:
    """Return a record that the file has lost: whether its steps are done cannot be told."""
    return record.with_steps("none") if isinstance(record, Handout) else record


def _merged(handout: Handout, entry: Record | Foreign | None) -> Handout:
    """Return a handout with the nodes of the other instance's, whose steps count."""
    if not isinstance(entry, Handout):
        return handout.with_steps("none")
    nodes = dict.fromkeys((*entry.nodes, *handout.nodes))
    return entry.model_copy(update={"nodes": tuple(nodes)})


def _read(path: Path, last: _File) -> _File:
    stamp = _stamp(path)
    if stamp is not None and stamp == last.stamp:
        return last._replace(damage=None, failure=None)
    raw, damage = read_state(path)
    if raw is None:
        return _File({}, damage=damage)
    try:
        entries = {entry.key: entry for entry in _current(_CONTENT.validate_json(raw))}
    except ValidationError as error:
        return _File({}, damage=move_aside(path, f"damaged ({error.errors()[0]['msg']})"))
    if foreign := sum(isinstance(entry, Foreign) for entry in entries.values()):
        _LOG.info("%s: %d entries are of another version: they are kept", path, foreign)
    return _File(entries, stamp)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None  # reading it says why
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


# ── entries of the first format: one for each node, and one for the steps of each ID ──


class _OldNode(StateEntry):
    resource: str
    device: str
    shared: bool
    key: str  # `NodeId.entity`; empty if the device has no node
    names: frozenset[str]
    boot: str
    overlap: bool


class _OldSteps(StateEntry):
    resource: str
    id: str
    prepared: bool


_CONTENT: Final = TypeAdapter(
    list[
        Annotated[
            Handout | ClaimRecord | _OldNode | _OldSteps | Foreign,
            Field(union_mode="left_to_right"),
        ]
    ]
)


def _current(
    entries: Iterable[Record | _OldNode | _OldSteps | Foreign],
) -> Iterator[Record | Foreign]:
    """Yield the entries of a file; those of the first format as handouts."""
    former: dict[HandoutKey, Handout] = {}
    steps: dict[HandoutKey, bool] = {}
    for entry in entries:
        if isinstance(entry, _OldNode):
            # Which share a pod has was not recorded.
            advertised_id = f"{entry.device}::" if entry.shared else entry.device
            node = HandedNode(entity=entry.key, names=entry.names, boot=entry.boot)
            handout = former.get((entry.resource, advertised_id)) or Handout(
                resource=entry.resource,
                id=advertised_id,
                device=entry.device,
                nodes=(),
                overlap=entry.overlap,
            )
            nodes = (*handout.nodes, node) if entry.key else handout.nodes
            former[handout.key] = handout.model_copy(update={"nodes": nodes})
        elif isinstance(entry, _OldSteps):
            steps[entry.resource, entry.id] = entry.prepared
        else:
            yield entry
    for (resource, advertised_id), done in steps.items():
        shares = f"{advertised_id.rpartition('::')[0]}::"
        key = resource, advertised_id
        if (base := former.get(key) or former.get((resource, shares))) is not None:
            update = {"id": advertised_id, "steps": "done" if done else "pending"}
            former[key] = base.model_copy(update=update)
    yield from former.values()

"""What is recorded of devices: which pods were given them, and which are prepared.

It is one file of the state directory, which all instances on the machine share. Only what was
allocated is in it, so it is small: it is read and replaced as a whole. A node that this process has
recorded and the file has lost is written again, unless another instance serves the resource; a lost
mark is none. What a newer version has written is kept.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NamedTuple, TypeVar

from pydantic import BaseModel, ConfigDict, Field, RootModel, TypeAdapter, ValidationError

from devhost.host.state_files import (
    CLOSE_S,
    directory_lock,
    log_transition,
    move_aside,
    read_state,
    write_atomically,
)
from devhost.model.node_id import NodeId
from devhost.watch.threads import PATIENCE_S, run_in_thread
from devhost.watch.watcher import Subscription, Watcher, WatchTarget

FILE: Final = "state.json"
POLL_S: Final = 5.0  # in addition to the watch, which may miss something
NO_ANSWER: Final = "the state directory does not answer"
_LOG: Final = logging.getLogger(__name__)


class Owner(NamedTuple):
    """The name under which a device is, or was, in the list that kubelet gets."""

    resource: str
    device: str  # its ID, without the suffix of a share
    shared: bool  # whether it is advertised as shares (``id::0`` …)

    def __str__(self) -> str:
        return f"{self.resource} {self.device}"


class _Entry(BaseModel):
    # After a rollback, the fields that a newer version has added are kept.
    model_config = ConfigDict(frozen=True, strict=True, extra="allow")

    resource: str


class Allocated(_Entry):
    """A node that a pod was given, and under what name; of a device without a node, the name."""

    device: str
    shared: bool
    key: str  # `NodeId.entity`; empty if the device has no node
    names: frozenset[str]  # `NodeId.names`
    boot: str  # the kernel's ID of it
    overlap: bool  # whether the resource had ``overlap: allow``

    @property
    def owner(self) -> Owner:
        """The device that has the node."""
        return Owner(self.resource, self.device, self.shared)

    @property
    def identity(self) -> "Identity":
        """What there is one record of."""
        return self.owner, min(self.names) if self.node.is_file else self.key

    @property
    def node(self) -> NodeId:
        """The node."""
        return NodeId(self.key, self.names)

    def keys(self, boot: str) -> frozenset[str]:
        """Return what identifies the node in a boot."""
        return self.node.keys_in(same_boot=boot == self.boot) - {""}


class Mark(_Entry):
    """How far a device is prepared for the pod that has it."""

    id: str  # as kubelet has allocated it
    prepared: bool  # else fresh: the steps are still to run

    @property
    def identity(self) -> "Identity":
        """What there is one mark of."""
        return self.resource, self.id


class Foreign(RootModel[Any]):
    """An entry of a newer version, which stays in the file as it is."""

    @property
    def identity(self) -> "Identity":
        """Its content."""
        return None, json.dumps(self.root, sort_keys=True)


Entry = Allocated | Mark
Identity = tuple[object, object]
_Changes = Mapping[Identity, Entry | None]  # ``None`` to drop it
_Key = TypeVar("_Key")
_CONTENT: Final = TypeAdapter(
    list[Annotated[Allocated | Mark | Foreign, Field(union_mode="left_to_right")]]
)


class Records:
    """The records as this process knows them. All methods belong to the event loop.

    `elsewhere` tells whether another instance serves a resource, and blocks. `on_read` gets the
    records of nodes that another instance has added or dropped. `lost` says what has become of a
    file that was damaged, and `problem` why the state directory does not have the records;
    `entries` are all.
    """

    def __init__(
        self,
        state_dir: Path | None,
        elsewhere: Callable[[str], bool],
        on_read: Callable[[list[Allocated]], object] = len,
    ) -> None:
        self.boot, self._elsewhere, self._on_read = boot_id(), elsewhere, on_read
        self.lost: str | None = None
        self.problem: str | None = None
        self.entries: dict[Identity, Entry] = {}
        self._by_key: dict[str, dict[Identity, Allocated]] = {}
        self._by_owner: dict[Owner, dict[Identity, Allocated]] = {}
        self._unsaved: _Changes = {}
        self._path = state_dir and state_dir / FILE
        self._file = _File({})  # as it was read or written last
        self._running: asyncio.Task[str | None] | None = None  # the last attempt to write and read
        self._next: asyncio.Task[str | None] | None = None  # one that has not begun

    @property
    def allocated(self) -> list[Allocated]:
        """The nodes that pods were given."""
        return [entry for entry in self.entries.values() if isinstance(entry, Allocated)]

    def at(self, keys: Iterable[str]) -> list[Allocated]:
        """Return the records of a node by its keys."""
        if not self._by_key:
            return []
        records: dict[Identity, Allocated] = {}
        for key in keys:
            records |= self._by_key.get(key, {})
        return list(records.values())

    def has_owner(self, owner: Owner) -> bool:
        """Whether there is a record of a device under a name."""
        return owner in self._by_owner

    def marks(self, resource: str) -> dict[str, Mark]:
        """Return, by advertised ID, how far devices are prepared, as far as that is known."""
        marks = (entry for entry in self.entries.values() if isinstance(entry, Mark))
        return {mark.id: mark for mark in marks if mark.resource == resource}

    def has(self, entry: Entry) -> bool:
        """Whether an equal entry is there."""
        return self.entries.get(entry.identity) == entry

    def is_saved(self, entry: Entry) -> bool:
        """Whether the state directory, if there is one, has what is known of an entry."""
        return entry.identity not in self._unsaved

    def put(self, entries: Iterable[Entry]) -> None:
        """Add entries, or replace those of the same identity."""
        self._change({one.identity: one for one in entries})

    def drop(self, entries: Iterable[Entry]) -> None:
        """Drop entries."""
        self._change({one.identity: None for one in entries})

    async def save(self, entries: Iterable[Entry], within: float) -> str | None:
        """Put entries, and write them in so many seconds; return why they are not written.

        A mark that could not be written is as it was. If the disk is merely slow, what replaces no
        other mark is written later, as nodes always are: a mark of a former pod must not be what
        the next process finds.
        """
        entries = tuple(entries)
        # What is known may be out of date if another instance has served the resource meanwhile,
        # so that an equal entry is written too.
        former = {
            it.identity: was
            for it in entries
            if (was := self.entries.get(it.identity)) not in (it, None) and self.is_saved(it)
        }
        self.put(entries)
        problem = await self.sync(within)
        late = [one for one in entries if not self.is_saved(one)]
        if not late:
            return None
        undone: _Changes = {
            one.identity: former.get(one.identity)
            for one in late
            if isinstance(one, Mark) and (problem != NO_ANSWER or former.get(one.identity))
        }
        self._unsaved = {it: one for it, one in self._unsaved.items() if it not in undone}
        self._apply(undone)
        return problem or self.problem

    def reload(self) -> None:
        """Write, soon, what has changed, and read what other instances have recorded."""
        if self._path is not None and (self._next is None or self._next.done()):
            work = self._attempt(self._path, self._running)
            self._next = asyncio.create_task(work, name="state")

    async def sync(self, within: float) -> str | None:
        """Write what has changed and read what others have written, in so many seconds.

        Returns why the file could not be read: `NO_ANSWER`, or an error.
        """
        self.reload()
        if (attempt := self._next) is None:
            return None
        done, _ = await asyncio.wait({attempt}, timeout=within)
        return attempt.result() if done else NO_ANSWER

    async def follow(self, watcher: Watcher) -> None:
        """Read the file when it may have changed, until cancelled."""
        subscription = Subscription(watcher, self.reload)
        try:
            while self._path is not None:
                await subscription.watch(frozenset({WatchTarget(str(self._path.parent))}))
                self.reload()
                await asyncio.sleep(POLL_S)
        finally:
            subscription.close()

    async def close(self) -> None:
        """Write what has changed, at most `CLOSE_S`, and nothing more."""
        if self._unsaved:
            await self.sync(CLOSE_S)
        for attempt in filter(None, (self._running, self._next)):
            attempt.cancel()

    def _change(self, changes: _Changes) -> None:
        if changes:
            self._apply(changes)
            if self._path is not None:
                self._unsaved = {**self._unsaved, **changes}
                self.reload()

    def _apply(self, changes: _Changes) -> None:
        """Set entries, and keep the indexes."""
        for identity, entry in changes.items():
            former = self.entries.pop(identity, None)
            if isinstance(former, Allocated):
                _remove(self._by_owner, former.owner, identity)
                for key in former.keys(self.boot):
                    _remove(self._by_key, key, identity)
            if entry is not None:
                self.entries[identity] = entry
            if isinstance(entry, Allocated):
                self._by_owner.setdefault(entry.owner, {})[identity] = entry
                for key in entry.keys(self.boot):
                    self._by_key.setdefault(key, {})[identity] = entry

    async def _attempt(self, path: Path, former: "asyncio.Task[str | None] | None") -> str | None:
        """Write and read after the former attempt; return why the file could not be read."""
        late = asyncio.get_running_loop().call_later(
            PATIENCE_S, self._report, f"{path}: no answer in {PATIENCE_S:g} s"
        )
        try:
            if former is not None:
                await asyncio.wait({former})
            self._running, self._next = self._next, None
            changes, before, last = self._unsaved, dict(self.entries), self._file
            file = await run_in_thread(
                "state", lambda: _update(path, changes, before, last, self._elsewhere)
            )
        except OSError as error:
            self._report(f"{path}: {error.strerror}")
            return self.problem
        finally:
            late.cancel()
        self._file = file
        if file.failure is None:
            self._unsaved = {
                identity: entry
                for identity, entry in self._unsaved.items()
                if changes.get(identity, self) is not entry
            }
        self._take(file, before)
        self.lost = file.lost or self.lost
        self._report(f"{path}: {file.failure.strerror}" if file.failure else None)
        return None

    def _take(self, file: "_File", before: Mapping[Identity, Entry]) -> None:
        """Take over what other instances have added and dropped."""
        changes: dict[Identity, Entry | None] = {
            identity: entry
            for identity, entry in file.entries.items()
            if not isinstance(entry, Foreign) and self.entries.get(identity) != entry
        }
        if file.failure is None:  # else the file lacks what is to be written again
            changes |= dict.fromkeys(before.keys() - file.entries.keys())
        changes = {it: entry for it, entry in changes.items() if it not in self._unsaved}
        concerned = [entry or self.entries.get(it) for it, entry in changes.items()]
        self._apply(changes)
        if nodes := [entry for entry in concerned if isinstance(entry, Allocated)]:
            self._on_read(nodes)

    def _report(self, problem: str | None) -> None:
        self.problem = log_transition("allocated devices", self.problem, problem)


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a number may be taken for that of an earlier boot


def _remove(index: dict[_Key, dict[Identity, Allocated]], key: _Key, identity: Identity) -> None:
    del index[key][identity]
    if not index[key]:
        del index[key]


# ── in a thread ──


class _File(NamedTuple):
    entries: Mapping[Identity, Entry | Foreign]
    stamp: tuple[int, ...] | None = None  # what differs from one file to the next
    lost: str | None = None
    failure: OSError | None = None


def _update(
    path: Path,
    changes: _Changes,
    known: Mapping[Identity, Entry],
    last: _File,
    elsewhere: Callable[[str], bool],
) -> _File:
    """Change the file, write again the nodes that it has lost, and return what is in it.

    `known` is what this process knows, and `last` the file as it has read or written it last. Of a
    resource that another instance serves, that one knows which devices are prepared, and what pods
    no longer have.
    """
    if not (any(changes.values()) or known or path.exists()):
        return _File({})
    with directory_lock(path.parent):
        file = _read(path, last)
        lost = {
            it: entry
            for it, entry in known.items()
            if isinstance(entry, Allocated) and it not in file.entries and it not in changes
        }
        resources = {entry.resource for entry in lost.values()}
        resources |= {resource for resource, _ in changes if isinstance(resource, str)}
        others = set(filter(elsewhere, resources))
        lost = {it: entry for it, entry in lost.items() if entry.resource not in others}
        own = {it: entry for it, entry in changes.items() if it[0] not in others}
        wanted = {**file.entries, **lost, **own}
        entries = {it: entry for it, entry in wanted.items() if entry is not None}
        if entries == file.entries:
            return file
        try:
            write_atomically(path, _CONTENT.dump_json([*entries.values()], indent=1))
        except OSError as error:
            return file._replace(failure=error)
        if lost:
            _LOG.warning("%s had lost %d allocated nodes: they are written again", path, len(lost))
        return file._replace(entries=entries, stamp=_stamp(path))


def _read(path: Path, last: _File) -> _File:
    stamp = _stamp(path)
    if stamp is not None and stamp == last.stamp:
        return last._replace(lost=None, failure=None)
    raw, lost = read_state(path)
    if raw is None:
        return _File({}, lost=lost)
    try:
        entries = {entry.identity: entry for entry in _CONTENT.validate_json(raw)}
    except ValidationError as error:
        return _File({}, lost=move_aside(path, f"damaged ({error.errors()[0]['msg']})"))
    if foreign := sum(isinstance(entry, Foreign) for entry in entries.values()):
        _LOG.info("%s: %d entries are of another version: they are kept", path, foreign)
    return _File(entries, stamp)


def _stamp(path: Path) -> tuple[int, ...] | None:
    try:
        status = path.stat()
    except OSError:
        return None  # reading it says why
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns

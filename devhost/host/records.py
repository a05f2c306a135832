"""What is recorded of devices: which nodes pods were given, and which devices are prepared.

It is one file of the state directory, which all instances on the machine share. Only what was
allocated is in it, so it is small: it is read and replaced as a whole.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from devhost.host.state_files import (
    CLOSE_S,
    locked,
    move_aside,
    read_state,
    report,
    write_atomically,
)
from devhost.model.node_id import NodeId
from devhost.watch.threads import PATIENCE_S, in_thread

FILE: Final = "state.json"
NO_ANSWER: Final = "the state directory does not answer"


class Owner(NamedTuple):
    """The name under which a device is, or was, in the list that kubelet gets."""

    resource: str
    device: str  # its ID, without the suffix of a share
    shared: bool  # whether it is advertised as shares (``id::0`` …)

    def __str__(self) -> str:
        return f"{self.resource} {self.device}"


class _Entry(BaseModel):
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    resource: str


class Allocated(_Entry):
    """A node that a pod was given, and under what name."""

    device: str
    shared: bool
    key: str  # `NodeId.entity`
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
        return self.node.keys_in(same_boot=boot == self.boot)


class Mark(_Entry):
    """How far a device is prepared for the pod that has it."""

    id: str  # as kubelet has allocated it
    prepared: bool  # else fresh: the steps are still to run

    @property
    def identity(self) -> "Identity":
        """What there is one mark of."""
        return self.resource, self.id


Entry = Allocated | Mark
Identity = tuple[object, object]
_Entries = dict[Identity, Entry]
_Changes = Mapping[Identity, Entry | None]  # ``None`` to drop it
_CONTENT: Final = TypeAdapter(list[Entry])


class Records:
    """The records as this process knows them. All methods belong to the event loop.

    `elsewhere` tells whether another instance serves a resource, and blocks. `lost` says what has
    become of a file that was damaged, and `problem` why the state directory does not have the
    records; `entries` are all.
    """

    def __init__(self, state_dir: Path | None, elsewhere: Callable[[str], bool]) -> None:
        self.boot, self._elsewhere = boot_id(), elsewhere
        self.lost: str | None = None
        self.problem: str | None = None
        self.entries: _Entries = {}
        self._by_key: dict[str, list[Allocated]] | None = None  # made where it is needed
        self._unsaved: _Changes = {}
        self._path = state_dir and state_dir / FILE
        self._running: asyncio.Task[str | None] | None = None  # the last attempt to write and read
        self._next: asyncio.Task[str | None] | None = None  # one that has not begun

    @property
    def allocated(self) -> list[Allocated]:
        """The nodes that pods were given."""
        return [one for one in self.entries.values() if isinstance(one, Allocated)]

    def at(self, keys: Iterable[str]) -> list[Allocated]:
        """Return the records of a node by its keys."""
        if (by_key := self._by_key) is None:
            by_key = self._by_key = {}
            for one in self.allocated:
                for key in one.keys(self.boot):
                    by_key.setdefault(key, []).append(one)
        if not by_key:
            return []
        return list(dict.fromkeys(one for key in keys for one in by_key.get(key, ())))

    def marks(self, resource: str) -> dict[str, Mark]:
        """Return, by advertised ID, how far devices are prepared, as far as that is known."""
        marks = (one for one in self.entries.values() if isinstance(one, Mark))
        return {one.id: one for one in marks if one.resource == resource}

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
        self._set({**self.entries, **undone})
        return problem or self.problem

    def reload(self) -> None:
        """Write, soon, what has changed, and read what other instances have recorded."""
        if self._path is not None and self._next is None:
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

    async def close(self) -> None:
        """Write what has changed, at most `CLOSE_S`, and nothing more."""
        if self._unsaved:
            await self.sync(CLOSE_S)
        for attempt in filter(None, (self._running, self._next)):
            attempt.cancel()

    def _change(self, changes: _Changes) -> None:
        if changes:
            self._set({**self.entries, **changes})
            if self._path is not None:
                self._unsaved = {**self._unsaved, **changes}
                self.reload()

    def _set(self, entries: _Changes) -> None:
        self.entries = {identity: one for identity, one in entries.items() if one is not None}
        self._by_key = None

    async def _attempt(self, path: Path, former: "asyncio.Task[str | None] | None") -> str | None:
        """Write and read after the former attempt; return why the file could not be read."""
        late = asyncio.get_running_loop().call_later(
            PATIENCE_S, self._report, f"{path}: no answer in {PATIENCE_S:g} s"
        )
        try:
            if former is not None:
                await asyncio.wait({former})
            self._running, self._next = self._next, None
            changes = self._unsaved
            file = await in_thread("state", lambda: _update(path, changes, self._elsewhere))
        except OSError as error:
            self._report(f"{path}: {error.strerror}")
            return self.problem
        finally:
            late.cancel()
        done = {} if file.failure else changes
        self._unsaved = {
            it: one for it, one in self._unsaved.items() if done.get(it, self) is not one
        }
        # A node that the file has no longer is for this process to judge; such a mark is none.
        nodes = {one.identity: one for one in self.allocated}
        self._set({**nodes, **file.entries, **self._unsaved})
        self.lost = file.lost or self.lost
        self._report(f"{path}: {file.failure.strerror}" if file.failure else None)
        return None

    def _report(self, problem: str | None) -> None:
        self.problem = report("allocated devices", self.problem, problem)


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a number may be taken for that of an earlier boot


# ── in a thread ──


class _File(NamedTuple):
    entries: _Entries
    lost: str | None = None
    failure: OSError | None = None


def _update(path: Path, changes: _Changes, elsewhere: Callable[[str], bool]) -> _File:
    """Change the file, but for marks of what another instance serves: it knows better."""
    if not any(changes.values()) and not path.exists():
        return _File({})
    with locked(path.parent):
        before, lost = _read(path)
        marked = {resource for resource, _ in changes if isinstance(resource, str)}
        others = set(filter(elsewhere, marked))
        own = {it: one for it, one in changes.items() if it[0] not in others}
        after = {it: one for it, one in {**before, **own}.items() if one is not None}
        try:
            if after != before:
                write_atomically(path, _CONTENT.dump_json([*after.values()], indent=1))
        except OSError as error:
            return _File(before, lost, error)
    return _File(after, lost)


def _read(path: Path) -> tuple[_Entries, str | None]:
    raw, lost = read_state(path)
    if raw is None:
        return {}, lost
    try:
        return {one.identity: one for one in _CONTENT.validate_json(raw)}, None
    except ValidationError as error:
        return {}, move_aside(path, f"damaged ({error.errors()[0]['msg']})")

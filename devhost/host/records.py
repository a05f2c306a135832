"""What is recorded of devices: which nodes pods were given, and which devices are prepared.

It is one file of the state directory, which all instances on the machine share. Only what was
allocated is in it, so it is small: it is read and replaced as a whole.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
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
from devhost.model.device import Node
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
    key: str  # `key_of`
    names: frozenset[str]  # `names_of`
    boot: str  # the kernel's ID of it
    overlap: bool  # whether the resource had ``overlap: allow``

    @property
    def owner(self) -> Owner:
        """The device that has the node."""
        return Owner(self.resource, self.device, self.shared)

    @property
    def identity(self) -> "Identity":
        """What there is one record of."""
        return self.owner, min(self.names) if self._is_file else self.key

    def keys(self, boot: str) -> frozenset[str]:
        """Return what identifies the node in a boot: numbers are others after another one."""
        if boot != self.boot:
            return self.names
        return self.names | {self.key} if self._is_file else frozenset([self.key])

    @property
    def _is_file(self) -> bool:
        return self.key.startswith(_FILE)

    def conflicts(self, other: "Entry") -> bool:
        """Whether the two are of one node, which their owners do not share."""
        return (
            isinstance(other, Allocated)
            and not {self.key, *self.names}.isdisjoint(other.keys(self.boot))
            and other.owner != self.owner
            and not (other.overlap and self.overlap)
        )


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
_FILE: Final = "file "  # how the key of what is no device node begins
_CONTENT: Final = TypeAdapter(list[Entry])


class Records:
    """The records as this process knows them. All methods belong to the event loop.

    `refused` is called when a node that was put here is dropped again, because another instance has
    handed it out. `lost` says what has become of a file that was damaged, and `problem` why the
    state directory does not have the records.
    """

    def __init__(self, state_dir: Path | None, refused: Callable[[], None]) -> None:
        self.boot, self._refused = boot_id(), refused
        self.lost: str | None = None
        self.problem: str | None = None
        self._entries: _Entries = {}
        self._by_key: dict[str, list[Allocated]] | None = None  # made where it is needed
        self._unsaved: dict[Identity, Entry | None] = {}  # ``None`` to drop it
        self._path = state_dir and state_dir / FILE
        self._running: asyncio.Task[bool] | None = None  # the last attempt to write and read
        self._next: asyncio.Task[bool] | None = None  # one that has not begun

    @property
    def durable(self) -> bool:
        """Whether they outlive the process."""
        return self._path is not None

    @property
    def allocated(self) -> list[Allocated]:
        """The nodes that pods were given."""
        return [one for one in self._entries.values() if isinstance(one, Allocated)]

    def at(self, node: Node) -> list[Allocated]:
        """Return the records of a node."""
        if (by_key := self._by_key) is None:
            by_key = self._by_key = {}
            for one in self.allocated:
                for key in one.keys(self.boot):
                    by_key.setdefault(key, []).append(one)
        if not by_key:
            return []
        keys = {key_of(node), *names_of(node)}
        return list(dict.fromkeys(one for key in keys for one in by_key.get(key, ())))

    def marks(self, resource: str) -> dict[str, Mark]:
        """Return, by advertised ID, how far devices are prepared, as far as that is known."""
        marks = (one for one in self._entries.values() if isinstance(one, Mark))
        return {one.id: one for one in marks if one.resource == resource}

    def has(self, entry: Entry) -> bool:
        """Whether an equal entry is there: it was not refused."""
        return self._entries.get(entry.identity) == entry

    def put(self, entries: Iterable[Entry]) -> None:
        """Add entries, or replace those of the same identity."""
        self._change({one.identity: one for one in entries})

    def drop(self, entries: Iterable[Entry]) -> None:
        """Drop entries."""
        self._change({one.identity: None for one in entries})

    async def save(self, entries: Iterable[Entry], within: float) -> str | None:
        """Put entries, and write them in so many seconds; return why marks are not written.

        Those are dropped: later, another instance may have set them. Nodes are written later.
        """
        entries = tuple(entries)
        self.put(entries)
        await self.sync(within)
        late = [one for one in entries if isinstance(one, Mark) and one.identity in self._unsaved]
        for one in late:
            del self._unsaved[one.identity]
            self._set({**self._entries, one.identity: None})
        return (self.problem or NO_ANSWER) if late else None

    def reload(self) -> None:
        """Write, soon, what has changed, and read what other instances have recorded."""
        if self._path is not None and self._next is None:
            work = self._attempt(self._path, self._running)
            self._next = asyncio.create_task(work, name="state")

    async def sync(self, within: float) -> bool:
        """Write what has changed and read what others have written, in so many seconds.

        Returns whether the file could be read.
        """
        self.reload()
        if (attempt := self._next) is None:
            return True
        done, _ = await asyncio.wait({attempt}, timeout=within)
        return bool(done) and attempt.result()

    async def close(self) -> None:
        """Write what has changed, at most `CLOSE_S`, and nothing more."""
        if self._unsaved:
            await self.sync(CLOSE_S)
        for attempt in filter(None, (self._running, self._next)):
            attempt.cancel()

    def _change(self, changes: Mapping[Identity, Entry | None]) -> None:
        if changes:
            self._set({**self._entries, **changes})
            if self._path is not None:
                self._unsaved |= changes
                self.reload()

    def _set(self, entries: Mapping[Identity, Entry | None]) -> None:
        self._entries = {identity: one for identity, one in entries.items() if one is not None}
        self._by_key = None

    async def _attempt(self, path: Path, former: "asyncio.Task[bool] | None") -> bool:
        """Write and read after the former attempt; return whether the file could be read."""
        late = asyncio.get_running_loop().call_later(
            PATIENCE_S, self._report, f"{path}: no answer in {PATIENCE_S:g} s"
        )
        try:
            if former is not None:
                await asyncio.wait({former})
            self._running, self._next = self._next, None
            changes, known = dict(self._unsaved), {*self._entries, *self._unsaved}
            file = await in_thread("state", lambda: _update(path, changes, known))
        except OSError as error:
            self._report(f"{path}: {error.strerror}")
            return False
        finally:
            late.cancel()
        self._learn(file, changes)
        self._report(f"{path}: {file.failure.strerror}" if file.failure else None)
        return True

    def _learn(self, file: "_File", changes: Mapping[Identity, Entry | None]) -> None:
        """Take over what the file has, after an attempt to write these changes."""
        refused, done = [*file.refused], {} if file.failure else changes
        # What was put meanwhile was judged without what is learned now.
        learned = [one for it, one in file.entries.items() if it not in self._entries]
        put = [one for one in self._unsaved.values() if isinstance(one, Allocated)]
        refused += [one for one in put if any(map(one.conflicts, learned))]
        self._unsaved = {
            it: one
            for it, one in self._unsaved.items()
            if done.get(it, self) is not one and one not in refused
        }
        # A node that the file has no longer is for this process to judge; such a mark is none.
        kept = {one.identity: one for one in self.allocated if one not in refused}
        self._set({**kept, **file.entries, **self._unsaved})
        self.lost = file.lost or self.lost
        if refused:
            self._refused()

    def _report(self, problem: str | None) -> None:
        self.problem = report("allocated devices", self.problem, problem)


def key_of(node: Node) -> str:
    """Return what a node is, in one boot: two names of one node are not two devices.

    That is the number of a device node, inode and time of content of another file (which is also
    known by its path), and for what has none, such as a network interface, its place in sysfs.
    """
    if node.state is None:
        return _text(node.key)
    if node.state.number:
        return "{} {}:{}".format(node.state.kind.value, *node.state.number)
    return _FILE + " ".join(map(str, (*node.state.identity, node.state.modified)))


def names_of(node: Node) -> frozenset[str]:
    """Return what a node is known by across boots."""
    return frozenset(_text(one) for one in (node.key, node.path) if one)


def _text(path: str) -> str:
    return path.encode(errors="backslashreplace").decode()  # it may not be UTF-8, which JSON is


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a number may be taken for that of an earlier boot


# ── in a thread ──


class _File(NamedTuple):
    entries: _Entries
    refused: Sequence[Allocated] = ()
    lost: str | None = None
    failure: OSError | None = None


def _update(
    path: Path, changes: Mapping[Identity, Entry | None], known: Collection[Identity]
) -> _File:
    """Change the file, but for nodes that another instance has handed out: those not `known`."""
    put = [one for one in changes.values() if one is not None]
    if not put and not path.exists():
        return _File({})
    with locked(path.parent):
        before, lost = _read(path)
        others = [one for identity, one in before.items() if identity not in known]
        refused = [
            one for one in put if isinstance(one, Allocated) and any(map(one.conflicts, others))
        ]
        after = {identity: one for identity, one in before.items() if identity not in changes}
        after |= {one.identity: one for one in put if one not in refused}
        try:
            if after != before:
                write_atomically(path, _CONTENT.dump_json([*after.values()], indent=1))
        except OSError as error:
            return _File(before, refused, lost, error)
    return _File(after, refused, lost)


def _read(path: Path) -> tuple[_Entries, str | None]:
    raw, lost = read_state(path)
    if raw is None:
        return {}, lost
    try:
        return {one.identity: one for one in _CONTENT.validate_json(raw)}, None
    except ValidationError as error:
        return {}, move_aside(path, f"damaged ({error.errors()[0]['msg']})")

"""The file of node owners: a journal, shared by all instances on the machine.

A line says that a device has a node, or no longer has it; the last one for a device and a path
counts. Lines are appended under a lock, so that a change costs the same among ten thousand
records, and two instances never record one node without one of them seeing the other's line.
"""

import contextlib
import json
import logging
import os
from collections import ChainMap
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from devhost.host import json_text
from devhost.host.state_files import StateWriter, locked, move_large_aside, write_atomically
from devhost.immutable import immutable
from devhost.model.device import Node
from devhost.threads import in_own_thread

_OBSOLETE_LINES: Final = 1000  # before the file is rewritten
_PATIENCE_S: Final = 2.0
_LOG: Final = logging.getLogger(__name__)

NodeIdentity = tuple[int, ...]


@immutable
class Owner:
    """The name under which a device is, or was, in the list that kubelet gets.

    Attributes:
        resource: The resource's name.
        device: The device's ID, without the suffix of a share.
        shared: Whether it is advertised as shares (``id::0`` …).
    """

    resource: str
    device: str
    shared: bool

    def __str__(self) -> str:
        return f"{self.resource} {self.device}"


@immutable
class OwnerRecord:
    """A node and its owner.

    Attributes:
        owner: The device.
        path: The host path as matched; empty for what has none, such as a network interface.
        realpath: The host path with links resolved; its directory in sysfs for what has none.
        identity: For a device node its number (major, minor), filesystem and inode; for another
            file filesystem, inode and the time of its content; empty for what has no file.
        boot: The kernel's boot ID; another boot gives the same node another inode.
        overlap: Whether the resource had ``overlap: allow``.
        dropped: Whether the device no longer has the node.
    """

    owner: Owner
    path: str
    realpath: str
    identity: NodeIdentity
    boot: str
    overlap: bool = False
    dropped: bool = False

    def keys(self, boot: str) -> tuple[NodeIdentity | str, ...]:
        """Return what identifies the node in a boot: one of the keys of `keys_of`."""
        if not self.identity:
            return (self.realpath,)
        if boot != self.boot:
            return self.realpath, self.path
        if len(self.identity) == _DEVICE_NODE:
            return (self.identity,)  # another node may have its path now
        return self.identity, self.realpath

    @property
    def place(self) -> tuple[Owner, str]:
        """The key of the record: there is one for each."""
        return self.owner, self.realpath


_DEVICE_NODE: Final = 4
_encoded: Final = json.JSONEncoder(separators=(",", ":")).encode  # `json.dumps` makes one each time
Learn = Callable[[Sequence[OwnerRecord], Sequence[OwnerRecord]], None]


def identity_of(node: Node) -> NodeIdentity:
    """Return what identifies a node's file as long as it exists, in one boot."""
    if (state := node.state) is None:
        return ()
    if state.number:
        return *state.number, *state.identity
    return *state.identity, state.modified


def keys_of(node: Node) -> tuple[NodeIdentity | str, ...]:
    """Return the keys under which a record of a present node may be found."""
    return identity_of(node), node.key, node.path


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a reused inode may be taken for the former node


class Journal:
    """The file. All methods block; one call at a time."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "nodes" / "records.jsonl"
        self._inode, self._offset = 0, 0
        self._lines = 0
        self._boot = boot_id()

    def exchange(
        self, own: Sequence[OwnerRecord]
    ) -> tuple[list[OwnerRecord], list[OwnerRecord], str | None]:
        """Append records, unless another instance has recorded the node meanwhile.

        Args:
            own: The records to append.

        Returns:
            What other instances have appended since the last call (at the first call, all
            records), what was not appended because of that, and what is wrong with the file.

        Raises:
            OSError: The file cannot be read or written.
        """
        if not own and not self.path.exists():
            return [], [], None
        with locked(self.path.parent):
            move_large_aside(self.path)
            with self.path.open("a+b") as stream:
                others, problem, torn = self._unread(stream)
                refused = _refused(own, others, self._boot)
                lines = [_dumped(one) for one in own if one not in refused]
                if lines:
                    stream.write(b"\n" * torn + b"".join(lines))
                    stream.flush()
                    os.fsync(stream.fileno())
                self._offset = stream.seek(0, os.SEEK_END)
                self._lines += len(lines)
            if problem or self._lines > _OBSOLETE_LINES:
                # What was read must not be lost with it: another call does not read that again.
                with contextlib.suppress(OSError):
                    self._compact(force=problem is not None)
        return others, refused, problem

    def _unread(self, stream: Any) -> tuple[list[OwnerRecord], str | None, bool]:
        """Return the new records, what is wrong with them, and whether the last line is torn."""
        found = os.fstat(stream.fileno())
        if found.st_ino != self._inode or found.st_size < self._offset:
            self._inode, self._offset, self._lines = found.st_ino, 0, 0
        stream.seek(self._offset)
        raw: bytes = stream.read()
        records, bad = _loaded(raw)
        self._lines += len(records)
        problem = f"{self.path}: {bad} unreadable lines are ignored" if bad else None
        return records, problem, bool(raw) and not raw.endswith(b"\n")

    def _compact(self, *, force: bool) -> None:
        """Rewrite the file if most of its lines are obsolete, or in any case if ``force``."""
        records, _ = _loaded(self.path.read_bytes())
        last = {record.place: record for record in records}
        kept = [record for record in last.values() if not record.dropped]
        if force or len(records) > 2 * len(kept) + _OBSOLETE_LINES:
            raw = b"".join(map(_dumped, kept))
            write_atomically(self.path, raw)
            self._inode, self._offset = self.path.stat().st_ino, len(raw)
            self._lines = 0
        else:
            self._lines = -len(kept)  # check again after as many more


class JournalWriter:
    """Writes records to the journal in the background; one per process.

    Args:
        state_dir: Where the journal is; ``None`` to write nothing.
        learn: Takes what other instances have recorded, and what was refused because of it.

    Attributes:
        loaded: Whether the records of earlier processes were read.
    """

    def __init__(self, state_dir: Path | None, learn: Learn) -> None:
        self._learn = learn
        self._unsaved: dict[tuple[Owner, str], OwnerRecord] = {}
        self._writer: StateWriter | None = None
        self.loaded = state_dir is None
        if state_dir is not None:
            self._journal = Journal(state_dir)
            self._writer = StateWriter(
                "node owners", self._journal.path, self._write, patience=_PATIENCE_S
            )

    @property
    def problem(self) -> str | None:
        """Why the journal does not have the records; ``None`` where it has."""
        return self._writer.problem if self._writer else None

    def put(self, record: OwnerRecord) -> None:
        """Note a record for the next write."""
        if self._writer is not None:
            self._unsaved[record.place] = record

    def start(self) -> None:
        """Write the noted records, and read those of other instances."""
        if self._writer is not None and (self._unsaved or not self.loaded):
            self._writer.changed()

    async def read(self) -> None:
        """Read what earlier processes have recorded, once; waits as `saved` does."""
        if not self.loaded:
            await self.saved()

    async def saved(self) -> None:
        """Wait until all is written, at most 2 s; not at all while writing fails."""
        self.start()
        if self._writer is not None:
            await self._writer.settled()

    async def close(self) -> None:
        """Write what has changed, and nothing more."""
        if self._writer is not None:
            await self._writer.close()

    async def _write(self) -> None:
        batch, self._unsaved = self._unsaved, {}
        own = list(batch.values())
        try:
            others, refused, bad = await in_own_thread(
                "node owners", lambda: self._journal.exchange(own)
            )
        except OSError:
            self._unsaved = dict(ChainMap(self._unsaved, batch))
            raise
        if bad is not None:
            _LOG.warning("%s", bad)
        self.loaded = True
        self._learn(others, refused)
        self.start()  # what was put meanwhile, also by `learn`


# ── the file's content ──


def _refused(
    own: Iterable[OwnerRecord], others: Sequence[OwnerRecord], boot: str
) -> list[OwnerRecord]:
    last = {record.place: record for record in others}
    taken: dict[NodeIdentity | str, list[OwnerRecord]] = {}
    for record in last.values():
        for key in record.keys(boot) if not record.dropped else ():
            taken.setdefault(key, []).append(record)
    return [
        one
        for one in own
        if not one.dropped
        and any(
            other.owner != one.owner and not (other.overlap and one.overlap)
            for key in (one.identity, one.realpath, one.path)
            for other in taken.get(key, ())
        )
    ]


def _loaded(raw: bytes) -> tuple[list[OwnerRecord], int]:
    records, bad = [], 0
    for line in raw.splitlines():
        try:
            records.append(_record(json_text.parse(line)))
        except (ValueError, LookupError, TypeError):
            bad += bool(line)
    return records, bad


def _record(entry: dict[str, Any]) -> OwnerRecord:
    resource, device, shared = entry["owner"]
    texts = (resource, device, entry["path"], entry["realpath"], entry["boot"])
    identity = tuple(entry["identity"])
    if not all(isinstance(one, str) for one in texts) or not all(
        isinstance(one, int) for one in identity
    ):
        raise ValueError(f"{entry!r} is not a record")
    return OwnerRecord(
        Owner(resource, device, bool(shared)),
        entry["path"],
        entry["realpath"],
        identity,
        entry["boot"],
        bool(entry.get("overlap")),
        bool(entry.get("dropped")),
    )


def _dumped(record: OwnerRecord) -> bytes:
    owner = record.owner
    entry: dict[str, object] = {
        "owner": [owner.resource, owner.device, owner.shared],
        "path": record.path,
        "realpath": record.realpath,
        "identity": record.identity,
        "boot": record.boot,
    }
    entry |= {key: True for key in ("overlap", "dropped") if getattr(record, key)}
    return _encoded(entry).encode() + b"\n"

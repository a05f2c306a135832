"""The file of the nodes that resources offer: a journal, shared by all instances on the node.

A line says that a device has a node, or has it no more; the last one for a device and a path
counts. Lines are appended under a lock, so that a change costs the same among ten thousand
records, and two instances never claim one node without one of them seeing the other's line.
"""

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from devhost.host.state_files import locked, write_atomically
from devhost.immutable import immutable
from devhost.model.device import FileState

_SPARE_LINES: Final = 1000  # that say nothing any more, before the file is written anew

Identity = tuple[int, ...]


@immutable
class Owner:
    """Under what name the kubelet's list has, or had, a device.

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
class Record:
    """A node that a device has.

    Attributes:
        owner: The device.
        path: The host path as matched.
        realpath: The host path with links resolved.
        identity: Device number and inode, with the number (major, minor) before it for a device
            node, and the time of the content behind it for anything else.
        boot: The kernel's boot ID; another boot gives the same node another inode.
        overlap: Whether the resource said ``overlap: allow``.
        dropped: Whether the device has the node no more.
    """

    owner: Owner
    path: str
    realpath: str
    identity: Identity
    boot: str
    overlap: bool = False
    dropped: bool = False

    def keys(self, boot: str) -> tuple[Identity | str, ...]:
        """Return what only this node has, in a boot: what `keys_of` returns has one of them."""
        if boot != self.boot:
            return self.realpath, self.path
        if len(self.identity) == _DEVICE_NODE:
            return (self.identity,)  # another one may have its path now
        return self.identity, self.realpath

    @property
    def place(self) -> tuple[Owner, str]:
        """What there is one record of."""
        return self.owner, self.realpath


_DEVICE_NODE: Final = 4


def identity_of(state: FileState) -> Identity:
    """Return what stays of a node as long as it is there, in one boot."""
    if state.number:
        return *state.number, *state.identity
    return *state.identity, state.modified


def keys_of(path: str, state: FileState) -> tuple[Identity | str, ...]:
    """Return by what a node that is there now may be known to a record."""
    return identity_of(state), state.realpath, path


def boot_id() -> str:
    """Return what tells this boot of the machine from the others."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then an inode that is given anew may be taken for the former node


class Journal:
    """The file. All methods block; one call at a time."""

    def __init__(self, state_dir: Path) -> None:
        self.path = state_dir / "nodes" / "records.jsonl"
        self._inode, self._offset = 0, 0
        self._lines = 0
        self._boot = boot_id()

    def exchange(self, own: Sequence[Record]) -> tuple[list[Record], list[Record], str | None]:
        """Append records, unless another instance has claimed the node meanwhile.

        Args:
            own: What is to be appended.

        Returns:
            What other instances have appended since the last call (at the first call, all that
            there is), what was not appended because of that, and what is wrong with the file.

        Raises:
            OSError: The file cannot be read or written.
        """
        if not own and not self.path.exists():
            return [], [], None
        with locked(self.path.parent):
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
            if problem or self._lines > _SPARE_LINES:
                self._compact(whatever=problem is not None)
        return others, refused, problem

    def _unread(self, stream: Any) -> tuple[list[Record], str | None, bool]:
        """Return what is new; what is wrong with it; whether the last line has no end."""
        found = os.fstat(stream.fileno())
        if found.st_ino != self._inode or found.st_size < self._offset:
            self._inode, self._offset, self._lines = found.st_ino, 0, 0
        stream.seek(self._offset)
        raw: bytes = stream.read()
        records, bad = _loaded(raw)
        self._lines += len(records)
        problem = f"{self.path}: {bad} lines cannot be read and are not used" if bad else None
        return records, problem, bool(raw) and not raw.endswith(b"\n")

    def _compact(self, *, whatever: bool) -> None:
        """Write the file anew, if most of its lines say nothing any more or whatever they say."""
        records, _ = _loaded(self.path.read_bytes())
        last = {record.place: record for record in records}
        kept = [record for record in last.values() if not record.dropped]
        if whatever or len(records) > 2 * len(kept) + _SPARE_LINES:
            raw = b"".join(map(_dumped, kept))
            write_atomically(self.path, raw)
            self._inode, self._offset = self.path.stat().st_ino, len(raw)
            self._lines = 0
        else:
            self._lines = -len(kept)  # look again when as many have come


def _refused(own: Iterable[Record], others: Sequence[Record], boot: str) -> list[Record]:
    last = {record.place: record for record in others}
    claimed: dict[Identity | str, list[Record]] = {}
    for record in last.values():
        for key in record.keys(boot) if not record.dropped else ():
            claimed.setdefault(key, []).append(record)
    return [
        one
        for one in own
        if not one.dropped
        and any(
            other.owner != one.owner and not (other.overlap and one.overlap)
            for key in (one.identity, one.realpath, one.path)
            for other in claimed.get(key, ())
        )
    ]


def _loaded(raw: bytes) -> tuple[list[Record], int]:
    records, bad = [], 0
    for line in raw.splitlines():
        try:
            records.append(_record(json.loads(line)))
        except (ValueError, LookupError, TypeError, RecursionError):
            bad += bool(line)
    return records, bad


def _record(entry: dict[str, Any]) -> Record:
    resource, device, shared = entry["owner"]
    texts = (resource, device, entry["path"], entry["realpath"], entry["boot"])
    identity = tuple(entry["identity"])
    if not all(isinstance(one, str) for one in texts) or not all(
        isinstance(one, int) for one in identity
    ):
        raise ValueError(f"{entry!r} is no record")
    return Record(
        Owner(resource, device, bool(shared)),
        entry["path"],
        entry["realpath"],
        identity,
        entry["boot"],
        bool(entry.get("overlap")),
        bool(entry.get("dropped")),
    )


def _dumped(record: Record) -> bytes:
    owner = record.owner
    entry: dict[str, object] = {
        "owner": [owner.resource, owner.device, owner.shared],
        "path": record.path,
        "realpath": record.realpath,
        "identity": record.identity,
        "boot": record.boot,
    }
    entry |= {key: True for key in ("overlap", "dropped") if getattr(record, key)}
    return json.dumps(entry, separators=(",", ":")).encode() + b"\n"

"""Nodes, devices and snapshots as a scan would make them, and what they say: for tests without a host.

All tests make and read these values here, so that only this file knows of what they consist.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from devhost.model.device import Cause, HostDevice, Leaving, Missing, Skipped, Snapshot, Verdict
from devhost.model.device_node import FileKind, FileState, Hardware, Node

Number = tuple[int, int] | None


def file_state(
    realpath: str,
    kind: FileKind = FileKind.CHAR,
    number: Number = None,
    *,
    inode: int = 1,
    changed: int = 1,
    mode: int = 0,
) -> FileState:
    """Return what a path of the host led to: a file of filesystem 5."""
    return FileState(realpath, kind, number, (5, inode, changed), mode)


def node(
    path: str,
    number: Number = (4, 64),
    kind: FileKind | None = None,
    *,
    realpath: str | None = None,
    name: str | None = None,
    inode: int = 1,
    changed: int = 1,
    variables: Mapping[str, str] | None = None,
) -> Node:
    """Return a node of the first source; without a number it is a regular file."""
    kind = kind or (FileKind.CHAR if number else FileKind.FILE)
    state = file_state(realpath or path, kind, number, inode=inode, changed=changed)
    return Node(path, state, 0, name or path.rpartition("/")[2], variables or {})


def read_node(path: str, state: FileState | None, **variables: str) -> Node:
    """Return the node of a path of this computer."""
    return Node(path, state, 0, path.rpartition("/")[2], variables)


def token(name: str, hardware: Hardware | None = None) -> Node:
    """Return a node without a file: a token, or what the kernel has no file for."""
    return Node("", None, 0, name, hardware=hardware)


def device(
    device_id: str,
    *nodes: Node,
    reason: str | None = None,
    missing_since: float | None = None,
    replaced: bool = False,
    remaining: Iterable[str] = (),
    numa_nodes: tuple[int, ...] = (),
    cause: Cause = Cause.CODE,
) -> HostDevice:
    """Return a device; a healthy one that is present, unless more is said of it.

    Args:
        reason: Why it is unhealthy.
        missing_since: Since when it has not been found.
        replaced: Whether it has to leave the list.
        remaining: Which of its nodes (`Node.key`) are still found.
    """
    return HostDevice(
        device_id,
        nodes,
        verdict=None if reason is None else Verdict(cause, reason),
        absence=_absence(missing_since, remaining, replaced=replaced),
        numa_nodes=numa_nodes,
    )


def snapshot(
    *devices: HostDevice,
    skipped: Mapping[str, str | Verdict] | None = None,
    error: str | None = None,
) -> Snapshot:
    left_out = tuple(
        Skipped(
            candidate, reason if isinstance(reason, Verdict) else Verdict(Cause.EXCLUDED, reason)
        )
        for candidate, reason in (skipped or {}).items()
    )
    return Snapshot({device.id: device for device in devices}, left_out, error=error)


def missing(
    device: HostDevice,
    since: float,
    reason: str = "gone",
    *,
    remaining: Iterable[str] = (),
    replaced: bool = False,
) -> HostDevice:
    """Return a device as it is when it is no longer found, or no longer offered."""
    absence = _absence(since, remaining, replaced=replaced)
    return replace(device, verdict=Verdict(Cause.NOT_FOUND, reason), absence=absence)


def _absence(since: float | None, remaining: Iterable[str], *, replaced: bool) -> Missing | None:
    if since is None and not replaced:
        return None
    return (Leaving if replaced else Missing)(since or 0.0, frozenset(remaining))


def unhealthy(device: HostDevice, reason: str, cause: Cause = Cause.CODE) -> HostDevice:
    return replace(device, verdict=Verdict(cause, reason))


def reason_of(device: HostDevice | Skipped) -> str | None:
    return device.reason


def reasons(snapshot: Snapshot) -> dict[str, str | None]:
    return {device.id: reason_of(device) for device in snapshot.devices.values()}


def remaining_nodes(device: HostDevice) -> frozenset[str]:
    return device.absence.remaining if device.absence else frozenset()


def skip_reasons(skipped: Iterable[Skipped]) -> dict[str, str]:
    return {candidate.candidate: reason_of(candidate) or "" for candidate in skipped}


def leaving(snapshot: Snapshot) -> set[str]:
    return {device.id for device in snapshot.devices.values() if device.is_leaving}

"""Devices as discovery finds them: immutable values, free of any protocol's types."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from datetime import datetime
from enum import Enum
from types import MappingProxyType
from typing import Final

from devhost.model.immutable import immutable
from devhost.model.node_id import NodeId

LINK_VARIABLES: Final = {"byId": "by-id", "byPath": "by-path"}  # udev's directories below /dev/*
# From a path of the host to the path at which a reader sees it.
ToLocal = Callable[[str], str]


class FileKind(Enum):
    """What a path leads to, judged through links."""

    FILE = "file"
    DIRECTORY = "directory"
    CHAR = "char"
    BLOCK = "block"
    SOCKET = "socket"
    FIFO = "fifo"

    @property
    def is_node(self) -> bool:
        """Whether a container can be given it as a device."""
        return self in (FileKind.CHAR, FileKind.BLOCK)


@immutable
class FileState:
    """What a path of the host led to when it was read.

    Attributes:
        realpath: The host path with links resolved.
        number: A device node's major and minor.
        stamp: Device, inode and change time (ns): another file at the path has another stamp.
        mode: Its permission bits.
        modified: When its content was changed (ns); 0 for a device node, where it tells its use.
        raw: What else the kernel said, to see that nothing has changed.
    """

    realpath: str
    kind: FileKind
    number: tuple[int, int] | None
    stamp: tuple[int, int, int]
    mode: int = 0
    modified: int = 0
    raw: tuple[int, ...] = field(default=(), compare=False)

    @property
    def inode(self) -> tuple[int, int]:
        """What stays when it is changed: its device and inode."""
        return self.stamp[:2]

    @property
    def version(self) -> tuple[int, int, int]:
        """What stays of a file under another name, and what no other file has.

        A filesystem may reuse an inode immediately, but what the new file holds is of another time.
        Device nodes are not renamed, and that time tells when they were used.
        """
        return self.stamp if self.number else (*self.inode, self.modified)


@immutable
class Hardware:
    """What the kernel says of a node that a source found in sysfs.

    Attributes:
        unit: The directory in sysfs of the device that it is of: its nodes are one device.
        label: How messages call that device.
        syspath: Its own directory.
        number: Its major and minor; ``None`` where it has no file.
        role: The name of its node, unless the source gives one.
        numa: The directory from which its NUMA node is looked for, upwards.
        claims: Nodes (`Node.key`) that may not be offered beside it.
        incomplete: What the device lacks at the moment.
        grows: Whether more nodes of the device may come a moment later: drivers are bound to its
            interfaces one after the other, and udev makes links after nodes.
    """

    unit: str
    label: str
    syspath: str
    number: tuple[int, int] | None
    role: str | None
    numa: str
    claims: frozenset[str] = frozenset()
    incomplete: str | None = None
    grows: bool = False


NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})  # of most nodes


@immutable
class Node:
    """One file of a device, or a token, which has none.

    Attributes:
        path: The host path as matched.
        source: Which source of the resource found it, counted from 0.
        name: The default device ID that the source gives.
        variables: The pattern's named groups.
        role: The name that the source gives to its node (``as``).
        hardware: What the kernel says of it, where a source found it there.
        problem: Why containers cannot be given it.
        key: What makes two candidates the same node: the resolved path, or what stands for it.
    """

    path: str
    state: FileState | None
    source: int
    name: str
    variables: Mapping[str, str] = field(default_factory=lambda: NO_VARIABLES)
    role: str | None = None
    hardware: Hardware | None = None
    problem: str | None = None
    key: str = field(init=False, compare=False)

    def __post_init__(self) -> None:
        at = self.hardware.syspath if self.hardware else f"\0{self.name}"
        object.__setattr__(self, "key", self.state.realpath if self.state else at)

    @property
    def id(self) -> NodeId:
        """Which thing of the host it is: two names of one node are not two devices."""
        names, state = filter(None, (self.key, self.path)), self.state
        if state is None:
            return NodeId.of_place(self.key, names)
        if state.number:
            return NodeId.of_number(state.kind.value, state.number, names)
        return NodeId.of_file(state.inode, state.modified, names)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key, and those of nodes that may not be offered beside it; of a token none."""
        if self.hardware is not None:
            return (self.key, *self.hardware.claims)
        return (self.key,) if self.state else ()

    @property
    def place(self) -> str:
        """Where it is found again: in sysfs, at its path; a token has neither."""
        return self.hardware.syspath if self.hardware else self.path or self.key

    @property
    def shown(self) -> str:
        """How it is shown: its path, or the kernel's name of what has none."""
        if self.path or self.hardware is None or self.hardware.role is None:
            return self.path
        return f"{self.variables.get('name', self.name)} ({self.hardware.role})"


@immutable
class Checked:
    """The outcome of one round of a device's health checks, and when that ended.

    Attributes:
        failure: Why a check failed; ``None`` where none did.
        unknown: What could not be checked, with the setting that would allow it.
    """

    at: datetime
    failure: str | None = None
    unknown: str | None = None


@immutable
class HostDevice:
    """One distinct device of a resource.

    Attributes:
        id: Stable over reboot and replug; without the suffix of a share.
        nodes: Its files in the order of the sources; one, unless sources are grouped.
        reason: Why it is unhealthy.
        missing_since: Since when it is no longer found (seconds on the host's clock).
        replaced: It exists but is no longer offered, or under another ID: it has to leave the list.
        remaining: The nodes that are left (`Node.key`) of a device that lacks one or has to go.
        swapped_at: When (on the host's clock) another device node was found in its place.
        legal: Whether what it brings into a container is known to be legal; a scan does not put
            it together again for the same nodes.
        cdi_name: The name under which its CDI spec, as it is on the disk, has it.
    """

    id: str
    nodes: tuple[Node, ...]
    reason: str | None = None
    missing_since: float | None = None
    replaced: bool = False
    remaining: frozenset[str] = frozenset()
    swapped_at: float | None = None
    legal: bool = False
    numa_nodes: tuple[int, ...] = ()
    checked: Checked | None = None
    cdi_name: str | None = None

    @property
    def keys(self) -> Iterable[str]:
        """The keys of its nodes (`Node.keys`), but of those that are missing."""
        keys = [key for node in self.nodes for key in node.keys]
        return keys if self.missing_since is None else self.remaining.intersection(keys)

    @property
    def healthy(self) -> bool:
        """Whether containers may be given it."""
        return self.reason is None

    @property
    def sound(self) -> bool:
        """Whether it is healthy, and neither gone nor just replaced."""
        return self.reason is None and self.missing_since is None and self.swapped_at is None

    @property
    def numbers(self) -> dict[str, tuple[int, int]]:
        """The major and minor of its device nodes by path, or by what in sysfs does not change."""
        found: dict[str, tuple[int, int]] = {}
        roles: dict[str, int] = {}  # how many nodes of each so far
        for node in self.nodes:
            place = node.path
            if node.hardware is not None:
                role = node.hardware.role or ""
                roles[role] = at = roles.get(role, -1) + 1
                place = f"{role} {at}"
            if node.state and node.state.number:
                found[place] = node.state.number
        return found

    @property
    def paths(self) -> tuple[str, ...]:
        """The host paths of its nodes, as matched."""
        return tuple(
            node.path for node in self.nodes if node.state or (node.hardware and node.path)
        )


@immutable
class Skipped:
    """Something that was found but is not offered."""

    candidate: str
    reason: str


@immutable
class Snapshot:
    """All that is known of a resource's devices at a time.

    Attributes:
        devices: By ID, in natural order.
        skipped: What was found but is not offered, of very much the first.
        skipped_count: How much that is.
        error: Why a source could not be read; its devices are kept, as unhealthy.
        notes: States that are not failures, such as a directory that does not exist yet.
        why_none: Says why there are no devices, where no failure and nothing skipped explains it.
        deferred: First sight (seconds on the host's clock) of nodes that wait, by `Node.key`.
        again_at: When to scan again even if nothing happens, on the host's clock.
        mixed: Some devices are attached to NUMA nodes and others are not; none is shown with any.
        scanned: Whether it is what a scan has found: what the first one finds was there before.
        cut: How many devices are left out, because the process offers enough.
    """

    devices: Mapping[str, HostDevice] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    error: str | None = None
    notes: tuple[str, ...] = ()
    why_none: Callable[[], tuple[str, ...]] = field(default=tuple, compare=False)
    deferred: Mapping[str, float] = field(default_factory=dict)
    again_at: float | None = None
    mixed: bool = False
    scanned: bool = False
    cut: int = 0

    @property
    def present(self) -> list[HostDevice]:
        """The devices that are there; the others are missing, or leave kubelet's list."""
        return [one for one in self.devices.values() if one.missing_since is None]

"""Devices as discovery finds them: immutable values, free of any protocol's types."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Final, Self

_NUMBERED: Final = ("char ", "block ")  # entities
LINK_VARIABLES: Final = {"byId": "by-id", "byPath": "by-path"}  # udev's directories below /dev/*
NO_FILE: Final = "token "  # begins the key of a node that is no file
# From a path of the host to the path at which a reader sees it.
ToLocal = Callable[[str], str]


class FileKind(Enum):
    """The kind of file to which a path leads, through links."""

    FILE = "file"
    DIRECTORY = "directory"
    CHAR = "char"
    BLOCK = "block"
    SOCKET = "socket"
    FIFO = "fifo"

    @property
    def is_node(self) -> bool:
        """Whether it is a device node."""
        return self in (FileKind.CHAR, FileKind.BLOCK)


@dataclass(frozen=True, slots=True)
class FileState:
    """The file to which a path of the host led when it was read.

    Attributes:
        realpath: The host path with links resolved.
        number: A device node's major and minor.
        stamp: Device, inode and change time (ns): another file at the path has another stamp.
        mode: Its permission bits.
        modified: When its content was changed (ns); 0 for a device node, where it tells its use.
        links: How many names it has on its filesystem, where that says so (hard links).
        raw: What else the kernel said, to see that nothing has changed.
    """

    realpath: str
    kind: FileKind
    number: tuple[int, int] | None
    stamp: tuple[int, int, int]
    mode: int = 0
    modified: int = 0
    links: int = 1
    raw: tuple[int, ...] = field(default=(), compare=False)

    @property
    def inode(self) -> tuple[int, int]:
        """Its device and inode: the same after its content or its mode was changed."""
        return self.stamp[:2]

    @property
    def version(self) -> tuple[int, int, int]:
        """An identity that the file keeps under another name, and that no other file has.

        A filesystem may reuse an inode immediately, but what the new file holds is of another time.
        Device nodes are not renamed, and that time tells when they were used.
        """
        return self.stamp if self.number else (*self.inode, self.modified)


@dataclass(frozen=True, slots=True)
class Hardware:
    """The properties of a node that a source found in sysfs.

    Attributes:
        unit: The directory in sysfs of the device that it is of: its nodes are one device.
        label: How messages call that device.
        syspath: Its own directory.
        place: Where it is on what carries it, which no renaming changes; else its own directory.
        entity: Its identity in one boot, where it has no file.
        number: Its major and minor; ``None`` where it has no file.
        role: The name of its node, unless the source gives one.
        numa: The directory from which its NUMA node is looked for, upwards.
        excludes: Nodes (`Node.key`) that may not be offered beside it.
        incomplete: What the device lacks at the moment.
        grows: Whether more nodes of the device may come a moment later: drivers are bound to its
            interfaces one after the other, and udev makes links after nodes.
    """

    unit: str
    label: str
    syspath: str
    place: str
    entity: str
    number: tuple[int, int] | None
    role: str | None
    numa: str
    excludes: frozenset[str] = frozenset()
    incomplete: str | None = None
    grows: bool = False


NO_VARIABLES: Final[Mapping[str, str]] = MappingProxyType({})  # of most nodes


@dataclass(frozen=True, slots=True)
class NodeId:
    """The identity that a node keeps under another name, in a later scan and after a boot.

    Attributes:
        entity: Its identity in the kernel, in one boot: kind and number of a device node; device,
            inode and time of content of another file; else what `Hardware` says.
        names: Its paths, or its `Hardware.place`: by them it is found after another boot.
    """

    entity: str
    names: frozenset[str]

    @classmethod
    def of(cls, entity: str, names: Iterable[str]) -> Self:
        """Return an identity as text that a file of JSON can have."""
        return cls(_json_text(entity), frozenset(map(_json_text, names)))

    @property
    def keys(self) -> frozenset[str]:
        """Its entity and its names."""
        return self.names | {self.entity}

    def keys_in(self, *, same_boot: bool) -> frozenset[str]:
        """Return what identifies it now: numbers change with a boot.

        A file may be replaced, and an interface come back from another network namespace.
        """
        if not same_boot:
            return self.names
        return frozenset([self.entity]) if self.is_device_node else self.keys

    @property
    def lasting(self) -> str:
        """The entity of a device node; of others, whose entity may change in a boot, a name."""
        return self.entity if self.is_device_node else min(self.names)

    @property
    def is_device_node(self) -> bool:
        """Whether its entity is a number."""
        return self.entity.startswith(_NUMBERED)


def _json_text(path: str) -> str:
    return path.encode(errors="backslashreplace").decode()  # it may not be UTF-8, which JSON is


@dataclass(frozen=True, slots=True)
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
        id: Its identity on the host: two names of one node are not two devices.
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
    id: NodeId = field(init=False, compare=False, repr=False)  # each event needs those of all

    def __post_init__(self) -> None:
        place = self.hardware.place if self.hardware else f"{NO_FILE}{self.name}"
        object.__setattr__(self, "key", self.state.realpath if self.state else place)
        object.__setattr__(self, "id", self._id())

    def _id(self) -> NodeId:
        state, entity = self.state, self.hardware.entity if self.hardware else self.key
        if state is not None and state.number:
            entity = "{} {}:{}".format(state.kind.value, *state.number)
        elif state is not None:
            entity = "file {} {} {}".format(*state.inode, state.modified)
        return NodeId.of(entity, filter(None, (self.key, self.path)))

    @property
    def file_key(self) -> str:
        """Its key, or of a file with several names (hard links) the same for all of them.

        A filesystem that gives one inode number to different files says that each has one name.
        """
        state = self.state
        if state is None or state.kind is FileKind.DIRECTORY or state.number or state.links < 2:
            return self.key
        return "file {} {}".format(*state.inode)

    @property
    def keys(self) -> tuple[str, ...]:
        """Its key, and those of nodes that may not be offered beside it; of a token none."""
        if self.hardware is not None:
            return (self.key, *self.hardware.excludes)
        return (self.key,) if self.state else ()

    @property
    def found_at(self) -> str:
        """The place at which the next scan finds it: in sysfs, or its path; a token has a key."""
        return self.hardware.place if self.hardware else self.path or self.key

    @property
    def shown(self) -> str:
        """The text that people read: its path, or the kernel's name where it has none."""
        if self.path or self.hardware is None or self.hardware.role is None:
            return self.path
        return f"{self.variables.get('name', self.name)} ({self.hardware.role})"


class Cause(StrEnum):
    """The cause of a verdict: code asks for it, people read the text."""

    # of a device that is unhealthy
    SOURCE_FAILED = "source failed"
    NOT_FOUND = "not found"
    NOT_OFFERED = "not offered"  # its nodes are there
    INCOMPLETE = "incomplete"
    SWAPPED = "swapped"
    RENDERING = "rendering"  # `allocate` cannot be put together for it
    CLASH = "clash"
    HOST_PATH = "host path"
    REFUSED = "refused"  # a right is missing
    WITHHELD = "withheld"  # its node may be in use under another name
    UNCHECKED = "unchecked"
    CHECK_FAILED = "check failed"
    CDI = "CDI"
    REMOVED = "removed"  # its resource
    CODE = "code"  # of the author of a plugin
    # of a candidate that is not offered; `INCOMPLETE`, too
    SETTLING = "settling"
    OWNED = "owned"
    EXCLUDED = "excluded"
    WRONG_TYPE = "wrong type"
    IN_USE = "in use"
    DANGLING = "dangling"
    UNREADABLE = "unreadable"
    BAD_NAME = "bad name"
    BAD_ID = "bad ID"
    OVER_LIMIT = "over the limit"
    ID_QUOTA = "ID quota"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The cause why a device is unhealthy, or a candidate is not offered, and its text."""

    cause: Cause
    text: str


@dataclass(frozen=True, slots=True)
class Missing:
    """A device that was not found, or that lacks a node.

    Attributes:
        since: When that began, in seconds on the host's clock.
        remaining: The nodes (`Node.key`) that are there.
    """

    since: float
    remaining: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Leaving(Missing):
    """A device that has to leave the list: it exists, not offered or under another ID."""


@dataclass(frozen=True, slots=True)
class Checked:
    """The outcome of one round of a device's health checks, and when that ended.

    Attributes:
        failure: Why a check failed; ``None`` where none did.
        unknown: The checks that were not possible, with the setting that would allow them.
    """

    at: datetime
    failure: str | None = None
    unknown: str | None = None


@dataclass(frozen=True, slots=True)
class HostDevice:
    """One distinct device of a resource.

    Attributes:
        id: Stable over reboot and replug; without the suffix of a share.
        nodes: Its files in the order of the sources; one, unless sources are grouped.
        verdict: Why it is unhealthy; ``None`` if it is healthy.
        absence: Since when it is not there, or has to leave the list; ``None``: it was found.
        swapped_at: When (on the host's clock) another device node was found in its place.
        is_rendered: Whether what it brings into a container was put together without an error; a
            scan does not do it again for the same nodes.
        places: The directories in sysfs above which the PCI functions of its nodes are sought.
        cdi_name: The name under which its CDI spec, as it is on the disk, has it.
    """

    id: str
    nodes: tuple[Node, ...]
    verdict: Verdict | None = None
    absence: Missing | None = None
    swapped_at: float | None = None
    is_rendered: bool = False
    numa_nodes: tuple[int, ...] = ()
    places: tuple[str, ...] = ()
    checked: Checked | None = None
    cdi_name: str | None = None

    @property
    def reason(self) -> str | None:
        """The text of its verdict, for people."""
        return None if self.verdict is None else self.verdict.text

    @property
    def owned_nodes(self) -> Iterator[Node]:
        """Its nodes that no other device may have: those that the kernel knows."""
        return (node for node in self.nodes if node.state or node.hardware)

    @property
    def keys(self) -> Iterable[str]:
        """The keys of its nodes (`Node.keys`), but of those that are missing."""
        keys = [key for node in self.nodes for key in node.keys]
        return self.absence.remaining.intersection(keys) if self.absence else keys

    @property
    def healthy(self) -> bool:
        """Whether containers may be given it."""
        return self.verdict is None

    @property
    def is_present(self) -> bool:
        """Whether it was found, with all its nodes."""
        return self.absence is None

    @property
    def is_leaving(self) -> bool:
        """Whether it has to leave the list."""
        return isinstance(self.absence, Leaving)

    @property
    def is_stable(self) -> bool:
        """Whether it is healthy, and neither gone nor just replaced."""
        return self.healthy and self.is_present and self.swapped_at is None

    @property
    def is_withheld(self) -> bool:
        """Whether its node may be in use under another name."""
        return self.verdict is not None and self.verdict.cause is Cause.WITHHELD

    def has(self, node: Node) -> bool:
        """Whether a node of it is there."""
        return self.absence is None or node.key in self.absence.remaining

    @property
    def numbers(self) -> dict[str, tuple[int, int]]:
        """The major and minor of its device nodes by path, or by a name that lasts in sysfs."""
        return {place: number for place, (number, _) in self.located.items()}

    @property
    def located(self) -> dict[str, tuple[tuple[int, int], str]]:
        """The number and the real path of each device node, by the place of `numbers`.

        Members of a group come and go: where several have a role, theirs are not counted together.
        """
        located: dict[str, tuple[tuple[int, int], str]] = {}
        role_counts: dict[str, int] = {}
        units = {(n.hardware.unit, n.hardware.role) for n in self.nodes if n.hardware}
        members = Counter(role for _, role in units)
        for node in self.nodes:
            place = node.path
            if node.hardware is not None and (role := node.hardware.role) is not None:
                role = f"{node.variables.get('place')} {role}" if members[role] > 1 else role
                role_counts[role] = index = role_counts.get(role, -1) + 1
                place = f"{role} {index}"
            if node.state and node.state.number:
                located[place] = node.state.number, node.state.realpath
        return located

    @property
    def paths(self) -> tuple[str, ...]:
        """The host paths of its nodes, as matched."""
        return tuple(
            node.path for node in self.nodes if node.state or (node.hardware and node.path)
        )


@dataclass(frozen=True, slots=True)
class Skipped:
    """A candidate that is not offered."""

    candidate: str
    verdict: Verdict

    @classmethod
    def because(cls, cause: Cause, candidate: str, text: str) -> "Skipped":
        """Return a candidate that is not offered for a cause."""
        return cls(candidate, Verdict(cause, text))

    @property
    def reason(self) -> str:
        """The text of its verdict, for people."""
        return self.verdict.text


def no_explanation() -> tuple[str, ...]:
    """Return nothing: there are devices, or a failure says why there are none."""
    return ()


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The devices of a resource at a time.

    Attributes:
        devices: By ID, in natural order.
        skipped: The candidates that are not offered; of very many, the first.
        skipped_count: The number of all of them.
        error: Why a source could not be read; its devices are kept, as unhealthy.
        notes: States that are not failures, such as a directory that does not exist yet.
        explain_empty: Returns why there are no devices, where no failure and no skipped candidate
            explains it.
        settling: First sight (seconds on the host's clock) of nodes that wait, by `Node.key`.
        again_at: When to scan again even if nothing happens, on the host's clock.
        partly_numa: Some devices are attached to NUMA nodes and others are not; none is shown with
            any.
        scanned: Whether it comes from a scan: what the first scan finds was there before.
        truncated: How many devices are left out, because the process offers enough.
    """

    devices: Mapping[str, HostDevice] = field(default_factory=dict)
    skipped: tuple[Skipped, ...] = ()
    skipped_count: int = 0
    error: str | None = None
    notes: tuple[str, ...] = ()
    explain_empty: Callable[[], tuple[str, ...]] = field(default=no_explanation, compare=False)
    settling: Mapping[str, float] = field(default_factory=dict)
    again_at: float | None = None
    partly_numa: bool = False
    scanned: bool = False
    truncated: int = 0

    @property
    def present_devices(self) -> list[HostDevice]:
        """The devices that are there; the others are missing, or leave kubelet's list."""
        return [device for device in self.devices.values() if device.is_present]

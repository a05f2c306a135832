"""Files and device nodes of a host as discovery finds them: immutable values."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
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

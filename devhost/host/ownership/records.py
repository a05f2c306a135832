"""What was handed out, and under what name."""

from pathlib import Path
from typing import Final

from devhost.immutable import immutable
from devhost.model.device import Node

_FILE: Final = "file"  # how the thing of what is no device node begins


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
class Record:
    """A thing that was handed out, and its owner.

    Attributes:
        owner: The device.
        thing: What it is (`thing_of`).
        path: The host path as matched; empty for what has none, such as a network interface.
        key: `Node.key`.
        boot: The kernel's boot ID; after another boot the path tells.
        overlap: Whether the resource had ``overlap: allow``.
    """

    owner: Owner
    thing: str
    path: str
    key: str
    boot: str
    overlap: bool = False

    @property
    def place(self) -> "Place":
        """The key of the record: there is one for each.

        A file is another thing with each change of its content.
        """
        return self.owner, self.key if self.thing.startswith(_FILE) else self.thing

    def keys(self, boot: str) -> set[str]:
        """Return what identifies the thing in a boot: some of the keys of `keys_of`."""
        if boot != self.boot:
            return {self.key, self.path} - {""}
        # Another device node may have the path of the former by now; of a file it tells, too.
        return {self.thing, self.key} if self.thing.startswith(_FILE) else {self.thing}

    def conflicts(self, other: "Record") -> bool:
        """Whether the two are of one thing, which their owners do not share."""
        same = not {self.thing, self.key, self.path}.isdisjoint(other.keys(self.boot))
        return same and other.owner != self.owner and not (other.overlap and self.overlap)


Place = tuple[Owner, str]


def thing_of(node: Node) -> str:
    """Return what a node is, in one boot: two names of one thing are not two devices.

    That is the number of a device node, inode and time of content of another file, and for what
    has none, such as a network interface, its place in the kernel.
    """
    if (state := node.state) is None:
        return node.key
    if state.number:
        return "{} {}:{}".format(state.kind.value, *state.number)
    return f"{_FILE} {' '.join(map(str, state.identity))} {state.modified}"


def keys_now(node: Node) -> set[str]:
    """Return what identifies a present node among others: of a file its paths, too.

    Two resources may have read a file before and after another one took its place.
    """
    thing = thing_of(node)
    return keys_of(node) if thing.startswith(_FILE) else {thing}


def keys_of(node: Node) -> set[str]:
    """Return the keys under which a record of a present node may be found."""
    return {thing_of(node), node.key, node.path}


def boot_id() -> str:
    """Return the kernel's ID of this boot of the machine."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""  # then a number or inode may be taken for that of an earlier boot

"""The context of one scan: the resource, its devices so far, and the owners of nodes."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.device_node import Node

OwnerOf = Callable[[str], str | None]
"""Returns the resource that offers a node (by `Node.key`) before this one."""


class Owners(dict[str, str | None]):
    """The answers of an `OwnerOf`, which is asked once about each node that matters."""

    def __init__(self, owner_of: OwnerOf) -> None:
        self._owner_of = owner_of

    def __missing__(self, key: str) -> str | None:
        owner = self[key] = self._owner_of(key)
        return owner


@dataclass(frozen=True, slots=True)
class ScanContext:
    """The resource, its devices so far, and the time of one scan.

    Attributes:
        owners: Those of the nodes that the devices depend on.
        now: Seconds on the host's clock.
        settle_s: How long a node waits for an earlier source to name it.
        links_to_come: Whether a resource before this one may find a new node by a link.
    """

    resource: Resource
    previous: Snapshot
    owners: Owners
    now: float
    settle_s: float
    constants: Mapping[str, str]
    links_to_come: bool = False


def labels(nodes: Iterable[Node]) -> str:
    """Return how messages call a device's nodes."""
    return ", ".join(names.printable(node.shown or node.name) for node in nodes)

"""The variables of templates: their names, and where their values come from; pure.

A new variable of a node, or of a resource, is added in this file alone. What a source gives by
itself, such as a pattern's named groups, is in `Node.variables`. ``${index}`` and ``${count}``
are known only when a container gets devices: `devhost.allocation.declaration.combine` fills them
in, and for preStart `devhost.allocation.pre_start.numbered`.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from devhost.model.device import FileState, Node
from devhost.model.template import Template

ToLocal = Callable[[str], str]
"""From a path of the host to the path at which a reader sees it."""

Seen = Sequence[tuple[Node, FileState]]
"""Nodes of a device, and what is at their paths now."""

_FILE_VALUES: Final[Mapping[str, Callable[[Node, FileState, ToLocal], str]]] = {
    "path": lambda node, _state, to_local: to_local(node.path),
    "realpath": lambda _node, state, to_local: to_local(state.realpath),
}
_PATHS: Final = frozenset({"path", "realpath"})  # of them, those that are the node's path


def constants(resource: str, node_name: str) -> dict[str, str]:
    """Return the variables that are the same for all devices of a resource."""
    return {"resource": resource, "nodeName": node_name}


USB_VARIABLES: Final = frozenset(
    f"usb.{name}"
    for name in (
        *("device", "manufacturer", "product", "serial", "port", "class", "interface"),
        *("busnum", "devnum", "hub", "name"),
    )
)
PCI_VARIABLES: Final = frozenset(
    f"pci.{name}"
    for name in ("device", "subsystem", "class", "driver", "address", "group", "pf", "vf")
)
LINK_VARIABLES: Final = {"byId": "by-id", "byPath": "by-path"}  # udev's directories below /dev/*
SYSFS_VARIABLES: Final = frozenset(
    {"subsystem", "place", "parent", "driver", "syspath", *LINK_VARIABLES}
)
PATH_VARIABLES: Final = frozenset({*_PATHS, "syspath", *LINK_VARIABLES})  # of a node, with slashes
FILE_VARIABLES: Final = frozenset(_FILE_VALUES)  # a token has none of them
LATE_VARIABLES: Final = frozenset({"index", "count"})
CONTAINER_VARIABLES: Final = frozenset({*constants("", ""), "count"})  # every other is a device's
NODE_VARIABLES: Final = frozenset({"id", "name", "index", *FILE_VARIABLES})
BUILT_IN_VARIABLES: Final = CONTAINER_VARIABLES | NODE_VARIABLES


def names_paths(argv: Iterable[Template]) -> bool:
    """Whether a command is given paths of a device's nodes."""
    return any(name.rpartition(".")[2] in _PATHS for text in argv for name in text.names)


def real_paths(found: Seen, to_local: ToLocal) -> ToLocal:
    """Return the function that gives commands the resolved paths of nodes.

    Others may change a link on the way while a command runs.
    """
    real: dict[str, str] = {}
    for node, state in found:
        real[node.path] = state.realpath
        if node.state is not None:
            real[node.state.realpath] = state.realpath
        real |= dict.fromkeys(_links(node).values(), state.realpath)
    return lambda path: to_local(real.get(path, path))


def variables(
    node: Node, device_id: str | None, nodes: Sequence[Node] = (), to_local: ToLocal = str
) -> dict[str, str]:
    """Return what a node gives to templates.

    Args:
        node: The node.
        device_id: Its device's ID; ``None`` while that is looked for.
        nodes: All nodes of the device. One with a role gives ``${role.path}`` and so on; of
            several with one role the node itself, or the first.
        to_local: Applied to paths.
    """
    values = _own(node, to_local)
    if device_id is not None:
        values["id"] = device_id
    named = {one.role: one for one in reversed(nodes)} | {node.role: node}
    for role, one in named.items():
        if role is not None:
            values |= {f"{role}.{name}": value for name, value in _own(one, to_local).items()}
    return values


def _own(node: Node, to_local: ToLocal) -> dict[str, str]:
    state = node.state
    if state is None:
        values = {"name": node.name, **node.variables}
        if node.hardware is None or not node.path:
            return values
        return {**values, "path": node.path, "realpath": node.path}  # the kernel has it
    links = {name: to_local(link) for name, link in _links(node).items()}
    values = {"name": node.path.rpartition("/")[2], **node.variables, **links}
    for name, value in _FILE_VALUES.items():
        values[name] = value(node, state, to_local)
    return values


def _links(node: Node) -> dict[str, str]:
    """Return udev's links to a node that was found in sysfs; a pattern's groups are no paths."""
    if node.hardware is None:
        return {}
    return {name: node.variables[name] for name in LINK_VARIABLES if name in node.variables}

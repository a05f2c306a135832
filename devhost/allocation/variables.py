"""The variables of templates: their names, and where their values come from; pure.

What a source gives by itself, such as a pattern's named groups, is in `Node.variables`. When a
container gets devices, `devhost.allocation.rules.combine` and `pre_start.numbered` know the rest.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from devhost.errors import AllocationError
from devhost.model.device import FileState, HostDevice, Node
from devhost.model.template import MissingVariableError, Template

# From a path of the host to the path at which a reader sees it.
ToLocal = Callable[[str], str]
# Nodes of a device, and what is at their paths now.
Seen = Sequence[tuple[Node, FileState]]


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
FILE_VARIABLES: Final = frozenset({"path", "realpath"})  # a token has none of them
PATH_VARIABLES: Final = FILE_VARIABLES | {"syspath", *LINK_VARIABLES}  # of a node, with slashes
LATE_VARIABLES: Final = frozenset({"index", "count"})
CONTAINER_VARIABLES: Final = frozenset({*constants("", ""), "count"})  # every other is a device's
NODE_VARIABLES: Final = frozenset({"id", "name", "index", *FILE_VARIABLES})
BUILT_IN_VARIABLES: Final = CONTAINER_VARIABLES | NODE_VARIABLES


def names_paths(argv: Iterable[Template]) -> bool:
    """Whether a command is given paths of a device's nodes."""
    return any(name.rpartition(".")[2] in FILE_VARIABLES for text in argv for name in text.names)


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
    """Return what a node gives to templates; its device's ID may still be looked for (``None``).

    Of all `nodes` of the device, one with a role gives ``${role.path}`` and so on; of several with
    one role the node itself, or the first.
    """
    values = _own(node, to_local)
    if device_id is not None:
        values["id"] = device_id
    named = {one.role: one for one in reversed(nodes)} | {node.role: node}
    for role, one in named.items():
        if role is not None:
            values |= {f"{role}.{name}": value for name, value in _own(one, to_local).items()}
    return values


def arguments(
    texts: Sequence[Template],
    device: HostDevice,
    constants: Mapping[str, str],
    to_local: ToLocal = str,
) -> tuple[tuple[str, ...], ...]:
    """Render the arguments of a step or check for each node of a device, equal results once."""
    results: dict[tuple[str, ...], None] = {}
    for node in device.nodes:
        values = {**constants, **variables(node, device.id, device.nodes, to_local)}
        try:
            words = tuple(text.render(values) for text in texts)
        except MissingVariableError as error:
            raise AllocationError(str(error)) from None
        for text, word in zip(texts, words, strict=True):
            if word.startswith("-") and text.opening is not None:
                raise AllocationError(f"the argument {text} would be an option: {word!r}")
        results[words] = None
    return tuple(results)


def _own(node: Node, to_local: ToLocal) -> dict[str, str]:
    if (state := node.state) is not None:
        return {
            "name": node.path.rpartition("/")[2],
            **node.variables,
            **{name: to_local(link) for name, link in _links(node).items()},
            "path": to_local(node.path),
            "realpath": to_local(state.realpath),
        }
    values = {"name": node.name, **node.variables}
    if node.hardware is not None and node.path:  # the kernel has it
        values |= {"path": node.path, "realpath": node.path}
    return values


def _links(node: Node) -> dict[str, str]:
    """Return udev's links to a node that was found in sysfs; a pattern's groups are no paths."""
    if node.hardware is None:
        return {}
    return {name: node.variables[name] for name in LINK_VARIABLES if name in node.variables}

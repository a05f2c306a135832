"""The variables of templates by name, and the arguments of steps and checks; pure.

What a node gives to templates is `devhost.model.template.variables`. When a container gets devices,
`devhost.allocation.compiled.combine` and `pre_start.with_index` know the rest.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from devhost.errors import AllocationError
from devhost.model.device import HostDevice
from devhost.model.device_node import LINK_VARIABLES, FileState, Node, ToLocal
from devhost.model.template import MissingVariableError, Template, udev_links, variables

# Nodes of a device, and what is at their paths now.
Seen = Sequence[tuple[Node, FileState]]


_OF_USB: Final = "device manufacturer product serial port class interface busnum devnum hub name"
USB_VARIABLES: Final = frozenset(f"usb.{name}" for name in _OF_USB.split())
_OF_PCI: Final = "device subsystem class driver address group pf vf uuid model"
PCI_VARIABLES: Final = frozenset(f"pci.{name}" for name in _OF_PCI.split())
CDI_VARIABLES: Final = frozenset({"cdi.kind", "cdi.name", "cdi.qualified"})
SYSFS_VARIABLES: Final = frozenset(
    {"subsystem", "place", "parent", "driver", "syspath", *LINK_VARIABLES}
)
FILE_VARIABLES: Final = frozenset({"path", "realpath"})  # a token has none of them
PATH_VARIABLES: Final = FILE_VARIABLES | {"syspath", *LINK_VARIABLES}  # of a node, with slashes
LATE_VARIABLES: Final = frozenset({"index", "count"})
CONTAINER_VARIABLES: Final = frozenset({"resource", "nodeName", "count"})  # not a device's
NODE_VARIABLES: Final = frozenset({"id", "name", "index", *FILE_VARIABLES})
BUILT_IN_VARIABLES: Final = CONTAINER_VARIABLES | NODE_VARIABLES


def moving_variables(node: Node, values: Mapping[str, str]) -> Mapping[str, str]:
    """Return what would lead a path to another directory, by variable.

    Only of a device of the kernel, which says of itself what it likes, such as a serial number.
    """
    if node.hardware is None:
        return {}
    return {
        name: f"${{{name}}} has a '/': {value!r}" if "/" in value else f"${{{name}}} is {value!r}"
        for name, value in values.items()
        if ("/" in value or value in (".", ".."))
        and name not in CONTAINER_VARIABLES
        and name.rpartition(".")[2] not in PATH_VARIABLES
    }


def names_paths(argv: Iterable[Template]) -> bool:
    """Whether a command is given paths of a device's nodes."""
    return any(name.rpartition(".")[2] in FILE_VARIABLES for text in argv for name in text.names)


def real_paths(nodes: Seen, to_local: ToLocal) -> ToLocal:
    """Return the function that gives commands the resolved paths of nodes.

    Others may change a link on the way while a command runs.
    """
    real: dict[str, str] = {}
    for node, state in nodes:
        real[node.path] = state.realpath
        if node.state is not None:
            real[node.state.realpath] = state.realpath
        real |= dict.fromkeys(udev_links(node).values(), state.realpath)
    return lambda path: to_local(real.get(path, path))


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
        moving = moving_variables(node, values)
        for text in texts:
            for name in sorted(moving.keys() & text.names) if "/" in str(text) else ():
                raise AllocationError(f"the argument {text}: {moving[name]}")
        try:
            words = tuple(text.render(values) for text in texts)
        except MissingVariableError as error:
            raise AllocationError(str(error)) from None
        for text, word in zip(texts, words, strict=True):
            if word.startswith("-") and text.first_variable is not None:
                raise AllocationError(f"the argument {text} would be an option: {word!r}")
        results[words] = None
    return tuple(results)

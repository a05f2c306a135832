"""From a resource's rules and one device to its answer; pure.

Each device's part of every rule is rendered when the device is found, so that what cannot
be rendered makes the device unhealthy instead of failing a pod for good. At Allocate only
``${index}`` and ``${count}`` are left to fill in.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence

from devhost.allocation.allocate import together
from devhost.allocation.rules import LATE_VARIABLES, Rule, Rules
from devhost.errors import AllocationError
from devhost.model.answer import Allocation, Answer, Piece
from devhost.model.device import Device, Node
from devhost.model.template import MissingVariableError, Template

Here = Callable[[str], str]
Place = tuple[str, Template]
"""A name or container path: of what kind it is, and its text."""


def variables(
    node: Node, device_id: str | None, nodes: Sequence[Node] = (), here: Here = str
) -> dict[str, str]:
    """Return what a node gives to templates.

    Args:
        node: The node.
        device_id: Its device's ID; ``None`` while that is looked for.
        nodes: All nodes of the device. One with a role gives ``${role.path}`` and so on; of
            several with one role the node itself, or the first.
        here: From a path of the host to that which is to be shown.
    """
    values = _own(node, here)
    if device_id is not None:
        values["id"] = device_id
    named = {one.role: one for one in reversed(nodes)} | {node.role: node}
    for role, one in named.items():
        if role is not None:
            values |= {f"{role}.{name}": value for name, value in _own(one, here).items()}
    return values


def _own(node: Node, here: Here) -> dict[str, str]:
    values = {"name": node.path.rpartition("/")[2] if node.state else node.name, **node.variables}
    if node.state:
        values |= {"path": here(node.path), "realpath": here(node.state.realpath)}
    return values


def each(
    texts: Sequence[Template], device: Device, constants: Mapping[str, str], here: Here = str
) -> tuple[tuple[str, ...], ...]:
    """Render the arguments of a step or check for each node of a device, equal results once.

    Raises:
        AllocationError: A variable has no value.
    """
    results: dict[tuple[str, ...], None] = {}
    for node in device.nodes:
        values = {**constants, **variables(node, device.id, device.nodes, here)}
        try:
            results[tuple(text.render(values) for text in texts)] = None
        except MissingVariableError as error:
            raise AllocationError(str(error)) from None
    return tuple(results)


def render(rules: Rules, device_id: str, nodes: Sequence[Node]) -> tuple[Answer, Allocation]:
    """Render a device's part of every rule, and what a container receives for it alone.

    Raises:
        AllocationError: A variable has no value, a result is illegal, or no container can have
            the device. The reason is meant for the device's health.
    """
    values = [variables(node, device_id, nodes) for node in nodes]
    answer = Answer(
        tuple([_pieces(rule, nodes, values) if rule.per_device else () for rule in rules])
    )
    return answer, together(rules, [(device_id, answer)], (device_id,))


def _pieces(
    rule: Rule, nodes: Sequence[Node], values: Sequence[Mapping[str, str]]
) -> tuple[Piece, ...]:
    pieces: list[Piece] = []  # equal results of one device once
    for node, known in zip(nodes, values, strict=True):
        if rule.nodes_only and not (node.state and node.state.kind.is_node):
            continue
        key = rule.key.bind(known)
        piece = Piece(key, key if rule.same else rule.value.bind(known))
        missing = _open(piece.key) or _open(piece.value)
        if not missing:
            if piece not in pieces:
                pieces.append(piece)
        elif not rule.optional:
            raise AllocationError(f"{rule.label}: ${{{min(missing)}}} has no value")
    return tuple(pieces)


def _open(text: Template) -> frozenset[str]:
    """Return the variables that have no value and are to have none later."""
    return text.names - LATE_VARIABLES


def clashes(rules: Rules, answers: Mapping[str, Answer]) -> dict[str, str]:
    """Return the devices whose names or container paths another device has taken, and why.

    Only where a name or path was made from the device: a constant one is the author's word
    that a container gets one device.

    Args:
        rules: The resource's rules.
        answers: By device ID, those with the better claim first.
    """
    taken: dict[Place, tuple[Template, str]] = {}
    reasons: dict[str, str] = {}
    for index, rule in enumerate(rules):
        if not rule.exclusive:
            continue
        for device_id, answer in answers.items():
            for piece in answer.pieces[index]:
                place = (_namespace(rule), piece.key)
                value, holder = taken.setdefault(place, (piece.value, device_id))
                if value != piece.value:
                    reasons[device_id] = (
                        f"{rule.target} {piece.key} would be that of device {holder} too"
                    )
    return reasons


def places(rules: Rules, answer: Answer) -> Iterator[Place]:
    """Yield the names and container paths of a device that no other device may have too."""
    for rule, pieces in zip(rules, answer.pieces, strict=True):
        if pieces and rule.exclusive:
            yield from ((_namespace(rule), piece.key) for piece in pieces)


def _namespace(rule: Rule) -> str:
    return "container path" if rule.target in ("devices", "mounts") else rule.target

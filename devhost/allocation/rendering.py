"""What each device brings into a container, by its resource's rules; pure.

It is rendered when the device is found, so that what cannot be rendered makes the device
unhealthy instead of failing a pod for good. At Allocate only ``${index}`` and ``${count}`` are
left to fill in.
"""

from collections.abc import Iterator, Mapping, Sequence

from devhost.allocation.declaration import combine
from devhost.allocation.rules import Rule, Rules
from devhost.allocation.variables import LATE_VARIABLES, LINK_VARIABLES, ToLocal, variables
from devhost.errors import AllocationError
from devhost.model.allocation import Allocation, Rendered, RenderedEntry
from devhost.model.device import HostDevice, Node
from devhost.model.template import MissingVariableError, Template

ContainerKey = tuple[str, str | Template]
"""A name or container path: of what kind it is, and its text."""


def each(
    texts: Sequence[Template],
    device: HostDevice,
    constants: Mapping[str, str],
    to_local: ToLocal = str,
) -> tuple[tuple[str, ...], ...]:
    """Render the arguments of a step or check for each node of a device, equal results once.

    Raises:
        AllocationError: A variable has no value, or a device's name would become an option.
    """
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


def render(rules: Rules, device_id: str, nodes: Sequence[Node]) -> tuple[Rendered, Allocation]:
    """Render every rule for a device; return that, and what a container receives for it alone.

    Raises:
        AllocationError: A variable has no value, a result is illegal, or no container can have
            the device. The reason is meant for the device's health.
    """
    values = [variables(node, device_id, nodes) for node in nodes]
    rendered = Rendered(
        tuple([_entries(rule, nodes, values) if rule.per_device else () for rule in rules])
    )
    return rendered, combine(rules, {device_id: rendered}, (device_id,))


def _entries(
    rule: Rule, nodes: Sequence[Node], values: Sequence[Mapping[str, str]]
) -> tuple[RenderedEntry, ...]:
    entries: list[RenderedEntry] = []  # equal results of one device once
    for node, known in zip(nodes, values, strict=True):
        if rule.nodes_only and not (node.state and node.state.kind.is_node):
            continue
        try:
            key = _bound(rule.key, known)
            entry = RenderedEntry(key, key if rule.same else _bound(rule.value, known))
        except MissingVariableError as error:
            if not rule.optional:
                raise AllocationError(_no_value(rule, error)) from None
        else:
            if entry not in entries:
                entries.append(entry)
    return tuple(entries)


def _no_value(rule: Rule, error: MissingVariableError) -> str:
    directory = LINK_VARIABLES.get(error.name.rpartition(".")[2])
    if directory is not None:
        return f"no link below /dev/*/{directory} leads to it"
    return f"{rule.label}: {error}"


def _bound(text: Template, known: Mapping[str, str]) -> str | Template:
    """Fill in all but what is known at Allocate only.

    Raises:
        MissingVariableError: A variable has no value.
    """
    bound = text.bind(known)
    if bound.is_literal:
        return bound.render({})
    if missing := bound.names - LATE_VARIABLES:
        raise MissingVariableError(min(missing))
    return bound


def clashes(rules: Rules, rendered: Mapping[str, Rendered]) -> dict[str, str]:
    """Return the devices whose names or container paths another device has taken, and why.

    Only where a name or path was made from the device: a constant one is the author's word
    that a container gets one device.

    Args:
        rules: The resource's rules.
        rendered: By device ID, those that take precedence first.
    """
    taken: dict[ContainerKey, tuple[str | Template, str]] = {}
    reasons: dict[str, str] = {}
    for index, rule in enumerate(rules):
        if not rule.exclusive:
            continue
        for device_id, one in rendered.items():
            for entry in one.entries[index]:
                key = (_namespace(rule), entry.key)
                value, other = taken.setdefault(key, (entry.value, device_id))
                if value != entry.value:
                    reasons[device_id] = f"{rule.target} {entry.key} is used by device {other} too"
    return reasons


def exclusive_keys(rules: Rules, rendered: Rendered) -> Iterator[ContainerKey]:
    """Yield the names and container paths of a device that no other device may have too."""
    for rule, entries in zip(rules, rendered.entries, strict=True):
        if entries and rule.exclusive:
            yield from ((_namespace(rule), entry.key) for entry in entries)


def _namespace(rule: Rule) -> str:
    return "container path" if rule.target in ("devices", "mounts") else rule.target

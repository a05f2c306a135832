"""From nodes to candidates: which of them are one device; pure.

Without ``group`` each node is a device of its own; nodes that several sources find are one.
With ``group`` the nodes of equal key are one device, if every source gives one.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.allocation.variables import LINK_VARIABLES, variables
from devhost.discovery.selection import Selection
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import Node, Skipped, Snapshot
from devhost.model.sources import Static
from devhost.model.template import MissingVariableError, Template

HOLD_S: Final = 1.0  # udev makes links after nodes
QUIET_S: Final = 0.3  # no node or link of a device has come: it has all
DEFERRED: Final = "held back for a moment: "
_DEFERRED: Final = f"{DEFERRED}an earlier source may name it"
_DEFERRED_UNIT: Final = f"{DEFERRED}more nodes of it may come"
_DEFERRED_GROUP: Final = f"{DEFERRED}its optional nodes may come"

OwnerOf = Callable[[str], str | None]


@immutable
class Candidate:
    """What may become a device.

    Attributes:
        nodes: In the order of the sources.
        id: Its ID; ``None`` where no template for it has a value.
        known: Whether it was a device of this ID before.
    """

    nodes: tuple[Node, ...]
    id: str | None
    known: bool = False


@dataclass(slots=True)
class Candidates:
    """What may become a device, and what may not.

    Attributes:
        found: The candidates.
        skipped: What was found but is not offered.
        deferred: As `Snapshot.deferred`.
        incomplete: By ID, why a device of several nodes cannot be offered at the moment.
    """

    found: list[Candidate] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    deferred: dict[str, float] = field(default_factory=dict)
    incomplete: dict[str, str] = field(default_factory=dict)

    def defers(self, key: str, moment: "Moment", *, may: bool) -> bool:
        """Whether something has to wait, if it may; note since when it has been seen."""
        waits = may and moment.waits(key)
        if waits or key in moment.previous.deferred:
            self.deferred[key] = moment.previous.deferred.get(key, moment.now)
        return waits

    def holds(self, nodes: Sequence[Node], device_id: str | None, moment: "Moment") -> bool:
        """Whether a device that is new, or back, has to wait for more nodes or links.

        It waits until they have been the same for a moment, and no longer than a node waits for
        an earlier source.
        """
        before = moment.previous.devices.get(device_id or "")
        there = before is not None and before.missing_since is None
        grows = any(node.hardware is not None and node.hardware.grows for node in nodes)
        if there or not grows or not moment.previous.scanned:
            return False
        unit = f"\0unit\0{place(nodes[0])}" if device_id is None else f"\0unit\0{device_id}"
        same = "\0".join((unit, *sorted(_seen(node) for node in nodes)))
        waits = self.defers(unit, moment, may=True) and moment.waits(same)
        # As if it had been seen earlier: a moment is shorter.
        first = moment.now - max(moment.hold_s - QUIET_S, 0.0)
        self.deferred[same] = moment.previous.deferred.get(same, first)
        return waits

    def skip(self, what: str, reason: str) -> None:
        """Note what is not offered."""
        self.skipped.append(Skipped(what, reason))


@immutable
class Moment:
    """What counts at one scan.

    Attributes:
        previous: What was known before.
        owner_of: Names the resource that offers a node (by `Node.key`) before this one.
        now: Seconds on the host's clock.
        hold_s: How long a node waits for an earlier source to name it.
        constants: Values of variables that are not of a device.
        links_to_come: Whether a resource before this one may find a new node by a link, which is
            made after the node.
    """

    previous: Snapshot
    owner_of: OwnerOf
    now: float
    hold_s: float
    constants: Mapping[str, str]
    links_to_come: bool = False

    def waits(self, key: str) -> bool:
        """Whether what was seen first not long ago still has to wait."""
        since = self.previous.deferred.get(key, self.now)
        return bool(self.hold_s) and self.now - since < self.hold_s


def candidates(resource: Resource, selection: Selection, moment: Moment) -> Candidates:
    """Find out which nodes are one device."""
    if resource.group is not None:
        return _grouped(resource, resource.group, selection, moment)
    return _single(resource, selection, moment)


def place(node: Node) -> str:
    """Return where a node is found again: in sysfs, at its path; a token has neither."""
    return node.hardware.syspath if node.hardware else node.path or node.key


def _seen(node: Node) -> str:
    """Return what is different when another link leads to a node."""
    return " ".join((node.key, *(node.variables.get(name, "") for name in LINK_VARIABLES)))


def label(node: Node) -> str:
    """Return how messages call a node."""
    return names.printable(node.shown or node.name)


def _same_nodes(selection: Selection) -> dict[str, list[Node]]:
    """Join candidates that resolve to the same node; the first source's comes first."""
    found: dict[str, list[Node]] = {}
    for node in selection.nodes:
        found.setdefault(node.key, []).append(node)
    return found


def _known_ids(previous: Snapshot) -> dict[str, str]:
    return {place(node): device.id for device in previous.devices.values() for node in device.nodes}


def _single(resource: Resource, selection: Selection, moment: Moment) -> Candidates:
    result = Candidates()
    known_ids = _known_ids(moment.previous)
    units: dict[str, list[Node]] = {}
    for key, nodes in _same_nodes(selection).items():
        first = nodes[0]
        if first.hardware is not None:
            units.setdefault(first.hardware.unit, []).append(first)
            continue
        if (other := moment.owner_of(key)) is not None:
            result.skip(label(first), f"{other} offers it already")
            continue
        known = next(
            (
                node
                for node in nodes
                if place(node) in known_ids
                and known_ids[place(node)] == _id_of(resource, (node,), moment)
            ),
            None,
        )
        if known is not None:
            result.found.append(Candidate((known,), known_ids[place(known)], known=True))
            continue
        linked = moment.links_to_come and first.state is not None and bool(first.state.number)
        if result.defers(key, moment, may=linked or _may_be_named(resource, first)):
            result.skip(label(first), _DEFERRED)
            continue
        result.found.append(Candidate((first,), _id_of(resource, (first,), moment)))
    for nodes in units.values():
        _unit(resource, nodes, known_ids, moment, result)
    return result


def _unit(
    resource: Resource,
    nodes: list[Node],
    known_ids: Mapping[str, str],
    moment: Moment,
    result: Candidates,
) -> None:
    """Join the nodes of what the kernel calls one device."""
    first = nodes[0].hardware
    assert first is not None, "of a source that says so"  # noqa: S101
    owners = (moment.owner_of(key) for node in nodes for key in keys_of_node(node))
    if (other := next(filter(None, owners), None)) is not None:
        result.skip(first.label, f"{other} offers nodes of it already")
        return
    device_id = _id_of(resource, tuple(nodes), moment)
    known = device_id is not None and any(known_ids.get(place(n)) == device_id for n in nodes)
    incomplete = _lack(nodes)
    if incomplete is not None:
        result.skip(first.label, incomplete)
        of = {device_id, *(known_ids.get(place(node)) for node in nodes)}
        result.incomplete |= {one: incomplete for one in of if one is not None}
    elif result.defers(first.unit, moment, may=not known and _may_be_named(resource, nodes[0])):
        result.skip(first.label, _DEFERRED)
    elif result.holds(nodes, device_id, moment):
        result.skip(first.label, _DEFERRED_UNIT)
        result.incomplete |= {device_id: _DEFERRED_UNIT} if device_id is not None else {}
    else:
        result.found.append(Candidate(tuple(nodes), device_id, known))


def _lack(nodes: Sequence[Node]) -> str | None:
    """Return what the devices of some nodes lack at the moment."""
    found = (node.hardware.incomplete for node in nodes if node.hardware)
    return next(filter(None, found), None)


def keys_of_node(node: Node) -> tuple[str, ...]:
    """Return a node (`Node.key`) and those that may not be offered beside it; of a token none."""
    if node.hardware is not None:
        return (node.key, *node.hardware.claims)
    return (node.key,) if node.state else ()


def _may_be_named(resource: Resource, first: Node) -> bool:
    """Whether an earlier source might find the node too."""
    earlier = resource.sources[: first.source]
    return first.state is not None and any(not isinstance(s.kind, Static) for s in earlier)


def _grouped(
    resource: Resource, group: Template, selection: Selection, moment: Moment
) -> Candidates:
    result = Candidates()
    groups: dict[str, list[Node]] = {}
    known_ids = _known_ids(moment.previous)
    for key, aliases in _same_nodes(selection).items():
        node = next((one for one in aliases if place(one) in known_ids), aliases[0])
        owners = filter(None, map(moment.owner_of, (key, *keys_of_node(node))))
        if (other := next(owners, None)) is not None:
            result.skip(label(node), f"{other} offers it already")
            continue
        try:
            name = group.render({**variables(node, None), **moment.constants})
        except MissingVariableError as error:
            result.skip(label(node), f"no value for `group`: {error}")
            continue
        groups.setdefault(name, []).append(node)
    for name, members in groups.items():
        nodes = tuple(members)
        device_id = _id_of(resource, nodes, moment, name)
        known = device_id is not None and any(known_ids.get(place(n)) == device_id for n in nodes)
        before = moment.previous.devices.get(device_id or "") if known else None
        had = {node.source for node in before.nodes} if before else set()
        required, optional = _absent(resource, nodes, had & selection.failed.keys())
        reason = f"incomplete: no node of {required}" if required else _lack(nodes)
        if reason is not None:
            result.skip(", ".join(map(label, nodes)), f"group {name!r} is {reason}")
            # Its ID may be made of the node that is absent.
            of = {device_id, *(known_ids.get(place(node)) for node in nodes)}
            result.incomplete |= {one: reason for one in of if one is not None}
        elif result.defers(f"\0group\0{name}", moment, may=bool(optional) and not known):
            result.skip(", ".join(map(label, nodes)), _DEFERRED_GROUP)
        elif result.holds(nodes, device_id, moment):
            result.skip(", ".join(map(label, nodes)), _DEFERRED_UNIT)
            result.incomplete |= {device_id: _DEFERRED_UNIT} if device_id is not None else {}
        else:
            result.found.append(Candidate(nodes, device_id, known))
    return result


def _absent(
    resource: Resource, nodes: tuple[Node, ...], needed: Collection[int]
) -> tuple[str, str]:
    """Name the sources that give no node to a group: the required, and the optional ones.

    Args:
        resource: The declaration.
        nodes: The nodes of the group.
        needed: Optional sources that count as required: they could not be read just now.
    """
    given = {node.source for node in nodes}
    absent: tuple[list[str], list[str]] = [], []
    for index, source in enumerate(resource.sources):
        if index not in given:
            name = f"sources[{index}]" + (f" ({source.role})" if source.role else "")
            absent[source.optional and index not in needed].append(name)
    return " and ".join(absent[0]), " and ".join(absent[1])


def _id_of(
    resource: Resource, nodes: tuple[Node, ...], moment: Moment, key: str | None = None
) -> str | None:
    if resource.id is None:
        default = nodes[0].name if key is None else key
        return names.device_id(default) if default else None
    values: dict[str, str] = dict(moment.constants)
    for node in reversed(nodes):  # of a variable that several nodes have, the first counts
        values |= variables(node, None, nodes)
    for template in resource.id:
        try:
            return names.device_id(template.render(values))
        except MissingVariableError:
            continue
    return None

"""From nodes to candidates: which of them are one device; pure.

Without ``group`` each node is a device of its own; nodes that several sources find are one.
With ``group`` the nodes of equal key are one device, if every source gives one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.discovery.selection import Selection
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Node, Skipped, Snapshot, variables
from devhost.model.immutable import immutable
from devhost.model.sources import Static
from devhost.model.template import MissingVariableError

HOLD_S: Final = 1.0  # drivers make nodes one after the other, and udev links after nodes
DEFERRED: Final = "held back for a moment: "
_DEFERRED: Final = f"{DEFERRED}an earlier source may name it"
_DEFERRED_UNIT: Final = f"{DEFERRED}more nodes of it may come"
_DEFERRED_GROUP: Final = f"{DEFERRED}its optional nodes may come"

_NO_PLACE: Final = "nothing above it says where it is plugged in: set `id`"
_NO_ID: Final = "no value for any variable of `id`"
# Who gets an ID and a slot first: the same node again, a node that comes back under an ID on
# offer (a replug, also elsewhere), a new one.
SAME, OFFERED, NEW = range(3)

OwnerOf = Callable[[str], str | None]


@immutable
class Moment:
    """What counts at one scan.

    Attributes:
        owner_of: Names the resource that offers a node (by `Node.key`) before this one.
        now: Seconds on the host's clock.
        hold_s: How long a node waits for an earlier source to name it.
        links_to_come: Whether a resource before this one may find a new node by a link.
    """

    previous: Snapshot
    owner_of: OwnerOf
    now: float
    hold_s: float
    constants: Mapping[str, str]
    links_to_come: bool = False


@dataclass(slots=True)
class Candidates:
    """What may become a device, and what may not.

    Attributes:
        found: The candidates, each with who gets an ID and a slot first (`SAME` and so on).
        deferred: As `Snapshot.deferred`.
        incomplete: By ID, why a device of several nodes cannot be offered at the moment.
    """

    moment: Moment
    found: list[tuple[int, HostDevice]] = field(default_factory=list)
    skipped: list[Skipped] = field(default_factory=list)
    deferred: dict[str, float] = field(default_factory=dict)
    incomplete: dict[str, str] = field(default_factory=dict)

    def waits(self, key: str) -> bool:
        """Whether what may have to wait was seen first not long ago; note since when it is seen."""
        moment, before = self.moment, self.moment.previous.deferred
        since = before.get(key, moment.now)
        waits = moment.now - since < moment.hold_s
        if waits or key in before:
            self.deferred[key] = since
        return waits

    def skip(self, what: str, reason: str) -> None:
        """Note what is not offered."""
        self.skipped.append(Skipped(what, reason))

    def lacks(self, device_ids: Iterable[str | None], reason: str) -> None:
        """Note why devices cannot be offered at the moment."""
        self.incomplete |= {one: reason for one in device_ids if one is not None}


def find_candidates(resource: Resource, selection: Selection, result: Candidates) -> None:
    """Find out which nodes are one device, and which of those have to wait."""
    moment, previous = result.moment, result.moment.previous
    known_ids = {place(node): one.id for one in previous.devices.values() for node in one.nodes}
    is_group = resource.group is not None
    for name, nodes in _joined(resource, selection, known_ids, result).items():
        unit = nodes[0].hardware if not is_group else None
        device_id = _id_of(resource, nodes, moment, name if is_group else None)
        known = device_id is not None and any(known_ids.get(place(n)) == device_id for n in nodes)
        before = previous.devices.get(device_id or "")
        there = before is not None and before.missing_since is None
        required = optional = ""
        if is_group:
            had = {node.source for node in before.nodes} if before and known else set()
            required, optional = _absent(resource, nodes, had & selection.failed.keys())
        lack = f"incomplete: no node of {required}" if required else _lack(nodes)
        deferred = _DEFERRED_UNIT if _grows(nodes) and previous.scanned and not there else None
        if not known and (optional or (not is_group and _may_be_named(resource, nodes[0], moment))):
            deferred = _DEFERRED_GROUP if is_group else _DEFERRED
        if not is_group and (other := _offered(nodes, moment)) is not None:
            reason: str | None = f"{other} offers {'nodes of it' if unit else 'it'} already"
        elif lack is not None:
            reason = f"group {name!r} is {lack}" if is_group else lack
            # Its ID may be made of the node that is absent.
            result.lacks({device_id, *(known_ids.get(place(node)) for node in nodes)}, lack)
        elif deferred is not None and result.waits(f"\0group\0{name}" if is_group else name):
            reason = deferred
            result.lacks((device_id,) if deferred == _DEFERRED_UNIT else (), deferred)
        else:
            unit, reason = None, _NO_ID if resource.id else _NO_PLACE
            if device_id is not None:
                reason = names.id_problem(device_id)
        if device_id is None or reason is not None:
            result.skip(unit.label if unit else labels(nodes), reason or "")
            continue
        rank = NEW if before is None or before.replaced else SAME if known and there else OFFERED
        result.found.append((rank, HostDevice(device_id, tuple(nodes))))


def place(node: Node) -> str:
    """Return where a node is found again: in sysfs, at its path; a token has neither."""
    return node.hardware.syspath if node.hardware else node.path or node.key


def labels(nodes: Iterable[Node]) -> str:
    """Return how messages call a device's nodes."""
    return ", ".join(names.printable(node.shown or node.name) for node in nodes)


def _joined(
    resource: Resource, selection: Selection, known_ids: Mapping[str, str], result: Candidates
) -> dict[str, list[Node]]:
    """Return the nodes of each candidate, by the key of its group, its unit or its node.

    Of nodes that resolve to the same one, the first source's counts, or the one that is known.
    """
    moment, same = result.moment, dict[str, list[Node]]()
    for node in selection.nodes:
        same.setdefault(node.key, []).append(node)
    joined: dict[str, list[Node]] = {}
    for key, aliases in same.items():
        if resource.group is None:
            first = aliases[0].hardware
            alone = first or len(aliases) == 1
            node = aliases[0] if alone else _known(resource, aliases, known_ids, moment)
            joined.setdefault(first.unit if first else key, []).append(node)
            continue
        node = next((one for one in aliases if place(one) in known_ids), aliases[0])
        if (other := _offered([node], moment)) is not None:
            result.skip(labels([node]), f"{other} offers it already")
            continue
        try:
            name = resource.group.render({**variables(node, None), **moment.constants})
        except MissingVariableError as error:
            result.skip(labels([node]), f"no value for `group`: {error}")
        else:
            joined.setdefault(name, []).append(node)
    return joined


def _known(
    resource: Resource, aliases: Sequence[Node], known_ids: Mapping[str, str], moment: Moment
) -> Node:
    """Return the one of equal nodes by which a device is known, else the first."""
    for node in aliases:
        before = known_ids.get(place(node))
        if before is not None and before == _id_of(resource, (node,), moment):
            return node
    return aliases[0]


def _grows(nodes: Iterable[Node]) -> bool:
    """Whether more nodes of a device may come, or links to them."""
    return any(node.hardware is not None and node.hardware.grows for node in nodes)


def _offered(nodes: Iterable[Node], moment: Moment) -> str | None:
    """Name the resource that offers a node, or one that may not be offered beside it."""
    owners = (moment.owner_of(key) for node in nodes for key in (keys_of_node(node) or (node.key,)))
    return next(filter(None, owners), None)


def _lack(nodes: Sequence[Node]) -> str | None:
    """Return what the devices of some nodes lack at the moment."""
    found = (node.hardware.incomplete for node in nodes if node.hardware)
    return next(filter(None, found), None)


def keys_of_node(node: Node) -> tuple[str, ...]:
    """Return a node (`Node.key`) and those that may not be offered beside it; of a token none."""
    if node.hardware is not None:
        return (node.key, *node.hardware.claims)
    return (node.key,) if node.state else ()


def _may_be_named(resource: Resource, first: Node, moment: Moment) -> bool:
    """Whether an earlier source, or a link of a resource before, might find the node too."""
    if first.state is None:
        return False
    if first.hardware is None and moment.links_to_come and first.state.number:
        return True
    return any(not isinstance(one.kind, Static) for one in resource.sources[: first.source])


def _absent(resource: Resource, nodes: Sequence[Node], needed: Collection[int]) -> tuple[str, str]:
    """Name the sources that give no node to a group: the required, and the optional ones.

    Optional ones that are `needed`, as they could not be read just now, count as required.
    """
    given = {node.source for node in nodes}
    absent: tuple[list[str], list[str]] = [], []
    for index, source in enumerate(resource.sources):
        if index not in given:
            name = f"sources[{index}]" + (f" ({source.role})" if source.role else "")
            absent[source.optional and index not in needed].append(name)
    return " and ".join(absent[0]), " and ".join(absent[1])


def _id_of(
    resource: Resource, nodes: Sequence[Node], moment: Moment, key: str | None = None
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

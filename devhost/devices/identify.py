"""From nodes to devices: which of them are one, and who has which ID and which slot.

Without ``group`` each node is a device of its own; nodes that several sources find are one.
With ``group`` the nodes of equal key are one device, if every source gives one.

Pure: the same selection, previous devices and time give the same result.
"""

import operator
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from devhost.devices.absence import has_lost_source, missing_devices
from devhost.devices.context import ScanContext, labels
from devhost.model import limits, names
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice, Skipped, Verdict
from devhost.model.device_node import Hardware, Node
from devhost.model.sources import Source, Static
from devhost.model.template import MissingVariableError, variables
from devhost.sources.selection import Selection

SETTLE_S: Final = 1.0  # drivers make nodes one after the other, and udev links after nodes
ID_LIMIT_REACHED: Final = (
    f"devhost offers {limits.DEVICE_IDS_MAX} device IDs at most, of all resources"
)
_SETTLING: Final = "held back for a moment: an earlier source may name it"
_SETTLING_UNIT: Final = "held back for a moment: more nodes of it may come"
_SETTLING_GROUP: Final = "held back for a moment: its optional nodes may come"
_NO_PLACE: Final = "nothing above it says where it is plugged in: set `id`"
_NO_ID: Final = "no value for any variable of `id`"


class Rank(IntEnum):
    """The order in which devices get IDs and slots."""

    UNCHANGED = 0  # the same node again
    RETURNING = 1  # a node that comes back under an ID on offer: a replug, also elsewhere
    NEW = 2


_Ranked = tuple[Rank, HostDevice]


@dataclass(frozen=True, slots=True)
class Identified:
    """The devices of a resource, not yet rendered, and the candidates that are not offered.

    Attributes:
        devices: Those that are present, in natural order.
        missing: Those that were offered and are not found now, as they go on.
        over_limit: Whether some are not offered for `maxDevices`.
        settling: As `Snapshot.settling`.
        truncated: How many new devices are left out, because the process offers enough.
    """

    context: ScanContext
    selection: Selection
    devices: Mapping[str, HostDevice]
    missing: Mapping[str, HostDevice]
    skipped: tuple[Skipped, ...]
    over_limit: bool
    settling: Mapping[str, float]
    truncated: int = 0

    def limited(self, max_devices: int) -> "Identified":
        """Return the same without the last of the new devices, where there would be more."""
        extra = len(self.devices) + len(self.missing) - max_devices
        previous = self.context.previous.devices
        new = [key for key in self.devices if key not in previous] if extra > 0 else []
        if not new:
            return self
        devices = dict(self.devices)
        last = [devices.pop(device_id) for device_id in new[-extra:]]
        verdict = Verdict(Cause.ID_QUOTA, ID_LIMIT_REACHED)
        skipped = [Skipped(labels(device.nodes[:1]), verdict) for device in last]
        return replace(
            self, devices=devices, skipped=(*self.skipped, *skipped), truncated=len(last)
        )


@dataclass(slots=True)
class _Identification:
    """The way from a selection to devices, and what it leaves out.

    Attributes:
        ids_by_place: The device of each node that was offered, by `Node.found_at`.
        incomplete: By ID, why a device of several nodes cannot be offered at the moment.
    """

    context: ScanContext
    selection: Selection
    ids_by_place: Mapping[str, str]
    skipped: list[Skipped]
    over_limit: bool = False
    settling: dict[str, float] = field(default_factory=dict)
    incomplete: dict[str, Verdict] = field(default_factory=dict)

    def is_settling(self, key: str) -> bool:
        """Whether a candidate was seen first not long ago; remembers when that was."""
        context, before = self.context, self.context.previous.settling
        if not context.previous.scanned:  # what is there at the first scan has its nodes and links
            return False
        since = before.get(key, context.now)
        settling = context.now - since < context.settle_s
        if settling or key in before:
            self.settling[key] = since
        return settling

    def skip(
        self, nodes: Iterable[Node], cause: Cause, text: str, unit: Hardware | None = None
    ) -> None:
        """Add nodes, or the `unit` of the hardware that they are of, that are not offered."""
        self.skipped.append(Skipped.because(cause, unit.label if unit else labels(nodes), text))


def identify(selection: Selection, context: ScanContext) -> Identified:
    """Give each candidate its device: those already offered keep their IDs and their slots."""
    previous = context.previous.devices.values()
    ids_by_place = {node.found_at: device.id for device in previous for node in device.nodes}
    work = _Identification(context, selection, ids_by_place, [*selection.skipped])
    candidates = (
        _unchanged_device(nodes, work) or _device(name, nodes, work)
        for name, nodes in _nodes_by_device(work).items()
    )
    devices = _assign(candidates, work)
    missing = missing_devices(selection, context, devices, work.incomplete)
    skipped, settling = tuple(work.skipped), work.settling
    return Identified(context, selection, devices, missing, skipped, work.over_limit, settling)


# ── which nodes are one device ──


def _unchanged_device(nodes: Sequence[Node], work: _Identification) -> _Ranked | None:
    """Return a healthy device that has the same nodes as before."""
    former = work.context.previous.devices.get(work.ids_by_place.get(nodes[0].found_at, ""))
    if former is None or not former.is_stable or len(former.nodes) != len(nodes):
        return None
    if not all(map(operator.is_, former.nodes, nodes)) or _owner(nodes, work.context):
        return None
    return Rank.UNCHANGED, former


def _device(name: str, nodes: Sequence[Node], work: _Identification) -> _Ranked | None:
    """Return a device of these nodes, with its rank; ``None`` if it is not offered, or waits."""
    context, resource = work.context, work.context.resource
    is_group = resource.group is not None
    nodes = _complete_members(nodes, work) if is_group else nodes
    unit = None if is_group else nodes[0].hardware
    if not is_group and (owner := _owner(nodes, context)) is not None:
        text = f"{owner} offers {'nodes of it' if unit else 'it'} already"
        work.skip(nodes, Cause.OWNED, text, unit)
        return None
    device_id = _id_of(nodes, context, name if is_group else None)
    former = context.previous.devices.get(device_id or "")
    former_ids = {work.ids_by_place.get(node.found_at) for node in nodes} - {None}
    has_id, is_offered = device_id in former_ids, former is not None and former.is_present
    absent = _absent_sources(resource, nodes)
    had = {node.source for node in former.nodes} if former is not None and has_id else set()
    if lack := _lack(nodes, absent, work.selection.failed_sources.keys() & had):
        text = f"group {name!r} is {lack}" if is_group else lack
        work.skip(nodes, Cause.INCOMPLETE, text, unit)
        # Its ID may be made of the node that is absent.
        ids = filter(None, {device_id, *former_ids})
        work.incomplete |= dict.fromkeys(ids, Verdict(Cause.INCOMPLETE, lack))
        return None
    may_join = not has_id and (bool(absent) if is_group else _may_be_named(nodes[0], context))
    grows = not may_join and not is_offered and any(n.hardware and n.hardware.grows for n in nodes)
    if (may_join or grows) and work.is_settling(f"group {name}" if is_group else name):
        text = _SETTLING_UNIT if grows else _SETTLING_GROUP if is_group else _SETTLING
        work.skip(nodes, Cause.SETTLING, text, unit)
        if grows and device_id is not None:
            work.incomplete[device_id] = Verdict(Cause.SETTLING, text)
        return None
    problem = _NO_ID if resource.id else _NO_PLACE
    if device_id is None or (problem := names.id_problem(device_id) or ""):
        work.skip(nodes, Cause.BAD_ID, problem)
        return None
    is_new = former is None or former.is_leaving
    returning = Rank.UNCHANGED if has_id and is_offered else Rank.RETURNING
    return Rank.NEW if is_new else returning, HostDevice(device_id, tuple(nodes))


def _complete_members(nodes: Sequence[Node], work: _Identification) -> Sequence[Node]:
    """Return the nodes of a group without incomplete hardware, if the others make a device."""
    incomplete = {
        node.hardware.unit: (node.hardware, problem)
        for node in nodes
        if node.hardware and (problem := node.hardware.incomplete or node.problem)
    }
    complete = [node for node in nodes if not node.hardware or node.hardware.unit not in incomplete]
    if not incomplete or not complete:
        return nodes
    if _lack(complete, _absent_sources(work.context.resource, complete)):
        return nodes
    for hardware, problem in incomplete.values():
        work.skip((), Cause.INCOMPLETE, problem, hardware)
    return complete


def _nodes_by_device(work: _Identification) -> dict[str, list[Node]]:
    """Return the nodes of each candidate, by the key of its group, its unit or its node.

    Of the names of a node or file, the first source's counts, or the one on offer.
    """
    context, resource = work.context, work.context.resource
    aliases_by_key: dict[str, list[Node]] = {}
    for node in work.selection.nodes:
        aliases_by_key.setdefault(node.file_key, []).append(node)
    candidates: dict[str, list[Node]] = {}
    for key, aliases in aliases_by_key.items():
        node, hardware = _alias_on_offer(aliases, work), aliases[0].hardware
        for hard_link in (alias for alias in aliases if alias.key != node.key):
            work.skip([hard_link], Cause.OWNED, f"the same file as {labels([node])}")
        if resource.group is None:
            candidates.setdefault(hardware.unit if hardware else key, []).append(node)
            continue
        if (owner := _owner([node], context)) is not None:
            work.skip([node], Cause.OWNED, f"{owner} offers it already")
            continue
        try:
            name = resource.group.render({**variables(node, None), **context.constants})
        except MissingVariableError as error:
            work.skip([node], Cause.BAD_ID, f"no value for `group`: {error}")
        else:
            candidates.setdefault(name, []).append(node)
    return candidates


def _alias_on_offer(aliases: Sequence[Node], work: _Identification) -> Node:
    """Return the alias of a node by which a device is on offer, else the first."""
    is_group = work.context.resource.group is not None
    if len(aliases) > 1 and (is_group or aliases[0].hardware is None):
        for node in aliases:
            device_id = work.ids_by_place.get(node.found_at)
            if device_id and (is_group or device_id == _id_of((node,), work.context)):
                return node
    return aliases[0]


def _owner(nodes: Iterable[Node], context: ScanContext) -> str | None:
    """Return the resource that offers a node, or a node that may not be offered beside it."""
    for node in nodes:
        for key in node.keys or (node.key,):
            if (owner := context.owners[key]) is not None:
                return owner
    return None


def _may_be_named(node: Node, context: ScanContext) -> bool:
    """Whether an earlier source, or a link of a resource before, might find the node too."""
    if node.state is None:
        return False
    if node.hardware is None and context.links_to_come and node.state.number:
        return True
    earlier = context.resource.sources[: node.source]
    return any(not isinstance(source.kind, Static) for source in earlier)


def _absent_sources(resource: Resource, nodes: Iterable[Node]) -> dict[int, Source]:
    """Return the sources of a group that have none of these nodes, by index."""
    if resource.group is None:
        return {}
    present = {node.source for node in nodes}
    sources = enumerate(resource.sources)
    return {index: source for index, source in sources if index not in present}


def _lack(
    nodes: Iterable[Node], absent: Mapping[int, Source], needed: Collection[int] = ()
) -> str | None:
    """Return what a device of these nodes lacks, by the absent sources and by its hardware.

    Optional sources that are `needed`, as they could not be read just now, count as required.
    """
    required = " and ".join(
        f"sources[{index}]" + (f" ({source.role})" if source.role else "")
        for index, source in absent.items()
        if index in needed or not source.optional
    )
    if required:
        return f"incomplete: no node of {required}"
    hardware = (node.hardware for node in nodes if node.hardware is not None)
    return next((unit.incomplete for unit in hardware if unit.incomplete), None)


def _id_of(nodes: Sequence[Node], context: ScanContext, key: str | None = None) -> str | None:
    """Return the ID of a device; ``None`` where no template has all its values."""
    if context.resource.id is None:
        default = nodes[0].name if key is None else key
        return names.device_id(default) if default else None
    values: dict[str, str] = dict(context.constants)
    for node in reversed(nodes):  # of a variable that several nodes have, the first counts
        values |= variables(node, None, nodes)
    for template in context.resource.id:
        try:
            return names.device_id(template.render(values))
        except MissingVariableError:
            continue
    return None


# ── who has which ID and slot ──


def _assign(candidates: Iterable[_Ranked | None], work: _Identification) -> dict[str, HostDevice]:
    """Return the devices that get an ID and a slot: first those already offered.

    Otherwise in natural order; of equal IDs, the first source's device counts.
    """
    natural = sorted(
        filter(None, candidates),
        key=lambda ranked: (names.natural_key(ranked[1].id), ranked[1].nodes[0].source),
    )
    ordered = sorted(natural, key=operator.itemgetter(0))
    failed = work.selection.failed_sources
    staying = {
        device.id
        for device in work.context.previous.devices.values()
        if not device.is_leaving and (failed or not has_lost_source(device))
    }
    absent = len(staying - {device.id for rank, device in ordered if rank is not Rank.NEW})
    resource, limit = work.context.resource, work.context.resource.limit
    devices: dict[str, HostDevice] = {}
    for rank, device in ordered:
        count = len(devices) + (absent if rank is Rank.NEW else 0)
        if (namesake := devices.get(device.id)) is not None:
            text = f"its ID {device.id} is that of {labels(namesake.nodes[:1])}"
            work.skip(device.nodes, Cause.BAD_ID, text)
        elif limit is not None and count >= limit:
            default = "" if resource.max_devices else " by default"
            text = f"over the limit: maxDevices is {limit}{default}"
            work.skip(device.nodes, Cause.OVER_LIMIT, text)
            work.over_limit = True
        else:
            devices[device.id] = device
    return {device.id: devices[device.id] for _, device in natural if device.id in devices}

"""From nodes to devices: which of them are one, who has which ID and which slot, who is missing.

Without ``group`` each node is a device of its own; nodes that several sources find are one.
With ``group`` the nodes of equal key are one device, if every source gives one.

Pure: the same selection, previous devices and time give the same result.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import Final

from devhost.model import limits, names
from devhost.model.config import Resource
from devhost.model.device import (
    Cause,
    Hardware,
    HostDevice,
    Leaving,
    Missing,
    Node,
    Skipped,
    Snapshot,
    Verdict,
)
from devhost.model.sources import Static
from devhost.model.template import MissingVariableError, variables
from devhost.sources.selection import Selection

SETTLE_S: Final = 1.0  # drivers make nodes one after the other, and udev links after nodes
SWAP_S: Final = 10.0  # unhealthy, when another node was found in a device's place
SOURCE_REMOVED: Final = -1  # of a node: the source that found it is no longer declared
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


@dataclass(slots=True)
class Identified:
    """The devices of a resource, not yet rendered, and the candidates that are not offered.

    Attributes:
        ids_by_place: The device of each node that was offered, by `Node.found_at`.
        devices: Those that are present, in natural order.
        missing: Those that were offered and are not found now, as they go on.
        over_limit: Whether some are not offered for `maxDevices`.
        truncated: How many are not offered by `truncate`.
        settling: As `Snapshot.settling`.
        incomplete: By ID, why a device of several nodes cannot be offered at the moment.
    """

    context: ScanContext
    selection: Selection
    ids_by_place: Mapping[str, str]
    skipped: list[Skipped]
    devices: dict[str, HostDevice] = field(default_factory=dict)
    missing: dict[str, HostDevice] = field(default_factory=dict)
    over_limit: bool = False
    truncated: int = 0
    settling: dict[str, float] = field(default_factory=dict)
    incomplete: dict[str, Verdict] = field(default_factory=dict)

    def is_settling(self, key: str) -> bool:
        """Whether a candidate was seen first not long ago; remembers when that was."""
        context, before = self.context, self.context.previous.settling
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

    def truncate(self, max_devices: int) -> None:
        """Leave out the last of the new devices, where there would be more than that."""
        extra = len(self.devices) + len(self.missing) - max_devices
        if extra <= 0:
            return
        previous = self.context.previous.devices
        new = [device_id for device_id in self.devices if device_id not in previous][-extra:]
        for device_id in new:
            self.skip(self.devices.pop(device_id).nodes[:1], Cause.ID_QUOTA, ID_LIMIT_REACHED)
        self.truncated = len(new)


def identify(selection: Selection, context: ScanContext) -> Identified:
    """Give each candidate its device: those already offered keep their IDs and their slots."""
    previous = context.previous.devices.values()
    ids_by_place = {node.found_at: device.id for device in previous for node in device.nodes}
    result = Identified(context, selection, ids_by_place, [*selection.skipped])
    candidates = (
        _unchanged_device(nodes, result) or _device(name, nodes, result)
        for name, nodes in _nodes_by_device(result).items()
    )
    _assign(candidates, result)
    result.missing = _missing_devices(result)
    return result


# ── which nodes are one device ──


def _unchanged_device(nodes: Sequence[Node], result: Identified) -> tuple[Rank, HostDevice] | None:
    """Return a healthy device that has the same nodes as before."""
    former = result.context.previous.devices.get(result.ids_by_place.get(nodes[0].found_at, ""))
    if former is None or not former.is_stable or len(former.nodes) != len(nodes):
        return None
    if not all(map(operator.is_, former.nodes, nodes)) or _owner(nodes, result.context):
        return None
    return Rank.UNCHANGED, former


def _device(name: str, nodes: Sequence[Node], result: Identified) -> tuple[Rank, HostDevice] | None:
    """Return a device of these nodes, with its rank; ``None`` if it is not offered, or waits."""
    context, ids_by_place = result.context, result.ids_by_place
    resource, previous = context.resource, context.previous
    is_group = resource.group is not None
    nodes = _complete_members(nodes, result) if is_group else nodes
    unit = None if is_group else nodes[0].hardware
    device_id = _id_of(nodes, context, name if is_group else None)
    has_id = device_id is not None and any(
        ids_by_place.get(node.found_at) == device_id for node in nodes
    )
    former = previous.devices.get(device_id or "")
    is_offered = former is not None and former.is_present
    if not is_group and (owner := _owner(nodes, context)) is not None:
        text = f"{owner} offers {'nodes of it' if unit else 'it'} already"
        result.skip(nodes, Cause.OWNED, text, unit)
        return None
    had = {node.source for node in former.nodes} if former is not None and has_id else set()
    lack, is_growing = _lack(resource, nodes, result.selection.failed_sources.keys() & had)
    if lack is not None:
        text = f"group {name!r} is {lack}" if is_group else lack
        result.skip(nodes, Cause.INCOMPLETE, text, unit)
        # Its ID may be made of the node that is absent.
        ids = (device_id, *(ids_by_place.get(node.found_at) for node in nodes))
        verdict = Verdict(Cause.INCOMPLETE, lack)
        result.incomplete |= dict.fromkeys(filter(None, ids), verdict)
        return None
    settling = None
    if not has_id and (is_growing if is_group else _may_be_named(nodes[0], context)):
        settling = _SETTLING_GROUP if is_group else _SETTLING
    elif not is_offered and any(node.hardware and node.hardware.grows for node in nodes):
        settling = _SETTLING_UNIT
    # What is there at the first scan has its nodes and links.
    if (
        settling is not None
        and previous.scanned
        and result.is_settling(f"group {name}" if is_group else name)
    ):
        result.skip(nodes, Cause.SETTLING, settling, unit)
        if settling == _SETTLING_UNIT and device_id is not None:
            result.incomplete[device_id] = Verdict(Cause.SETTLING, settling)
        return None
    problem = _NO_ID if resource.id else _NO_PLACE
    if device_id is None or (problem := names.id_problem(device_id) or ""):
        result.skip(nodes, Cause.BAD_ID, problem)
        return None
    is_new = former is None or former.is_leaving
    returning = Rank.UNCHANGED if has_id and is_offered else Rank.RETURNING
    return Rank.NEW if is_new else returning, HostDevice(device_id, tuple(nodes))


def _complete_members(nodes: Sequence[Node], result: Identified) -> Sequence[Node]:
    """Return the nodes of a group without incomplete hardware, if the others make a device."""
    incomplete = {
        node.hardware.unit: (node.hardware, problem)
        for node in nodes
        if node.hardware and (problem := node.hardware.incomplete or node.problem)
    }
    complete = [node for node in nodes if not node.hardware or node.hardware.unit not in incomplete]
    if not incomplete or not complete or _lack(result.context.resource, complete, ())[0]:
        return nodes
    for hardware, problem in incomplete.values():
        result.skip((), Cause.INCOMPLETE, problem, hardware)
    return complete


def labels(nodes: Iterable[Node]) -> str:
    """Return how messages call a device's nodes."""
    return ", ".join(names.printable(node.shown or node.name) for node in nodes)


def _nodes_by_device(result: Identified) -> dict[str, list[Node]]:
    """Return the nodes of each candidate, by the key of its group, its unit or its node.

    Of the names of a node or file, the first source's counts, or the one on offer.
    """
    context, resource = result.context, result.context.resource
    aliases_by_key: dict[str, list[Node]] = {}
    for node in result.selection.nodes:
        aliases_by_key.setdefault(node.file_key, []).append(node)
    candidates: dict[str, list[Node]] = {}
    for key, aliases in aliases_by_key.items():
        node, hardware = _alias_on_offer(aliases, result), aliases[0].hardware
        for hard_link in (alias for alias in aliases if alias.key != node.key):
            result.skip([hard_link], Cause.OWNED, f"the same file as {labels([node])}")
        if resource.group is None:
            candidates.setdefault(hardware.unit if hardware else key, []).append(node)
            continue
        if (owner := _owner([node], context)) is not None:
            result.skip([node], Cause.OWNED, f"{owner} offers it already")
            continue
        try:
            name = resource.group.render({**variables(node, None), **context.constants})
        except MissingVariableError as error:
            result.skip([node], Cause.BAD_ID, f"no value for `group`: {error}")
        else:
            candidates.setdefault(name, []).append(node)
    return candidates


def _alias_on_offer(aliases: Sequence[Node], result: Identified) -> Node:
    """Return the alias of a node by which a device is on offer, else the first."""
    is_group = result.context.resource.group is not None
    if len(aliases) > 1 and (is_group or aliases[0].hardware is None):
        for node in aliases:
            device_id = result.ids_by_place.get(node.found_at)
            if device_id and (is_group or device_id == _id_of((node,), result.context)):
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


def _lack(
    resource: Resource, nodes: Sequence[Node], needed: Collection[int]
) -> tuple[str | None, bool]:
    """Return what a device of these nodes lacks, and whether an optional node of it may come.

    Optional sources that are `needed`, as they could not be read just now, count as required.
    """
    hardware = (node.hardware for node in nodes if node.hardware is not None)
    lack = next((unit.incomplete for unit in hardware if unit.incomplete), None)
    if resource.group is None:
        return lack, False
    present = {node.source for node in nodes}
    absent = [
        (index, source) for index, source in enumerate(resource.sources) if index not in present
    ]
    required = " and ".join(
        f"sources[{index}]" + (f" ({source.role})" if source.role else "")
        for index, source in absent
        if index in needed or not source.optional
    )
    return f"incomplete: no node of {required}" if required else lack, bool(absent)


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


# ── who has which ID and slot, and who is missing ──


def _assign(candidates: Iterable[tuple[Rank, HostDevice] | None], result: Identified) -> None:
    """Assign IDs and slots: those already offered first, then in natural order."""
    # Of equal IDs, the first source's device counts.
    natural = sorted(
        filter(None, candidates),
        key=lambda ranked: (names.natural_key(ranked[1].id), ranked[1].nodes[0].source),
    )
    ordered = sorted(natural, key=operator.itemgetter(0))
    failed = result.selection.failed_sources
    staying = {
        device.id
        for device in result.context.previous.devices.values()
        if not device.is_leaving and (failed or not _has_lost_source(device))
    }
    absent = len(staying - {device.id for rank, device in ordered if rank is not Rank.NEW})
    resource, limit = result.context.resource, result.context.resource.limit
    for rank, device in ordered:
        count = len(result.devices) + (absent if rank is Rank.NEW else 0)
        if (namesake := result.devices.get(device.id)) is not None:
            text = f"its ID {device.id} is that of {labels(namesake.nodes[:1])}"
            result.skip(device.nodes, Cause.BAD_ID, text)
        elif limit is not None and count >= limit:
            default = "" if resource.max_devices else " by default"
            text = f"over the limit: maxDevices is {limit}{default}"
            result.skip(device.nodes, Cause.OVER_LIMIT, text)
            result.over_limit = True
        else:
            result.devices[device.id] = device
    seats = result.devices
    result.devices = {device.id: seats[device.id] for _, device in natural if device.id in seats}


def _missing_devices(result: Identified) -> dict[str, HostDevice]:
    """Return the devices that were offered and are not found now, as they go on.

    A device that could not be read, or whose source could not, is kept as it was; one whose node is
    there but no longer offered, or under another ID, is leaving; any other, also one that lacks a
    node, is missing, until ``removeMissingAfter`` has passed.
    """
    context, selection = result.context, result.selection
    previous, now = context.previous, context.now
    if previous.devices.keys() <= result.devices.keys():
        return {}
    nodes_of_devices = [node for device in result.devices.values() for node in device.nodes]
    keys_of_devices = {node.key for node in nodes_of_devices}
    versions_of_devices = {node.state.version for node in nodes_of_devices if node.state}
    # What is found in sysfs is identified by its place: its path may be another device's by now.
    found_places = {node.found_at for node in selection.nodes}
    free_nodes = (node for node in selection.nodes if context.owners[node.key] is None)
    free_keys = frozenset(node.key for node in free_nodes)
    verdicts = {skip.candidate: skip.verdict for skip in selection.skipped}
    seen = {
        skip.candidate for skip in selection.skipped if skip.verdict.cause is not Cause.DANGLING
    }

    def is_there(node: Node) -> bool:
        """Whether a node is there, also under another name."""
        return (
            node.found_at in found_places
            or labels([node]) in seen
            or (node.state is not None and node.state.version in versions_of_devices)
        )

    missing: dict[str, HostDevice] = {}
    for device_id, device in previous.devices.items():
        if device_id in result.devices:
            continue
        if (failure := _failure(selection, device)) is not None:
            verdict = Verdict(Cause.SOURCE_FAILED, failure)
            missing[device_id] = replace(device, verdict=verdict)
            continue
        since = device.absence.since if device.absence else now
        remaining = free_keys.intersection(node.key for node in device.nodes)
        if device_id in result.incomplete and not device.is_leaving:
            verdict = result.incomplete[device_id]
            absence = Missing(since, remaining - keys_of_devices)
        elif _has_lost_source(device) or any(map(is_there, device.nodes)):
            verdict = Verdict(Cause.NOT_OFFERED, "not offered any more, or under another ID")
            absence = Leaving(since, remaining)
        else:
            units = (node.hardware.label for node in device.nodes if node.hardware is not None)
            not_found = Verdict(Cause.NOT_FOUND, "not found any more")
            verdict = next((verdicts[unit] for unit in units if unit in verdicts), not_found)
            absence = Missing(since)
        if isinstance(absence, Leaving) or now < since + keep_missing_for(context.resource, device):
            missing[device_id] = replace(device, verdict=verdict, absence=absence)
    return missing


def keep_missing_for(resource: Resource, device: HostDevice) -> float:
    """Return how long a device that is missing stays a device of the resource, in seconds.

    That of a device node at least as long as another one in its place would be unhealthy.
    """
    return max(resource.remove_missing_after, SWAP_S if device.numbers else 0.0)


def _has_lost_source(device: HostDevice) -> bool:
    """Whether a source of a device is no longer declared."""
    return any(node.source == SOURCE_REMOVED for node in device.nodes)


def _failure(selection: Selection, device: HostDevice) -> str | None:
    """Return why a device, or a source of it, could not be read."""
    for node in device.nodes:
        for path in _with_parents(node.path) if selection.unreadable else ():
            if path in selection.unreadable:
                return f"cannot be read: {selection.unreadable[path]}"
    for source, reason in selection.failed_sources.items():
        if _has_lost_source(device) or any(node.source == source for node in device.nodes):
            return f"its source could not be read: {reason}"
    return None


def _with_parents(path: str) -> Iterator[str]:
    """Yield a path and the directories that lead to it."""
    while path:
        yield path
        path = path.rpartition("/")[0]

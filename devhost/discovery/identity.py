"""From nodes to devices: which of them are one, who has which ID and which slot, who is gone.

Without ``group`` each node is a device of its own; nodes that several sources find are one.
With ``group`` the nodes of equal key are one device, if every source gives one.

Pure: the same selection, previous devices and time give the same result.
"""

import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from devhost.discovery.sources.filter import DANGLING, UNREADABLE, Selection
from devhost.model import limits, names
from devhost.model.config import Resource
from devhost.model.device import Hardware, HostDevice, Node, Skipped, Snapshot
from devhost.model.immutable import immutable
from devhost.model.sources import Static
from devhost.model.template import MissingVariableError, variables

HOLD_S: Final = 1.0  # drivers make nodes one after the other, and udev links after nodes
SWAP_S: Final = 10.0  # unhealthy, when another node was found in a device's place
NO_SOURCE: Final = -1  # of a node: the source that found it is no longer declared
NO_ROOM: Final = f"devhost offers {limits.DEVICE_IDS_MAX} device IDs at most, of all resources"
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
File = tuple[int, int, int]


@immutable
class Moment:
    """What counts at one scan.

    Attributes:
        owner_of: Names the resource that offers a node (by `Node.key`) before this one.
        now: Seconds on the host's clock.
        hold_s: How long a node waits for an earlier source to name it.
        limit: How many devices the resource may have.
        links_to_come: Whether a resource before this one may find a new node by a link.
    """

    previous: Snapshot
    owner_of: OwnerOf
    now: float
    hold_s: float
    constants: Mapping[str, str]
    limit: int | None
    links_to_come: bool = False


@dataclass(slots=True)
class Identified:
    """The devices of a resource, not yet rendered, and what is not offered.

    Attributes:
        known_ids: Of each node that was known (`Node.place`), the device.
        devices: Those that are present, in natural order.
        gone: Those that were offered and are not found now, as they go on.
        over_limit: Whether some are not offered for `maxDevices`.
        cut: How many are not offered by `cut_to`.
        deferred: As `Snapshot.deferred`.
        incomplete: By ID, why a device of several nodes cannot be offered at the moment.
    """

    moment: Moment
    selection: Selection
    known_ids: Mapping[str, str]
    skipped: list[Skipped]
    devices: dict[str, HostDevice] = field(default_factory=dict)
    gone: dict[str, HostDevice] = field(default_factory=dict)
    over_limit: bool = False
    cut: int = 0
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

    def skip(self, nodes: Iterable[Node], reason: str, unit: Hardware | None = None) -> None:
        """Note nodes, or the `unit` of the hardware that they are of, that are not offered."""
        self.skipped.append(Skipped(unit.label if unit else labels(nodes), reason))

    def cut_to(self, most: int) -> None:
        """Leave out the last of the new devices, where there would be more than that."""
        extra = len(self.devices) + len(self.gone) - most
        if extra <= 0:
            return
        new = [one for one in self.devices if one not in self.moment.previous.devices][-extra:]
        for device_id in new:
            self.skip(self.devices.pop(device_id).nodes[:1], NO_ROOM)
        self.cut = len(new)


def identify(resource: Resource, selection: Selection, moment: Moment) -> Identified:
    """Give each candidate its device: those already offered keep their IDs and their slots."""
    previous = moment.previous.devices.values()
    known_ids = {node.place: device.id for device in previous for node in device.nodes}
    result = Identified(moment, selection, known_ids, [*selection.skipped])
    joined = _joined(resource, result)
    found = (
        _as_it_was(nodes, result) or _candidate(resource, name, nodes, result)
        for name, nodes in joined.items()
    )
    _assign(resource, found, result)
    result.gone = _vanished(resource, result)
    return result


# ── which nodes are one device ──


def _as_it_was(nodes: Sequence[Node], result: Identified) -> tuple[int, HostDevice] | None:
    """Return a healthy device that has the same nodes as before."""
    known = result.moment.previous.devices.get(result.known_ids.get(nodes[0].place, ""))
    if known is None or not known.sound or len(known.nodes) != len(nodes):
        return None
    same = all(map(operator.is_, known.nodes, nodes)) and _offered(nodes, result.moment) is None
    return (SAME, known) if same else None


def _candidate(
    resource: Resource, name: str, nodes: Sequence[Node], result: Identified
) -> tuple[int, HostDevice] | None:
    """Return a device of these nodes, with who gets an ID and a slot first.

    ``None``: something is amiss, or it has to wait.
    """
    moment, previous, known_ids = result.moment, result.moment.previous, result.known_ids
    is_group = resource.group is not None
    unit = None if is_group else nodes[0].hardware
    device_id = _id_of(resource, nodes, moment, name if is_group else None)
    known = device_id is not None and any(known_ids.get(n.place) == device_id for n in nodes)
    before = previous.devices.get(device_id or "")
    there = before is not None and before.missing_since is None
    if not is_group and (other := _offered(nodes, moment)) is not None:
        result.skip(nodes, f"{other} offers {'nodes of it' if unit else 'it'} already", unit)
        return None
    had = {node.source for node in before.nodes} if before is not None and known else set()
    lack, optional = _absent(resource, nodes, result.selection.failed_sources.keys() & had)
    if lack is not None:
        result.skip(nodes, f"group {name!r} is {lack}" if is_group else lack, unit)
        # Its ID may be made of the node that is absent.
        ids = (device_id, *(known_ids.get(node.place) for node in nodes))
        result.incomplete |= {one: lack for one in ids if one is not None}
        return None
    deferred = None
    if previous.scanned:  # what is there at the first scan has its nodes and links
        if not known and (optional or (not is_group and _may_be_named(resource, nodes[0], moment))):
            deferred = _DEFERRED_GROUP if is_group else _DEFERRED
        elif not there and any(node.hardware and node.hardware.grows for node in nodes):
            deferred = _DEFERRED_UNIT
    if deferred is not None and result.waits(f"\0group\0{name}" if is_group else name):
        result.skip(nodes, deferred, unit)
        if deferred == _DEFERRED_UNIT and device_id is not None:
            result.incomplete[device_id] = deferred
        return None
    problem = _NO_ID if resource.id else _NO_PLACE
    if device_id is None or (problem := names.id_problem(device_id) or ""):
        result.skip(nodes, problem)
        return None
    rank = NEW if before is None or before.replaced else SAME if known and there else OFFERED
    return rank, HostDevice(device_id, tuple(nodes))


def labels(nodes: Iterable[Node]) -> str:
    """Return how messages call a device's nodes."""
    return ", ".join(names.printable(node.shown or node.name) for node in nodes)


def _joined(resource: Resource, result: Identified) -> dict[str, list[Node]]:
    """Return the nodes of each candidate, by the key of its group, its unit or its node.

    Of nodes that resolve to the same one, the first source's counts, or the one that is known.
    """
    moment, same = result.moment, dict[str, list[Node]]()
    for node in result.selection.nodes:
        same.setdefault(node.key, []).append(node)
    joined: dict[str, list[Node]] = {}
    for key, aliases in same.items():
        if resource.group is None:
            first = aliases[0].hardware
            alone = first or len(aliases) == 1
            node = aliases[0] if alone else _known(resource, aliases, result)
            joined.setdefault(first.unit if first else key, []).append(node)
            continue
        node = next((one for one in aliases if one.place in result.known_ids), aliases[0])
        if (other := _offered([node], moment)) is not None:
            result.skip([node], f"{other} offers it already")
            continue
        try:
            name = resource.group.render({**variables(node, None), **moment.constants})
        except MissingVariableError as error:
            result.skip([node], f"no value for `group`: {error}")
        else:
            joined.setdefault(name, []).append(node)
    return joined


def _known(resource: Resource, aliases: Sequence[Node], result: Identified) -> Node:
    """Return the one of equal nodes by which a device is known, else the first."""
    for node in aliases:
        before = result.known_ids.get(node.place)
        if before is not None and before == _id_of(resource, (node,), result.moment):
            return node
    return aliases[0]


def _offered(nodes: Iterable[Node], moment: Moment) -> str | None:
    """Name the resource that offers a node, or one that may not be offered beside it."""
    for node in nodes:
        for key in node.keys or (node.key,):
            if (owner := moment.owner_of(key)) is not None:
                return owner
    return None


def _may_be_named(resource: Resource, first: Node, moment: Moment) -> bool:
    """Whether an earlier source, or a link of a resource before, might find the node too."""
    if first.state is None:
        return False
    if first.hardware is None and moment.links_to_come and first.state.number:
        return True
    return any(not isinstance(one.kind, Static) for one in resource.sources[: first.source])


def _absent(
    resource: Resource, nodes: Sequence[Node], needed: Collection[int]
) -> tuple[str | None, bool]:
    """Say what a device of these nodes lacks, and whether an optional node of a group may come.

    Optional sources that are `needed`, as they could not be read just now, count as required.
    """
    hardware = (node.hardware for node in nodes if node.hardware is not None)
    lack = next((one.incomplete for one in hardware if one.incomplete), None)
    if resource.group is None:
        return lack, False
    given = {node.source for node in nodes}
    absent = [one for one in enumerate(resource.sources) if one[0] not in given]
    required = " and ".join(
        f"sources[{index}]" + (f" ({source.role})" if source.role else "")
        for index, source in absent
        if index in needed or not source.optional
    )
    return f"incomplete: no node of {required}" if required else lack, bool(absent)


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


# ── who has which ID and slot, and who is gone ──


def _assign(
    resource: Resource, found: Iterable[tuple[int, HostDevice] | None], result: Identified
) -> None:
    """Assign IDs and slots: those already offered first, then in natural order."""
    # Of equal IDs, the first source's device counts.
    natural = sorted(
        filter(None, found),
        key=lambda one: (names.natural_key(one[1].id), one[1].id, one[1].nodes[0].source),
    )
    ordered = sorted(natural, key=operator.itemgetter(0))
    failed = result.selection.failed_sources
    staying = {
        device.id
        for device in result.moment.previous.devices.values()
        if not device.replaced and (failed or not _orphan(device))
    }
    absent = len(staying - {device.id for rank, device in ordered if rank != NEW})
    limit = result.moment.limit
    for rank, device in ordered:
        if (other := result.devices.get(device.id)) is not None:
            reason = f"its ID {device.id} is that of {labels(other.nodes[:1])}"
            result.skip(device.nodes, reason)
        elif limit is not None and len(result.devices) + (absent if rank == NEW else 0) >= limit:
            default = "" if resource.max_devices else " by default"
            result.skip(device.nodes, f"over the limit: maxDevices is {limit}{default}")
            result.over_limit = True
        else:
            result.devices[device.id] = device
    seats = result.devices
    result.devices = {one.id: seats[one.id] for _, one in natural if one.id in seats}


def _vanished(resource: Resource, present: Identified) -> dict[str, HostDevice]:
    """Return the devices that were offered and are not found now, as they go on.

    A device that could not be read, or whose source could not, is kept as it was known; one whose
    node is there but no longer offered, or under another ID, is marked as replaced; any other, also
    one that lacks a node, is missing, until ``removeMissingAfter`` has passed.
    """
    moment, selection = present.moment, present.selection
    previous, now = moment.previous, moment.now
    if previous.devices.keys() <= present.devices.keys():
        return {}
    moved = _moved(present)
    # What is found in sysfs is known by its place: its path may be another device's by now.
    there = {node.place for node in selection.nodes}
    seen = {skipped.candidate for skipped in selection.skipped if skipped.reason != DANGLING}
    present_keys = frozenset(
        node.key for node in selection.nodes if moment.owner_of(node.key) is None
    )
    left = {skipped.candidate: skipped.reason for skipped in selection.skipped}
    gone: dict[str, HostDevice] = {}
    for device_id, device in previous.devices.items():
        if device_id in present.devices:
            continue
        failure = _failure(selection, device)
        if failure is not None:
            gone[device_id] = replace(device, reason=failure)
            continue
        since = now if device.missing_since is None else device.missing_since
        remaining = present_keys.intersection(node.key for node in device.nodes)
        if device_id in present.incomplete and not device.replaced:
            reason, withdrawn = present.incomplete[device_id], False
        elif (
            _orphan(device)
            or any(node.place in there or labels([node]) in seen for node in device.nodes)
            or not moved.isdisjoint(files_of(device))
        ):
            reason, withdrawn = "not offered any more, or under another ID", True
        else:
            units = (node.hardware.label for node in device.nodes if node.hardware is not None)
            reason = next((left[one] for one in units if one in left), "not found any more")
            withdrawn, remaining = False, frozenset()
        if withdrawn or now < since + remembered(resource, device):
            gone[device_id] = replace(
                device, reason=reason, missing_since=since, replaced=withdrawn, remaining=remaining
            )
    return gone


def remembered(resource: Resource, device: HostDevice) -> float:
    """Return how long a device that is missing is known, in seconds.

    That of a device node at least as long as another one in its place would be unhealthy.
    """
    return max(resource.remove_missing_after, SWAP_S if device.numbers else 0.0)


def files_of(device: HostDevice) -> set[File]:
    """Return what stays of each file of a device under another name."""
    return {node.state.version for node in device.nodes if node.state}


def _moved(present: Identified) -> set[File]:
    """Return the files of devices that are no longer found which others have now, or may have.

    A device that has had the file all the time is none of them: it is another name of it, a hard
    link. But while the former ID of one that has moved is in the list, it counts as moved.
    """
    previous, lost = present.moment.previous, dict[File, bool]()
    for device_id, device in previous.devices.items():
        if device_id not in present.devices:
            for file in files_of(device):
                lost[file] = device.replaced or lost.get(file, False)
    moved: set[File] = set()
    for device_id, device in present.devices.items():
        for file in files_of(device) & lost.keys():
            before = previous.devices.get(device_id)
            if before is None or lost[file] or file not in files_of(before):
                moved.add(file)
    return moved


def _orphan(device: HostDevice) -> bool:
    return any(node.source == NO_SOURCE for node in device.nodes)


def _failure(selection: Selection, device: HostDevice) -> str | None:
    """Return why a device, or a source of it, could not be read."""
    for node in device.nodes:
        for path in _above(node.path) if selection.unreadable else ():
            if path in selection.unreadable:
                return f"{UNREADABLE}{selection.unreadable[path]}"
    for source, reason in selection.failed_sources.items():
        if _orphan(device) or any(node.source == source for node in device.nodes):
            return f"its source could not be read: {reason}"
    return None


def _above(path: str) -> Iterator[str]:
    """Yield a path and the directories that lead to it."""
    while path:
        yield path
        path = path.rpartition("/")[0]

"""From candidates to devices: who is the same node, who has which ID, who has a seat.

Pure: the same survey, previous devices and time give the same result.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from devhost.allocation import variables
from devhost.discovery.survey import DANGLING, Survey
from devhost.model import names
from devhost.model.config import Resource
from devhost.model.device import Device, Node, Skipped, Snapshot
from devhost.model.sources import Static
from devhost.template import MissingVariableError

HOLD_S: Final = 1.0  # udev makes links after nodes
NO_SOURCE: Final = -1  # of a node: the source that found it is declared no more
# Who gets an ID and a seat first: the same node again, a node that comes back under an ID on
# offer (a replug, also elsewhere), a new one.
_SAME, _OFFERED, _NEW = range(3)

Claimed = Callable[[str], str | None]


@dataclass(slots=True)
class Identified:
    """Devices that are present, not yet rendered, and what is not offered.

    Attributes:
        devices: By ID.
        skipped: What was found but is not offered.
        held: As `Snapshot.held`.
        crowded: Whether something was skipped for the limit.
    """

    devices: dict[str, Device] = field(default_factory=dict)
    skipped: list[Skipped] = field(default_factory=list)
    held: dict[str, float] = field(default_factory=dict)
    crowded: bool = False


def identify(
    resource: Resource,
    survey: Survey,
    previous: Snapshot,
    claimed: Claimed,
    *,
    now: float,
    hold_s: float,
    constants: Mapping[str, str],
) -> Identified:
    """Give each present node its device.

    Args:
        resource: The declaration.
        survey: What is there now.
        previous: What was known before; offered devices keep their ID and their seat.
        claimed: Names the resource that offers a node (by `Node.key`) before this one.
        now: Seconds on the host's clock.
        hold_s: How long a node waits for an earlier source to name it.
        constants: Values of variables that are not of a device.
    """
    result = Identified(skipped=list(survey.skipped))
    known_places = {
        _place(node): device for device in previous.devices.values() for node in device.nodes
    }
    candidates: list[tuple[Device | None, Node]] = []
    for key, nodes in _same_nodes(survey).items():
        first = nodes[0]
        known = next(
            (
                (known_places[_place(node)], node)
                for node in nodes
                if _place(node) in known_places
                and known_places[_place(node)].id == _id_of(resource, node, constants)
            ),
            None,
        )
        if (other := claimed(key)) is not None:
            result.skipped.append(Skipped(_label(first), f"{other} offers it already"))
        elif known is not None:
            candidates.append(known)
        elif hold_s and _waits(resource, first) and not _waited(previous, key, now, hold_s):
            result.held[key] = previous.held.get(key, now)
            reason = "held back for a moment: an earlier source may name it"
            result.skipped.append(Skipped(_label(first), reason))
        else:
            if key in previous.held:
                result.held[key] = previous.held[key]
            candidates.append((None, first))
    _seat(resource, candidates, previous, constants, result)
    return result


def _same_nodes(survey: Survey) -> dict[str, list[Node]]:
    """Join candidates that resolve to the same node; the first source's comes first."""
    groups: dict[str, list[Node]] = {}
    for node in survey.nodes:
        groups.setdefault(node.key, []).append(node)
    return groups


def _waits(resource: Resource, first: Node) -> bool:
    earlier = resource.sources[: first.source]
    return first.state is not None and any(not isinstance(s.kind, Static) for s in earlier)


def _waited(previous: Snapshot, key: str, now: float, hold_s: float) -> bool:
    since = previous.held.get(key)
    return since is not None and now - since >= hold_s


def _seat(
    resource: Resource,
    candidates: list[tuple[Device | None, Node]],
    previous: Snapshot,
    constants: Mapping[str, str],
    result: Identified,
) -> None:
    """Assign IDs and seats: those already offered first, then in natural order."""
    wanted: list[tuple[int, str, Node]] = []
    for known, node in candidates:
        device_id = _id_of(resource, node, constants)
        if device_id is None:
            result.skipped.append(Skipped(_label(node), "no value for any variable of `id`"))
        elif "::" in device_id:
            result.skipped.append(Skipped(_label(node), "'::' in the ID is reserved for shares"))
        elif not device_id:
            result.skipped.append(Skipped(_label(node), "its ID would be empty"))
        else:
            holder = previous.devices.get(device_id)
            offered = holder is not None and not holder.replaced
            same = known is not None and known.missing_since is None
            rank = _NEW if not offered else _SAME if same else _OFFERED
            wanted.append((rank, device_id, node))
    wanted.sort(key=lambda item: (item[0], names.natural_key(item[1]), item[1], item[2].source))
    kept = sum(1 for device in previous.devices.values() if not device.replaced)
    absent = kept - len({device_id for rank, device_id, _ in wanted if rank != _NEW})
    limit = resource.max_devices
    for rank, device_id, node in wanted:
        holder = result.devices.get(device_id)
        if holder is not None:
            reason = f"its ID {device_id} is that of {_label(holder.nodes[0])}"
            result.skipped.append(Skipped(_label(node), reason))
        elif limit is not None and len(result.devices) + (absent if rank == _NEW else 0) >= limit:
            reason = f"over the limit: maxDevices is {limit}"
            result.crowded = True
            result.skipped.append(Skipped(_label(node), reason))
        else:
            result.devices[device_id] = Device(device_id, (node,))


def _id_of(resource: Resource, node: Node, constants: Mapping[str, str]) -> str | None:
    if resource.id is None:
        return names.device_id(node.name)
    values = {**variables(node, None), **constants}
    for template in resource.id:
        try:
            return names.device_id(template.render(values))
        except MissingVariableError:
            continue
    return None


def _place(node: Node) -> str:
    """Return where a node is found again: at its path; a token has none."""
    return node.path or node.key


def _label(node: Node) -> str:
    return node.path or node.name


def vanished(
    resource: Resource, survey: Survey, previous: Snapshot, present: Identified, now: float
) -> dict[str, Device]:
    """Return the devices that were offered and are not found now, as they go on.

    A device of a source that could not be read is kept as it was known; one whose node is
    there but not offered any more, or under another ID, is marked as replaced;
    any other is missing, until ``removeMissingAfter`` has passed.
    """
    stamps = {
        node.state.stamp
        for device in present.devices.values()
        for node in device.nodes
        if node.state
    }
    seen = {node.path or node.name for node in survey.nodes}
    seen |= {skipped.candidate for skipped in survey.skipped if skipped.reason != DANGLING}
    gone: dict[str, Device] = {}
    for device_id, device in previous.devices.items():
        if device_id in present.devices:
            continue
        orphan = any(node.source == NO_SOURCE for node in device.nodes)
        failure = next(
            (
                reason
                for source, reason in survey.failed.items()
                if orphan or any(node.source == source for node in device.nodes)
            ),
            None,
        )
        if failure is not None:
            gone[device_id] = replace(device, reason=f"its source could not be read: {failure}")
            continue
        since = now if device.missing_since is None else device.missing_since
        if (
            orphan
            or any(_label(node) in seen for node in device.nodes)
            or any(node.state and node.state.stamp in stamps for node in device.nodes)
        ):
            reason, withdrawn = "not offered any more, or under another ID", True
        elif now - since >= resource.remove_missing_after:
            continue
        else:
            reason, withdrawn = "not found any more", False
        gone[device_id] = replace(device, reason=reason, missing_since=since, replaced=withdrawn)
    return gone

"""Compares two configurations: what a host does about each resource.

The running host and ``devhost plan --against`` use the same value, so the plan is what happens.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import StrEnum
from typing import Any, Final

from devhost.immutable import immutable
from devhost.model.config import Config, Resource
from devhost.model.mapping import key_of
from devhost.model.sources import Static
from devhost.model.values import DEVICES_MAX


class Action(StrEnum):
    """What the host does about a resource."""

    KEEP = "keep"
    UPDATE = "update"
    REREGISTER = "reregister"
    START = "start"
    DRAIN = "drain"


@immutable
class Change:
    """The change of one resource.

    Attributes:
        name: The resource's name.
        action: What the host does.
        reasons: Why, and the effects, as text; ``keep`` has one only for a new place in the file.
        resource: The new configuration; ``None`` for ``drain``.
        moved_by: The key whose change gives nodes another resource or ID, and the resource that
            has these nodes; ``None`` if no nodes move.
    """

    name: str
    action: Action
    reasons: tuple[str, ...]
    resource: Resource | None
    moved_by: tuple[str, str] | None = None


def changes(old: Config | None, new: Config, node_name: str) -> tuple[Change, ...]:
    """Return the changes of all resources of a node.

    Args:
        old: The current configuration; ``None`` if there is none.
        new: The new configuration.
        node_name: The name of the node; resources of other nodes are ignored.

    Returns:
        Changes in the order of the new file, then drained resources in the order of the old file.
    """
    before, after = _here(old, node_name), _here(new, node_name)
    gone = [resource for name, resource in before.items() if name not in after]
    come = [resource for name, resource in after.items() if name not in before]
    renamed = _renamed(gone, come)
    successors = {origin.name: name for name, origin in renamed.items()}
    had, has = _declared(old), _declared(new)
    moved = _moved(before, after)
    return (
        *(
            _changed(before[name], resource, moved.get(name, ()))
            if name in before
            else _started(resource, renamed.get(name), declared_before=name in had)
            for name, resource in after.items()
        ),
        *(
            _drained(one.name, successors.get(one.name), still_declared=one.name in has)
            for one in gone
        ),
    )


def _declared(config: Config | None) -> set[str]:
    return {resource.name for resource in config.resources} if config else set()


def _here(config: Config | None, node_name: str) -> dict[str, Resource]:
    resources = config.resources if config else ()
    return {resource.name: resource for resource in resources if resource.applies_to(node_name)}


_LEAVE_AFTER: Final = "at least 10 s"  # LEAVE_AFTER_S of devhost.kubelet.device_list
_REFUSED: Final = "without --pod-resources, devhost rejects this file while it offers such devices"


# ── new and removed resources ─────────────────────────────────────────────────────────────────────


_DRAINS: Final = (
    f"all devices become Unhealthy, leave the list (after {_LEAVE_AFTER}, and not while pods are "
    "known to have them), then the socket is removed; the node's status keeps the name with 0"
)


def _started(resource: Resource, origin: Resource | None, *, declared_before: bool) -> Change:
    reasons = [
        "nodeNames: now matches this node; registers with a new socket"
        if declared_before
        else "new: registers with a new socket"
    ]
    moved_by = None
    if origin is not None:
        reason = f"looks renamed from {origin.name}"
        if _physical(resource) and not origin.overlap == resource.overlap == "allow":
            reason += (
                f": its devices stay Unhealthy until they have left {origin.name}'s list and no "
                f"pod has them; {_REFUSED}"
            )
            moved_by = "name", origin.name
        reasons.append(reason)
    return Change(resource.name, Action.START, tuple(reasons), resource, moved_by)


def _drained(name: str, successor: str | None, *, still_declared: bool) -> Change:
    reasons = [
        "nodeNames: no longer matches this node" if still_declared else "removed",
        _DRAINS,
    ]
    if successor is not None:
        reasons.append(f"looks renamed to {successor}: pods must request that name")
    return Change(name, Action.DRAIN, tuple(reasons), None)


def _renamed(gone: Iterable[Resource], come: Iterable[Resource]) -> dict[str, Resource]:
    """Return the old versions of resources that look renamed, by the new name."""
    left = list(come)
    origins: dict[str, Resource] = {}
    for resource in gone:
        successor = next((other for other in left if _looks_renamed(resource, other)), None)
        if successor is not None:
            left.remove(successor)
            origins[successor.name] = resource
    return origins


def _looks_renamed(old: Resource, new: Resource) -> bool:
    """Whether both have the same devices; for tokens, whether everything is equal."""
    if _physical(old):
        return old.sources == new.sources
    return not _differing(old, new) - {"node_names"}


def _physical(resource: Resource) -> bool:
    return any(not isinstance(source.kind, Static) for source in resource.sources)


# ── kept and changed resources ─────────────────────────────────────────────────────────────────


def _changed(old: Resource, new: Resource, moved: tuple[str, ...]) -> Change:
    differing = _differing(old, new) if old is not new else set[str]()
    if differing <= {"node_names"}:  # the resource matched this node before as well
        return Change(new.name, Action.KEEP, moved, new)
    reasons = tuple(
        key_of(field) + effect(getattr(old, field), getattr(new, field))
        for field, effect in EFFECTS.items()
        if field in differing
    )
    registers = bool(old.pre_start) != bool(new.pre_start)
    action = Action.REREGISTER if registers else Action.UPDATE
    key = _moving(old, new) if differing else None
    if key is None:
        return Change(new.name, action, reasons + moved, new)
    reasons = tuple(f"{one}; {_REFUSED}" if one.startswith(key) else one for one in reasons)
    return Change(new.name, action, reasons + moved, new, (key, new.name))


def _moving(old: Resource, new: Resource) -> str | None:
    """Return the key whose change takes IDs from devices that pods may have."""
    if not _physical(old) or not _physical(new):
        return None
    fewer = new.replicas < old.replicas or (old.replicas == 1) != (new.replicas == 1)
    differing = {"id": old.id != new.id, "group": old.group != new.group, "replicas": fewer}
    return next((key for key, differs in differing.items() if differs), None)


def _moved(
    before: Mapping[str, Resource], after: Mapping[str, Resource]
) -> dict[str, tuple[str, ...]]:
    """Return reasons for resources that moved past another one, which may find the same nodes."""
    was = {name: place for place, name in enumerate(before)}
    kept = [name for name, resource in after.items() if name in was and _physical(resource)]
    found: dict[str, tuple[str, ...]] = {}
    for way, names, sign in (("after", kept, 1), ("before", kept[::-1], -1)):
        furthest = next(iter(names), "")
        for name in names:
            if (was[furthest] - was[name]) * sign <= 0:
                furthest = name
            elif after[name].overlap == "deny":
                reason = f"moved in the file (now {way} {furthest}): {_FIRST_WINS}"
                found.setdefault(name, (reason,))
    return found


_FIRST_WINS: Final = "nodes that several resources find belong to the first of them"


def _differing(old: Resource, new: Resource) -> set[str]:
    return {
        field.name
        for field in fields(Resource)
        if field.name != "name" and getattr(old, field.name) != getattr(new, field.name)
    }


def _always(effect: str) -> Callable[[Any, Any], str]:
    return lambda _old, _new: f": {effect}"


def _stepped(effect: str) -> Callable[[Any, Any], str]:
    return lambda old, new: f" {_shown(old)} → {_shown(new)}: {effect}"


def _shown(value: object) -> str:
    return "unlimited" if value is None else str(value)


def _max_devices(old: int | None, new: int | None) -> str:
    if new is None:
        effect = f"up to {DEVICES_MAX} devices of the host, and all tokens, are offered"
    elif old is None or new < old:
        effect = f"if there are more than {new}, the last in natural order leave the list"
    else:
        effect = f"up to {new - old} more are offered; the others keep their slots"
    was, becomes = ("default" if n is None else n for n in (old, new))
    return f" {was} → {becomes}: {effect}"


def _min_devices(old: int | None, new: int | None) -> str:
    was, becomes = ("most since the file changed" if n is None else n for n in (old, new))
    return f" {was} → {becomes}: fewer devices are reported as missing"


def _replicas(old: int, new: int) -> str:
    if 1 in (old, new):
        was, becomes = ("a", "a::0 …") if old == 1 else ("a::0 …", "a")
        effect = (
            f"every device gets new IDs ({was} → {becomes}), which stay Unhealthy until the old "
            f"ones have left the list ({_LEAVE_AFTER}) and no pod has them"
        )
    elif old < new:
        effect = f"more shares are offered (a::{old} …); the others keep their IDs"
    else:
        effect = f"the other shares leave the list (a::{new} …); the rest keep their IDs"
    return _stepped(effect)(old, new)


def _overlap(old: str, new: str) -> str:
    effect = (
        "also offers nodes that an earlier resource offers"
        if new == "allow"
        else "nodes that an earlier resource offers leave the list"
    )
    return _stepped(effect)(old, new)


def _remove_missing_after(old: float, new: float) -> str:
    effect = "also applies to devices that are missing already, from when they vanished"
    return _stepped(effect)(_duration(old), _duration(new))


def _duration(seconds: float) -> str:
    if math.isinf(seconds):
        return "never"
    for unit, size in (("h", 3600.0), ("m", 60.0), ("s", 1.0)):
        if seconds >= size and not seconds % size:
            return f"{seconds / size:.0f}{unit}"
    return f"{seconds:.15g}s" if seconds >= 1 or not seconds else f"{seconds * 1000:.15g}ms"


def _health(old: object, new: object) -> str:
    if old is None:
        return " added: devices that fail a check become Unhealthy"
    if new is None:
        return " removed: devices that only failed a check become Healthy"
    return " changed: takes effect with the next round of checks"


def _pre_start(old: object, new: object) -> str:
    if old and new:
        return " changed: takes effect for the next container start"
    return (
        f" {'removed' if old else 'added'}: registers again, because kubelet reads this option "
        "once; no device is allocatable meanwhile, running containers are not affected"
    )


_OTHER_ID: Final = (
    "another ID stay Unhealthy under the new one until the old one has left the list "
    f"({_LEAVE_AFTER}) and no pod has it"
)
_CONTAINERS_KEEP: Final = "running containers keep what they have"
_NEXT_CHOICE: Final = f"takes effect for the next choice of devices; {_CONTAINERS_KEEP}"

# The effect of a change, by field of `Resource`, in the order of the language.
EFFECTS: Final[Mapping[str, Callable[[Any, Any], str]]] = {
    "sources": _always(
        "scanned again; devices that are no longer found leave the list, devices that get "
        + _OTHER_ID
    ),
    "id": _always("devices that get " + _OTHER_ID),
    "group": _always("nodes are grouped again; devices that get " + _OTHER_ID),
    "allocate": _always(f"takes effect for the next Allocate; {_CONTAINERS_KEEP}"),
    "inject": _stepped(f"takes effect for the next Allocate; {_CONTAINERS_KEEP}"),
    "max_devices": _max_devices,
    "min_devices": _min_devices,
    "overlap": _overlap,
    "replicas": _replicas,
    "max_per_container": _stepped(_NEXT_CHOICE),
    "prefer": _stepped(_NEXT_CHOICE),
    "topology": _stepped(
        f"kubelet gets other NUMA nodes and uses them for new pods; {_CONTAINERS_KEEP}"
    ),
    "remove_missing_after": _remove_missing_after,
    "health": _health,
    "pre_start": _pre_start,
    "node_names": _always("changed, still matches this node"),
}

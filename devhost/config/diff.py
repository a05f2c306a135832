"""The changes of a configuration, and what a host does about each resource; also for plans."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from devhost.model.config import Config, Resource
from devhost.model.values import key_of


class Action(StrEnum):
    """The action of a host for a resource."""

    KEEP = "keep"
    UPDATE = "update"
    REREGISTER = "reregister"
    START = "start"
    DRAIN = "drain"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Change:
    """The change of one resource.

    Attributes:
        reasons: The changed keys, and the effects that are felt, as text; ``keep`` has one only
            for a new place in the file.
        resource: The new configuration; ``None`` for ``drain``.
    """

    name: str
    action: Action
    reasons: tuple[str, ...]
    resource: Resource | None


_WAITS: Final = (
    "devices are Unhealthy until their former IDs have left the list and, if pods were given them, "
    "--pod-resources shows that no pod has them"
)
_SWITCHES: Final = (
    "to {}: running pods keep their devices; the node takes no new pods of the resource until the "
    "last of these has ended"
)
_REGISTERS: Final = "registers again; no device is allocatable meanwhile"
_MOVED: Final = "moved in the file: nodes that several resources find belong to the first of them"


def changes(old: Config | None, new: Config, node_name: str) -> tuple[Change, ...]:
    """Return the changes of a node's resources, in the order of the new file, then of the old."""
    before, after = _here(old, node_name), _here(new, node_name)
    gone = [resource for name, resource in before.items() if name not in after]
    # Of those that stay, the resources that are now where another resource was.
    kept = {name for name in after if name in before and after[name].is_physical}
    places = zip(filter(kept.__contains__, before), filter(kept.__contains__, after), strict=True)
    moved = {new for old, new in places if new != old}
    present = [
        _changed(before[name], resource, node_name, moved=name in moved)
        if name in before
        else _started(resource, gone)
        for name, resource in after.items()
    ]
    drained = (Change(resource.name, Action.DRAIN, ("removed",), None) for resource in gone)
    return *present, *drained


def _here(config: Config | None, node_name: str) -> dict[str, Resource]:
    resources = config.resources if config else ()
    return {resource.name: resource for resource in resources if resource.applies_to(node_name)}


def _started(resource: Resource, gone: Iterable[Resource]) -> Change:
    """Return the change of a new resource, which may have the nodes of one that is gone."""
    reasons = ["new"]
    for former in gone:
        is_shared = former.overlap == resource.overlap == "allow"
        if former.sources == resource.sources and former.is_physical and not is_shared:
            reasons.append(f"looks renamed from {former.name}: {_WAITS}")
            break
    return Change(resource.name, Action.START, tuple(reasons), resource)


def _changed(old: Resource, new: Resource, node_name: str, *, moved: bool) -> Change:
    by_dra, action, reasons = new.uses_dra(node_name), Action.KEEP, list[str]()
    effects = {_moving(old, new): _WAITS}
    if by_dra is not old.uses_dra(node_name):
        action = Action.SWITCH
        reasons.append(f"backend: {_SWITCHES.format('DRA' if by_dra else 'the device plugin')}")
    elif bool(old.pre_start) != bool(new.pre_start):
        action = Action.REREGISTER
        effects["pre_start"] = _REGISTERS
    for field in _differing(old, new):
        change = key_of(Resource, field) + _values(getattr(old, field), getattr(new, field))
        reasons.append(f"{change}: {effects[field]}" if field in effects else change)
    if reasons and action is Action.KEEP:
        action = Action.UPDATE
    if moved and new.overlap == "deny":
        reasons.append(_MOVED)
    return Change(new.name, action, tuple(reasons), new)


def _values(*old_and_new: object) -> str:
    """Return the old and the new value, if they are short."""
    if not all(value is None or isinstance(value, int | str) for value in old_and_new):
        return ""
    return " " + " → ".join("default" if value is None else str(value) for value in old_and_new)


def _moving(old: Resource, new: Resource) -> str | None:
    """Return the field whose change gives devices other IDs."""
    if not (old.is_physical and new.is_physical):
        return None
    shared = (old.replicas == 1) != (new.replicas == 1)
    differing = {"id": old.id != new.id, "group": old.group != new.group, "replicas": shared}
    return next((key for key, differs in differing.items() if differs), None)


def _differing(old: Resource, new: Resource) -> list[str]:
    """Return the fields whose values differ, in order; both apply to this node."""
    return [
        name
        for name in Resource.model_fields
        if name not in ("name", "node_names", "backend")
        and getattr(old, name) != getattr(new, name)
    ]

"""What a host does about each resource when its configuration changes; also for plans."""

from collections.abc import Iterable
from enum import StrEnum
from typing import Final

from devhost.model.config import Config, Resource
from devhost.model.immutable import immutable
from devhost.model.sources import Static
from devhost.model.values import key_of


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
_REGISTERS: Final = "registers again; no device is allocatable meanwhile"
_MOVED: Final = "moved in the file: nodes that several resources find belong to the first of them"


def changes(old: Config | None, new: Config, node_name: str) -> tuple[Change, ...]:
    """Return the changes of a node's resources, in the order of the new file, then of the old."""
    before, after = _here(old, node_name), _here(new, node_name)
    gone = [resource for name, resource in before.items() if name not in after]
    # Of those that stay, the ones that are now where another one was.
    kept = {name for name, one in after.items() if name in before and _physical(one)}
    places = zip(filter(kept.__contains__, before), filter(kept.__contains__, after), strict=True)
    moved = {new for old, new in places if new != old}
    come = [
        _changed(before[name], resource, moved=name in moved)
        if name in before
        else _started(resource, gone)
        for name, resource in after.items()
    ]
    return *come, *(Change(one.name, Action.DRAIN, ("removed",), None) for one in gone)


def _here(config: Config | None, node_name: str) -> dict[str, Resource]:
    resources = config.resources if config else ()
    return {resource.name: resource for resource in resources if resource.applies_to(node_name)}


def _physical(resource: Resource) -> bool:
    return any(not isinstance(source.kind, Static) for source in resource.sources)


def _started(resource: Resource, gone: Iterable[Resource]) -> Change:
    """Return the change of a new resource, which may have the nodes of one that is gone."""
    same = (one for one in gone if one.sources == resource.sources and _physical(one))
    origin = next((one for one in same if not one.overlap == resource.overlap == "allow"), None)
    if origin is None:
        return Change(resource.name, Action.START, ("new",), resource)
    reason = f"looks renamed from {origin.name}: {_WAITS}"
    return Change(resource.name, Action.START, ("new", reason), resource)


def _changed(old: Resource, new: Resource, *, moved: bool) -> Change:
    place = (_MOVED,) if moved and new.overlap == "deny" and _physical(new) else ()
    differing = _differing(old, new)
    if not differing:
        return Change(new.name, Action.KEEP, place, new)
    moving = _moving(old, new)
    registers = bool(old.pre_start) != bool(new.pre_start)
    reasons = []
    for field in differing:
        key = key_of(Resource, field)
        reason = key + _step(getattr(old, field), getattr(new, field))
        if key == moving:
            reason += f": {_WAITS}"
        if field == "pre_start" and registers:
            reason += f": {_REGISTERS}"
        reasons.append(reason)
    action = Action.REREGISTER if registers else Action.UPDATE
    return Change(new.name, action, (*reasons, *place), new)


def _step(old: object, new: object) -> str:
    """Say from what to what a value changes that is short enough."""
    if not all(value is None or isinstance(value, int | str) for value in (old, new)):
        return ""
    was, becomes = ("default" if value is None else value for value in (old, new))
    return f" {was} → {becomes}"


def _moving(old: Resource, new: Resource) -> str | None:
    """Return the key whose change gives devices other IDs."""
    if not _physical(old) or not _physical(new):
        return None
    shared = (old.replicas == 1) != (new.replicas == 1)
    differing = {"id": old.id != new.id, "group": old.group != new.group, "replicas": shared}
    return next((key for key, differs in differing.items() if differs), None)


def _differing(old: Resource, new: Resource) -> list[str]:
    """Return the fields whose values differ, in order; both apply to this node (`nodeNames`)."""
    return [
        name
        for name in Resource.model_fields
        if name not in ("name", "node_names") and getattr(old, name) != getattr(new, name)
    ]

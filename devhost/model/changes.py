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
    "devices that pods were given are Unhealthy until --pod-resources shows that no pod has them"
)
_REGISTERS: Final = "registers again; no device is allocatable meanwhile"
_MOVED: Final = "moved in the file: nodes that several resources find belong to the first of them"


def changes(old: Config | None, new: Config, node_name: str) -> tuple[Change, ...]:
    """Return the changes of a node's resources, in the order of the new file, then of the old."""
    before, after = _here(old, node_name), _here(new, node_name)
    gone = [resource for name, resource in before.items() if name not in after]
    come = [resource for name, resource in after.items() if name not in before]
    origins = _renamed(gone, come)
    successors = {origin.name: name for name, origin in origins.items()}
    moved = _moved(before, [name for name, one in after.items() if _physical(one)])
    found = [
        _changed(before[name], resource, moved=name in moved)
        if name in before
        else _started(resource, origins.get(name))
        for name, resource in after.items()
    ]
    for resource in gone:
        renamed = successors.get(resource.name)
        hint = (f"looks renamed to {renamed}: pods must request that name",) if renamed else ()
        found.append(Change(resource.name, Action.DRAIN, ("removed", *hint), None))
    return tuple(found)


def _here(config: Config | None, node_name: str) -> dict[str, Resource]:
    resources = config.resources if config else ()
    return {resource.name: resource for resource in resources if resource.applies_to(node_name)}


def _renamed(gone: Iterable[Resource], come: Iterable[Resource]) -> dict[str, Resource]:
    """Return the new names of resources that look renamed, with what they were."""
    found: dict[str, Resource] = {}
    for old in gone:
        for new in come:
            same = old.sources == new.sources if _physical(old) else not _differing(old, new)
            if same and new.name not in found:
                found[new.name] = old
                break
    return found


def _moved(before: Iterable[str], after: Iterable[str]) -> set[str]:
    """Return the names that have passed another one, or were passed by one."""
    place = {name: at for at, name in enumerate(before)}
    kept = [name for name in after if name in place]
    found: set[str] = set()
    for names, sign in ((kept, 1), (kept[::-1], -1)):
        furthest = -len(place)
        for name in names:
            if place[name] * sign < furthest:
                found.add(name)
            furthest = max(furthest, place[name] * sign)
    return found


def _physical(resource: Resource) -> bool:
    return any(not isinstance(source.kind, Static) for source in resource.sources)


def _started(resource: Resource, origin: Resource | None) -> Change:
    if origin is None:
        return Change(resource.name, Action.START, ("new",), resource)
    reason = f"looks renamed from {origin.name}"
    if _physical(resource) and not origin.overlap == resource.overlap == "allow":
        reason += f": {_WAITS}"
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

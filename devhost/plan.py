"""Compares two configurations: what a host does about each resource.

The running host and ``devhost plan --against`` use the same value, so the plan is what happens.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

from devhost.immutable import immutable
from devhost.model.base import key_of
from devhost.model.config import Config, Resource
from devhost.model.sources import Static


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
        reasons: What has changed, with the effects that are felt, as text; ``keep`` has one only
            for a new place in the file.
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


_REFUSED: Final = (
    "without --pod-resources, devhost rejects this file once pods were given such devices"
)
_REGISTERS: Final = "registers again; no device is allocatable meanwhile"
_FIRST_WINS: Final = "nodes that several resources find belong to the first of them"


def _started(resource: Resource, origin: Resource | None, *, declared_before: bool) -> Change:
    reasons = ["nodeNames: now matches this node" if declared_before else "new"]
    moved_by = None
    if origin is not None:
        reason = f"looks renamed from {origin.name}"
        if _physical(resource) and not origin.overlap == resource.overlap == "allow":
            reason += f": {_wait_for(f'those of {origin.name}')}"
            moved_by = "name", origin.name
        reasons.append(reason)
    return Change(resource.name, Action.START, tuple(reasons), resource, moved_by)


def _drained(name: str, successor: str | None, *, still_declared: bool) -> Change:
    reasons = ["nodeNames: no longer matches this node" if still_declared else "removed"]
    if successor is not None:
        reasons.append(f"looks renamed to {successor}: pods must request that name")
    return Change(name, Action.DRAIN, tuple(reasons), None)


def _wait_for(former: str) -> str:
    until = f"until {former} have left the list and no pod has them"
    return f"devices stay Unhealthy {until}; {_REFUSED}"


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
    return set(_differing(old, new)) <= {"node_names"}


def _physical(resource: Resource) -> bool:
    return any(not isinstance(source.kind, Static) for source in resource.sources)


def _changed(old: Resource, new: Resource, moved: tuple[str, ...]) -> Change:
    differing = _differing(old, new) if old is not new else []
    if set(differing) <= {"node_names"}:  # the resource matched this node before as well
        return Change(new.name, Action.KEEP, moved, new)
    moving = _moving(old, new)
    registers = bool(old.pre_start) != bool(new.pre_start)
    reasons = []
    for field in differing:
        key = key_of(Resource, field)
        reason = key + _step(getattr(old, field), getattr(new, field))
        if key == moving:
            reason += f": {_wait_for('their former IDs')}"
        if field == "pre_start" and registers:
            reason += f": {_REGISTERS}"
        reasons.append(reason)
    action = Action.REREGISTER if registers else Action.UPDATE
    moved_by = (moving, new.name) if moving else None
    return Change(new.name, action, (*reasons, *moved), new, moved_by)


def _step(old: object, new: object) -> str:
    """Say from what to what a value changes that is short enough."""
    if not all(value is None or isinstance(value, int | str) for value in (old, new)):
        return ""
    was, becomes = ("default" if value is None else value for value in (old, new))
    return f" {was} → {becomes}"


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


def _differing(old: Resource, new: Resource) -> list[str]:
    """Return the fields whose values differ, in the order of the language."""
    return [
        name
        for name in Resource.model_fields
        if name != "name" and getattr(old, name) != getattr(new, name)
    ]

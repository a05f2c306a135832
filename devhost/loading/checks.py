"""The checks that need more than one value; each kind has a module."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from devhost.allocation.policy import Policy
from devhost.loading.collision_checks import (
    check_between,
    check_collisions,
    check_trust,
    entries_of,
)
from devhost.loading.hardware_checks import check_hardware
from devhost.loading.name_checks import check_names
from devhost.loading.source_checks import (
    check_device_ids,
    check_globs,
    check_patterns,
    check_sources,
)
from devhost.loading.step_checks import check_steps
from devhost.loading.template_checks import check_cdi, check_templates
from devhost.loading.yamltree import Finding, Path
from devhost.model.config import Resource


@dataclass(slots=True)
class ParsedResource:
    """A resource of a file that has the right shape.

    Attributes:
        path: Where it is in the file.
        resource: The resource.
        text: Its source, by which an unchanged resource is recognized; empty if parts were left
            out because of errors.
        clean: Whether it has no problems of its own; it may still conflict with other resources.
    """

    path: Path
    resource: Resource
    text: str = ""
    clean: bool = False


def check(resources: Sequence[ParsedResource], policy: Policy) -> Iterator[Finding]:
    """Yield errors and warnings of resources, and mark the resources that have none as clean.

    Resources that are marked already are only checked against the others.
    """
    yield from _same_names(resources)
    parsed = [(one.path, one.resource) for one in resources]
    if too_many := [*check_patterns(parsed), *check_device_ids(parsed)]:
        yield from too_many
        return
    sound, faulty = [], set[int]()
    for index, one in enumerate(resources):
        is_sound = True
        for finding in () if one.clean else _alone(one.path, one.resource):
            yield finding
            faulty.add(index)
            is_sound = is_sound and finding[0] != "error"
        if is_sound:
            sound.append((index, one, [*entries_of(one.path, one.resource)]))
    for index, one, entries in sound:
        if one.clean:
            continue
        for finding in chain(
            check_collisions(one.resource, entries),
            check_names(one.path, one.resource, entries, policy),
            check_trust(one.path, one.resource, entries, policy),
        ):
            yield finding
            faulty.add(index)
        one.clean = index not in faulty
    yield from check_between((one.resource.name, entries) for _, one, entries in sound)


def _alone(path: Path, resource: Resource) -> Iterator[Finding]:
    found = [*check_sources(path, resource)]
    yield from found
    if any(
        where[-1] in ("as", "pattern") for severity, where, _, _ in found if severity == "error"
    ):
        return  # variables would seem to be unknown
    yield from check_hardware(path, resource)
    yield from check_globs(resource.node_names or (), (*path, "nodeNames"))
    yield from check_templates(path, resource)
    yield from check_steps(path, resource)
    yield from check_cdi(path, resource)


def _same_names(resources: Iterable[ParsedResource]) -> Iterator[Finding]:
    first: dict[str, Path] = {}
    for one in resources:
        path, resource = one.path, one.resource
        if resource.name in first:
            message = (
                f"duplicate resource '{resource.name}' "
                f"(first defined as resources[{first[resource.name][1]}])"
            )
            yield "error", (*path, "name"), message, False
        first.setdefault(resource.name, path)

"""The checks that need more than one value; each kind has a module."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from devhost.allocation.policy import Policy
from devhost.loading.collision_checks import (
    check_between,
    check_collisions,
    check_constant_nodes,
    check_number,
    check_trust,
    entries_of,
)
from devhost.loading.hardware_checks import check_hardware
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
        line: The line where it begins.
    """

    path: Path
    resource: Resource
    line: int


def check(resources: Sequence[ParsedResource], policy: Policy) -> Iterator[Finding]:
    """Yield errors and warnings of resources."""
    yield from _same_names(resources)
    parsed = [(one.path, one.resource) for one in resources]
    if too_many := [*check_patterns(parsed), *check_device_ids(parsed)]:
        yield from too_many
        return
    sound = []
    for one in resources:
        is_sound = True
        for finding in _alone(one.path, one.resource):
            yield finding
            is_sound = is_sound and finding[0] != "error"
        if is_sound:
            sound.append((one, [*entries_of(one.path, one.resource)]))
    for one, entries in sound:
        yield from check_number(one.path, entries)
        yield from check_collisions(one.resource, entries)
        yield from check_trust(one.path, one.resource, entries, policy)
    yield from check_constant_nodes([(one.path, one.resource) for one, _ in sound])
    yield from check_between((one.resource.name, entries) for one, entries in sound)


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
    first: dict[str, int] = {}
    for one in resources:
        name = one.resource.name
        if name in first:
            message = f"duplicate resource '{name}' (first defined on line {first[name]})"
            yield "error", (*one.path, "name"), message, False
        first.setdefault(name, one.line)

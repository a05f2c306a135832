"""What takes more than one value to judge; each kind of check has a file of its own."""

from collections.abc import Iterator, Sequence
from itertools import chain

from devhost.loading.cdi_checks import check_cdi
from devhost.loading.collision_checks import check_between, check_collisions, check_trust
from devhost.loading.finding import Finding
from devhost.loading.source_checks import check_globs, check_patterns, check_sources
from devhost.loading.step_checks import check_steps
from devhost.loading.template_checks import check_templates
from devhost.loading.yamltree import Path
from devhost.model.config import Resource
from devhost.trust import Policy


def check(resources: Sequence[tuple[Path, Resource]], policy: Policy) -> Iterator[Finding]:
    """Yield what is wrong, or doubtful, with resources whose shape is right."""
    yield from _same_names(resources)
    if too_many := [*check_patterns(resources)]:
        yield from too_many
        return
    sound = []
    for path, resource in resources:
        is_sound = True
        for finding in chain(
            check_sources(path, resource),
            check_globs(resource.node_names or (), (*path, "nodeNames")),
            check_templates(path, resource),
            check_steps(path, resource),
            check_cdi(path, resource),
        ):
            yield finding
            is_sound = is_sound and finding[0] != "error"
        if is_sound:
            sound.append((path, resource))
    for path, resource in sound:
        yield from check_collisions(path, resource)
        yield from check_trust(path, resource, policy)
    yield from check_between(sound)


def _same_names(resources: Sequence[tuple[Path, Resource]]) -> Iterator[Finding]:
    first: dict[str, Path] = {}
    for path, resource in resources:
        if resource.name in first:
            message = (
                f"a resource of the name '{resource.name}' is declared already: "
                f"resources[{first[resource.name][1]}]"
            )
            yield "error", (*path, "name"), message, False
        first.setdefault(resource.name, path)

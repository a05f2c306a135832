"""What takes more than one value to judge; each kind of check has a file of its own."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

from devhost.allocation.policy import Policy
from devhost.loading.cdi_checks import check_cdi
from devhost.loading.collision_checks import check_between, check_collisions, check_trust, places
from devhost.loading.finding import Finding
from devhost.loading.source_checks import check_globs, check_patterns, check_sources
from devhost.loading.step_checks import check_steps
from devhost.loading.template_checks import check_templates
from devhost.loading.yamltree import Path
from devhost.model.config import Resource


@dataclass(slots=True)
class Declared:
    """A resource of a file, whose shape is right.

    Attributes:
        path: Where it stands.
        resource: What stands there.
        text: The same, so that equal texts stand for equal resources; empty for one with mistakes.
        clean: Nothing is to be said of it, unless it is for the sake of the others.
    """

    path: Path
    resource: Resource
    text: str = ""
    clean: bool = False


def check(resources: Sequence[Declared], policy: Policy) -> Iterator[Finding]:
    """Yield what is wrong, or doubtful, with resources; note of which there is nothing to say.

    What is known to be clean already is not looked at by itself again.
    """
    yield from _same_names(resources)
    if too_many := [*check_patterns((one.path, one.resource) for one in resources)]:
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
            sound.append((index, one, [*places(one.path, one.resource)]))
    for index, one, entries in sound:
        if one.clean:
            continue
        for finding in chain(
            check_collisions(one.resource, entries),
            check_trust(one.path, one.resource, entries, policy),
        ):
            yield finding
            faulty.add(index)
        one.clean = index not in faulty
    yield from check_between((one.resource.name, entries) for _, one, entries in sound)


def _alone(path: Path, resource: Resource) -> Iterator[Finding]:
    yield from check_sources(path, resource)
    yield from check_globs(resource.node_names or (), (*path, "nodeNames"))
    yield from check_templates(path, resource)
    yield from check_steps(path, resource)
    yield from check_cdi(path, resource)


def _same_names(resources: Iterable[Declared]) -> Iterator[Finding]:
    first: dict[str, Path] = {}
    for one in resources:
        path, resource = one.path, one.resource
        if resource.name in first:
            message = (
                f"a resource of the name '{resource.name}' is declared already: "
                f"resources[{first[resource.name][1]}]"
            )
            yield "error", (*path, "name"), message, False
        first.setdefault(resource.name, path)

"""Checks of several values together, in a resource and in all of them."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from devhost.allocation.policy import Policy
from devhost.allocation.rules import Rule, Rules, rules_of
from devhost.config.checks.dra_checks import check_dra
from devhost.config.checks.rights_checks import check_rights
from devhost.config.checks.source_checks import check_amounts, check_sources, is_single
from devhost.config.checks.template_checks import check_owners, check_steps, check_templates
from devhost.config.messages import path_text
from devhost.config.yaml_tree import CheckProblem, Path, error, note
from devhost.model import pattern
from devhost.model.config import Resource
from devhost.model.limits import ALLOCATE_ENTRIES_MAX, ALLOCATE_NAMES_MAX
from devhost.model.sources import Dev, Glob, Kind
from devhost.model.template import Template

_GLOBS: Final = ("paths", "exclude")  # options of sources
# Nodes times sources and globs: beyond, comparing them would take too long, and is left out.
_COMPARISONS_MAX: Final = 50_000


def check(
    resources: Sequence[tuple[Path, Resource]], policy: Policy | None
) -> Iterator[CheckProblem]:
    """Yield problems of resources of the right shape, also of their rights if there is a policy."""
    first: dict[str, Path] = {}
    for base, resource in resources:
        if (first_path := first.setdefault(resource.name, base)) is not base:
            place = path_text(first_path)
            message = f"duplicate resource '{resource.name}': {place} has this name, too"
            yield error((*base, "name"), message)
    if too_many := [*check_amounts(resources)]:
        yield from too_many
        return
    valid: list[tuple[Path, Resource, Rules]] = []
    for base, resource in resources:
        problems = [*_check_resource(resource)]
        yield from (problem.below(base) for problem in problems)
        if not any(problem.severity == "error" for problem in problems):
            valid.append((base, resource, rules_of(resource)))
    for base, resource, rules in valid:
        yield from (problem.below(base) for problem in _check_rules(resource, rules, policy))
    yield from _check_constant_nodes([(base, resource) for base, resource, _ in valid])
    yield from _check_between(valid)


def _check_resource(resource: Resource) -> Iterator[CheckProblem]:
    problems = [*check_sources(resource)]
    yield from problems
    if any(problem.severity == "error" and problem.path[-1] == "pattern" for problem in problems):
        return  # variables would seem to be unknown
    yield from check_templates(resource)
    yield from check_steps(resource)
    yield from check_owners(resource)
    yield from check_dra(resource)


def _check_constant_nodes(resources: Sequence[tuple[Path, Resource]]) -> Iterator[CheckProblem]:
    """Refuse a node that each device of a resource would get, and that is a device by itself.

    Where a source finds it in another way than by its path, that is not known here.
    """
    exclusive = [pair for pair in resources if pair[1].replicas == 1 and pair[1].overlap == "deny"]
    sources = [(owner, source.kind) for _, owner in exclusive for source in owner.sources]
    nodes = [
        (resource, (*base, "allocate", "devices", index), node.host_path.render({}))
        for base, resource in exclusive
        for index, node in enumerate(resource.allocate.devices or ())
        if not node.host_path.names
    ]
    globs = sum(len(getattr(kind, name, ())) for _, kind in sources for name in _GLOBS)
    if len(nodes) * (len(sources) + globs) > _COMPARISONS_MAX:
        return
    for resource, path, node in nodes:
        owners = (owner for owner, kind in sources if _may_meet(resource, owner, kind, node))
        if (owner := next(owners, None)) is not None:
            name, fix = owner.name, "exclude it there, or set `overlap: allow` to share it"
            if owner is resource:
                name, fix = "this resource", "use `group`, or exclude it from the sources"
            yield error(path, f"every device would get {node}, a node of {name}: {fix}")


def _may_meet(resource: Resource, owner: Resource, kind: Kind, path: str) -> bool:
    """Return whether a device of the owner's source has a node that a resource's devices get."""
    if resource is owner:
        meet = resource.max_devices != 1 and not is_single(resource)
    else:
        node_names = {resource.node_names, owner.node_names}
        meet = None in node_names or len(node_names) == 1
    return meet and _offers(kind, path)


def _offers(kind: Kind, path: str) -> bool:
    """Return whether a source finds the device node at a path, if it is there, by its path."""
    below = path
    match kind:
        case Glob(paths=globs):
            matches = any(pattern.matches_path(path, glob) for glob in globs)
        case Dev(pattern=text):
            below = path.removeprefix("/dev/")
            matches = below != path and pattern.fullmatch(text, below) is not None
        case _:
            return False
    name = path.rpartition("/")[2]
    return matches and not pattern.matches_name_or_path(below, name, kind.exclude)


def _check_rules(resource: Resource, rules: Rules, policy: Policy | None) -> Iterator[CheckProblem]:
    """Check entries together, and with a policy; refuse more than a scan can put together."""
    made = sum(rule.exclusive for rule in rules)
    for count, most, nouns in (
        (len(rules), ALLOCATE_ENTRIES_MAX, "entries"),
        (made, ALLOCATE_NAMES_MAX, "names and container paths that are made from the device"),
    ):
        if count > most:
            yield error(("allocate",), f"{count} {nouns}, more than {most}", on_key=True)
    yield from _check_collisions(rules)
    if policy is not None:
        yield from check_rights(resource, rules, policy)


def _check_collisions(rules: Rules) -> Iterator[CheckProblem]:
    """Find values that cannot be told apart, and container paths that are set twice."""
    first: dict[Template, Rule] = {}
    for rule in rules:
        path = rule.path
        literals = [part for part in rule.value.parts if isinstance(part, str)]
        if rule.joined and rule.separator and any(rule.separator in text for text in literals):
            yield error(
                path,
                f"the value contains {rule.separator!r}, which separates the values of devices; "
                "set another `separator`",
            )
        if rule.target not in ("devices", "mounts") or rule.nodes_only:
            continue
        first_rule = first.setdefault(rule.key, rule)
        if first_rule is not rule and _differ(first_rule, rule):
            place = path_text(first_rule.path)
            yield error(path, f"container path {rule.key} is set twice (first by {place})")


def _differ(rule: Rule, second: Rule) -> bool:
    return (rule.target, rule.value, rule.spec) != (second.target, second.value, second.spec)


def _check_between(resources: Iterable[tuple[Path, Resource, Rules]]) -> Iterator[CheckProblem]:
    """Yield notes on constant names that two resources set: kubelet picks one value at random."""
    first: dict[tuple[str, Template], tuple[str, Rule]] = {}
    for base, resource, rules in resources:
        name = resource.name
        for rule in rules:
            if rule.target == "cdi" or rule.nodes_only or rule.key.names - {"nodeName", "count"}:
                continue
            space = "container path" if rule.target in ("devices", "mounts") else rule.target
            first_name, first_rule = first.setdefault((space, rule.key), (name, rule))
            if first_name != name and (_differ(first_rule, rule) or rule.per_device):
                yield note(
                    (*base, *rule.path),
                    f"{first_name} also sets the {space} {rule.key}: if a container requests both "
                    "resources, kubelet picks one of the values at random",
                    on_key=True,
                )

"""The checks that need several values: here those of entries that conflict, or that need a flag."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from devhost.allocation.declaration import Rule, rules_of
from devhost.allocation.policy import Policy
from devhost.allocation.variables import CONTAINER_VARIABLES
from devhost.errors import Severity
from devhost.loading.shapes import shown
from devhost.loading.source_checks import check_amounts, check_sources, is_single, named_paths
from devhost.loading.template_checks import check_owners, check_steps, check_templates
from devhost.loading.yamltree import CheckProblem, Path
from devhost.model import pattern
from devhost.model.config import Probe, Resource
from devhost.model.limits import ALLOCATE_ENTRIES_MAX, ALLOCATE_NAMES_MAX
from devhost.model.sources import Dev, Directory, Glob, Kind
from devhost.model.template import Template

Entries = Sequence[tuple[Path, Rule]]

_PATTERNS: Final = ("paths", "include", "exclude")  # options of sources
# Nodes times patterns: beyond, comparing them would take too long, and is left out.
_COMPARISONS_MAX: Final = 50_000


def check(resources: Sequence[tuple[Path, Resource]], policy: Policy) -> Iterator[CheckProblem]:
    """Yield errors and warnings of resources, which have the right shape, and their paths."""
    first: dict[str, Path] = {}
    for path, resource in resources:
        if (other := first.setdefault(resource.name, path)) is not path:
            message = f"duplicate resource '{resource.name}': {shown(other)} has this name, too"
            yield "error", (*path, "name"), message, False
    if too_many := [*check_amounts(resources)]:
        yield from too_many
        return
    sound: list[tuple[Path, Resource, Entries]] = []
    for path, resource in resources:
        found = [*_alone(path, resource)]
        yield from found
        if not any(severity == "error" for severity, *_ in found):
            sound.append((path, resource, [*_entries(path, resource)]))
    for path, resource, entries in sound:
        yield from _check_number(path, entries)
        yield from _check_collisions(resource, entries)
        yield from _check_trust(path, resource, entries, policy)
    yield from _check_constant_nodes([(path, resource) for path, resource, _ in sound])
    yield from _check_between((resource.name, entries) for _, resource, entries in sound)


def _alone(path: Path, resource: Resource) -> Iterator[CheckProblem]:
    found = [*check_sources(path, resource)]
    yield from found
    if any(where[-1] == "pattern" for severity, where, _, _ in found if severity == "error"):
        return  # variables would seem to be unknown
    yield from check_templates(path, resource)
    yield from check_steps(path, resource)
    yield from check_owners(path, resource)


def _entries(path: Path, resource: Resource) -> Iterator[tuple[Path, Rule]]:
    """Yield each rule with the path of its entry."""
    allocate, base = resource.allocate, (*path, "allocate")
    paths: list[Path] = [(*base, "env", name) for name in allocate.env]
    if allocate.devices is None:
        paths.append(base)
        if any(source.is_vfio for source in resource.sources):
            paths.append(base)
    paths += [(*base, "devices", index) for index in range(len(allocate.devices or ()))]
    paths += [(*base, "mounts", index) for index in range(len(allocate.mounts))]
    paths += [(*base, "annotations", key) for key in allocate.annotations]
    paths += [(*base, "cdi", index) for index in range(len(allocate.cdi))]
    yield from zip(paths, rules_of(resource), strict=True)


def _check_constant_nodes(resources: Sequence[tuple[Path, Resource]]) -> Iterator[CheckProblem]:
    """Refuse a node that each device of a resource would get, and that is a device by itself.

    Where a source finds it by a link, or by what the kernel says of it, that is not known here.
    """
    exclusive = [one for one in resources if one[1].replicas == 1 and one[1].overlap == "deny"]
    sources = [(one, source.kind) for _, one in exclusive for source in one.sources]
    nodes = [
        (resource, (*path, "allocate", "devices", index), node.host_path.render({}))
        for path, resource in exclusive
        for index, node in enumerate(resource.allocate.devices or ())
        if not node.host_path.names
    ]
    lists = (getattr(kind, name, ()) for _, kind in sources for name in _PATTERNS)
    if len(nodes) * (len(sources) + sum(len(one or ()) for one in lists)) > _COMPARISONS_MAX:
        return
    for resource, where, path in nodes:
        others = (one for one, kind in sources if _meet(resource, one) and _offers(kind, path))
        if (other := next(others, None)) is None:
            continue
        whose, better = other.name, "exclude it there, or set `overlap: allow` to share it"
        if other is resource:
            whose, better = "this resource", "use `group`, or exclude it from the sources"
        message = f"every device would get {path}, a node of {whose}: {better}"
        yield "error", where, message, False


def _meet(one: Resource, other: Resource) -> bool:
    """Whether a device of one resource and another device of the other are on some node."""
    if one is other:
        return one.max_devices != 1 and not is_single(one)
    names = {one.node_names, other.node_names}
    return None in names or len(names) == 1


def _offers(kind: object, path: str) -> bool:
    """Whether a source finds the device node at a path, or some below it, if they are there."""
    name, below = path.rpartition("/")[2], path
    match kind:
        case Glob(paths=globs):
            included = True
        case Directory(path=folder, recursive=recursive, include=names):
            globs = (f"{folder}/{'**' if recursive else '*'}",)
            included = names is None or pattern.fits(path, name, names)
        case Dev(pattern=text):
            globs, below = (f"/dev/{text}",), path.removeprefix("/dev/")
            included = below != path and pattern.fullmatch(text, below) is not None
        case _:
            return False
    if kind.types and not {"char", "block"} & {*kind.types}:
        return False
    if any(text.startswith(f"{path}/") for text in globs):
        return True
    is_dev = isinstance(kind, Dev)  # whose text is no glob
    found = included and (is_dev or any(pattern.glob_matches(text, path) for text in globs))
    return found and not pattern.fits(below, name, kind.exclude)


def _check_number(path: Path, entries: Entries) -> Iterator[CheckProblem]:
    """Refuse more entries than can be put together for each device."""
    made = sum(rule.exclusive for _, rule in entries)
    for count, most, what in (
        (len(entries), ALLOCATE_ENTRIES_MAX, "entries"),
        (made, ALLOCATE_NAMES_MAX, "names and container paths that are made from the device"),
    ):
        if count > most:
            yield "error", (*path, "allocate"), f"{count} {what}, more than {most}", True


def _check_collisions(resource: Resource, entries: Entries) -> Iterator[CheckProblem]:
    """Find values that cannot be told apart, and container paths that are set twice."""
    taken: dict[Template, tuple[Path, Rule]] = {}
    one_device = resource.max_devices == 1 or is_single(resource)
    for where, rule in entries:
        literals = [one for one in rule.value.parts if isinstance(one, str)]
        if rule.joined and rule.separator and any(rule.separator in one for one in literals):
            message = (
                f"the value contains {rule.separator!r}, which separates the values of devices; "
                "set another `separator`"
            )
            yield "error", where, message, False
        if rule.target not in ("devices", "mounts") or rule.nodes_only:
            continue
        other = taken.setdefault(rule.key, (where, rule))
        if other[1] is not rule and _differ(other[1], rule):
            first = f"allocate.{other[0][-2]}[{other[0][-1]}]"
            message = f"container path {rule.key} is set twice (first by {first})"
            yield "error", where, message, False
        if rule.per_device and not rule.key.names - CONTAINER_VARIABLES and not one_device:
            message = (
                f"two devices in one container would both set {rule.key}: "
                "use ${index} in containerPath, or request one device per container"
            )
            yield "warning", where, message, False


def _differ(one: Rule, other: Rule) -> bool:
    return (one.target, one.value, one.spec) != (other.target, other.value, other.spec)


def _check_between(resources: Iterable[tuple[str, Entries]]) -> Iterator[CheckProblem]:
    """Warn of constant names that two resources set: kubelet picks one value at random."""
    taken: dict[tuple[str, Template], tuple[str, Rule]] = {}
    for own, entries in resources:
        for where, rule in entries:
            if rule.target == "cdi" or rule.nodes_only or rule.key.names - {"nodeName", "count"}:
                continue
            space = "container path" if rule.target in ("devices", "mounts") else rule.target
            name, other = taken.setdefault((space, rule.key), (own, rule))
            if name != own and (_differ(other, rule) or rule.per_device):
                message = (
                    f"{name} also sets the {space} {rule.key}: if a container requests both "
                    "resources, kubelet picks one of the values at random"
                )
                yield "warning", where, message, True


def _executed(path: Path, resource: Resource) -> Iterator[Path]:
    """Yield where the configuration has devhost change the host: commands, and modes of nodes."""
    for index, step in enumerate(resource.pre_start):
        if step.run is not None or step.mode is not None:
            yield (*path, "preStart", index, "run" if step.run is not None else "mode")
    for index, check in enumerate(resource.health.checks if resource.health else ()):
        if isinstance(check, Probe) and check.exec is not None:
            yield (*path, "health", "checks", index, "exec")


def _check_trust(
    path: Path, resource: Resource, entries: Entries, policy: Policy
) -> Iterator[CheckProblem]:
    """Find what needs a flag; the rest is known when devices are found."""
    severity: Severity = "error" if policy.enforced else "warning"
    for where in () if policy.allow_exec else _executed(path, resource):
        what = "changing a node's mode" if where[-1] == "mode" else "running a command"
        yield severity, where, f"{what} needs --allow-exec", True
    for where, rule in entries:
        if refusal := _refusal(rule, resource, policy):
            on_key = rule.target in ("env", "annotations")
            yield severity, where, refusal, on_key
    given = any(rule.target == "devices" and rule.per_device for _, rule in entries)
    touched = given or resource.pre_start or resource.health
    for index, source in enumerate(resource.sources if touched else ()):
        if refusal := _refused_source(source.kind, policy):
            yield severity, (*path, "sources", index), refusal, False


def _refused_source(kind: Kind, policy: Policy) -> str | None:
    """Return why a policy refuses the nodes of a source, as far as their names tell."""
    if not isinstance(kind, Directory | Glob | Dev):
        return None
    links = isinstance(kind, Glob) and all(one.startswith("/dev/disk/") for one in kind.paths)
    named = links and not kind.types and policy.by_name
    if (kind.types == ("block",) or named) and not policy.allows_block:
        return "block devices need --allow-device 'GLOB', such as '/dev/sd[b-z]'"
    if not policy.by_name:
        return None
    return next(filter(None, map(policy.refused_by_name, named_paths(kind))), None)


def _refusal(rule: Rule, resource: Resource, policy: Policy) -> str | None:
    """Return why a policy refuses an entry, as far as that is known without devices."""
    if rule.target in ("devices", "mounts"):
        mount = rule.target == "mounts"
        if rule.nodes_only:
            return None
        if not rule.value.names:
            return policy.path_problem(str(rule.value), mount=mount)
        return "mounts need --allow-path 'GLOB'" if mount and not policy.allow_paths else None
    if rule.key.names <= {"resource"}:
        return policy.name_problem(rule.target, rule.key.render({"resource": resource.name}))
    if rule.target == "cdi" and not policy.allow_cdi:
        return "CDI devices need --allow-cdi 'GLOB'"
    return None

"""Entries that get in each other's way, and entries that need to be allowed."""

from collections.abc import Iterable, Iterator, Sequence

from devhost.allocation.policy import Policy
from devhost.allocation.rules import Rule, rules_of
from devhost.allocation.variables import CONTAINER_VARIABLES
from devhost.errors import Severity
from devhost.loading.finding import Finding
from devhost.loading.source_checks import is_single
from devhost.loading.yamltree import Path
from devhost.model.config import Probe, Resource
from devhost.model.sources import Static
from devhost.model.template import Template

Places = Sequence[tuple[Path, Rule]]


def places(path: Path, resource: Resource) -> Iterator[tuple[Path, Rule]]:
    """Yield each rule with the place of its entry."""
    allocate, base = resource.allocate, (*path, "allocate")
    paths: list[Path] = [(*base, "env", name) for name in allocate.env]
    if allocate.devices is None:
        paths.append(base)
    paths += [(*base, "devices", index) for index in range(len(allocate.devices or ()))]
    paths += [(*base, "mounts", index) for index in range(len(allocate.mounts))]
    paths += [(*base, "annotations", key) for key in allocate.annotations]
    paths += [(*base, "cdi", index) for index in range(len(allocate.cdi))]
    yield from zip(paths, rules_of(resource), strict=True)


def check_collisions(resource: Resource, places: Places) -> Iterator[Finding]:
    """Find what stands twice in a container, and what would with two devices."""
    taken: dict[Template, tuple[Path, Rule]] = {}
    one_device = resource.max_devices == 1 or is_single(resource)
    for where, rule in places:
        if rule.target not in ("devices", "mounts") or rule.nodes_only:
            continue
        other = taken.setdefault(rule.key, (where, rule))
        if other[1] is not rule and _differ(other[1], rule):
            place = f"allocate.{other[0][-2]}[{other[0][-1]}]"
            message = f"two things at {rule.key} in the container: the other is {place}"
            yield "error", where, message, False
        constant_key = not rule.key.names - CONTAINER_VARIABLES
        if rule.per_device and constant_key and not one_device:
            message = (
                f"a container with two devices would have two things at {rule.key}: "
                "use ${index} in containerPath, unless each container asks for one"
            )
            yield "warning", where, message, False


def _differ(one: Rule, other: Rule) -> bool:
    mine, theirs = (
        (rule.target, rule.value, rule.permissions, rule.read_only) for rule in (one, other)
    )
    return mine != theirs


def check_between(resources: Iterable[tuple[str, Places]]) -> Iterator[Finding]:
    """Warn of constant names that resources share: the kubelet picks one value at random."""
    taken: dict[tuple[str, Template], tuple[str, Rule]] = {}
    for own, places in resources:
        for where, rule in places:
            if rule.target == "cdi" or rule.nodes_only or rule.key.names - CONTAINER_VARIABLES:
                continue
            if "resource" in rule.key.names:
                continue
            space = "container path" if rule.target in ("devices", "mounts") else rule.target
            name, other = taken.setdefault((space, rule.key), (own, rule))
            if name != own and (_differ(other, rule) or rule.per_device):
                message = (
                    f"{name} sets the {space} {rule.key} too: in a container that asks for both, "
                    "kubelet picks one of the two at random"
                )
                yield "warning", where, message, True


def _commands(path: Path, resource: Resource) -> Iterator[Path]:
    for index, step in enumerate(resource.pre_start):
        if step.run is not None:
            yield (*path, "preStart", index, "run")
    for index, check in enumerate(resource.health.checks if resource.health else ()):
        if isinstance(check, Probe) and check.exec is not None:
            yield (*path, "health", "checks", index, "exec")


def check_trust(
    path: Path, resource: Resource, places: Places, policy: Policy
) -> Iterator[Finding]:
    """Find what the process would have to be allowed; the rest shows when devices are found."""
    severity: Severity = "error" if policy.enforced else "warning"
    for where in () if policy.allow_exec else _commands(path, resource):
        yield severity, where, "running a command needs --allow-exec", True
    for where, rule in places:
        if rule.nodes_only or rule.target not in ("devices", "mounts"):
            continue
        mount = rule.target == "mounts"
        if not rule.value.names:
            refusal = policy.written_refusal(str(rule.value), mount=mount)
            if refusal is not None:
                yield severity, where, refusal, False
        elif mount and not policy.allow_paths:
            yield severity, where, "mounts need --allow-path 'GLOB'", False
    for index, source in enumerate(() if policy.allow_paths else resource.sources):
        kind = source.kind
        if not isinstance(kind, Static) and kind.types == ("block",):
            message = "block devices need --allow-path '/dev/…'"
            yield severity, (*path, "sources", index), message, False

"""What takes more than one value to judge: variables, patterns, collisions, trust."""

from collections.abc import Iterator, Sequence
from typing import Final

from devhost import pattern
from devhost.allocation import (
    BUILT_IN_VARIABLES,
    CONTAINER_VARIABLES,
    NODE_VARIABLES,
    Rule,
    rules_of,
)
from devhost.errors import Severity
from devhost.loading.explain import did_you_mean
from devhost.loading.yamltree import Path
from devhost.model import names
from devhost.model.config import SHARES_MAX, Dev, Directory, Glob, Resource, Source, Static
from devhost.pattern import PatternError
from devhost.template import Template, TemplateError, Variable
from devhost.trust import Policy

Finding = tuple[Severity, Path, str, bool]  # the last: point at the key, not the value

# Names that the kernel gives in the order of discovery: another device's after a reboot.
_ENUMERATED: Final = ("ttyUSB", "ttyACM", "video", "hidraw", "sd", "nvme", "input/event")
_LITERAL: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/_-.")
_NOT_YET: Final = {
    "group": "group",
    "max_per_container": "maxPerContainer",
    "health": "health",
    "pre_start": "preStart",
}


def check(resources: Sequence[tuple[Path, Resource]], policy: Policy) -> Iterator[Finding]:
    """Yield what is wrong, or doubtful, with resources whose shape is right."""
    yield from _same_names(resources)
    for path, resource in resources:
        yield from _unsupported(path, resource)
        for index, source in enumerate(resource.sources):
            yield from _source(source, (*path, "sources", index))
        yield from _shares(path, resource)
        yield from _stable_ids(path, resource)
        template_problems = list(_templates(path, resource))
        yield from template_problems
        if not any(finding[0] == "error" for finding in template_problems):
            yield from _collisions(path, resource)
            yield from _trust(path, resource, policy)
    yield from _between(resources)


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


def _unsupported(path: Path, resource: Resource) -> Iterator[Finding]:
    message = "not supported by this version of devhost"
    for attribute, key in _NOT_YET.items():
        if getattr(resource, attribute):
            yield "error", (*path, key), message, True
    if resource.prefer != "none":
        yield "error", (*path, "prefer"), message, True
    if isinstance(resource.topology, int):
        yield "error", (*path, "topology"), message, True
    for index, source in enumerate(resource.sources):
        if source.role is not None:
            yield "error", (*path, "sources", index, "as"), message, True
        if source.optional:
            yield "error", (*path, "sources", index, "optional"), message, True


# ── sources ────────────────────────────────────────────────────────────────────────────


def _source(source: Source, path: Path) -> Iterator[Finding]:
    kind = source.kind
    match kind:
        case Directory():
            base = (*path, "directory")
            for option, texts in (("include", kind.include or ()), ("exclude", kind.exclude)):
                yield from _patterns(texts, (*base, option))
        case Dev():
            base = (*path, "dev")
            yield from _patterns((kind.pattern,), (*base, "pattern"), single=True)
            yield from _patterns(kind.exclude, (*base, "exclude"))
            if kind.pattern.startswith("/"):
                message = "a dev pattern matches the path below /dev: leave out the leading '/dev/'"
                yield "error", (*base, "pattern"), message, False
        case Static():
            yield from _static_ids(kind, (*path, "static", "ids"))
        case Glob():
            pass


def _patterns(texts: Sequence[str], path: Path, *, single: bool = False) -> Iterator[Finding]:
    for index, text in enumerate(texts):
        where = path if single else (*path, index)
        try:
            groups = pattern.group_names(text)
        except PatternError as error:
            yield "error", where, str(error), False
            continue
        for group in groups:
            if group in BUILT_IN_VARIABLES:
                message = f"the group '{group}' bears the name of a built-in variable: rename it"
                yield "error", where, message, False


def _static_ids(static: Static, path: Path) -> Iterator[Finding]:
    seen: set[str] = set()
    for index, device_id in enumerate(static.ids or ()):
        problem = names.text_problem(device_id)
        if not device_id:
            problem = "a device ID cannot be empty"
        elif "::" in device_id:
            problem = f"{device_id!r}: '::' is reserved for the shares of a device"
        elif device_id in seen:
            problem = f"the ID {device_id!r} stands twice"
        if problem:
            yield "error", (*path, index), problem, False
        seen.add(device_id)


def _shares(path: Path, resource: Resource) -> Iterator[Finding]:
    tokens = sum(
        kind.count or len(kind.ids or ())
        for source in resource.sources
        if isinstance(kind := source.kind, Static)
    )
    if max(tokens, 1) * resource.replicas > SHARES_MAX:
        message = f"more than {SHARES_MAX} device IDs, which is more than kubelet takes"
        yield "error", (*path, "replicas" if resource.replicas > 1 else "sources"), message, True


def _stable_ids(path: Path, resource: Resource) -> Iterator[Finding]:
    if resource.id is not None:
        return
    for index, source in enumerate(resource.sources):
        match source.kind:
            case Dev(pattern=text):
                subjects: tuple[str, ...] = (text,)
            case Glob(paths=paths):
                subjects = tuple(path.removeprefix("/dev/") for path in paths)
            case _:
                continue
        for name in _ENUMERATED:
            if any(_enumerates(subject, name) for subject in subjects):
                message = (
                    f"IDs such as '{name}{'a' if name == 'sd' else 0}' follow the order in which "
                    "devices were found, and change over reboots: prefer the links below "
                    "/dev/*/by-id or by-path, or set `id`"
                )
                yield "warning", (*path, "sources", index), message, False


def _enumerates(subject: str, name: str) -> bool:
    rest = subject.removeprefix(name)
    return rest != subject and (not rest or rest[0] not in _LITERAL - frozenset("0123456789"))


# ── templates ──────────────────────────────────────────────────────────────────────────


def _variables(resource: Resource) -> frozenset[str]:
    """Return the variables that every source of the resource can give."""
    known: list[frozenset[str]] = []
    for source in resource.sources:
        given = NODE_VARIABLES
        match source.kind:
            case Static():
                given -= {"path", "realpath"}
            case Dev(pattern=text):
                try:
                    given |= frozenset(pattern.group_names(text))
                except PatternError:
                    return frozenset({"*"})
        known.append(given)
    return frozenset.intersection(*known) | CONTAINER_VARIABLES


def _templates(path: Path, resource: Resource) -> Iterator[Finding]:
    known = _variables(resource)
    if "*" in known:  # a bad pattern is reported; its groups are not known
        return
    early = known - {"id", "index", "count"}
    for index, template in enumerate(resource.id or ()):
        yield from _template(template, (*path, "id", index), early, known)
        if not template.names - CONTAINER_VARIABLES:
            message = "gives every device the same ID: mention a variable of the device"
            yield "error", (*path, "id", index), message, False
    for where, template in _allocate_templates(path, resource):
        if isinstance(template, TemplateError):
            yield "error", where, str(template), True
        else:
            yield from _template(template, where, known, known)
    yield from _results(path, resource)


def _template(
    template: Template, path: Path, allowed: frozenset[str], known: frozenset[str]
) -> Iterator[Finding]:
    for name in sorted(template.names - allowed):
        if name in known:
            message = f"${{{name}}} is not known yet where IDs are made"
        elif name in BUILT_IN_VARIABLES:
            message = f"${{{name}}} is not given by every source of the resource (a token has none)"
        else:
            message = (
                f"unknown variable ${{{name}}}{did_you_mean(name, allowed)}"
                f" (known are {', '.join(sorted(allowed))})"
            )
        yield "error", path, message, False


def _allocate_templates(
    path: Path, resource: Resource
) -> Iterator[tuple[Path, Template | TemplateError]]:
    allocate, base = resource.allocate, (*path, "allocate")
    for section, texts in (("env", allocate.env), ("annotations", allocate.annotations)):
        for name, text in texts.items():
            try:
                yield (*base, section, name), Template.parse(name)
            except TemplateError as error:
                yield (*base, section, name), error
            yield (*base, section, name, "value"), text.value
    for section, entries in (("devices", allocate.devices or ()), ("mounts", allocate.mounts)):
        for index, entry in enumerate(entries):
            yield (*base, section, index, "hostPath"), entry.host_path
            if entry.container_path is not None:
                yield (*base, section, index, "containerPath"), entry.container_path
    for index, name in enumerate(allocate.cdi):
        yield (*base, "cdi", index), name


def _results(path: Path, resource: Resource) -> Iterator[Finding]:
    """Check what templates will come to, as far as their literal parts tell."""
    allocate, base = resource.allocate, (*path, "allocate")
    checks = (
        ("env", allocate.env, names.env_name_problem),
        ("annotations", allocate.annotations, names.annotation_key_problem),
    )
    for section, texts, name_problem in checks:
        for name, text in texts.items():
            where = (*base, section, name)
            try:
                key = Template.parse(name)
            except TemplateError:
                continue
            if problem := name_problem(_sample(key)):
                yield "error", where, problem, True
            if problem := names.text_problem(_sample(text.value)):
                yield "error", where, problem, False
            rule = Rule("env", key, text.value, text.separator)
            literals = [part for part in text.value.parts if isinstance(part, str)]
            if rule.joined and text.separator and any(text.separator in part for part in literals):
                message = (
                    f"the value contains the separator {text.separator!r} that will stand between "
                    "devices: set another `separator`"
                )
                yield "error", where, message, False
    for section, entries in (("devices", allocate.devices or ()), ("mounts", allocate.mounts)):
        for index, entry in enumerate(entries):
            for option, template in (
                ("hostPath", entry.host_path),
                ("containerPath", entry.container_path),
            ):
                if template is not None and (problem := _path_problem(template)):
                    yield "error", (*base, section, index, option), problem, False
    for index, name in enumerate(allocate.cdi):
        if problem := names.cdi_name_problem(_sample(name)):
            yield "error", (*base, "cdi", index), problem, False


def _sample(template: Template) -> str:
    """Render with a harmless letter for each variable."""
    return template.render(dict.fromkeys(template.names, "x"))


def _path_problem(template: Template) -> str | None:
    """Check a path; one that begins with a variable may turn out absolute."""
    starts_open = bool(template.parts) and isinstance(template.parts[0], Variable)
    return names.path_problem(("/" if starts_open else "") + _sample(template))


# ── collisions ─────────────────────────────────────────────────────────────────────────


def _places(path: Path, resource: Resource) -> Iterator[tuple[Path, Rule]]:
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


def _collisions(path: Path, resource: Resource) -> Iterator[Finding]:
    taken: dict[Template, tuple[Path, Rule]] = {}
    one_device = resource.max_devices == 1 or _single(resource)
    for where, rule in _places(path, resource):
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


def _single(resource: Resource) -> bool:
    """Say whether the sources can find one device at most."""
    if len(resource.sources) != 1:
        return False
    match resource.sources[0].kind:
        case Dev(pattern=text):
            return set(text) <= _LITERAL - {"."}
        case Glob(paths=(only,)):
            return not set(only) & set("*?[")
        case Static(count=count, ids=ids):
            return (count or len(ids or ())) <= 1
        case _:
            return False


def _between(resources: Sequence[tuple[Path, Resource]]) -> Iterator[Finding]:
    """Warn of constant names that resources share: the kubelet picks one value at random."""
    taken: dict[tuple[str, Template], tuple[str, Rule]] = {}
    for path, resource in resources:
        for where, rule in _places(path, resource):
            if rule.target == "cdi" or rule.nodes_only or rule.key.names - CONTAINER_VARIABLES:
                continue
            if "resource" in rule.key.names:
                continue
            space = "container path" if rule.target in ("devices", "mounts") else rule.target
            name, other = taken.setdefault((space, rule.key), (resource.name, rule))
            if name != resource.name and (_differ(other, rule) or rule.per_device):
                message = (
                    f"{name} sets the {space} {rule.key} too: in a container that asks for both, "
                    "kubelet picks one of the two at random"
                )
                yield "warning", where, message, True


# ── trust ──────────────────────────────────────────────────────────────────────────────


def _trust(path: Path, resource: Resource, policy: Policy) -> Iterator[Finding]:
    """Find what the process would have to be allowed; the rest shows when devices are found."""
    severity: Severity = "error" if policy.enforced else "warning"
    for where, rule in _places(path, resource):
        if rule.nodes_only or rule.target not in ("devices", "mounts"):
            continue
        constant = not rule.value.names
        host = str(rule.value)
        if rule.target == "mounts":
            allowed = policy.allows_path(host) if constant else bool(policy.allow_paths)
        else:
            allowed = policy.allows_path(host) or not constant or host.startswith("/dev/")
        if not allowed:
            glob = host if constant else "GLOB"
            what = "mounts need" if rule.target == "mounts" else f"{host} is not below /dev: it needs"
            yield severity, where, f"{what} --allow-path '{glob}'", False
    if policy.allow_paths:
        return
    for index, source in enumerate(resource.sources):
        kind = source.kind
        if isinstance(kind, Directory | Glob | Dev) and kind.types == ("block",):
            message = "block devices need --allow-path '/dev/…'"
            yield severity, (*path, "sources", index), message, False

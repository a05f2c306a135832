"""Whether templates mention only what there is, and come to legal results."""

from collections.abc import Iterator

from devhost import pattern
from devhost.loading.explain import did_you_mean
from devhost.loading.finding import Finding
from devhost.loading.yamltree import Path
from devhost.model import names
from devhost.model.allocate import DeviceNode, Mount, Text
from devhost.model.config import Resource
from devhost.model.sources import Dev, Static
from devhost.pattern import PatternError
from devhost.rules import BUILT_IN_VARIABLES, CONTAINER_VARIABLES, NODE_VARIABLES, Rule
from devhost.template import Template, TemplateError, Variable

Place = tuple[Path, Template]


def check_templates(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield unknown variables and results that no container can hold."""
    known = _variables(resource)
    if known is None:  # a bad pattern is reported by its own check; its groups are not known
        return
    early = known - {"id", "index", "count"}
    for index, template in enumerate(resource.id or ()):
        yield from _template((*path, "id", index), template, early, known)
        if not template.names - CONTAINER_VARIABLES:
            message = "gives every device the same ID: mention a variable of the device"
            yield "error", (*path, "id", index), message, False
    base = (*path, "allocate")
    for section, texts in (
        ("env", resource.allocate.env),
        ("annotations", resource.allocate.annotations),
    ):
        for name, text in texts.items():
            yield from _text((*base, section, name), section, name, text, known)
    for where, template in _paths(base, resource):
        yield from _template(where, template, known, known)
        if problem := _path_problem(template):
            yield "error", where, problem, False
    for index, template in enumerate(resource.allocate.cdi):
        yield from _template((*base, "cdi", index), template, known, known)
        if problem := names.cdi_name_problem(_sample(template)):
            yield "error", (*base, "cdi", index), problem, False


def _variables(resource: Resource) -> frozenset[str] | None:
    """Return the variables that every source can give; ``None`` where a pattern is bad."""
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
                    return None
        known.append(given)
    return frozenset.intersection(*known) | CONTAINER_VARIABLES


def _template(
    path: Path, template: Template, allowed: frozenset[str], known: frozenset[str]
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


def _text(
    path: Path, section: str, name: str, text: Text, known: frozenset[str]
) -> Iterator[Finding]:
    """Check one environment variable or annotation."""
    yield from _template((*path, "value"), text.value, known, known)
    try:
        key = Template.parse(name)
    except TemplateError as error:
        yield "error", path, str(error), True
        return
    yield from _template(path, key, known, known)
    check_name = names.env_name_problem if section == "env" else names.annotation_key_problem
    if problem := check_name(_sample(key)):
        yield "error", path, problem, True
    if problem := names.text_problem(_sample(text.value)):
        yield "error", path, problem, False
    literals = [part for part in text.value.parts if isinstance(part, str)]
    joined = Rule("env", key, text.value).joined
    if joined and text.separator and any(text.separator in part for part in literals):
        message = (
            f"the value contains the separator {text.separator!r} that will stand between "
            "devices: set another `separator`"
        )
        yield "error", path, message, False


def _paths(base: Path, resource: Resource) -> Iterator[Place]:
    entries: list[tuple[str, int, DeviceNode | Mount]] = [
        *(("devices", index, entry) for index, entry in enumerate(resource.allocate.devices or ())),
        *(("mounts", index, entry) for index, entry in enumerate(resource.allocate.mounts)),
    ]
    for section, index, entry in entries:
        yield (*base, section, index, "hostPath"), entry.host_path
        if entry.container_path is not None:
            yield (*base, section, index, "containerPath"), entry.container_path


def _sample(template: Template) -> str:
    """Render with a harmless letter for each variable."""
    return template.render(dict.fromkeys(template.names, "x"))


def _path_problem(template: Template) -> str | None:
    """Check a path; one that begins with a variable may turn out absolute."""
    starts_open = bool(template.parts) and isinstance(template.parts[0], Variable)
    return names.path_problem(("/" if starts_open else "") + _sample(template))

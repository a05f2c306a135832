"""Errors and warnings of templates: unknown variables and invalid results."""

import re
from collections.abc import Iterator, Sequence
from typing import Final

from devhost.allocation.rules import Rule
from devhost.allocation.variables import (
    BUILT_IN_VARIABLES,
    CONTAINER_VARIABLES,
    FILE_VARIABLES,
    LATE_VARIABLES,
    NODE_VARIABLES,
    PCI_VARIABLES,
    SYSFS_VARIABLES,
    USB_VARIABLES,
)
from devhost.hostfs.files import is_in_dev
from devhost.loading.lookalikes import docker_mistake, go_template_mistake
from devhost.loading.yamltree import Finding, Path
from devhost.model import names, pattern
from devhost.model.allocate import DeviceNode, Mount, Text
from devhost.model.config import Resource
from devhost.model.hardware import Pci, Sysfs, Usb
from devhost.model.pattern import PatternError
from devhost.model.sources import Dev, Directory, Glob, Static
from devhost.model.spelling import did_you_mean
from devhost.model.template import Template, TemplateError

PathTemplate = tuple[Path, Template]
_WILD: Final = re.compile(r"[*?\[]")
_LATER: Final = frozenset({"id", "index", "count"})  # known once the device has an ID


def check_templates(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield unknown variables, and results that are invalid in a container."""
    given = _by_source(resource)
    if given is None:  # an invalid pattern is reported by another check
        return
    known, some = _everywhere(resource, given), frozenset.union(*given)
    if resource.group is not None:
        yield from _group((*path, "group"), resource, resource.group, given)
        given = [known]
    yield from _ids((*path, "id"), resource.id or (), given, some)
    base = (*path, "allocate")
    for section, texts in (
        ("env", resource.allocate.env),
        ("annotations", resource.allocate.annotations),
    ):
        for name, text in texts.items():
            allowed = some if text.optional else known
            yield from _text((*base, section, name), section, name, text, allowed)
    for where, entry in path_entries(base, resource):
        allowed = some if entry.optional else known
        if problem := docker_mistake(str(entry.host_path), mount=isinstance(entry, Mount)):
            yield "error", (*where, "hostPath"), problem, False
        for at, template in _templates_of(where, entry):
            yield from check_template(at, template, allowed, allowed)
            yield from check_path(at, template)
        yield from _changeable((*where, "hostPath"), entry.host_path, resource)
    for index, template in enumerate(resource.allocate.cdi):
        yield from check_template((*base, "cdi", index), template, known, known)
        if problem := names.cdi_name_problem(_sample(template)):
            yield "error", (*base, "cdi", index), problem, False
    yield from _optional_nodes(base, resource)
    yield from _paths_of_links(base, resource)


def _group(
    path: Path, resource: Resource, group: Template, given: Sequence[frozenset[str]]
) -> Iterator[Finding]:
    """Check the key of a group, whose variables each source needs."""
    allowed = _of_each(resource, given)
    for name in sorted(group.names - allowed - BUILT_IN_VARIABLES):
        lacking = [index for index, one in enumerate(given) if name not in one]
        if 0 < len(lacking) < len(given):
            message = f"sources[{lacking[0]}] has no ${{{name}}}; a group needs it of each source"
            yield "error", path, message, False
            allowed |= {name}
    yield from check_template(path, group, allowed, _everywhere(resource, given))


def _ids(
    path: Path, templates: Sequence[Template], given: Sequence[frozenset[str]], some: frozenset[str]
) -> Iterator[Finding]:
    """Check the templates of device IDs: each source needs one whose variables it has."""
    known = frozenset.intersection(*given)
    allowed = (some if len(templates) > 1 else known) - _LATER
    for index, template in enumerate(templates):
        yield from check_template((*path, index), template, allowed, known)
        if not template.names - CONTAINER_VARIABLES:
            message = "every device would have the same ID; use a variable of the device"
            yield "error", (*path, index), message, False
    if any(template.names - allowed for template in templates):
        return
    for index, one in enumerate(given):
        if templates and not any(template.names <= one for template in templates):
            whose = f"devices of sources[{index}]" if len(given) > 1 else "some devices"
            message = f"no entry has a value for {whose}; end the list with ${{name}}"
            yield "error", path, message, False


def variables_of(resource: Resource) -> frozenset[str] | None:
    """Return the variables that every device has; ``None`` if a pattern is invalid.

    These are the variables of every source and, with ``group``, those of the named nodes.
    """
    given = _by_source(resource)
    return None if given is None else _everywhere(resource, given)


def _everywhere(resource: Resource, given: Sequence[frozenset[str]]) -> frozenset[str]:
    known = frozenset.intersection(*given)
    if resource.group is None:
        return known
    return known | {name for name in frozenset.union(*given) if "." in name}


def _of_each(resource: Resource, given: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the variables that each node has by itself, before it is part of a device."""
    kernel = USB_VARIABLES | PCI_VARIABLES | _attributes(resource)
    common = frozenset.intersection(*given) - _LATER
    return frozenset(name for name in common if "." not in name or name in kernel)


def _by_source(resource: Resource) -> list[frozenset[str]] | None:
    """Return the variables of each source; ``None`` if a pattern is invalid."""
    known: list[frozenset[str]] = []
    for source in resource.sources:
        given = NODE_VARIABLES
        match source.kind:
            case Static():
                given -= FILE_VARIABLES
            case Dev(pattern=text):
                try:
                    given |= frozenset(pattern.group_names(text))
                except PatternError:
                    return None
            case Usb():
                given |= SYSFS_VARIABLES | USB_VARIABLES
            case Pci():
                given |= SYSFS_VARIABLES | USB_VARIABLES | PCI_VARIABLES
            case Sysfs():
                given |= SYSFS_VARIABLES | USB_VARIABLES | PCI_VARIABLES | _attributes(resource)
        plain = {name for name in given - {"id", "index"} if "." not in name}
        own = {f"{role}.{name}" for name in plain for role in source.roles}
        known.append(given | own | CONTAINER_VARIABLES)
    return known


def _attributes(resource: Resource) -> frozenset[str]:
    """Return the attributes that templates mention: what a device has is not known before."""
    return frozenset(name for name in resource.mentioned if name.startswith("attr."))


def _changeable(path: Path, template: Template, resource: Resource) -> Iterator[Finding]:
    """Warn of a host path that is made from what others than the host may change."""
    used = template.names - CONTAINER_VARIABLES - {"index"}
    for source in resource.sources if used else ():
        match source.kind:
            case Directory(path=directory):
                found = [directory]
            case Glob(paths=texts):
                found = [_WILD.split(text)[0].rpartition("/")[0] or "/" for text in texts]
            case _:
                continue
        for directory in found:
            if not is_in_dev(directory):
                message = (
                    "runtimes resolve it at each start of a container: a pod that can write in "
                    f"{directory}, also as root in a container, decides what it leads to; let no "
                    f"pod write there, or do without ${{{min(used)}}}"
                )
                yield "warning", path, message, False
                return


def _optional_nodes(base: Path, resource: Resource) -> Iterator[Finding]:
    """Warn of entries that make a device unhealthy if an optional node is missing."""
    roles = {source.role for source in resource.sources if source.optional and source.role}
    allocate = resource.allocate
    entries = [
        *(
            ((*base, section, name), text.value, text.optional)
            for section, texts in (("env", allocate.env), ("annotations", allocate.annotations))
            for name, text in texts.items()
        ),
        *(
            (where, entry.host_path, entry.optional)
            for where, entry in path_entries(base, resource)
        ),
    ]
    for where, template, optional in entries:
        for name in sorted(template.names):
            if not optional and name.partition(".")[0] in roles:
                message = (
                    f"${{{name}}} has no value if the optional node is missing, and the device is "
                    "then unhealthy; set `optional: true` here as well"
                )
                yield "warning", where, message, False


def _paths_of_links(base: Path, resource: Resource) -> Iterator[Finding]:
    """Warn of variables with the path of a link that the container does not have."""
    if resource.allocate.devices is not None or not any(
        source.finds_links for source in resource.sources
    ):
        return
    for key, text in resource.allocate.env.items():
        for name in sorted(name for name in text.value.names if f".{name}".endswith(".path")):
            own = f"{name.removesuffix('path')}realpath"
            message = (
                f"${{{name}}} may be a link, but the container gets the node under its real path; "
                f'use ${{{own}}}, or set `devices: ["${{{name}}}"]`'
            )
            yield "warning", (*base, "env", key), message, False


def check_cdi(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield what the way in which devices are injected does not support."""
    base = (*path, "allocate")
    if resource.inject == "cdi":
        for where, template in path_templates(base, resource):
            for name in sorted(LATE_VARIABLES & template.names):
                message = (
                    f"${{{name}}} is not known yet when the CDI spec is written; "
                    "use a variable of the device, or `inject: deviceSpecs`"
                )
                yield "error", where, message, False
        return
    for index, node in enumerate(resource.allocate.devices or ()):
        for option, value in (("uid", node.uid), ("gid", node.gid), ("mode", node.mode)):
            if value is not None:
                message = "only takes effect with `inject: cdi`: kubelet passes the node unchanged"
                yield "error", (*base, "devices", index, option), message, True


def check_template(
    path: Path, template: Template, allowed: frozenset[str], known: frozenset[str]
) -> Iterator[Finding]:
    """Yield the variables that are not allowed; some may be known in other places."""
    if problem := go_template_mistake(str(template)):
        yield "warning", path, problem, False
    for name in sorted(template.names - allowed):
        if name in known:
            message = f"${{{name}}} is not available here"
        elif name in BUILT_IN_VARIABLES:
            message = f"${{{name}}} has no value for some of the sources (tokens have no path)"
        else:
            message = f"unknown variable ${{{name}}}{_hint(name, allowed)}"
        yield "error", path, message, False


def _hint(name: str, allowed: frozenset[str]) -> str:
    """Return what an unknown variable should have been, and what is known."""
    near = [other for other in allowed if ("." in other) == ("." in name)]
    hint = did_you_mean(name, near)
    if f"{name}.path" in allowed:
        return f"; write ${{{name}.path}}"
    role, _, rest = name.rpartition(".")
    if not hint and role and rest in NODE_VARIABLES:
        return f": not every device has a node named '{role}' by `as`; write ${{{rest}}}"
    return f"{hint} (known: {', '.join(sorted(allowed))})"


def _text(
    path: Path, section: str, name: str, text: Text, known: frozenset[str]
) -> Iterator[Finding]:
    """Check one environment variable or annotation."""
    yield from check_template((*path, "value"), text.value, known, known)
    try:
        key = Template.parse(name)
    except TemplateError as error:
        yield "error", path, str(error), True
        return
    yield from check_template(path, key, known, known)
    check_name = names.env_name_problem if section == "env" else names.annotation_key_problem
    if problem := check_name(_sample(key)):
        yield "error", path, problem, True
    if problem := names.text_problem(_sample(text.value)):
        yield "error", path, problem, False
    literals = [part for part in text.value.parts if isinstance(part, str)]
    joined = Rule("env", key, text.value).joined
    if joined and text.separator and any(text.separator in part for part in literals):
        message = (
            f"the value contains {text.separator!r}, which separates the values of devices; "
            "set another `separator`"
        )
        yield "error", path, message, False


def path_entries(base: Path, resource: Resource) -> Iterator[tuple[Path, DeviceNode | Mount]]:
    """Yield the entries of ``devices`` and ``mounts`` with their paths."""
    for index, node in enumerate(resource.allocate.devices or ()):
        yield (*base, "devices", index), node
    for index, mount in enumerate(resource.allocate.mounts):
        yield (*base, "mounts", index), mount


def path_templates(base: Path, resource: Resource) -> Iterator[PathTemplate]:
    """Yield the host paths and container paths of an answer with their paths in the file."""
    for where, entry in path_entries(base, resource):
        yield from _templates_of(where, entry)


def _templates_of(where: Path, entry: DeviceNode | Mount) -> Iterator[PathTemplate]:
    yield (*where, "hostPath"), entry.host_path
    if entry.container_path is not None:
        yield (*where, "containerPath"), entry.container_path


def _sample(template: Template) -> str:
    """Render with the letter x for each variable."""
    return template.render(dict.fromkeys(template.names, "x"))


def check_path(where: Path, template: Template) -> Iterator[Finding]:
    """Check a path; one that begins with a variable may be absolute."""
    if problem := names.path_problem(("/" if template.opening else "") + _sample(template)):
        yield "error", where, problem, False

"""Errors and warnings of templates, also of those in commands: what they cannot mean, or do not."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from devhost.allocation.declaration import Rule
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
from devhost.loading.yamltree import Finding, Path
from devhost.model import pattern
from devhost.model.config import DeviceNode, Mount, Probe, Resource, Text
from devhost.model.hardware import Pci, Sysfs, Usb
from devhost.model.sources import Dev, Directory, Glob, Static
from devhost.model.spelling import did_you_mean
from devhost.model.template import Template
from devhost.model.values import PRE_START_MAX_S

_WILD: Final = re.compile(r"[*?\[]")
_GO_TEMPLATE: Final = re.compile(r"\{\{[^{}\n]*\}\}")
_SHELLS: Final = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})
_OF_SHELLS: Final = frozenset({"|", "||", "&&", ";", "&", ">", ">>", "<", "2>&1"})
_LATER: Final = frozenset({"id", "index", "count"})  # known once the device has an ID


def check_templates(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield unknown variables, and what they would do that is surely not meant."""
    given = _by_source(resource)
    known, some = _everywhere(resource, given), frozenset.union(*given)
    if resource.group is not None:
        yield from _group((*path, "group"), resource, resource.group, given)
        given = [known]
    yield from _ids((*path, "id"), resource.id or (), given, some)
    base = (*path, "allocate")
    for where, name, text in _texts(base, resource):
        allowed = some if text.optional else known
        key = Template.parse(name)
        yield from _check_template((*where, "value"), text.value, allowed, allowed)
        yield from _check_template(where, key, allowed, allowed)
        literals = [part for part in text.value.parts if isinstance(part, str)]
        joined = Rule("env", key, text.value).joined
        if joined and text.separator and any(text.separator in part for part in literals):
            message = (
                f"the value contains {text.separator!r}, which separates the values of devices; "
                "set another `separator`"
            )
            yield "error", where, message, False
    for where, entry in _entries(base, resource):
        allowed = some if entry.optional else known
        for at, template in _paths(where, entry):
            yield from _check_template(at, template, allowed, allowed)
        yield from _changeable((*where, "hostPath"), entry.host_path, resource)
    for index, template in enumerate(resource.allocate.cdi):
        yield from _check_template((*base, "cdi", index), template, known, known)
    yield from _paths_of_links(base, resource)


def _texts(base: Path, resource: Resource) -> Iterator[tuple[Path, str, Text]]:
    """Yield the environment variables and annotations with their paths and names."""
    for section in ("env", "annotations"):
        for name, text in getattr(resource.allocate, section).items():
            yield (*base, section, name), name, text


def _entries(base: Path, resource: Resource) -> Iterator[tuple[Path, DeviceNode | Mount]]:
    """Yield the entries of ``devices`` and ``mounts`` with their paths."""
    for index, node in enumerate(resource.allocate.devices or ()):
        yield (*base, "devices", index), node
    for index, mount in enumerate(resource.allocate.mounts):
        yield (*base, "mounts", index), mount


def _paths(where: Path, entry: DeviceNode | Mount) -> Iterator[tuple[Path, Template]]:
    yield (*where, "hostPath"), entry.host_path
    if entry.container_path is not None:
        yield (*where, "containerPath"), entry.container_path


def _group(
    path: Path, resource: Resource, group: Template, given: Sequence[frozenset[str]]
) -> Iterator[Finding]:
    """Check the key of a group, whose variables each source needs."""
    # The variables that each node has by itself, before it is part of a device.
    kernel = USB_VARIABLES | PCI_VARIABLES | _attributes(resource)
    common = frozenset.intersection(*given) - _LATER
    allowed = frozenset(name for name in common if "." not in name or name in kernel)
    for name in sorted(group.names - allowed - BUILT_IN_VARIABLES):
        lacking = [index for index, one in enumerate(given) if name not in one]
        if 0 < len(lacking) < len(given):
            message = f"sources[{lacking[0]}] has no ${{{name}}}; a group needs it of each source"
            yield "error", path, message, False
            allowed |= {name}
    yield from _check_template(path, group, allowed, _everywhere(resource, given))


def _ids(
    path: Path, templates: Sequence[Template], given: Sequence[frozenset[str]], some: frozenset[str]
) -> Iterator[Finding]:
    """Check the templates of device IDs: each source needs one whose variables it has."""
    known = frozenset.intersection(*given)
    allowed = (some if len(templates) > 1 else known) - _LATER
    for index, template in enumerate(templates):
        yield from _check_template((*path, index), template, allowed, known)
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


def _everywhere(resource: Resource, given: Sequence[frozenset[str]]) -> frozenset[str]:
    """Return the variables of every source and, with ``group``, those of the named nodes."""
    known = frozenset.intersection(*given)
    if resource.group is None:
        return known
    return known | {name for name in frozenset.union(*given) if "." in name}


def _by_source(resource: Resource) -> list[frozenset[str]]:
    """Return the variables of each source, whose patterns are valid."""
    known: list[frozenset[str]] = []
    for source in resource.sources:
        given = NODE_VARIABLES
        match source.kind:
            case Static():
                given -= FILE_VARIABLES
            case Dev(pattern=text):
                given |= frozenset(pattern.group_names(text))
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
    found: list[str] = []
    for source in resource.sources if used else ():
        match source.kind:
            case Directory(path=directory):
                found.append(directory)
            case Glob(paths=texts):
                found += [_WILD.split(text)[0].rpartition("/")[0] or "/" for text in texts]
    if foreign := [one for one in found if not is_in_dev(one)]:
        message = (
            "runtimes resolve it at each start of a container: a pod that can write in "
            f"{foreign[0]}, also as root in a container, decides what it leads to; let no "
            f"pod write there, or do without ${{{min(used)}}}"
        )
        yield "warning", path, message, False


def _paths_of_links(base: Path, resource: Resource) -> Iterator[Finding]:
    """Warn of variables with the path of a link that the container does not have."""
    linked = any(source.finds_links for source in resource.sources)
    if resource.allocate.devices is not None or not linked:
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
        for where, entry in _entries(base, resource):
            for at, template in _paths(where, entry):
                for name in sorted(LATE_VARIABLES & template.names):
                    message = (
                        f"${{{name}}} is not known yet when the CDI spec is written; "
                        "use a variable of the device, or `inject: deviceSpecs`"
                    )
                    yield "error", at, message, False
        return
    for index, node in enumerate(resource.allocate.devices or ()):
        for option in ("uid", "gid", "mode"):
            if getattr(node, option) is not None:
                message = "only takes effect with `inject: cdi`: kubelet passes the node unchanged"
                yield "error", (*base, "devices", index, option), message, True


def check_steps(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield errors and warnings of ``health`` and ``preStart``."""
    known = _everywhere(resource, _by_source(resource))
    allowed = known - {"index", "count"}
    for index, check in enumerate(resource.health.checks if resource.health is not None else ()):
        where = (*path, "health", "checks", index)
        if not isinstance(check, Probe):
            continue
        yield from _command((*where, "exec"), check.exec or (), allowed, known)
        if check.file is not None:
            at = (*where, "file", "path")
            yield from _check_template(at, check.file.path, allowed, known)
            for place, text in enumerate(check.file.matches):
                if mistake := pattern.content_mistake(text):
                    yield "warning", (*where, "file", "matches", place), mistake, False
    for index, step in enumerate(resource.pre_start):
        where = (*path, "preStart", index)
        yield from _command((*where, "run"), step.run or (), known, known)
        if step.wait_for is not None:
            yield from _check_template((*where, "waitFor"), step.wait_for, known, known)
        shared = resource.replicas > 1 or resource.overlap == "allow"
        if step.run and step.every == "holder" and shared:
            message = (
                "another pod may be using a shared device (replicas, overlap) when this one "
                "starts; set `every: start` if the step does no harm then"
            )
            yield "error", where, message, True
    total = sum(step.time_limit for step in resource.pre_start)
    if total > PRE_START_MAX_S:
        message = (
            f"the timeouts of the steps add up to {total:g}s, but devhost aborts all steps after "
            f"{PRE_START_MAX_S:g}s (kubelet's limit is 30s)"
        )
        yield "warning", (*path, "preStart"), message, True


def _command(
    path: Path, argv: tuple[Template, ...], allowed: frozenset[str], known: frozenset[str]
) -> Iterator[Finding]:
    """Check a command: its variables, and what only a shell would understand."""
    words = [str(text) for text in argv]
    for index, text in enumerate(argv):
        yield from _check_template((*path, index), text, allowed, known)
        if words[index] in _OF_SHELLS:
            yield "warning", (*path, index), f"'{text}' is an argument: there is no shell", False
    if words and words[0].partition(" ")[2].startswith(("-", "/", "$")):
        better = ", ".join(words[0].split())
        message = f"no program is called {words[0]!r}; there is no shell: write {better}"
        yield "warning", (*path, 0), message, False
    if words and words[0].rpartition("/")[2] in _SHELLS:
        yield from _script(path, argv)


def _script(path: Path, argv: tuple[Template, ...]) -> Iterator[Finding]:
    """Warn of a shell that would run what the name of a device contains."""
    for index, (option, text) in enumerate(pairwise(argv), 1):
        if str(option).startswith("-") and str(option).endswith("c"):
            if names := sorted(text.names - CONTAINER_VARIABLES - {"index"}):
                variable = f"${{{names[0]}}}"
                message = (
                    f"the shell would run what {variable} contains, such as ';' in a file's name; "
                    f'pass it as an argument: [sh, -c, \'tool "$$1"\', sh, "{variable}"]'
                )
                yield "warning", (*path, index), message, False
            return


def _check_template(
    path: Path, template: Template, allowed: frozenset[str], known: frozenset[str]
) -> Iterator[Finding]:
    """Yield the variables that are not allowed; some may be known in other places."""
    if found := _GO_TEMPLATE.search(str(template)):
        message = f"{found[0]} is not replaced; write a variable, such as ${{name}}"
        yield "warning", path, message, False
    for name in sorted(template.names - allowed):
        if name in known:
            message = f"${{{name}}} is not available here"
        elif name in BUILT_IN_VARIABLES:
            message = f"${{{name}}} has no value for some of the sources (tokens have no path)"
        else:
            near = [other for other in allowed if ("." in other) == ("." in name)]
            hint = did_you_mean(name, near)
            message = f"unknown variable ${{{name}}}{hint} (known: {', '.join(sorted(allowed))})"
        yield "error", path, message, False

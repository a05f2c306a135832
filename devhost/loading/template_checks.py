"""Errors and warnings of templates, also of those in commands: what they cannot mean, or do not."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

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
from devhost.loading.shapes import OF_SHELLS, command_hint
from devhost.loading.yamltree import CheckProblem, Path
from devhost.model import pattern
from devhost.model.config import (
    Allocate,
    DeviceNode,
    FileCheck,
    Mount,
    Probe,
    Resource,
    Step,
    Text,
)
from devhost.model.hardware_sources import Pci, Sysfs, Usb, attribute_problem
from devhost.model.sources import Dev, Directory, Glob, Static
from devhost.model.spelling import did_you_mean, nearest
from devhost.model.template import Template
from devhost.model.values import PRE_START_MAX_S

_WILD: Final = re.compile(r"[*?\[]")
_GO_TEMPLATE: Final = re.compile(r"\{\{[^{}\n]*\}\}")
_SHELLS: Final = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})
_BY_KIND: Final[dict[type, frozenset[str]]] = {
    Static: NODE_VARIABLES - FILE_VARIABLES,
    Usb: NODE_VARIABLES | SYSFS_VARIABLES | USB_VARIABLES,
    Pci: NODE_VARIABLES | SYSFS_VARIABLES | USB_VARIABLES | PCI_VARIABLES,
    Sysfs: NODE_VARIABLES | SYSFS_VARIABLES | USB_VARIABLES | PCI_VARIABLES,
}
_LATER: Final = frozenset({"id", "index", "count"})  # known once the device has an ID


def check_templates(path: Path, resource: Resource) -> Iterator[CheckProblem]:
    """Yield unknown variables, and what known ones would do that is surely not meant."""
    given = _by_source(resource)
    known, some = _everywhere(resource, given), frozenset.union(*given)
    if resource.group is not None:
        yield from _group((*path, "group"), resource, resource.group, given)
        given = [known]
    yield from _ids((*path, "id"), resource.id or (), given, some)
    late = LATE_VARIABLES if resource.inject == "cdi" else frozenset()  # after its spec is written
    for place, template, entry in resource.templates:
        where = (*path, *place)
        match entry:
            case Text():
                allowed = some if entry.optional else known
                yield from _check_template(where, template, allowed, allowed)
            case DeviceNode() | Mount():
                allowed = some if entry.optional else known
                yield from _check_template(where, template, allowed, allowed)
                for name in sorted(late & template.names):
                    message = (
                        f"${{{name}}} is not known yet when the CDI spec is written; "
                        "use a variable of the device, or `inject: deviceSpecs`"
                    )
                    yield "error", where, message, False
                if template is entry.host_path:
                    yield from _changeable(where, template, resource)
            case Probe() | FileCheck():
                yield from _check_template(where, template, known - LATE_VARIABLES, known)
            case Allocate() | Step():
                yield from _check_template(where, template, known, known)
    yield from _paths_of_links((*path, "allocate"), resource)


def _group(
    path: Path, resource: Resource, group: Template, given: Sequence[frozenset[str]]
) -> Iterator[CheckProblem]:
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
) -> Iterator[CheckProblem]:
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
        given = _BY_KIND.get(type(source.kind), NODE_VARIABLES)
        if isinstance(source.kind, Dev):
            given |= frozenset(pattern.group_names(source.kind.pattern))
        elif isinstance(source.kind, Sysfs):
            given |= _attributes(resource)
        plain = {name for name in given - {"id", "index"} if "." not in name}
        own = {f"{role}.{name}" for name in plain for role in source.roles}
        known.append(given | own | CONTAINER_VARIABLES)
    return known


def _attributes(resource: Resource) -> frozenset[str]:
    """Return the attributes that templates mention: what a device has is not known before."""
    return frozenset(name for name in resource.mentioned if name.startswith("attr."))


def _changeable(path: Path, template: Template, resource: Resource) -> Iterator[CheckProblem]:
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


def _paths_of_links(base: Path, resource: Resource) -> Iterator[CheckProblem]:
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


def check_owners(path: Path, resource: Resource) -> Iterator[CheckProblem]:
    """Yield owners and modes of nodes, which kubelet does not know."""
    for index, node in enumerate(resource.allocate.devices or ()):
        for option in ("uid", "gid", "mode") if resource.inject != "cdi" else ():
            if getattr(node, option) is not None:
                message = "only takes effect with `inject: cdi`: kubelet passes the node unchanged"
                yield "error", (*path, "allocate", "devices", index, option), message, True


def check_steps(path: Path, resource: Resource) -> Iterator[CheckProblem]:
    """Yield errors and warnings of ``health`` and ``preStart``."""
    for index, check in enumerate(resource.health.checks if resource.health is not None else ()):
        where = (*path, "health", "checks", index)
        if isinstance(check, Probe):
            yield from _command((*where, "exec"), check.exec or ())
            for place, text in enumerate(check.file.matches if check.file is not None else ()):
                if mistake := pattern.content_mistake(text):
                    yield "warning", (*where, "file", "matches", place), mistake, False
    for index, step in enumerate(resource.pre_start):
        where = (*path, "preStart", index)
        yield from _command((*where, "run"), step.run or ())
        shared = resource.replicas > 1 or resource.overlap == "allow"
        if step.run and step.every == "holder" and shared:
            message = (
                "another pod may be using a shared device (replicas, overlap) when this one "
                "starts; set `every: start` if the step does no harm then"
            )
            yield "error", where, message, True
    total = sum(step.timeout for step in resource.pre_start)
    if total > PRE_START_MAX_S:
        message = (
            f"the timeouts of the steps add up to {total:g}s, but devhost aborts all steps after "
            f"{PRE_START_MAX_S:g}s (kubelet's limit is 30s)"
        )
        yield "warning", (*path, "preStart"), message, True


def _command(path: Path, argv: Sequence[Template]) -> Iterator[CheckProblem]:
    """Warn of what only a shell would understand."""
    for index, word in enumerate(map(str, argv)):
        if word in OF_SHELLS:
            yield "warning", (*path, index), f"'{word}' is an argument: there is no shell", False
    program = str(argv[0]) if argv else ""
    if program.partition(" ")[2].startswith(("-", "/", "$")):
        message = f"no program is called {program!r}; {command_hint(program)}"
        yield "warning", (*path, 0), message, False
    if program.rpartition("/")[2] in _SHELLS:
        yield from _script(path, argv)


def _script(path: Path, argv: Sequence[Template]) -> Iterator[CheckProblem]:
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
) -> Iterator[CheckProblem]:
    """Yield the variables that are not allowed; some may be known in other places."""
    if found := _GO_TEMPLATE.search(str(template)):
        message = f"{found[0]} is not replaced; write a variable, such as ${{name}}"
        yield "warning", path, message, False
    for name in sorted(template.names):
        attribute = name.removeprefix("attr.")
        if attribute != name and (problem := attribute_problem(attribute)):
            yield "error", path, f"${{{name}}}: {problem}", False
    for name in sorted(template.names - allowed):
        if name in known:
            message = f"${{{name}}} is not available here"
        elif name in BUILT_IN_VARIABLES:
            message = f"${{{name}}} has no value for some of the sources (tokens have no path)"
        else:
            role, _, last = name.rpartition(".")
            if last in allowed and not nearest(role, {one.rpartition(".")[0] for one in allowed}):
                hint = f"; sources with `as: {role}` give it"
            else:
                hint = did_you_mean(name, (one for one in allowed if "." in one or not role))
            hint = hint or f" (known: {', '.join(sorted(allowed))})"
            message = f"unknown variable ${{{name}}}{hint}"
        yield "error", path, message, False

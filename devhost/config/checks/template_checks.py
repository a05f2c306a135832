"""Errors and warnings of templates, also of those in commands."""

import itertools
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from devhost.allocation.variables import (
    BUILT_IN_VARIABLES,
    CDI_VARIABLES,
    CONTAINER_VARIABLES,
    FILE_VARIABLES,
    LATE_VARIABLES,
    NODE_VARIABLES,
    PATH_VARIABLES,
    PCI_VARIABLES,
    SYSFS_VARIABLES,
    USB_VARIABLES,
)
from devhost.config.foreign_words import explain_template, translate_variable
from devhost.config.messages import command_hint
from devhost.config.yaml_tree import CheckProblem, Path, error, warning
from devhost.model import pattern
from devhost.model.config import DeviceNode, FileCheck, Mount, Probe, Resource, Text
from devhost.model.hardware_sources import Pci, Sysfs, Usb, attribute_problem
from devhost.model.sources import Cdi, Dev, Static
from devhost.model.spelling import did_you_mean, nearest
from devhost.model.template import Template

_SHELLS: Final = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})
_BY_KIND: Final[dict[type, frozenset[str]]] = {
    Static: NODE_VARIABLES - FILE_VARIABLES,
    Usb: NODE_VARIABLES | SYSFS_VARIABLES | USB_VARIABLES,
    Pci: NODE_VARIABLES | SYSFS_VARIABLES | USB_VARIABLES | PCI_VARIABLES,
    Sysfs: NODE_VARIABLES | SYSFS_VARIABLES | USB_VARIABLES | PCI_VARIABLES,
    Cdi: NODE_VARIABLES | SYSFS_VARIABLES | PCI_VARIABLES | CDI_VARIABLES,
}
_KINDS_WITH: Final = {
    kind.__name__.lower(): _BY_KIND[kind] - BUILT_IN_VARIABLES for kind in (Usb, Pci, Sysfs, Cdi)
}
_LATER: Final = frozenset({"id", "index", "count"})  # known once the device has an ID


class _Variables:
    """The variables that the templates of a resource may use; its patterns are valid.

    Attributes:
        by_source: Those of each source.
        any_source: Those of at least one source.
        of_device: Those of every device: with ``group``, also of its named nodes.
        of_node: Those that every node has by itself, before it is part of a device.
    """

    def __init__(self, resource: Resource) -> None:
        # What attributes a device has is not known here: those that templates mention.
        attributes = frozenset(
            name for name in resource.mentioned_variables if name.startswith("attr.")
        )
        self.by_source: list[frozenset[str]] = []
        for source in resource.sources:
            variables = _BY_KIND.get(type(source.kind), NODE_VARIABLES)
            if isinstance(source.kind, Dev):
                variables |= frozenset(pattern.group_names(source.kind.pattern))
            elif isinstance(source.kind, Sysfs):
                variables |= attributes
            plain = {name for name in variables - {"id", "index"} if "." not in name}
            of_roles = {f"{role}.{name}" for name in plain for role in source.roles}
            self.by_source.append(variables | of_roles | CONTAINER_VARIABLES)
        self.any_source = frozenset.union(*self.by_source)
        self.of_device = common = frozenset.intersection(*self.by_source)
        if resource.group is not None:
            self.of_device = common | {name for name in self.any_source if "." in name}
        of_kernel = USB_VARIABLES | PCI_VARIABLES | CDI_VARIABLES | attributes
        self.of_node = {name for name in common - _LATER if "." not in name or name in of_kernel}

    def check(
        self, path: Path, template: Template, allowed: AbstractSet[str]
    ) -> Iterator[CheckProblem]:
        """Yield what is wrong with the variables of a template."""
        if note := explain_template(str(template), allowed):
            yield warning(path, f"{template} is not replaced; {note}")
        for name in sorted(template.names):
            attribute = name.removeprefix("attr.")
            if attribute != name and (problem := attribute_problem(attribute)):
                yield error(path, f"${{{name}}}: {problem}")
        for name in sorted(template.names - allowed):
            lacking = [index for index, names in enumerate(self.by_source) if name not in names]
            if not lacking:
                message = f"${{{name}}} is not available here"
            elif len(lacking) < len(self.by_source):
                message = f"sources[{lacking[0]}] has no ${{{name}}}"
            elif name in BUILT_IN_VARIABLES:
                message = f"${{{name}}} has no value for some of the sources (tokens have no path)"
            elif kinds := [key for key, names in _KINDS_WITH.items() if name in names]:
                message = f"${{{name}}} is a variable of sources of the kind {', '.join(kinds)}"
            else:
                message = f"unknown variable ${{{name}}}{_variable_hint(name, allowed)}"
            yield error(path, message)


def _variable_hint(name: str, allowed: AbstractSet[str]) -> str:
    if variable := translate_variable(name, allowed):
        return f"; did you mean '{variable}'?"
    role, _, last = name.rpartition(".")
    roles = {variable.rpartition(".")[0] for variable in allowed}
    if last in allowed and not nearest(role, roles):
        return f"; sources with `as: {role}` give it"
    hint = did_you_mean(name, (variable for variable in allowed if "." in variable or not role))
    return hint or f" (known: {', '.join(sorted(allowed))})"


def check_templates(resource: Resource) -> Iterator[CheckProblem]:
    """Yield unknown variables, and known ones that have no value or another meaning here."""
    variables = _Variables(resource)
    if resource.group is not None:
        yield from variables.check(("group",), resource.group, variables.of_node)
    yield from _check_ids(resource, variables)
    has_tokens = any(isinstance(source.kind, Static) for source in resource.sources)
    late = LATE_VARIABLES if resource.inject == "cdi" else frozenset()  # after its spec is written
    for path, template, entry in resource.templates:
        if isinstance(entry, Resource):  # `id` or `group`
            continue
        allowed = variables.of_device
        if isinstance(entry, Text | DeviceNode | Mount) and entry.optional:
            allowed = variables.any_source
        elif isinstance(entry, Probe | FileCheck):
            allowed -= LATE_VARIABLES
        yield from variables.check(path, template, allowed)
        is_path = isinstance(entry, DeviceNode | Mount | FileCheck) or path[-1] == "waitFor"
        first = template.first_variable if is_path and not has_tokens else None
        if first in allowed and first.rpartition(".")[2] not in PATH_VARIABLES | {"id"}:
            likely = f"{'/mnt' if isinstance(entry, Mount) else '/dev'}/{template}"
            likely = "${path}" if path[-1] == "hostPath" else likely
            yield error(path, f"${{{first}}} does not begin with '/'; write {likely}")
        if isinstance(entry, DeviceNode | Mount):
            for name in sorted(late & template.names):
                yield error(
                    path,
                    f"${{{name}}} is not known yet when the CDI spec is written; "
                    "use a variable of the device, or `inject: deviceSpecs`",
                )
    yield from _check_link_paths(resource)


def _check_ids(resource: Resource, variables: _Variables) -> Iterator[CheckProblem]:
    """Check the templates of device IDs: each source needs one whose variables it has."""
    templates = resource.id or ()
    allowed = (variables.any_source if len(templates) > 1 else variables.of_device) - _LATER
    for index, template in enumerate(templates):
        yield from variables.check(("id", index), template, allowed)
        if not template.names - CONTAINER_VARIABLES:
            message = "every device would have the same ID; use a variable of the device"
            yield error(("id", index), message)
    if any(template.names - allowed for template in templates):
        return
    by_source = variables.by_source if resource.group is None else [variables.of_device]
    for index, names in enumerate(by_source if templates else ()):
        if not any(template.names <= names for template in templates):
            devices = f"devices of sources[{index}]" if len(by_source) > 1 else "some devices"
            yield error(("id",), f"no entry has a value for {devices}; end the list with ${{name}}")


def _check_link_paths(resource: Resource) -> Iterator[CheckProblem]:
    """Warn of variables with the path of a link that the container does not have."""
    finds_links = any(source.finds_links for source in resource.sources)
    if resource.allocate.devices is not None or not finds_links:
        return
    for key, text in resource.allocate.env.items():
        for name in sorted(name for name in text.value.names if f".{name}".endswith(".path")):
            real = f"{name.removesuffix('path')}realpath"
            yield warning(
                ("allocate", "env", key),
                f"${{{name}}} may be a link, but the container gets the node under its real path; "
                f'use ${{{real}}}, or set `devices: ["${{{name}}}"]`',
            )


def check_owners(resource: Resource) -> Iterator[CheckProblem]:
    """Yield owners and modes of nodes, which kubelet does not know."""
    by_cdi = resource.inject == "cdi" or resource.backend == "dra"
    for index, node in enumerate(resource.allocate.devices or ()):
        for option in () if by_cdi else ("uid", "gid", "mode"):
            if getattr(node, option) is not None:
                message = "only takes effect with `inject: cdi`: kubelet passes the node unchanged"
                yield error(("allocate", "devices", index, option), message, on_key=True)


def check_steps(resource: Resource) -> Iterator[CheckProblem]:
    """Yield errors and warnings of ``health`` and ``preStart``."""
    for index, check in enumerate(resource.checks):
        if isinstance(check, Probe):
            yield from _check_command(("health", "checks", index, "exec"), check.exec or ())
    for index, step in enumerate(resource.pre_start):
        step_path = ("preStart", index)
        yield from _check_command((*step_path, "run"), step.run or ())
        shared = resource.replicas > 1 or resource.overlap == "allow"
        if step.run and step.repeat == "holder" and shared:
            plugin = "`backend: devicePlugin` and " if resource.uses_dra() else ""
            yield error(
                step_path,
                "another pod may be using a shared device (replicas, overlap) when this one "
                f"starts; set {plugin}`every: start` if the step does no harm then",
                on_key=True,
            )


def _check_command(path: Path, argv: Sequence[Template]) -> Iterator[CheckProblem]:
    """Warn of a command line in one string, and of a shell that would run a device's name."""
    program = str(argv[0]) if argv else ""
    if program.partition(" ")[2].startswith(("-", "/", "$")):
        yield warning((*path, 0), f"no program is called {program!r}; {command_hint(program)}")
    if program.rpartition("/")[2] not in _SHELLS:
        return
    for index, (option, script) in enumerate(itertools.pairwise(argv), 1):
        if str(option).startswith("-") and str(option).endswith("c"):
            if names := sorted(script.names - CONTAINER_VARIABLES - {"index"}):
                variable = f"${{{names[0]}}}"
                yield warning(
                    (*path, index),
                    f"the shell would run what {variable} contains, such as ';' in a file's name; "
                    f'pass it as an argument: [sh, -c, \'tool "$$1"\', sh, "{variable}"]',
                )
            return

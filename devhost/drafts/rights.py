"""The rights that a process needs for resources, as flags and as values of the chart."""

import itertools
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy, device_right, source_identities
from devhost.allocation.rules import mounted_globs, uses_nodes
from devhost.config.chart_values import InstanceValues, fixed_directory
from devhost.devices.dry_run import ResourceReport
from devhost.hostfs.device_classes import BLOCK, DeviceClasses, class_by_path
from devhost.hostfs.files import HostFiles, is_in_dev
from devhost.hostfs.walk import Walk
from devhost.model.config import Resource
from devhost.model.device_node import FileKind
from devhost.model.hardware_sources import USB_NODE
from devhost.model.template import Template

Right = tuple[Literal["devices", "paths", "cdi"], str]
"""A key of the chart's `allow`, without its last s that of a flag, and what has to be in it."""
NodeFile = tuple[str, FileKind, tuple[int, int]]
"""The path of a node, its kind and its number."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights in the order in which they are needed, and whether CDI specs have to be written."""

    rights: tuple[Right, ...] = ()
    writes_specs: bool = False

    def flags(self) -> str:
        """Return the flags of `run`, as in a shell."""
        flags = ((f"--allow-{key.removesuffix('s')}", value) for key, value in self.rights)
        return shlex.join(word for pair in flags for word in pair)

    def text(self, *, values: bool) -> str:
        """Return it as people read it, of flags or values of the chart; empty for none."""
        allowed = (f"allow.{key}: {value}" for key, value in self.rights)
        return ", ".join(allowed) if values else self.flags()

    def values(self) -> dict[str, Any]:
        """Return the values of the chart."""
        allow: dict[str, list[str]] = {}
        for key, value in self.rights:
            allow.setdefault(key, []).append(value)
        directories = dict.fromkeys(map(fixed_directory, allow.get("paths", ())))
        unseen = [path for path in directories if not InstanceValues().sees(path)]
        return {
            **({"allow": allow} if allow else {}),
            **({"hostPaths": unseen} if unseen else {}),
            **({"cdi": {"enabled": True}} if self.writes_specs else {}),
        }


def needed_rights(resource: Resource, nodes: Iterable[NodeFile], files: HostFiles) -> Rights:
    """Return what a resource needs whose devices have these nodes now. Blocks."""
    rights = dict.fromkeys(_rights(resource, nodes, files))
    return Rights(tuple(rights), resource.inject == "cdi")


def rights_of_report(report: ResourceReport, files: HostFiles) -> Rights:
    """Return what a resource needs for the devices that a dry run has found. Blocks."""
    devices = report.snapshot.devices.values()
    nodes = (node.path for device in devices for node in device.nodes if node.state is not None)
    return needed_rights(report.resource, _nodes_of(nodes, files), files)


def _nodes_of(paths: Iterable[str], files: HostFiles) -> Iterator[NodeFile]:
    """Yield the device nodes at paths, and those in directories below /dev."""
    for path in paths:
        if (state := files.stat(path)) is None:
            continue
        is_walked = state.kind is FileKind.DIRECTORY and is_in_dev(state.realpath)
        names = Walk(files, state.realpath).matches if is_walked else ()
        states = [state, *(files.stat(f"{state.realpath}/{name}") for name in names)]
        yield from ((at.realpath, at.kind, at.number) for at in states if at and at.number)


def _rights(resource: Resource, nodes: Iterable[NodeFile], files: HostFiles) -> Iterator[Right]:
    allocate, uses_its_nodes = resource.allocate, uses_nodes(resource)
    for source in resource.sources if uses_its_nodes else ():
        if source.usb is not None and USB_NODE in (choice.subsystem for choice in source.usb.node):
            words = source_identities(source.usb)
            yield from (("devices", word.removesuffix(":*")) for word in words)
    constants = [str(rule.host_path) for rule in allocate.devices or () if not rule.host_path.names]
    for node in [*(nodes if uses_its_nodes else ()), *_nodes_of(constants, files)]:
        if right := _node_right(resource, node, files):
            yield "devices", right
    globs = [source.glob.paths for source in resource.sources if source.glob and uses_its_nodes]
    for path in itertools.chain(constants, *globs):  # what is not there now
        named_class = class_by_path(path) if files.stat(path) is None else None
        if named_class is not None:
            yield "devices", device_right(path, named_class) or path
    for mount in allocate.mounts:
        yield from (("paths", path) for path in _mounted(resource, mount.host_path, files))
    policy = Policy()
    yield from (("cdi", name) for name in allocate.env if policy.name_problem("env", name))
    of_kind = {"cdi.kind": f"{resource.cdi_kind}", "cdi.qualified": f"{resource.cdi_kind}=*"}
    for name in allocate.cdi:
        yield "cdi", name.render(dict.fromkeys(name.names, "*") | of_kind)


def _node_right(resource: Resource, node: NodeFile, files: HostFiles) -> str | None:
    """Return the right to a node: to what a source selects by what it is, or to its class."""
    classes, (path, kind, number) = DeviceClasses(files), node
    device_class = BLOCK if kind is FileKind.BLOCK else classes.of(number)
    right, ids = device_right(path, device_class), classes.ids(kind.value, number)
    kinds = (source.kind for source in resource.sources)
    for word in (word for kind in kinds for word in source_identities(kind, ids)):
        paths = HostPaths(files, Policy(allow_devices=(word,)))
        is_narrow = not word.startswith(("*:*", "pci:*:*"))
        if right and is_narrow and paths.policy_problem(path, kind, number) is None:
            return word.removesuffix(":*") if device_class.usb_id else word
    return right


def _mounted(resource: Resource, path: Template, files: HostFiles) -> list[str]:
    """Return globs on what a mount needs: of a library on this host, all versions of it."""
    globs = mounted_globs(resource, path)
    state = files.stat(globs[0]) if path.first_variable is None else None
    if state is not None and state.kind is FileKind.FILE:
        return [f"{globs[0].rstrip('.0123456789')}*"]
    return globs

"""The rights that a process needs for resources, as flags and as values of the chart."""

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy, device_problem, device_right
from devhost.devices.dry_run import ResourceReport
from devhost.hostfs.device_classes import BLOCK, DeviceClasses, class_by_path
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource
from devhost.model.device import FileKind
from devhost.model.hardware_sources import USB_NODE, Pci, Sysfs, Usb
from devhost.model.sources import Glob, Source
from devhost.model.template import Template

# By field of `Policy`: the flag, and the key of the chart's `allow`.
_WORDS: Final = {
    "allow_devices": ("--allow-device", "devices"),
    "allow_paths": ("--allow-path", "paths"),
    "allow_cdi": ("--allow-cdi", "cdi"),
}

Right = tuple[str, str]
"""A field of `Policy`, and what has to be in it."""
NodeFile = tuple[str, FileKind, tuple[int, int]]
"""The path of a node, its kind and its number."""


@dataclass(frozen=True, slots=True)
class Rights:
    """Rights in the order in which they are needed, and whether CDI specs have to be written."""

    rights: tuple[Right, ...] = ()
    writes_specs: bool = False

    @classmethod
    def all_of(cls, parts: Iterable["Rights"]) -> "Rights":
        """Return the rights that all parts need together."""
        parts = list(parts)
        rights = dict.fromkeys(right for part in parts for right in part.rights)
        return cls(tuple(rights), any(part.writes_specs for part in parts))

    def flags(self) -> str:
        """Return the flags of `run`, as in a shell."""
        words = (word for option, value in self.rights for word in (_WORDS[option][0], value))
        return shlex.join(words)

    def text(self, *, values: bool) -> str:
        """Return it as people read it, of flags or values of the chart; empty for none."""
        if not values:
            return self.flags()
        allowed = (f"{_WORDS[option][1]}: {value}" for option, value in self.rights)
        return ", ".join(f"allow.{text}" for text in allowed)

    def values(self) -> dict[str, Any]:
        """Return the values of the chart."""
        allow: dict[str, list[str]] = {}
        for option, value in self.rights:
            allow.setdefault(_WORDS[option][1], []).append(value)
        return {
            **({"allow": allow} if allow else {}),
            **({"cdi": {"enabled": True}} if self.writes_specs else {}),
        }


def needed_rights(resource: Resource, nodes: Iterable[NodeFile], files: HostFiles) -> Rights:
    """Return what a resource needs whose devices have these nodes now. Blocks."""
    rights = dict.fromkeys(_rights(resource, nodes, files))
    return Rights(tuple(rights), resource.inject == "cdi")


def rights_of_report(report: ResourceReport, files: HostFiles) -> Rights:
    """Return what a resource needs for the devices that a dry run has found. Blocks."""
    nodes = [
        (node.state.realpath, node.state.kind, node.state.number)
        for device in report.snapshot.devices.values()
        for node in device.nodes
        if node.state is not None and node.state.number is not None
    ]
    return needed_rights(report.resource, nodes, files)


def _rights(resource: Resource, nodes: Iterable[NodeFile], files: HostFiles) -> Iterator[Right]:
    allocate, gives_nodes = resource.allocate, resource.allocate.devices != ()
    for source in resource.sources if gives_nodes else ():
        if source.usb is not None and USB_NODE in (choice.subsystem for choice in source.usb.node):
            yield from (("allow_devices", word.removesuffix(":*")) for word in _identities(source))
    constants = [str(rule.host_path) for rule in allocate.devices or () if not rule.host_path.names]
    states = filter(None, map(files.stat, constants))
    constant_nodes = [(file.realpath, file.kind, file.number) for file in states if file.number]
    for node in [*(nodes if gives_nodes else ()), *constant_nodes]:
        if right := _node_right(resource, node, files):
            yield "allow_devices", right
    globs = [source.kind for source in resource.sources if isinstance(source.kind, Glob)]
    sought = [path for kind in globs for path in kind.paths if gives_nodes]
    for path in (*constants, *sought):  # what is not there now
        named_class = class_by_path(path) if files.stat(path) is None else None
        if named_class is not None:
            yield "allow_devices", device_right(path, named_class) or path
    for mount in allocate.mounts:
        yield from (("allow_paths", path) for path in _mounted(resource, mount.host_path))
    policy = Policy()
    adding = (key for key in allocate.env if policy.name_problem("env", key) is not None)
    yield from (("allow_cdi", key) for key in adding)
    of_kind = {"cdi.kind": f"{resource.cdi_kind}", "cdi.qualified": f"{resource.cdi_kind}=*"}
    rendered = (name.render(dict.fromkeys(name.names, "*") | of_kind) for name in allocate.cdi)
    yield from (("allow_cdi", name) for name in rendered)


def _node_right(resource: Resource, node: NodeFile, files: HostFiles) -> str | None:
    """Return the right to a node: to what a source selects by what it is, or to its class."""
    classes, (path, kind, number) = DeviceClasses(files), node
    device_class = BLOCK if kind is FileKind.BLOCK else classes.of(number)
    right, ids = device_right(path, device_class), classes.ids(kind.value, number)
    for word in (word for source in resource.sources for word in _identities(source, ids)):
        paths = HostPaths(files, Policy(allow_devices=(word,)))
        is_narrow = not word.startswith(("*:*", "pci:*:*"))
        if right and is_narrow and paths.policy_problem(path, kind, number) is None:
            return word.removesuffix(":*") if device_class.usb_id else word
    return right


def _identities(source: Source, ids: Iterable[str] = ()) -> Iterator[str]:
    """Yield rights to what a source selects, by what it is; ``ids`` are those of a node of it."""
    words: list[str] = []
    match source.kind:
        case Usb(device=numbers, serial=serials):
            globs = [re.sub(r"[\s/]", "?", serial) for serial in serials or ("*",)]
            words = [f"{number}:{serial}" for number in numbers or () for serial in globs]
        case Pci(device=numbers, address=addresses):
            words = [f"pci:{word}" for word in addresses or numbers or ()]
        case Sysfs(parent=parent, name=name) if parent or name:
            words = [word for word in ids if word.startswith("place:")]
        case Glob(paths=paths):
            words = [path for path in paths if "/by-" in path]
    return (word for word in words if device_problem(word) is None)


def _mounted(resource: Resource, path: Template) -> Iterator[str]:
    if not path.names:
        yield str(path)
        return
    for source in resource.sources:
        if isinstance(source.kind, Glob):
            yield from source.kind.paths

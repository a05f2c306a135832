"""The entries of a resource's ``allocate``, compiled to rules; what a resource asks for by them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from devhost.allocation.policy import Policy
from devhost.allocation.variables import CONTAINER_VARIABLES, LATE_VARIABLES
from devhost.model.allocation import DeviceSpec, MountSpec, Target
from devhost.model.config import Probe, Resource, Text
from devhost.model.sources import Directory, Glob
from devhost.model.template import Template

_PATH: Final = Template.parse("${path}")
_KeyPath = tuple[str | int, ...]  # of a value in a resource of the file


@dataclass(frozen=True, slots=True)
class Rule:
    """One entry of ``allocate``.

    Attributes:
        key: The name of a variable or annotation, a container path, or a CDI name.
        value: Its value, a host path, a CDI name.
        optional: Left out where it has no value, or the host does not have it.
        separator: What separates the devices' values of one variable.
        spec: What else a device node or mount has; its paths are empty.
        nodes_only: Only for nodes that are device nodes (what leaving ``devices`` out means).
        place: Its key or index in the file; ``None`` if it is not there.
        per_device: Whether it is rendered for each node of each device, or once for the container.
        joined: Whether the devices' values make one value together.
        exclusive: Whether what it names is made from the device, so that no other may have it.
    """

    target: Target
    key: Template
    value: Template
    optional: bool = False
    separator: str = ","
    spec: DeviceSpec | MountSpec | None = None
    nodes_only: bool = False
    place: str | int | None = None

    per_device: bool = field(init=False)
    joined: bool = field(init=False)
    exclusive: bool = field(init=False)

    def __post_init__(self) -> None:
        named = self.key.names - CONTAINER_VARIABLES
        per_device = bool(named or self.value.names - CONTAINER_VARIABLES)
        joined = self.target in ("env", "annotations") and per_device and not named
        exclusive = self.target != "cdi" and bool(named) and "index" not in named
        object.__setattr__(self, "per_device", per_device)
        object.__setattr__(self, "joined", joined)
        object.__setattr__(self, "exclusive", exclusive)

    @property
    def path(self) -> _KeyPath:
        """Where it is in a resource of the file."""
        return "allocate", *(() if self.place is None else (self.target, self.place))

    @property
    def shares(self) -> bool:
        """Whether it gives a path of the host that is no node of the device."""
        return self.spec is not None and self.value != _PATH

    @property
    def in_cdi_spec(self) -> bool:
        """Whether it is in a device's CDI spec: it is the same whatever else a container gets."""
        if self.target == "env":
            return not self.joined and not (self.key.names | self.value.names) & LATE_VARIABLES
        return self.spec is not None

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.target} {self.key}"


Rules = tuple[Rule, ...]

_NODE: Final = DeviceSpec("", "", "rw")
# Where ``devices`` is left out: each node under its own name, where libraries expect it, by the
# link that led to it, which still leads to the device when a container starts again.
_NODES: Final = Rule("devices", Template.parse("${realpath}"), _PATH, spec=_NODE, nodes_only=True)
# What a process opens before the node of an IOMMU group; it is nobody's own.
_VFIO_PATH: Final = Template.parse("/dev/vfio/vfio")
_VFIO: Final = Rule("devices", _VFIO_PATH, _VFIO_PATH, optional=True, spec=_NODE)


def rules_of(resource: Resource) -> Rules:
    """Compile a resource's ``allocate``."""
    allocate = resource.allocate
    rules = _text_rules("env", allocate.env)
    if allocate.devices is None:
        rules.append(_NODES)
        if any(source.is_vfio for source in resource.sources):
            rules.append(_VFIO)
    for index, node in enumerate(allocate.devices or ()):
        mode = None if node.mode is None else int(node.mode, 8)
        owned = DeviceSpec("", "", node.permissions, uid=node.uid, gid=node.gid, mode=mode)
        where = node.container_path or node.host_path
        rules.append(Rule("devices", where, node.host_path, node.optional, spec=owned, place=index))
    for index, mount in enumerate(allocate.mounts):
        spec = MountSpec("", "", mount.read_only)
        where = mount.container_path or mount.host_path
        rules.append(Rule("mounts", where, mount.host_path, mount.optional, spec=spec, place=index))
    rules += _text_rules("annotations", allocate.annotations)
    rules += [Rule("cdi", name, name, place=index) for index, name in enumerate(allocate.cdi)]
    return tuple(rules)


def uses_nodes(resource: Resource) -> bool:
    """Whether containers, steps or checks are given the nodes of the devices."""
    is_given = any(rule.target == "devices" and rule.per_device for rule in rules_of(resource))
    return is_given or bool(resource.pre_start or resource.health)


def mounted_globs(resource: Resource, path: Template) -> list[str]:
    """Return globs on the host paths of a mount, as far as they are known without devices."""
    if path.first_variable is None:
        return ["".join(part if isinstance(part, str) else "*" for part in path.parts)]
    globs: list[str] = []
    for source in resource.sources:
        match source.kind:
            case Glob(paths=paths):
                globs += paths
            case Directory(path=directory):
                globs.append(f"{directory}/*")
    return globs


def command_problems(resource: Resource, policy: Policy) -> Iterator[tuple[_KeyPath, str]]:
    """Yield where a resource has devhost change the host, and why a policy does not allow that."""
    if policy.allow_exec:
        return
    needed = policy.needed("exec")
    for index, step in enumerate(resource.pre_start):
        if step.run is not None:
            yield ("preStart", index, "run"), f"running a command needs {needed}"
        elif step.mode is not None:
            yield ("preStart", index, "mode"), f"changing a node's mode needs {needed}"
    for index, check in enumerate(resource.checks):
        if isinstance(check, Probe) and check.exec is not None:
            yield ("health", "checks", index, "exec"), f"running a command needs {needed}"


def _text_rules(target: Target, texts: Mapping[str, Text]) -> list[Rule]:
    return [
        Rule(target, Template.parse(key), text.value, text.optional, text.separator, place=key)
        for key, text in texts.items()
    ]

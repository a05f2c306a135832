"""A resource's ``allocate`` as rules, compiled once; pure."""

from dataclasses import field
from typing import Final, Literal

from devhost.allocation.variables import CONTAINER_VARIABLES, LATE_VARIABLES
from devhost.immutable import immutable
from devhost.model.config import Resource
from devhost.model.template import Template

_PATH: Final = Template.parse("${path}")
Target = Literal["env", "devices", "mounts", "annotations", "cdi"]


@immutable
class Rule:
    """One entry of ``allocate``.

    Attributes:
        target: The list of ``allocate`` that it is in.
        key: The name of a variable or annotation, a container path, or a CDI name.
        value: Its value, a host path, a CDI name.
        separator: What separates the devices' values of one variable.
        optional: Left out where it has no value, or the host does not have it.
        permissions: A device node's.
        read_only: A mount's.
        nodes_only: Only for nodes that are device nodes (what leaving ``devices`` out means).
        uid: As in `devhost.model.allocation.DeviceSpec`; so are gid and mode.
        same: Whether its key is its value.
        per_device: Whether it is rendered for each node of each device, or once for the container.
        joined: Whether the devices' values make one value together.
        own: Whether its value is the path of the device's own node.
        exclusive: Whether what it names is made from the device, so that no other may have it.
    """

    target: Target
    key: Template
    value: Template
    separator: str = ","
    optional: bool = False
    permissions: str = "rw"
    read_only: bool = True
    nodes_only: bool = False
    uid: int | None = None
    gid: int | None = None
    mode: int | None = None

    same: bool = field(init=False)
    per_device: bool = field(init=False)
    joined: bool = field(init=False)
    exclusive: bool = field(init=False)
    own: bool = field(init=False)

    def __post_init__(self) -> None:
        per_device = bool((self.key.names | self.value.names) - CONTAINER_VARIABLES)
        text, named = self.target in ("env", "annotations"), self.key.names - CONTAINER_VARIABLES
        object.__setattr__(self, "same", self.key == self.value)
        object.__setattr__(self, "per_device", per_device)
        object.__setattr__(self, "joined", text and per_device and not named)
        exclusive = self.target != "cdi" and bool(named) and "index" not in named
        object.__setattr__(self, "exclusive", exclusive)
        object.__setattr__(self, "own", self.value == _PATH)

    @property
    def in_cdi_spec(self) -> bool:
        """Whether it is in a device's CDI spec: it is the same whatever else a container gets."""
        if self.target == "env":
            return not self.joined and not (self.key.names | self.value.names) & LATE_VARIABLES
        return self.target in ("devices", "mounts")

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.target} {self.key if self.target != 'cdi' else self.value}"


Rules = tuple[Rule, ...]

# Where ``devices`` is left out: each node under its own name, where libraries expect it, by the
# link that led to it, which still leads to the device when a container starts again.
_NODES: Final = Rule("devices", Template.parse("${realpath}"), _PATH, nodes_only=True)
# What a process opens before the node of an IOMMU group; it is nobody's own.
_VFIO_PATH: Final = Template.parse("/dev/vfio/vfio")
_VFIO: Final = Rule("devices", _VFIO_PATH, _VFIO_PATH, optional=True)


def rules_of(resource: Resource) -> Rules:
    """Compile a resource's ``allocate``."""
    allocate = resource.allocate
    rules = [
        Rule("env", Template.parse(name), text.value, text.separator, text.optional)
        for name, text in allocate.env.items()
    ]
    if allocate.devices is None:
        rules.append(_NODES)
        if any(source.is_vfio for source in resource.sources):
            rules.append(_VFIO)
    for device in allocate.devices or ():
        container = device.container_path or device.host_path
        rules.append(
            Rule(
                "devices",
                container,
                device.host_path,
                optional=device.optional,
                permissions=device.permissions,
                uid=device.uid,
                gid=device.gid,
                mode=None if device.mode is None else int(device.mode, 8),
            )
        )
    for mount in allocate.mounts:
        container = mount.container_path or mount.host_path
        rules.append(
            Rule(
                "mounts",
                container,
                mount.host_path,
                optional=mount.optional,
                read_only=mount.read_only,
            )
        )
    rules += [
        Rule("annotations", Template.parse(key), text.value, text.separator, text.optional)
        for key, text in allocate.annotations.items()
    ]
    rules += [Rule("cdi", name, name) for name in allocate.cdi]
    return tuple(rules)

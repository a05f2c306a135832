"""What a container receives: the mapping ``allocate``."""

from typing import Annotated

from pydantic import BeforeValidator, Field, StrictStr

from devhost.model.mapping import Model
from devhost.model.values import AsTuple, Mode, OwnerId, Permissions, TemplateText, main_option


class Text(Model):
    """The value of an environment variable or annotation."""

    value: TemplateText
    """A value that mentions a device variable is joined over the devices."""
    separator: StrictStr = ","
    """What separates the devices' values."""
    optional: bool = False
    """Leave it out, rather than the device, where a variable has no value."""


class DeviceNode(Model):
    """A device node that the container receives."""

    host_path: TemplateText
    """The node on the host."""
    container_path: TemplateText | None = None
    """Where it is in the container; by default at the same path."""
    permissions: Permissions = "rw"
    """One or more of r (read), w (write) and m (mknod)."""
    optional: bool = False
    """Leave it out where the host does not have it."""
    uid: OwnerId | None = None
    """With CDI: the node's user in the container; by default the container's own."""
    gid: OwnerId | None = None
    """With CDI: the node's group in the container; by default the container's own."""
    mode: Mode | None = None
    """With CDI: the node's permission bits in the container, in octal; by default the host's."""


class Mount(Model):
    """A path of the host that is mounted into the container."""

    host_path: TemplateText
    """The path on the host."""
    container_path: TemplateText | None = None
    """Where it is in the container; by default at the same path."""
    read_only: bool = True
    """Mounted without write access."""
    optional: bool = False
    """Leave it out where the host does not have it."""


TextEntry = Annotated[
    Text, BeforeValidator(main_option("value"), json_schema_input_type=TemplateText | Text)
]
DeviceEntry = Annotated[
    DeviceNode,
    BeforeValidator(main_option("hostPath"), json_schema_input_type=TemplateText | DeviceNode),
]
MountEntry = Annotated[
    Mount, BeforeValidator(main_option("hostPath"), json_schema_input_type=TemplateText | Mount)
]


class Allocate(Model):
    """What a container receives for the devices that it is given."""

    env: dict[StrictStr, TextEntry] = Field(default_factory=dict)
    """Environment variables: name to value."""
    devices: Annotated[tuple[DeviceEntry, ...], AsTuple] | None = None
    """Device nodes; left out: every node of the devices, under its own name."""
    mounts: Annotated[tuple[MountEntry, ...], AsTuple] = ()
    """Mounts of host paths."""
    annotations: dict[StrictStr, TextEntry] = Field(default_factory=dict)
    """Annotations for the container runtime."""
    cdi: Annotated[tuple[TemplateText, ...], AsTuple] = ()
    """Fully qualified CDI device names."""

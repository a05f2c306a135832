"""The mapping ``allocate``: what a container receives."""

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from devhost.model.base import ConfigModel, shorthand
from devhost.model.template import Template
from devhost.model.values import AsTuple, Mode, OwnerId, Permissions, TemplateText, main_option


class Text(ConfigModel):
    """The value of an environment variable or annotation."""

    value: TemplateText
    """The value; with a device variable, the values of all devices, joined."""
    separator: str = ","
    """The separator between the devices' values."""
    optional: bool = False
    """If a variable has no value: omit the entry instead of making the device unhealthy."""


class DeviceNode(ConfigModel):
    """A device node that the container receives."""

    host_path: TemplateText
    """The path of the node on the host."""
    container_path: TemplateText | None = None
    """The path in the container; default: the same path."""
    permissions: Permissions = "rw"
    """Any of r (read), w (write) and m (mknod)."""
    optional: bool = False
    """Omit the entry if the path does not exist on the host."""
    uid: OwnerId | None = None
    """With CDI: the owner of the node in the container; default: the container's user."""
    gid: OwnerId | None = None
    """With CDI: the group of the node in the container; default: the container's group."""
    mode: Mode | None = None
    """With CDI: the mode of the node in the container, in octal; default: as on the host."""


class Mount(ConfigModel):
    """A host path that is mounted into the container."""

    host_path: TemplateText
    """The path on the host."""
    container_path: TemplateText | None = None
    """The path in the container; default: the same path."""
    read_only: bool = True
    """Whether to mount it read-only."""
    optional: bool = False
    """Omit the entry if the path does not exist on the host."""


TextEntry = Annotated[Text, shorthand(main_option("value"), TemplateText | Text)]
DeviceEntry = Annotated[DeviceNode, shorthand(main_option("hostPath"), TemplateText | DeviceNode)]
MountEntry = Annotated[Mount, shorthand(main_option("hostPath"), TemplateText | Mount)]


class Allocate(ConfigModel):
    """What a container receives with its devices."""

    env: dict[str, TextEntry] = Field(default_factory=dict)
    """Environment variables, by name."""
    devices: Annotated[tuple[DeviceEntry, ...], AsTuple] | None = None
    """Device nodes; default: every node of the devices, under its own name."""
    mounts: Annotated[tuple[MountEntry, ...], AsTuple] = ()
    """Host paths to mount."""
    annotations: dict[str, TextEntry] = Field(default_factory=dict)
    """Annotations for the container runtime, by key."""
    cdi: Annotated[tuple[TemplateText, ...], AsTuple] = ()
    """Fully qualified CDI device names."""

    @property
    def templates(self) -> Iterator[Template]:
        """All templates but those in names of variables and annotations."""
        for text in (*self.env.values(), *self.annotations.values()):
            yield text.value
        for device in self.devices or ():
            yield from filter(None, (device.host_path, device.container_path))
        for mount in self.mounts:
            yield from filter(None, (mount.host_path, mount.container_path))
        yield from self.cdi

"""The allocation of devices to a container, as values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Target = Literal["env", "devices", "mounts", "annotations", "cdi"]
"""A key of ``allocate``."""


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device node for a container.

    Attributes:
        host_path: As matched; in an answer with links resolved, but for those below /dev.
        optional: Left out where the host does not have it.
        device: The ID of the device that it belongs to; ``None`` for a shared node.
        uid: Its user in the container, with CDI; ``None``: the container's own, as for `gid`.
        mode: Its permission bits in the container, with CDI; ``None``: those on the host.
    """

    host_path: str
    container_path: str
    permissions: str
    optional: bool = False
    device: str | None = None
    uid: int | None = None
    gid: int | None = None
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class MountSpec:
    """A mount for a container; the attributes are as those of `DeviceSpec`."""

    host_path: str
    container_path: str
    read_only: bool
    optional: bool = False
    device: str | None = None


@dataclass(frozen=True, slots=True)
class Allocation:
    """The nodes, mounts and variables of a container for its devices of one resource.

    Attributes:
        device_ids: The advertised IDs that kubelet asked for.
        cdi_owners: The ID of the device that each CDI name is of; ``None`` for that of several.
        in_cdi_spec: What the runtime adds for those of devhost's own; for the log.
        numbers: What each device node was when it was checked, by its host path: ``c 1:3`` or
            ``b 8:0``; for the log.
    """

    device_ids: tuple[str, ...] = ()
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[MountSpec, ...] = ()
    devices: tuple[DeviceSpec, ...] = ()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi_devices: tuple[str, ...] = ()
    cdi_owners: Mapping[str, str | None] = field(default_factory=dict, compare=False)
    in_cdi_spec: tuple[DeviceSpec | MountSpec, ...] = field(default=(), compare=False)
    numbers: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def specs(self) -> tuple[DeviceSpec | MountSpec, ...]:
        """All host paths that it names."""
        return (*self.devices, *self.mounts)

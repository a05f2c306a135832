"""A device, as code declares it."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """One device of a plugin; may be subclassed to carry more.

    What `DevicePlugin.devices` returned comes back as the same object in ``allocate`` and
    ``pre_start``.

    Attributes:
        id: Its ID: stable over reboot and replug, at most 63 characters, no ``::``.
        paths: The host paths of its nodes; none for a token. One text is one path. It is
            unhealthy while one of them is not there.
        reason: Why it is unhealthy; ``None`` (or nothing) for a healthy one.
        numa_nodes: The NUMA nodes that it is attached to; what sysfs says unless told. A
            resource of which only some devices have NUMA nodes is advertised without.
    """

    id: str
    _: KW_ONLY
    paths: Sequence[str] = ()
    reason: str | None = None
    numa_nodes: Sequence[int] = ()

    def __post_init__(self) -> None:
        paths = (self.paths,) if isinstance(self.paths, str) else tuple(self.paths)
        object.__setattr__(self, "paths", paths)
        object.__setattr__(self, "numa_nodes", tuple(self.numa_nodes))

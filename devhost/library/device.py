"""A device of a plugin."""

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass


@dataclass(frozen=True, slots=True)
class Device:
    """A device of a plugin; may be subclassed to add data.

    ``allocate`` and ``pre_start`` get the same objects that `DevicePlugin.devices` returned.

    Attributes:
        id: Its ID: stable across reboot and replug, at most 63 characters, without ``::``.
        paths: The host paths of its nodes; empty for a token. A string is a single path. The
            device is unhealthy while one of them is missing.
        reason: Why it is unhealthy; ``None`` or empty if it is healthy.
        numa_nodes: The NUMA nodes that it is attached to; by default those in sysfs. If only some
            devices of a resource have NUMA nodes, the resource is advertised without.
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

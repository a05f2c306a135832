"""What all resources of a process share."""

from dataclasses import dataclass
from pathlib import Path

from devhost.host.cdi_files import CdiFiles
from devhost.host.claims import Claims
from devhost.host.holders import Holders
from devhost.kubelet.directory import PluginDirectory
from devhost.watch import Watcher


@dataclass(frozen=True, slots=True)
class Shared:
    """What all resources of a process share.

    Attributes:
        directory: The plugin directory.
        watcher: Tells when to look again.
        claims: Who offers which node.
        holders: Which pods hold which devices.
        cdi_files: Where CDI specs are kept.
        state_dir: What outlives this process; ``None`` where nothing does.
        leave_after: Seconds between an ID's Unhealthy and its leaving the list.
    """

    directory: PluginDirectory
    watcher: Watcher
    claims: Claims
    holders: Holders
    cdi_files: CdiFiles
    state_dir: Path | None
    leave_after: float

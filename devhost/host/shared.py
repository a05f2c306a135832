"""What all resources of a process share."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

from devhost.discovery.scan import Scanner
from devhost.host.cdi.files import CdiFiles
from devhost.host.counts import DeviceCounts
from devhost.host.holders import Holders
from devhost.host.inventory import Inventory
from devhost.host.ownership.decisions import SerialOwnership
from devhost.host.ownership.owners import Owners
from devhost.host.quota import Quota
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.served_names import ServedNames
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.observe.metrics import Metrics


@immutable
class Shared:
    """What all resources of a process share.

    Attributes:
        directory: The plugin directory.
        inventory: What is on the host.
        ownership: Which resource offers which node.
        quota: How many device IDs each resource may offer.
        holders: Which pods hold which devices.
        served_names: Which resources have a device plugin; ``None`` where nobody tells.
        owners: Under what names nodes are, or were, offered.
        cdi_files: Where CDI specs are kept.
        counts: How many devices each resource has, and should have.
        state_dir: What outlives this process; ``None`` where nothing does.
        leave_after: Seconds between an ID's Unhealthy and its leaving the list.
        metrics: What is counted for Prometheus.
    """

    directory: PluginDirectory
    inventory: Inventory
    ownership: SerialOwnership
    quota: Quota
    holders: Holders
    served_names: ServedNames | None
    owners: Owners
    cdi_files: CdiFiles
    counts: DeviceCounts
    state_dir: Path | None
    leave_after: float
    metrics: Metrics


class CodeResource(Protocol):
    """A resource whose devices and answers come from code.

    All methods belong to the event loop and do not block it.
    """

    @property
    def resource(self) -> Resource:
        """The declaration."""
        ...

    def scanner(self, files: HostFiles, node_name: str, hold_s: float) -> Scanner:
        """Compile the resource."""
        ...

    def started(self, look_again: Callable[[], None]) -> None:
        """Its runner has started; ``look_again`` has it scan."""
        ...

    def registered(self) -> None:
        """It is registered, for the first time or again."""
        ...

    async def pre_start(self, devices: Iterable[HostDevice], within: float) -> None:
        """Prepare devices for a container in so many seconds; raise `PreStartError`."""
        ...

    async def ended(self) -> None:
        """It is no longer served."""
        ...

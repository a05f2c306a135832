"""What all resources of a process share."""

from collections.abc import Callable, Iterable
from typing import Protocol

from devhost.discovery.scan import Scanner
from devhost.host.backend import Backend, Publication
from devhost.host.cdi_files import CdiFiles
from devhost.host.holders import Holders
from devhost.host.metrics import Metrics
from devhost.host.owners import Owners
from devhost.host.reconciler import Reconciler
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource
from devhost.model.device import HostDevice
from devhost.model.immutable import immutable


@immutable
class Shared:
    """What all resources of a process share."""

    backend: Backend
    publish: Callable[..., Publication]  # `devhost.kubelet.backend.PublishedResource`
    reconciler: Reconciler
    holders: Holders
    owners: Owners
    cdi_files: CdiFiles
    metrics: Metrics


class CodeResource(Protocol):
    """A resource whose devices and answers come from code.

    All methods belong to the event loop and do not block it.
    """

    @property
    def resource(self) -> Resource:
        """The declaration."""
        ...

    def scanner(self, files: HostFiles, node_name: str, settle_s: float) -> Scanner:
        """Compile the resource."""
        ...

    def started(self, look_again: Callable[[], None]) -> None:
        """It is served from now on; ``look_again`` has it scanned."""
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

"""The protocol of a resource whose devices and answers come from code."""

from collections.abc import Callable, Iterable
from typing import Protocol

from devhost.devices.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.model.config import Resource
from devhost.model.device import HostDevice


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

    def started(self, request_scan: Callable[[], None]) -> None:
        """Begin: it is served from now on; ``request_scan`` has it scanned."""
        ...

    def registered(self) -> None:
        """Take up a registration, the first or another."""
        ...

    async def pre_start(self, devices: Iterable[HostDevice], within: float) -> None:
        """Prepare devices for a container in so many seconds; raise `PreStartError`."""
        ...

    async def ended(self) -> None:
        """End: it is no longer served."""
        ...

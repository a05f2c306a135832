"""The calls of kubelet for one resource, as every backend passes them to the node."""

from collections.abc import Sequence
from typing import Final, Protocol

from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation

DEVICE_PLUGIN: Final = "devicePlugin"  # the name of a backend
ALLOCATE_RESULTS: Final = ("ok", "refused", "timeout", "error", "cancelled")


class PluginHandler(Protocol):
    """Answers the calls of kubelet for one resource."""

    @property
    def name(self) -> str:
        """The resource's name."""
        ...

    @property
    def pre_start_required(self) -> bool:
        """Whether kubelet has to call PreStartContainer before each container start."""
        ...

    async def allocate(self, ids: Sequence[OfferedId], *, pre_start: bool) -> Allocation:
        """Return what a container receives, or raise `AllocationError`.

        `pre_start` says whether kubelet will call PreStartContainer for the devices.
        """
        ...

    def observe_allocate(self, result: str, seconds: float) -> None:
        """Record the end of an Allocate: its result, of `ALLOCATE_RESULTS`, and duration."""
        ...

    async def prefer(
        self, available: Sequence[OfferedId], must_include: Sequence[OfferedId], size: int
    ) -> Sequence[OfferedId]:
        """Return which IDs a container should get; none to leave the choice to kubelet."""
        ...

    async def prepare(self, ids: Sequence[OfferedId]) -> None:
        """Prepare devices for a container that starts, or raise `PreStartError`."""
        ...

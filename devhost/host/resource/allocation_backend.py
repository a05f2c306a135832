"""Answers what the kubelet asks of one resource; what reads the host runs in threads."""

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from typing import Final

from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError
from devhost.host.prestart.preparation import WITHIN_S, Preparation
from devhost.host.resource.attribution import Attribution
from devhost.host.resource.publisher import Publisher
from devhost.host.shared import CodeResource, Shared
from devhost.kubelet.device_list import DeviceList
from devhost.model.allocation import Allocation
from devhost.model.device import Snapshot
from devhost.model.names import distinct
from devhost.threads import BlockingCalls, NoAnswerError, in_thread

_CHANGE_WAIT_S: Final = 1.0
_FEW: Final = 200  # to choose among so few takes less than a thread does; no file is read


class ResourceBackend:
    """Serves one resource to its servicer; see `devhost.kubelet.servicer.AllocationBackend`."""

    def __init__(
        self,
        publisher: Publisher,
        up_to_date: asyncio.Event,
        preparation: Preparation,
        shared: Shared,
        code: CodeResource | None = None,
    ) -> None:
        self._publisher, self._up_to_date = publisher, up_to_date
        self._preparation, self._shared, self._code = preparation, shared, code
        self._attribution = Attribution(self.name, shared.holders)
        self._calls = BlockingCalls(f"allocate {self.name}")

    @property
    def name(self) -> str:
        """The resource's name."""
        return self._publisher.scanner.resource.name

    @property
    def device_list(self) -> DeviceList:
        """The list that streams send."""
        return self._publisher.device_list

    @property
    def pre_start_required(self) -> bool:
        """Whether the resource prepares its devices before a container starts."""
        return self._publisher.scanner.pre_start_required

    async def _current(self) -> tuple[Scanner, Snapshot]:
        """Return what is advertised; after a change of the configuration, wait a while for it."""
        if not self._up_to_date.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHANGE_WAIT_S):
                    await self._up_to_date.wait()
        return self._publisher.scanner, self._publisher.snapshot

    async def allocate(self, advertised_ids: Sequence[str], *, pre_start: bool) -> Allocation:
        """Return what a container receives for devices of the current snapshot.

        Args:
            advertised_ids: The devices.
            pre_start: Whether the kubelet will call PreStartContainer: it asks for that once per
                registration, which may be older than the declaration.

        Raises:
            AllocationError: A device is gone or refused; the text names it.
        """
        scanner, snapshot = await self._current()
        name, ids = scanner.resource.name, tuple(advertised_ids)
        if pre_start:
            await self._preparation.allocated(scanner.resource, ids)
        try:
            with self._shared.holders.allocating():
                answer = await self._calls.run(lambda: scanner.allocate(snapshot, ids))
                devices = [snapshot.devices[one] for one in distinct(ids)]
                await self._shared.owners.allocated(scanner.resource, devices)
        except NoAnswerError as error:
            raise AllocationError(f"{name}: the host does not answer: {error}") from None
        return answer

    def allocated(self, ids: Sequence[str], result: str, seconds: float) -> None:
        """Take note that an Allocate has ended, how, and after how long."""
        # After the answer, which the kubelet waits for in its main loop.
        asyncio.get_running_loop().call_soon(self._note_allocated, ids, result, seconds)

    def _note_allocated(self, ids: Sequence[str], result: str, seconds: float) -> None:
        self._shared.metrics.allocated(self.name, result, seconds)
        if result == "ok":
            self._attribution.allocated(ids)

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return which IDs a container should get; none to leave it to the kubelet."""
        scanner, snapshot = await self._current()
        choose = functools.partial(scanner.preferred, snapshot, available, must_include, size)
        if self._code is None and len(snapshot.devices) + len(available) <= _FEW:
            return choose()
        return await in_thread(f"prefer {self.name}", choose)

    async def pre_start(self, advertised_ids: Sequence[str]) -> str | None:
        """Prepare devices for a container that starts; return the pod where it is known.

        Raises:
            PreStartError: The container must not start; the text says why.
        """
        clock = asyncio.get_running_loop().time
        deadline = clock() + WITHIN_S
        scanner, snapshot = await self._current()
        pod = await self._preparation.prepare(scanner.resource, snapshot.devices, advertised_ids)
        if self._code is not None:
            chosen = [snapshot.devices[one] for one in distinct(advertised_ids)]
            await self._code.pre_start(chosen, deadline - clock())
        return pod

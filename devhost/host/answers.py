"""What a backend asks for one resource: to allocate, to prefer and to prepare devices."""

import asyncio
import contextlib
import functools
from collections.abc import Sequence
from typing import Final

from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError
from devhost.host.preparation import WITHIN_S, Preparation
from devhost.host.shared import CodeResource, Shared
from devhost.model.allocation import Allocation
from devhost.model.device import Snapshot
from devhost.model.names import distinct
from devhost.watch.threads import BlockingCalls, NoAnswerError, in_thread

_CHANGE_WAIT_S: Final = 1.0
_FEW: Final = 200  # to choose among so few takes less than a thread does; no file is read


class Answers:
    """Answers for one resource by what is advertised; what reads the host runs in threads.

    `up_to_date` is set unless devices are still being found by a new declaration; `advertised` is
    what is advertised, with the declaration by which it was found.
    """

    def __init__(
        self,
        scanner: Scanner,
        up_to_date: asyncio.Event,
        preparation: Preparation,
        shared: Shared,
        code: CodeResource | None,
    ) -> None:
        self.name, self._up_to_date = scanner.resource.name, up_to_date
        self.advertised = scanner, Snapshot()
        self._preparation, self._shared, self._code = preparation, shared, code
        self._calls = BlockingCalls(f"allocate {self.name}")

    @property
    def pre_start_required(self) -> bool:
        """Whether the resource prepares its devices before a container starts."""
        return self.advertised[0].pre_start_required

    async def _current(self) -> tuple[Scanner, Snapshot]:
        """Return what is advertised; after a change of the configuration, wait a while for it."""
        if not self._up_to_date.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_CHANGE_WAIT_S):
                    await self._up_to_date.wait()
        return self.advertised

    async def allocate(self, advertised_ids: Sequence[str], *, pre_start: bool) -> Allocation:
        """Return what a container receives for devices of the current snapshot.

        `pre_start` says whether the kubelet will call PreStartContainer: it asks for that once per
        registration, which may be older than the declaration.

        Raises:
            AllocationError: A device is gone or refused; the text names it.
        """
        scanner, snapshot = await self._current()
        ids = tuple(advertised_ids)
        try:
            with self._shared.holders.allocating():
                answer = await self._calls.run(lambda: scanner.allocate(snapshot, ids))
                devices = [snapshot.devices[one] for one in distinct(ids)]
                await self._shared.owners.allocated(scanner.resource, devices)
                if pre_start:
                    await self._preparation.allocated(scanner.resource, ids)
        except NoAnswerError as error:
            raise AllocationError(f"{self.name}: the host does not answer: {error}") from None
        return answer

    def allocated(self, result: str, seconds: float) -> None:
        """Take note that an Allocate has ended, how, and after how long."""
        # After the answer, which the kubelet waits for in its main loop.
        count = functools.partial(self._shared.metrics.allocated, self.name, result, seconds)
        asyncio.get_running_loop().call_soon(count)

    async def preferred(
        self, available: Sequence[str], must_include: Sequence[str], size: int
    ) -> Sequence[str]:
        """Return which IDs a container should get; none to leave it to the kubelet."""
        scanner, snapshot = await self._current()
        choose = functools.partial(scanner.preferred, snapshot, available, must_include, size)
        if self._code is None and len(snapshot.devices) + len(available) <= _FEW:
            return choose()
        return await in_thread(f"prefer {self.name}", choose)

    async def prepare(self, advertised_ids: Sequence[str]) -> None:
        """Prepare devices for a container that starts; a `PreStartError` says why it must not."""
        clock = asyncio.get_running_loop().time
        deadline = clock() + WITHIN_S
        scanner, snapshot = await self._current()
        await self._preparation.prepare(scanner.resource, snapshot.devices, advertised_ids)
        if self._code is not None:
            chosen = [snapshot.devices[one] for one in distinct(advertised_ids)]
            await self._code.pre_start(chosen, deadline - clock())

"""Puts together what containers receive, beside the event loop; a sick filesystem owes few."""

import asyncio
from collections.abc import Sequence
from typing import Final

from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError
from devhost.model.answer import Allocation
from devhost.model.device import Snapshot
from devhost.threads import in_thread

_STUCK_MAX: Final = 8  # answers that a filesystem owes; each is a thread


class Handout:
    """The answers of one resource, with those that nobody waits for any more."""

    def __init__(self) -> None:
        self._stuck = 0

    async def allocate(
        self, scanner: Scanner, snapshot: Snapshot, advertised_ids: Sequence[str]
    ) -> Allocation:
        """Return what a container receives for devices of a snapshot.

        Raises:
            AllocationError: A device is gone or refused; the text names it.
        """
        name, ids = scanner.resource.name, tuple(advertised_ids)
        if self._stuck >= _STUCK_MAX:
            raise AllocationError(f"{name}: the host did not answer the last {_STUCK_MAX}")
        answer = in_thread(f"allocate {name}", lambda: scanner.hand_out(snapshot, ids))
        try:
            return await asyncio.shield(answer)
        except asyncio.CancelledError:
            self._stuck += 1
            answer.add_done_callback(self._unstuck)
            raise

    def _unstuck(self, answer: "asyncio.Future[Allocation]") -> None:
        self._stuck -= 1
        if not answer.cancelled():
            answer.exception()  # nobody waits for it any more

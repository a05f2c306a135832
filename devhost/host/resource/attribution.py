"""Logs which pod was given devices: Allocate does not say, pod-resources does a little later."""

import asyncio
from collections.abc import Sequence
from typing import Final

from devhost.host.holders import Holders
from devhost.kubelet import call_log

_WITHIN_S: Final = 60.0  # a pod that failed after its Allocate is never listed


class Attribution:
    """Waits for the pods of one resource's allocations."""

    def __init__(self, resource: str, holders: Holders) -> None:
        self._resource, self._holders = resource, holders
        self._waiting: dict[tuple[str, ...], float] = {}

    def allocated(self, ids: Sequence[str]) -> None:
        """Log who holds these IDs as soon as it is known."""
        if not self._holders.asked:
            return
        fresh = frozenset(ids)
        self._waiting = {
            earlier: since for earlier, since in self._waiting.items() if fresh.isdisjoint(earlier)
        }
        self._waiting[tuple(ids)] = asyncio.get_running_loop().time()
        # A pod of the same name may have had them before: then the list stays the same.
        self._holders.subscribe(self._log_known, always=True)

    def _log_known(self) -> None:
        held, now = self._holders.of(self._resource), asyncio.get_running_loop().time()
        for ids, since in tuple(self._waiting.items()):
            fresh = self._holders.listed_at >= since  # else it may show who had them before
            pods = {pod for one in ids for pod in held.get(one, ())} if fresh else set()
            if pods:
                call_log.log_holder(self._resource, ids, ", ".join(sorted(pods)))
            if pods or now - since > _WITHIN_S:
                del self._waiting[ids]
        if not self._waiting:
            self._holders.unsubscribe(self._log_known)

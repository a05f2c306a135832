"""The rescan: finds changes without an event, for every resource within `RESCAN_S`.

The directories of each root are compared with what they were when it was read. Resources of
one that differs are scanned, and those for which events do not report everything.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from devhost.discovery.baseline import Baseline, Fingerprint, fingerprint
from devhost.host.inventory import InventoryRoot
from devhost.hostfs import mounts
from devhost.threads import in_own_thread, in_thread

RESCAN_S: Final = 30.0
_PATIENCE_S: Final = 2.0
_MOUNTS: Final = "/proc/self/mountinfo"
_LOG: Final = logging.getLogger(__name__)


class Rescanned(Protocol):
    """A resource that can be scanned."""

    @property
    def roots(self) -> Sequence[InventoryRoot]:
        """What it reads."""
        ...

    @property
    def events_suffice(self) -> bool:
        """Whether events report all that may change what was found."""
        ...

    def rescan(self) -> None:
        """Scan everything."""
        ...


class Rescan:
    """Goes round all resources."""

    def __init__(self, resources: Callable[[], Iterable[Rescanned]]) -> None:
        self._resources = resources
        self._mounts: Mapping[str, frozenset[str]] = {}

    async def begin(self) -> None:
        """Take note of what is mounted, before the first scan."""
        self._mounts = await in_thread("mounts", lambda: mounts.by_directory(_MOUNTS))

    async def run(self) -> None:
        """Go round until cancelled."""
        while True:
            await asyncio.sleep(RESCAN_S)
            try:
                await self.round()
            except Exception:  # noqa: BLE001 (logged, and tried again)
                _LOG.exception("rescan failed")

    async def round(self) -> None:
        """Go round once. A filesystem that does not answer is left to its root's reading."""
        before = self._mounts
        await self.begin()
        either = before.keys() | self._mounts.keys()
        mounted = {path for path in either if before.get(path) != self._mounts.get(path)}
        resources = list(self._resources())
        baselines = {root: root.baseline for one in resources for root in one.roots}
        differing: set[InventoryRoot] = set()
        pending: list[tuple[InventoryRoot, Baseline]] = []
        for root, baseline in baselines.items():
            if baseline is None or not mounted.isdisjoint(baseline):
                differing.add(root)
            else:
                pending.append((root, baseline))
        while pending:
            differ = await _compared([baseline for _, baseline in pending])
            differing |= {root for (root, _), it in zip(pending, differ, strict=False) if it}
            pending = pending[len(differ) :]
        for one in resources:  # a reading that ended meanwhile may have begun before the change
            if not one.events_suffice or not differing.isdisjoint(one.roots):
                one.rescan()


async def _compared(baselines: Sequence[Baseline]) -> Sequence[bool]:
    """Return which directories differ, as far as the first that does not answer: that counts."""
    found: list[bool] = []
    work = in_own_thread("rescan", lambda: _compare(baselines, found))
    done, _ = await asyncio.wait({work}, timeout=_PATIENCE_S)
    if done:
        work.result()
        return found
    return [*found, True][: len(baselines)]


def _compare(baselines: Iterable[Baseline], found: list[bool]) -> None:
    known: dict[str, Fingerprint] = {}  # several roots may have the same directories
    for baseline in baselines:
        for path in baseline.keys() - known.keys():
            known[path] = fingerprint(path)
        found.append(any(known[path] != before for path, before in baseline.items()))

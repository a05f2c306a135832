"""The rescan: finds what no event tells, for every resource within `RESCAN_S`.

The directories of each resource are compared with what they were when they were scanned. Where
one differs, or where that would not show all that matters, the resource is scanned.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from devhost.discovery.baseline import Baseline, Fingerprint, fingerprint
from devhost.hostfs import mounts
from devhost.threads import in_own_thread, in_thread

RESCAN_S: Final = 30.0
_PATIENCE_S: Final = 2.0
_MOUNTS: Final = "/proc/self/mountinfo"
_LOG: Final = logging.getLogger(__name__)


class Rescanned(Protocol):
    """A resource that can be scanned."""

    @property
    def baseline(self) -> Baseline | None:
        """What its directories were like at the last scan; ``None``: scan it in any case."""
        ...

    def rescan(self) -> None:
        """Scan everything, and see that the right directories are watched."""
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
        """Go round for ever."""
        while True:
            await asyncio.sleep(RESCAN_S)
            try:
                await self.round()
            except Exception:  # noqa: BLE001 (logged, and tried again)
                _LOG.exception("rescan failed")

    async def round(self) -> None:
        """Go round once. A filesystem that does not answer is left to its resource's scan."""
        before = self._mounts
        await self.begin()
        either = before.keys() | self._mounts.keys()
        mounted = {path for path in either if before.get(path) != self._mounts.get(path)}
        pending: list[tuple[Rescanned, Baseline]] = []
        for resource in list(self._resources()):
            baseline = resource.baseline
            if baseline is None or not mounted.isdisjoint(baseline):
                resource.rescan()
            else:
                pending.append((resource, baseline))
        known: dict[str, Fingerprint] = {}  # several resources may have the same directories
        while pending:
            differ = await _compared([baseline for _, baseline in pending], known)
            for (resource, _), differs in zip(pending, differ, strict=False):
                if differs:  # a scan that ended meanwhile may have begun before the change
                    resource.rescan()
            pending = pending[len(differ) :]


async def _compared(baselines: Sequence[Baseline], known: dict[str, Fingerprint]) -> Sequence[bool]:
    """Return which directories differ, as far as the first that does not answer: that counts."""
    found: list[bool] = []
    work = in_own_thread("rescan", lambda: _compare(baselines, known, found))
    done, _ = await asyncio.wait({work}, timeout=_PATIENCE_S)
    if done:
        work.result()
        return found
    return [*found, True][: len(baselines)]


def _compare(
    baselines: Iterable[Baseline], known: dict[str, Fingerprint], found: list[bool]
) -> None:
    for baseline in baselines:
        for path in baseline.keys() - known.keys():
            known[path] = fingerprint(path)
        found.append(any(known[path] != before for path, before in baseline.items()))

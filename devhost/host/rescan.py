"""The rescan: finds changes without an event, for every resource within `RESCAN_S`.

The directories of each root are compared with what they were when a resource had it read: it may
have been read for others since. Resources of one that differs are scanned, and those for which
events do not report everything.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, Protocol

from devhost.discovery.baseline import Baseline, Fingerprint, fingerprint
from devhost.discovery.roots import Root
from devhost.hostfs import mounts
from devhost.threads import in_own_thread, in_thread

RESCAN_S: Final = 30.0
_PATIENCE_S: Final = 2.0
_MOUNTS: Final = "/proc/self/mountinfo"
_LOG: Final = logging.getLogger(__name__)


class Rescanned(Protocol):
    """A resource that can be scanned."""

    @property
    def baselines(self) -> Mapping[Root, Baseline | None]:
        """What its directories were like before the last scan read them."""
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
        # A scan that ends meanwhile may have read before the change.
        resources = [(one, one.baselines) for one in self._resources()]
        known: dict[Root, dict[int, Baseline]] = {}  # most resources of a root have the same one
        for _, baselines in resources:
            for root, baseline in baselines.items():
                if baseline is not None:
                    known.setdefault(root, {})[id(baseline)] = baseline
        pending = [list(some.values()) for some in known.values()]
        differing: set[int] = set()
        while pending:
            found = await _compared(pending)
            differing |= {id(baseline) for some in found for baseline in some}
            pending = pending[len(found) :]
        for one, baselines in resources:
            if not one.events_suffice or any(
                baseline is None or id(baseline) in differing or not mounted.isdisjoint(baseline)
                for baseline in baselines.values()
            ):
                one.rescan()


async def _compared(pending: Sequence[Sequence[Baseline]]) -> Sequence[Sequence[Baseline]]:
    """Return which differ of each root, as far as the first that does not answer: all of that."""
    found: list[Sequence[Baseline]] = []
    work = in_own_thread("rescan", lambda: _compare(pending, found))
    done, _ = await asyncio.wait({work}, timeout=_PATIENCE_S)
    if done:
        work.result()
        return found
    answered = tuple(found)
    return [*answered, *pending[len(answered) :][:1]]


def _compare(pending: Iterable[Sequence[Baseline]], found: list[Sequence[Baseline]]) -> None:
    known: dict[str, Fingerprint] = {}  # several roots may have the same directories
    for baselines in pending:
        for path in frozenset[str]().union(*baselines) - known.keys():
            known[path] = fingerprint(path)
        found.append([one for one in baselines if _differs(one, known)])


def _differs(baseline: Baseline, known: Mapping[str, Fingerprint]) -> bool:
    return any(known[path] != before for path, before in baseline.items())

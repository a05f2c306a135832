"""Looks at the host for one resource: beside the event loop, one look at a time, bounded."""

import asyncio
import logging
from collections.abc import Callable, Collection
from dataclasses import replace
from typing import Any, Final

from devhost.discovery.baseline import baseline
from devhost.discovery.partial import Part
from devhost.discovery.scan import Scanner
from devhost.discovery.survey import Survey
from devhost.model.device import Snapshot
from devhost.model.sources import Source
from devhost.threads import in_thread

SCAN_TIMEOUT_S: Final = 10.0
_PATIENCE_MAX_S: Final = 60.0
_PART_S: Final = 1.0
_UNANSWERED: Final = f"the host did not answer in {SCAN_TIMEOUT_S:.0f} s"
_LOG: Final = logging.getLogger(__name__)


class Surveyor:
    """Keeps the look that is under way, so that a sick filesystem gets no second one.

    Attributes:
        partly: A look at a few names has not come back; a whole look says what is wrong.
    """

    def __init__(self, look_again: Callable[[], None]) -> None:
        self._look_again = look_again
        self._late: asyncio.Future[Any] | None = None
        self._patience = SCAN_TIMEOUT_S
        self._sources: tuple[Source, ...] = ()
        self._looking: asyncio.Future[Survey] | None = None
        self._scanner: Scanner | None = None
        self.partly = False
        self._judging: asyncio.Future[Snapshot] | None = None

    async def survey(self, scanner: Scanner, directories: Collection[str] | None = None) -> Survey:
        """Return what is there; whatever goes wrong is the failure of all sources.

        Args:
            scanner: Looks at the host.
            directories: Those of which the survey's baseline is to be.
        """
        resource = scanner.resource
        looking = self._looking if self._sources == resource.sources else None
        begun_before = looking is not None
        if looking is None:
            self._sources = resource.sources

            def look() -> Survey:
                before = None if directories is None else baseline(directories)
                found = scanner.survey()
                keys = frozenset(node.key for node in found.nodes if node.state)
                return replace(found, baseline=before, keys=keys)

            looking = self._looking = in_thread(f"look {resource.name}", look)
        try:
            async with asyncio.timeout(self._patience):
                found = await asyncio.shield(looking)
        except TimeoutError:
            self._expect(looking)
            reason = _UNANSWERED
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("looking failed", extra={"fields": {"resource": resource.name}})
            self._looking = None
            reason = f"looking failed: {error!r}"
        else:
            self._looking = None
            if begun_before:  # it tells what was there some time ago
                self._look_again()
            return found
        return _failed(scanner, reason)

    async def judged(
        self, scanner: Scanner, found: Survey, judge: Callable[[Survey], Snapshot]
    ) -> Snapshot:
        """Return the snapshot of what was found; a path of an answer may not answer either.

        Where nothing was found there is no path to look at, so that judgement always comes.
        """
        name = f"scan {scanner.resource.name}"
        judging = self._judging if self._scanner is scanner else None
        begun_before = judging is not None
        if judging is None:
            self._scanner = scanner
            judging = self._judging = in_thread(name, lambda: judge(found))
        done, _ = await asyncio.wait({judging}, timeout=self._patience)
        if not done:
            self._expect(judging)
            nothing = _failed(scanner, _UNANSWERED)
            return await in_thread(name, lambda: judge(nothing))
        self._judging = None
        if begun_before:  # it judged what was there some time ago
            self._look_again()
        return judging.result()

    async def part(self, work: Callable[[], Part | None]) -> Part | None:
        """Return what a look at a few names found; ``None`` where a whole one is needed."""
        self.partly = True

        def looked() -> Part | None:
            try:
                return work()
            finally:
                self.partly = False

        looking = in_thread("look", looked)
        limit = asyncio.get_running_loop().call_later(_PART_S, _give_up, looking)
        try:
            return await looking
        finally:
            limit.cancel()

    def _expect(self, late: "asyncio.Future[Any]") -> None:
        """Wait for the same answer at the next look, which is to be when it comes.

        What is slow and not dead is given more time from then on, or it would flap.
        """
        if late is self._late:
            return
        self._late = late
        clock = asyncio.get_running_loop().time
        began = clock() - self._patience

        def answered(_: "asyncio.Future[Any]") -> None:
            taken = clock() - began
            self._patience = min(max(self._patience, 2 * taken), _PATIENCE_MAX_S)
            self._look_again()

        late.add_done_callback(answered)


def _give_up(looking: "asyncio.Future[Part | None]") -> None:
    if not looking.done():
        looking.set_result(None)


def _failed(scanner: Scanner, reason: str) -> Survey:
    return Survey(failed=dict.fromkeys(range(len(scanner.resource.sources)), reason))

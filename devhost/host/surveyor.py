"""Looks at the host for one resource: beside the event loop, one look at a time, bounded."""

import asyncio
import logging
from typing import Final

from devhost.discovery.scan import Scanner
from devhost.discovery.survey import Survey, survey
from devhost.model.sources import Source
from devhost.threads import in_thread

SCAN_TIMEOUT_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)


class Surveyor:
    """Keeps the look that is under way, so that a sick filesystem gets no second one."""

    def __init__(self) -> None:
        self._sources: tuple[Source, ...] = ()
        self._looking: asyncio.Future[Survey] | None = None

    async def survey(self, scanner: Scanner) -> Survey:
        """Return what is there; whatever goes wrong is the failure of all sources."""
        resource, files = scanner.resource, scanner.files
        if self._looking is None or self._sources != resource.sources:
            self._sources = resource.sources
            self._looking = in_thread(f"look {resource.name}", lambda: survey(resource, files))
        looking = self._looking
        try:
            async with asyncio.timeout(SCAN_TIMEOUT_S):
                found = await asyncio.shield(looking)
        except TimeoutError:  # it is waited for again
            reason = f"the host did not answer in {SCAN_TIMEOUT_S:.0f} s"
        except Exception as error:  # noqa: BLE001 (logged, and tried again)
            _LOG.exception("looking failed", extra={"fields": {"resource": resource.name}})
            self._looking = None
            reason = f"looking failed: {error!r}"
        else:
            self._looking = None
            return found
        return Survey(failed=dict.fromkeys(range(len(resource.sources)), reason))

"""Looks at the host for one resource, in its turn among those that may offer the same nodes."""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from devhost import memory
from devhost.discovery.baseline import Baseline
from devhost.discovery.partial import Part, PartialLook
from devhost.discovery.roots import told_by_events
from devhost.discovery.scan import Scanner
from devhost.discovery.survey import Survey
from devhost.host.ownership.claim import Claim
from devhost.host.ownership.claims import Claims
from devhost.host.resource.surveyor import Surveyor
from devhost.model.device import Snapshot
from devhost.observe.recorder import Recorder

_LOG: Final = logging.getLogger(__name__)


class Looker:
    """Looks at everything, or at a few names where that is enough.

    Attributes:
        skipped: The nodes (`Node.key`) that the last whole look has left to other resources.
        baseline: What the directories were like at the last whole look; ``None`` where that
            does not show all that may change what was found.
    """

    def __init__(
        self, claims: Claims, claim: Claim, recorder: Recorder, look_again: Callable[[], None]
    ) -> None:
        self._claims, self._claim, self._recorder = claims, claim, recorder
        self._surveyor, self._partial = Surveyor(look_again), PartialLook()
        self._keys: frozenset[str] = frozenset()  # that the look under way has found
        self._survey = Survey()
        self.skipped: set[str] = set()
        self.baseline: Baseline | None = None
        self._told_all = False

    async def all(
        self, scanner: Scanner, previous: Snapshot, directories: Collection[str] | None
    ) -> Snapshot:
        """Return what there is.

        Args:
            scanner: Looks at the host.
            previous: What was known before.
            directories: Those in which its sources look, where that is known.
        """
        clock = asyncio.get_running_loop().time
        self._claims.order.busy(self._claim)
        self._claims.look(self._claim)
        began, found = clock(), await self._surveyor.survey(scanner, directories)
        self._recorder.scanned(self._claim.name, clock() - began, failed=bool(found.failed))
        memory.gc_freeze_many(len(found.nodes))
        self._survey, self.skipped = found, set()
        self._keys = found.keys
        self._claims.order.found(self._claim, self._keys)
        await self._claims.order.turn(self._claim)
        self._claims.judge(self._claim)

        def judge(one: Survey) -> Snapshot:
            snapshot = scanner.snapshot(one, previous, self._claimed, clock())
            self._told_all = told_by_events(scanner, one, snapshot)
            return snapshot

        return await self._surveyor.judged(scanner, found, judge)

    async def part(
        self, scanner: Scanner, known: Snapshot, changed: Collection[str]
    ) -> Part | None:
        """Look at a few paths; ``None`` where everything has to be looked at."""
        if (
            not self._partial.may(scanner, known)
            or not self._claims.order.first(self._claim)
            or self._surveyor.partly
        ):
            return None
        clock = asyncio.get_running_loop().time
        began = clock()
        self._claims.look(self._claim)
        try:
            part = await self._surveyor.part(
                lambda: self._partial.look(changed, self._claimed, began)
            )
        except Exception:  # noqa: BLE001 (logged; a whole look says what is wrong, if anything is)
            fields = {"resource": self._claim.name}
            _LOG.exception("looking at a part failed", extra={"fields": fields})
            self._partial = PartialLook()
            return None
        if part is not None:
            self._recorder.scanned(self._claim.name, clock() - began, failed=False)
            nodes = (node for device in part.devices.values() for node in device.nodes)
            self._keys = frozenset(node.key for node in nodes)
        return part

    def published(self, scanner: Scanner, found: Snapshot) -> None:
        """Take note of what a whole look has led to, which a look at a part goes on from."""
        self._partial.learn(scanner, self._survey, found)
        self.baseline = self._survey.baseline if self._told_all else None
        self._survey = Survey()
        memory.gc_freeze_many(len(found.devices))

    def outdated(self) -> bool:
        """Whether other resources took or left a node meanwhile; that ends the look."""
        outdated = self._claims.outdated(self._claim, self._keys)
        self._claims.looked(self._claim)
        self._keys = frozenset()
        return outdated

    def _claimed(self, key: str) -> str | None:
        holder = self._claims.holder(self._claim, key)
        if holder is not None:
            self.skipped.add(key)
        return holder

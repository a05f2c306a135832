"""Whose turn it is: of resources that find the same node, the first in the file settles first."""

import asyncio
import bisect
import contextlib
import itertools
from typing import Final

from devhost.host.ownership.claim import Claim
from devhost.kubelet.turns import Turns

_TURN_S: Final = 1.0
_AT_A_TIME: Final = 8
_LONG_S: Final = 0.1  # whoever waits for the host so long lets another one begin


class LookOrder:
    """The resources of which a scan is due or under way.

    One waits for those before it as long as it is not known what they find, and then only for
    those that have found the same.

    Attributes:
        turns: Few are scanned at a time: a call of the kubelet waits on the event loop behind the
            steps of all that are.
    """

    def __init__(self) -> None:
        self.turns = Turns(_AT_A_TIME, _LONG_S)
        self._busy: list[Claim] = []  # by place
        self._unknown: list[Claim] = []  # those of them that have not found anything yet; by place

    def sort(self) -> None:
        """Take note that places have changed."""
        self._busy.sort(key=_place)
        self._unknown.sort(key=_place)

    def enter(self, claim: Claim) -> None:
        """Enter a resource; it is busy until it is said to be `idle`."""
        claim.busy = True
        bisect.insort(self._busy, claim, key=_place)
        bisect.insort(self._unknown, claim, key=_place)

    def busy(self, claim: Claim) -> None:
        """Note that a scan of a resource is due: what the one under way has found is outdated."""
        if claim.removed:
            return
        if not claim.busy:
            self.enter(claim)
        elif claim.found is not None:
            self._take_out(claim)
            bisect.insort(self._unknown, claim, key=_place)

    def found(self, claim: Claim, keys: frozenset[str]) -> None:
        """Note which nodes the scan under way has found (`Node.key`), without tokens."""
        if not claim.busy:
            return
        self._take_out(claim)
        claim.found = keys
        _wake(claim)

    def idle(self, claim: Claim) -> None:
        """Note that no scan is due or under way."""
        if not claim.busy:
            return
        claim.busy = False
        self._busy.remove(claim)
        self._take_out(claim)
        _wake(claim)

    def _take_out(self, claim: Claim) -> None:
        """Drop what is known of the scan under way, or that nothing is."""
        if claim.found is None:
            self._unknown.remove(claim)
        else:
            claim.found = None

    def first(self, claim: Claim) -> bool:
        """Whether no resource before this one is busy."""
        return not self._busy or self._busy[0].place >= claim.place

    async def turn(self, claim: Claim) -> None:
        """Wait until the resources before have settled what they offer of what was found here.

        Not for long: one that hangs must not hold up the others.
        """
        if self._before(claim) is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TURN_S):
                while (other := self._before(claim)) is not None:
                    settled = asyncio.Event()
                    other.waiting.append(settled)
                    await settled.wait()

    def _before(self, claim: Claim) -> Claim | None:
        """Return one that has to settle first; the last such, which waits for others itself."""
        place = bisect.bisect_left(self._unknown, claim.place, key=_place)
        if place:
            return self._unknown[place - 1]
        keys = claim.found or frozenset()
        before = itertools.takewhile(lambda one: one.place < claim.place, self._busy)
        return next((one for one in before if one.found and not keys.isdisjoint(one.found)), None)


def _wake(claim: Claim) -> None:
    waiting, claim.waiting = claim.waiting, []
    for event in waiting:
        event.set()


def _place(claim: Claim) -> int:
    return claim.place

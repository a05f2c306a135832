"""Who offers which node: the first resource in the file keeps it, the others skip it.

A node that goes from one resource to another is not offered by the new one before the old
ID has left the kubelet's list: a pod may just have been given it.
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

_TURN_S = 1.0

Offers = Mapping[str, frozenset[str]]
"""By resource, the nodes that it offers (`Node.key`)."""


@dataclass(eq=False, slots=True)
class Claim:
    """One resource's place in the file, and the nodes that it offers.

    Attributes:
        name: The resource's name.
        look_again: Has the resource scan again.
        shares: Its nodes may be offered by others too (``overlap: allow``).
        offered: The nodes that it offers (`Node.key`).
        leaving: Those that it offers no more, but the kubelet has still in its list.
        idle: Set while no scan is under way or due.
        fresh: It has not looked yet.
    """

    name: str
    look_again: Callable[[], None]
    shares: bool = False
    offered: frozenset[str] = frozenset()
    leaving: frozenset[str] = frozenset()
    idle: asyncio.Event = field(default_factory=asyncio.Event)
    fresh: bool = True

    @property
    def keys(self) -> frozenset[str]:
        """The nodes that the kubelet's list of this resource stands for."""
        return self.offered | self.leaving


class Claims:
    """The claims of all resources, in the order of the file."""

    def __init__(self) -> None:
        self._claims: list[Claim] = []

    def add(self, name: str, look_again: Callable[[], None]) -> Claim:
        """Enter a resource behind those that are there."""
        claim = Claim(name, look_again)
        self._claims.append(claim)
        return claim

    def remove(self, claim: Claim) -> None:
        """Give up a resource's claims; it is served no more."""
        self.set(claim, (), ())
        self._claims.remove(claim)

    def share(self, claim: Claim, shares: bool) -> None:
        """Note whether a resource's nodes may be offered by others too."""
        if claim.shares != shares:
            claim.shares = shares
            for one in self._claims:
                if one is not claim and one.keys & claim.keys:
                    one.look_again()  # it may have waited for this one

    def arrange(self, order: list[str]) -> None:
        """Put the resources in the order of a new file; those that it lacks go behind."""
        before = [claim for claim in self._claims if not claim.fresh]
        places = {name: place for place, name in enumerate(order)}
        self._claims.sort(key=lambda claim: places.get(claim.name, len(places)))
        if [claim for claim in self._claims if not claim.fresh] != before:
            for claim in before:
                claim.look_again()

    async def turn(self, claim: Claim) -> None:
        """Wait until the resources before have settled what they offer, but not for long."""
        busy = [one for one in self._before(claim) if not one.idle.is_set()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TURN_S):
                for one in busy:
                    await one.idle.wait()

    def offers(self, claim: Claim) -> Offers:
        """Return what the resources before this one offer at the moment."""
        return {one.name: one.offered for one in self._before(claim)}

    def outdated(self, claim: Claim, looked: Offers, judged: Offers) -> bool:
        """Whether a look has to be repeated, by what was offered when it was made and judged.

        Resources before this one offer a node no more that they offered when it was looked
        for, or a node that they did not offer when it was judged.
        """
        now, none = self.offers(claim), frozenset[str]()
        return any(was - now.get(name, none) for name, was in looked.items()) or any(
            offered - judged.get(name, none) for name, offered in now.items()
        )

    def holder(self, claim: Claim, key: str, since: Offers | None = None) -> str | None:
        """Return the resource before this one that offers a node, or did when it was looked for.

        What was found then may be there no more; that may be why it is not offered now.
        """
        if claim.shares or key.startswith("\0"):
            return None
        now = (one.name for one in self._before(claim) if key in one.offered)
        then = (name for name, offered in (since or {}).items() if key in offered)
        return next(now, None) or next(then, None)

    def listed(self, claim: Claim, key: str) -> str | None:
        """Return another resource in whose list a node's device still is."""
        if claim.shares or key.startswith("\0"):
            return None
        others = (one for one in self._claims if one is not claim and not one.shares)
        return next((one.name for one in others if key in one.keys), None)

    def set(self, claim: Claim, offered: Iterable[str], leaving: Iterable[str]) -> None:
        """Note what a resource offers now; others that are affected look again."""
        claim.fresh = False
        before, kept = claim.keys, claim.offered
        claim.offered, claim.leaving = frozenset(offered), frozenset(leaving)
        released = bool(before - claim.keys or kept - claim.offered)
        changed = (before ^ claim.keys) | (kept ^ claim.offered)
        place = self._claims.index(claim)
        for other, one in enumerate(self._claims):
            # One behind may have skipped what is free now; one before only waits for its own.
            affected = changed & one.keys or (released and other > place)
            if one is not claim and one.idle.is_set() and affected:
                one.look_again()

    def _before(self, claim: Claim) -> list[Claim]:
        return self._claims[: self._claims.index(claim)]

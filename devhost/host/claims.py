"""Who offers which node: the first resource in the file keeps it, the others skip it."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

_TURN_S = 1.0


@dataclass(eq=False, slots=True)
class Claim:
    """One resource's place in the file, and the nodes that it offers.

    Attributes:
        name: The resource's name.
        look_again: Has the resource scan again.
        keys: The nodes that it offers (`Node.key`).
        idle: Set while no scan is under way or due.
    """

    name: str
    look_again: Callable[[], None]
    keys: frozenset[str] = frozenset()
    idle: asyncio.Event = field(default_factory=asyncio.Event)


class Claims:
    """The claims of all resources, in the order of the file."""

    def __init__(self) -> None:
        self._claims: list[Claim] = []

    def add(self, name: str, look_again: Callable[[], None]) -> Claim:
        """Enter a resource behind those that are there."""
        claim = Claim(name, look_again)
        self._claims.append(claim)
        return claim

    async def turn(self, claim: Claim) -> None:
        """Wait until the resources before have settled what they offer, but not for long."""
        busy = [one for one in self._before(claim) if not one.idle.is_set()]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_TURN_S):
                for one in busy:
                    await one.idle.wait()

    def holder(self, claim: Claim, key: str) -> str | None:
        """Return the resource before this one that offers a node."""
        return next((one.name for one in self._before(claim) if key in one.keys), None)

    def set(self, claim: Claim, keys: Iterable[str]) -> None:
        """Note what a resource offers now; those behind that are affected look again."""
        before, claim.keys = claim.keys, frozenset(keys)
        changed = before ^ claim.keys
        if changed:
            for one in self._claims[self._claims.index(claim) + 1 :]:
                if one.idle.is_set() and (before - claim.keys or changed & one.keys):
                    one.look_again()

    def _before(self, claim: Claim) -> list[Claim]:
        return self._claims[: self._claims.index(claim)]

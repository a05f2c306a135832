"""What is known of one resource among others that may offer the same nodes."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Claim:
    """One resource's place in the file, and the nodes that it offers.

    Attributes:
        name: The resource's name.
        look_again: Has the resource scan again.
        place: Where it is in the file, by comparison with others.
        shares: Its nodes may be offered by others too (``overlap: allow``).
        offered: The nodes that it offers (`Node.key`).
        leaving: Those that it offers no more, but the kubelet has still in its list.
        skipped: Those that it would offer if no resource before it did.
        fresh: It has not looked yet.
        removed: Its resource has ended; that something is due is not heard any more.
        busy: A scan is due or under way.
        found: The nodes that the scan under way has found, once that is known.
        looked_at: When the look under way has begun, by the changes so far.
        judged_at: When what it found began to be judged.
        waiting: Are told when it is idle, or what it has found is known.
    """

    name: str
    look_again: Callable[[], None]
    place: int
    shares: bool = False
    offered: set[str] = field(default_factory=set)
    leaving: set[str] = field(default_factory=set)
    skipped: frozenset[str] = frozenset()
    fresh: bool = True
    removed: bool = False
    busy: bool = False
    found: frozenset[str] | None = None
    looked_at: int | None = None
    judged_at: int = 0
    waiting: list[asyncio.Event] = field(default_factory=list)


class ByNode:
    """By node, the claims that have to do with it."""

    def __init__(self) -> None:
        self._claims: dict[str, tuple[Claim, ...]] = {}

    def of(self, key: str) -> tuple[Claim, ...]:
        """Return the claims of a node."""
        return self._claims.get(key, ())

    def add(self, key: str, claim: Claim) -> None:
        """Enter a claim."""
        self._claims[key] = (*self.of(key), claim)

    def remove(self, key: str, claim: Claim) -> None:
        """Undo `add`."""
        if rest := tuple(one for one in self.of(key) if one is not claim):
            self._claims[key] = rest
        else:
            self._claims.pop(key, None)

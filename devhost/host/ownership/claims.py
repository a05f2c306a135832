"""Who offers which node: the first resource in the file keeps it, the others skip it.

What was offered before, and may still be held, is in `owners`. All is looked up by node, so
that what a resource does costs the same among a thousand others.
"""

from collections.abc import Callable, Collection, Iterable, Iterator

from devhost.host.ownership.claim import ByNode, Claim
from devhost.host.ownership.look_order import LookOrder


class Claims:
    """The claims of all resources, in the order of the file.

    All but `holder` belong to the event loop.

    Attributes:
        order: In which they look.
    """

    def __init__(self) -> None:
        self._claims: list[Claim] = []
        self._listing, self._skipping = ByNode(), ByNode()
        self.order = LookOrder()
        # What has changed while somebody looks: by node, when, and whose.
        self._time = 0
        self._looking = 0
        self._released: dict[str, list[tuple[int, Claim]]] = {}
        self._offered: dict[str, list[tuple[int, Claim]]] = {}

    def add(self, name: str, look_again: Callable[[], None]) -> Claim:
        """Enter a resource behind those that are there; it is busy until it says `idle`."""
        claim = Claim(name, look_again, self._claims[-1].place + 1 if self._claims else 0)
        self._claims.append(claim)
        self.order.enter(claim)
        return claim

    def remove(self, claim: Claim) -> None:
        """Give up a resource's claims; it is served no more."""
        claim.removed = True
        self.set(claim, (), ())
        self.give_up(claim)
        self._claims.remove(claim)

    def give_up(self, claim: Claim) -> None:
        """End whatever look is due or under way: nobody is to wait for it."""
        self.looked(claim)
        self.order.idle(claim)

    def share(self, claim: Claim, shares: bool) -> None:
        """Note whether a resource's nodes may be offered by others too."""
        if claim.shares != shares:
            claim.shares = shares
            for key in claim.offered | claim.leaving:
                for one in self._listing.of(key):
                    if one is not claim:
                        one.look_again()  # it may have waited for this one

    def arrange(self, order: list[str]) -> None:
        """Put the resources in the order of a new file; those that it lacks go behind."""
        before = [claim for claim in self._claims if not claim.fresh]
        places = {name: place for place, name in enumerate(order)}
        self._claims.sort(key=lambda claim: places.get(claim.name, len(places)))
        for place, claim in enumerate(self._claims):
            claim.place = place
        self.order.sort()
        if [claim for claim in self._claims if not claim.fresh] != before:
            for claim in before:
                claim.look_again()

    # ── a look, and what changes meanwhile ──

    def look(self, claim: Claim) -> None:
        """Begin a look at the host: until `looked`, what others do is remembered."""
        if claim.looked_at is None:
            self._looking += 1
        claim.looked_at = claim.judged_at = self._time

    def judge(self, claim: Claim) -> None:
        """Begin to judge what a look has found."""
        claim.judged_at = self._time

    def looked(self, claim: Claim) -> None:
        """End a look."""
        if claim.looked_at is not None:
            claim.looked_at = None
            self._looking -= 1
            if not self._looking:
                self._released.clear()
                self._offered.clear()

    def outdated(self, claim: Claim, keys: Iterable[str]) -> bool:
        """Whether a look has to be repeated, told the nodes that it found.

        Resources before this one offer one of them no more that they offered when it was looked
        for, or one that they did not offer when it was judged.
        """
        since = claim.looked_at
        if since is None or not (self._released or self._offered):
            return False
        return any(
            next(_before(claim, self._released.get(key, ()), since), None)
            or next(_before(claim, self._offered.get(key, ()), claim.judged_at), None)
            for key in keys
        )

    def holder(self, claim: Claim, key: str) -> str | None:
        """Return the resource before this one that offers a node, or did when it was looked for.

        What was found then may be there no more; that may be why it is not offered now.
        """
        if claim.shares or key.startswith("\0"):
            return None
        for one in self._listing.of(key):
            if one.place < claim.place and key in one.offered:
                return one.name
        since = self._time if claim.looked_at is None else claim.looked_at
        then = next(_before(claim, self._released.get(key, ()), since), None)
        return then.name if then else None

    # ── what is offered ──

    def set(
        self,
        claim: Claim,
        offered: Collection[str],
        leaving: Collection[str],
        skipped: Iterable[str] = (),
    ) -> None:
        """Note what a resource offers now; others that are affected look again."""
        now_offered, now_leaving = set(offered), set(leaving)
        touched = (claim.offered ^ now_offered) | (claim.leaving ^ now_leaving)
        self.change(
            claim, touched & now_offered, touched & now_leaving, touched - now_offered - now_leaving
        )
        claim.skipped, former = frozenset(skipped), claim.skipped
        for key in former - claim.skipped:
            self._skipping.remove(key, claim)
        for key in claim.skipped - former:
            self._skipping.add(key, claim)

    def change(
        self, claim: Claim, offered: Iterable[str], leaving: Iterable[str], gone: Iterable[str]
    ) -> None:
        """Note what a resource offers of some nodes now; of all others that is as it was.

        Args:
            claim: The resource's.
            offered: Those that it offers.
            leaving: Those that it offers no more, but the kubelet has still in its list.
            gone: Those that it does not have at all.
        """
        claim.fresh = False
        self._time += 1
        offered, leaving = set(offered), set(leaving)
        affected: dict[Claim, None] = {}
        for key in {*offered, *leaving, *gone}:
            was = key in claim.offered, key in claim.leaving
            now = key in offered, key in leaving
            if was == now:
                continue
            (claim.offered.add if now[0] else claim.offered.discard)(key)
            (claim.leaving.add if now[1] else claim.leaving.discard)(key)
            if any(now) and not any(was):
                self._listing.add(key, claim)
            elif any(was) and not any(now):
                self._listing.remove(key, claim)
            if self._looking and was[0] != now[0]:
                log = self._offered if now[0] else self._released
                log.setdefault(key, []).append((self._time, claim))
            affected |= dict.fromkeys(self._affected(claim, key, released=not now[0]))
        for one in affected:
            if not one.busy:
                one.look_again()

    def _affected(self, claim: Claim, key: str, *, released: bool) -> Iterator[Claim]:
        """Yield who has the node too, and who is free to have it now."""
        yield from (one for one in self._listing.of(key) if one is not claim)
        if released:
            yield from (one for one in self._skipping.of(key) if one is not claim)


def _before(claim: Claim, log: Iterable[tuple[int, Claim]], since: int) -> Iterator[Claim]:
    return (one for time, one in log if time > since and one.place < claim.place)

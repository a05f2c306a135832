"""Which resource offers which node.

The first resource in the file that finds a new node has it, the others leave it to that one. A node
on offer stays with its resource as long as that finds it: who can make a link in a directory that
another resource watches must not take a device away from a pod. Only an edit of the file moves it:
a resource that is put before another one may take its nodes at the next scan. At the start, those
that had nodes before decide about them first.

The dry run asks here too. In a running host the resources decide one at a time, in the order of
the file: `devhost.host.ownership.decisions`. What pods were given, and may still hold, is in
`devhost.host.ownership.owners`. All is looked up by node, so that what a resource does costs the
same among a thousand others.
"""

import bisect
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Member:
    """A resource among those that may find the same nodes.

    Attributes:
        name: The resource's name.
        rescan: Has it scanned again.
        place: Where it is in the file.
        former: Where it was in the file before; infinite for one that was not there.
        edited: No decision was made since the file was read.
        expected: Those of its nodes that pods were given before the process started.
        shares: Its nodes may be offered by others too (``overlap: allow``).
        finds_links: It may find a node by a link, which udev makes after the node.
        offered: The nodes that it offers (`Node.key`).
        left: Those that it would offer if no other resource did.
        asked: How many reasons for a scan there were.
        begun: How many of them the last scan that began is for.
        decided: How many of them the last decision is for.
        removed: It is served no longer.
    """

    name: str
    rescan: Callable[[], None]
    place: int
    former: float = math.inf
    edited: bool = True
    expected: frozenset[str] = frozenset()
    shares: bool = False
    finds_links: bool = False
    offered: set[str] = field(default_factory=set)
    left: frozenset[str] = frozenset()
    asked: int = 0
    begun: int = 0
    decided: int = 0
    removed: bool = False

    @property
    def pending(self) -> bool:
        """Whether a decision is to come."""
        return self.decided < self.asked


class _ByNode:
    """By node, the members that have to do with it."""

    def __init__(self) -> None:
        self._members: dict[str, tuple[Member, ...]] = {}

    def of(self, key: str) -> tuple[Member, ...]:
        return self._members.get(key, ())

    def change(self, member: Member, *, gone: Iterable[str], new: Iterable[str]) -> None:
        for key in gone:
            rest = tuple(one for one in self._members[key] if one is not member)
            if rest:
                self._members[key] = rest
            else:
                del self._members[key]
        for key in new:
            self._members[key] = (*self.of(key), member)


class Ownership:
    """The resources of a process, or of a dry run; all but `owner` belongs to one thread."""

    def __init__(self) -> None:
        self._members: list[Member] = []  # these are in the order of the file
        self._pending: list[Member] = []
        self._offered, self._left, self._expected = _ByNode(), _ByNode(), _ByNode()
        self._arranged: dict[str, bool] = {}  # who shares, in the order of the file
        self._first_link = math.inf  # the place of the first that finds links

    def add(self, name: str, rescan: Callable[[], None]) -> Member:
        """Enter a resource behind those that are there; a scan of it is due."""
        place = self._members[-1].place + 1 if self._members else 0
        member = Member(name, rescan, place)
        self._members.append(member)
        self.due(member)
        return member

    def remove(self, member: Member) -> None:
        """Forget a resource that is served no longer."""
        self.decide(member, ())
        self.settled(member)
        member.removed = True
        self._members.remove(member)

    def expect(self, offered: Mapping[str, Collection[str]]) -> None:
        """Say what pods were given of resources before the start: it is theirs if they find it."""
        for member in self._members:
            if member.edited:
                before, member.expected = member.expected, frozenset(offered.get(member.name, ()))
                self._expected.change(
                    member, gone=before - member.expected, new=member.expected - before
                )

    def arrange(self, order: Sequence[str]) -> None:
        """Put the resources in the order of a new file; those that it lacks go behind.

        If some come in another order now, or share their nodes no longer, or now, all are scanned;
        a new one only if it has decided already, in the place that it had until now; and one that
        has left a node to a resource that is now behind it.
        """
        former = self._arranged
        for member in self._members:
            new = member.edited and member.former == math.inf  # since the file before, too
            member.former = math.inf if new or member.name not in former else member.place
            member.edited = True
        places = {name: place for place, name in enumerate(order)}
        self._members.sort(key=lambda one: places.get(one.name, len(places)))
        for place, member in enumerate(self._members):
            member.place = place
        linking = (one.place for one in self._members if one.finds_links and one.name in places)
        self._first_link = min(linking, default=math.inf)
        self._pending.sort(key=_place)
        self._arranged = {one.name: one.shares for one in self._members if one.name in places}
        before = [pair for pair in former.items() if pair[0] in self._arranged]
        changed = before != [pair for pair in self._arranged.items() if pair[0] in former]
        for member in self._members:
            new = member.name not in former and not member.pending
            if changed or new or self._left_in_vain(member):
                member.rescan()

    # ── who decides next ──

    def due(self, member: Member) -> None:
        """Note that there is a reason to scan a resource: those behind it wait for the outcome."""
        if member.removed:
            return
        if not member.pending:
            bisect.insort(self._pending, member, key=_place)
        member.asked += 1

    def settled(self, member: Member) -> None:
        """Note that nobody is to wait for a resource, whatever is due."""
        if member.pending:
            self._pending.remove(member)
        member.decided = member.begun = member.asked

    # ── who offers what ──

    def owner(self, member: Member, key: str) -> str | None:
        """Return the resource that a resource has to leave a node to."""
        if member.shares or key.startswith("\0"):
            return None
        others = [one for one in self._offered.of(key) if one is not member]
        others = [one for one in others if _keeps(one, member, key)]
        if not others and key not in member.offered and key not in member.expected:
            others = [*self._expected.of(key)]
        return min(others, key=_place).name if others else None

    def links_to_come(self, member: Member) -> bool:
        """Whether a resource before this one may find a new node a moment later, by a link.

        What is there at its first scan has its links.
        """
        new = member.edited and member.former == math.inf
        return not new and self._first_link < member.place

    def outdated(self, member: Member, offered: Collection[str]) -> bool:
        """Whether a decision would take nodes over that may be there no longer.

        Another resource had them at the last scan. Why it has left them since is perhaps the
        reason that has come since this scan began.
        """
        return member.asked != member.begun and not member.left.isdisjoint(offered)

    def decide(
        self,
        member: Member,
        offered: Iterable[str],
        left: Iterable[str] = (),
        expected: frozenset[str] = frozenset(),
    ) -> None:
        """Note what a resource offers now; others that this concerns are scanned again.

        Args:
            member: The resource.
            offered: The nodes that it offers.
            left: Those that it leaves to other resources.
            expected: Those of `Member.expected` that it may offer yet.
        """
        now, before, member.left = set(offered), member.left, frozenset(left)
        self._left.change(member, gone=before - member.left, new=member.left - before)
        new, gone = now - member.offered, member.offered - now
        member.offered = now
        self._offered.change(member, gone=gone, new=new)
        if member.decided < member.begun:
            member.decided = member.begun
            if not member.pending:
                self._pending.remove(member)
        self._tell(one for key in new for one in self._offered.of(key) if one.place > member.place)
        self._tell_left(member, gone)
        if released := member.expected - (expected - now):
            member.expected -= released
            self._expected.change(member, gone=released, new=())
            self._tell_left(member, released - now)
        member.edited = False
        if self._left_in_vain(member):
            member.rescan()  # its owner has ended meanwhile

    def _left_in_vain(self, member: Member) -> bool:
        """Whether a resource has left a node that it would not leave now."""
        return any(self.owner(member, key) is None for key in member.left)

    def _tell_left(self, member: Member, gone: Iterable[str]) -> None:
        """Have those scanned that have left nodes to a resource."""
        self._tell(one for key in gone for one in self._left.of(key) if one is not member)

    def _tell(self, members: Iterable[Member]) -> None:
        """Have resources scanned, but those that will decide anyway."""
        for one in dict.fromkeys(members):
            if not one.pending:
                one.rescan()


def _keeps(one: Member, member: Member, key: str) -> bool:
    """Whether a resource that offers a node keeps it, when another one finds it."""
    before = one.place < member.place
    if key in member.offered:
        return before and not one.shares  # both do: after an edit, the first in the file keeps it
    if one.shares:
        return before and key not in member.expected
    return before or not (member.edited and member.former > one.former)


def _place(member: Member) -> int:
    return member.place

"""Which resource offers which node.

The first resource in the file that finds a new node has it. A node on offer stays with its resource
as long as that finds it: who can make a link in a directory that another resource watches must not
take a device away from a pod. Only an edit of the file moves it, to a resource that is put before.
At the start, those that pods were given nodes of before decide about them first. Pure.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class Member:
    """A resource among those that may find the same nodes, by its place in the file.

    Attributes:
        order: The file's at the last decision about it; while it is new, that of the file before.
        former: Its place in that order; infinite while it is new.
        shares: Its nodes may be offered by others too (``overlap: allow``).
        finds_links: It may find a node by a link, which udev makes after the node.
        offered: The nodes that it offers (`Node.key`).
        left: Those that it would offer if no other resource did.
        expected: Those that pods were given of it before the start, and that it may find yet.
    """

    name: str
    place: int
    order: Mapping[str, int] = field(default_factory=dict)
    former: float = math.inf
    shares: bool = False
    finds_links: bool = False
    offered: frozenset[str] = frozenset()
    left: frozenset[str] = frozenset()
    expected: frozenset[str] = frozenset()


class Ownership:
    """The resources of a process, or of a dry run."""

    def __init__(self) -> None:
        self._unclaimed: dict[str, Collection[str]] = {}
        self._members: list[Member] = []  # in the order of the file
        self._offering: dict[str, list[Member]] = {}  # by node
        self._expecting: dict[str, list[Member]] = {}
        self._order: dict[str, int] = {}  # the places of those that are in the file
        self._sharing = set[str]()  # of those in the file
        self.changes = 0  # while there are none, a `View` holds

    def expect(self, given: Mapping[str, Collection[str]]) -> None:
        """Say which nodes pods were given before the start, of resources that are to be entered."""
        self._unclaimed = dict(given)

    def add(self, name: str) -> Member:
        """Enter a resource behind those that are there."""
        member = Member(name, self._members[-1].place + 1 if self._members else 0)
        member.expected = frozenset(self._unclaimed.pop(name, ()))
        for key in member.expected:
            self._expecting.setdefault(key, []).append(member)
        self._members.append(member)
        return member

    def remove(self, member: Member) -> set[Member]:
        """Forget a resource; return those that have to be scanned again."""
        concerned = self.decide(member, ())
        self._members.remove(member)
        return concerned

    def arrange(self, order: Sequence[str]) -> list[Member]:
        """Put the resources in the order of a new file; those that it lacks go behind.

        Those are returned that have to be scanned again: all if the order of some changes, or who
        shares nodes; else who has left a node to a resource that is now behind it.
        """
        self.changes += 1
        places = {name: place for place, name in enumerate(order)}
        self._members.sort(key=lambda one: places.get(one.name, len(places)))
        here = [one for one in self._members if one.name in places]
        former, self._order = self._order, {one.name: place for place, one in enumerate(here)}
        sharing, self._sharing = self._sharing, {one.name for one in here if one.shares}
        for place, member in enumerate(self._members):
            member.place = place
            if member.name not in places:
                member.former = math.inf  # if it comes back, it is new
            if member.former == math.inf:
                member.order = former
        staying = [name for name in self._order if name in former]
        changed = staying != sorted(staying, key=former.__getitem__)
        changed = changed or not (sharing ^ self._sharing).isdisjoint(staying)
        return [one for one in self._members if changed or self._has_left_in_vain(one)]

    def owner(self, member: Member, key: str) -> str | None:
        """Return the resource that a resource has to leave a node to."""
        offering = self._offering.get(key, ())
        if member.shares or key.startswith("\0") or offering == [member]:
            return None
        others = [one for one in offering if _keeps(one, member, key)]
        if not others and key not in member.offered and key not in member.expected:
            others = [one for one in self._expecting.get(key, ()) if key in one.expected]
        return min(others, key=lambda one: one.place).name if others else None

    def links_to_come(self, member: Member) -> bool:
        """Whether a resource before this one may find a new node a moment later, by a link."""
        before = self._members[: member.place]
        return any(one.finds_links and one.name in self._order for one in before)

    def decide(
        self,
        member: Member,
        offered: Collection[str],
        left: Iterable[str] = (),
        expected: frozenset[str] = frozenset(),
    ) -> set[Member]:
        """Note what a resource offers now, what it leaves to others, and what it may offer yet.

        Those are returned that have to be scanned again.
        """
        now = frozenset(offered)
        self.changes += now != member.offered or bool(member.expected)
        lost = (member.offered - now) | (member.expected - expected - now)
        for key in member.offered - now:
            self._offering[key].remove(member)
            if not self._offering[key]:
                del self._offering[key]
        concerned = set[Member]()
        for key in now - member.offered:
            offering = self._offering.setdefault(key, [])
            concerned.update(one for one in offering if one.place > member.place)
            offering.append(member)
        member.offered, member.left = now, frozenset(left)
        member.order, member.former = self._order, self._order.get(member.name, math.inf)
        member.expected &= expected - now
        if lost:
            concerned.update(one for one in self._members if not one.left.isdisjoint(lost))
        concerned.discard(member)
        if self._has_left_in_vain(member):
            concerned.add(member)  # the owner has ended meanwhile
        return concerned

    def _has_left_in_vain(self, member: Member) -> bool:
        """Whether a resource has left a node that it would not leave now."""
        return any(self.owner(member, key) is None for key in member.left)


class View:
    """What one scan, in a thread, sees of the owners; `owners` has the answers by node."""

    def __init__(self, ownership: Ownership, member: Member) -> None:
        self._ownership, self._member, self._changes = ownership, member, ownership.changes
        self.links_to_come = ownership.links_to_come(member)
        self.owners: dict[str, str | None] = {}

    def owner(self, key: str) -> str | None:
        """Return the resource that the scanned one has to leave a node to."""
        owner = self.owners[key] = self._ownership.owner(self._member, key)
        return owner

    def holds(self) -> bool:
        """Whether it would see the same now; on the event loop."""
        ownership, member = self._ownership, self._member
        return self._changes == ownership.changes or (
            self.links_to_come == ownership.links_to_come(member)
            and all(ownership.owner(member, key) == one for key, one in self.owners.items())
        )


def _keeps(one: Member, member: Member, key: str) -> bool:
    """Whether a resource that offers a node keeps it, when another one finds it."""
    before = one.place < member.place
    if one is member:
        return False
    if key in member.offered:
        return before and not one.shares  # both do: after an edit, the first in the file keeps it
    if one.shares:
        return before and key not in member.expected
    return before or member.order.get(one.name, math.inf) >= member.former

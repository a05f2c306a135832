"""What has to be advertised at rest: from the file tree, the declaration and what was before.

The model says only what is certain. What depends on a moment that nobody saw (a file that
came and went again before anybody looked) may be either way.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.model.declared import Declared, is_token, name_of, node_of


@dataclass(slots=True)
class Past:
    """What is known of one resource's devices, by IDs without share.

    Attributes:
        kept: Were offered at the last rest and were there ever since.
        lost: Were listed at the last rest and have vanished since.
        maybe: May have been offered at some time since.
        orphans: Are missing, of sources that were changed since: they may go at any scan.
        now: Could be offered by the tree and the declaration as they are.
        found: The nodes that are there now, for its sources.
        before: Those that were at the last rest.
        left: Those that a resource behind it had when this one first found them, or had no seat.
    """

    kept: set[str] = field(default_factory=set)
    lost: set[str] = field(default_factory=set)
    maybe: set[str] = field(default_factory=set)
    orphans: set[str] = field(default_factory=set)
    now: set[str] = field(default_factory=set)
    found: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    @property
    def may_leave(self) -> set[str]:
        """The nodes that a resource behind it keeps, if it had them."""
        return self.left | (self.found - self.before)

    def step(self, declared: Declared, root: Path) -> None:
        """Note the tree as it is now."""
        found = declared.found(root)
        now = {declared.id_of(name) for names in found.values() for name in names}
        self.maybe |= self.now
        self.lost = {one for one in self.lost | self.kept if one not in now}
        self.lost = {one for one in self.lost if node_of(one) not in found}
        self.kept &= now
        self.now, self.found = now, set(found)

    def changed(self, before: Declared, after: Declared) -> None:
        """Note another declaration."""
        if (before.sources, before.id, before.here) != (after.sources, after.id, after.here):
            self.maybe |= self.kept | self.lost
            self.orphans |= self.kept | self.lost
            self.lost.clear()
        if before.id != after.id or not after.here:
            self.kept.clear()

    def forget(self) -> None:
        """Note that whatever was listed may go or stay."""
        self.maybe |= self.kept | self.lost
        self.kept.clear()
        self.lost.clear()

    def uncertain(self, names: Collection[str]) -> None:
        """Note that what was offered of files of these names may go or stay, as missing."""
        ids = {one for one in self.kept | self.lost if node_of(one) in names}
        self.kept -= ids
        self.lost -= ids
        self.maybe |= ids

    def was_full(self) -> None:
        """Note that it may have had no seat for what it finds."""
        self.left = self.left | self.found

    def rest(self, entries: Mapping[str, bool], behind: set[str], limit: int | None) -> None:
        """Take over what is listed at rest, there and for the resources behind it."""
        bases = {_base(one) for one in entries}
        if limit is not None and len(bases) >= limit:
            self.was_full()
        self.left, self.before = self.may_leave & behind, self.found
        healthy = {_base(one) for one, well in entries.items() if well}
        self.orphans &= bases - healthy
        self.kept, self.lost, self.maybe = healthy, bases - healthy - self.orphans, set(bases)


def listed_for_pods(
    declared: Declared, entries: Mapping[str, bool], past: Past, held: Collection[str]
) -> set[str]:
    """Return the unhealthy IDs that are listed because pods hold them, not as missing devices."""
    listed = set[str]()
    for base in {_base(one) for one in held if entries.get(one) is False}:
        shares = {one for one, well in entries.items() if _base(one) == base and not well}
        if not declared.never:
            listed |= shares & set(held)
        elif base in past.lost and declared.covers(name_of(base)):
            listed |= shares & set(held) - set(_shares(declared, base))
        else:  # it may also be missing
            listed |= shares
    return listed


class Problem(Exception):  # noqa: N818 - what is not yet as it should be
    """What is listed is not what is expected."""


def check(
    declared: Declared,
    root: Path,
    entries: Mapping[str, bool],
    past: Past,
    taken: set[str],
    shared: set[str],
    behind: set[str],
) -> set[str]:
    """Check one resource's list; return the nodes that it offers.

    Args:
        declared: The resource.
        root: Where the files are.
        entries: Its list, but for what is there for pods.
        past: What is known of its devices.
        taken: The nodes that resources before it offer.
        shared: Those of them that only resources with ``overlap: allow`` offer: one that had such
            a node before them keeps it.
        behind: The nodes that resources behind it offer, and may have offered before it found them.

    Raises:
        Problem: It is not as it has to be at rest.
    """
    healthy, unhealthy = _bases(declared, entries)
    # Also under another ID than before.
    kept = {node_of(one) for one in past.kept | past.maybe} & {node_of(one) for one in healthy}
    left = behind & past.may_leave - {node_of(one) for one in healthy}
    found = {
        node: [declared.id_of(name) for name in names]
        for node, names in declared.found(root).items()
        if declared.overlap or (node not in taken | left) or node in shared & kept
    }
    offered = set()
    for device_id in healthy:
        ids = found.get(node_of(device_id), [])
        if device_id not in ids:
            raise Problem(f"{device_id} is offered, but not there, or another's")
        before = past.kept & set(ids)
        right = before or {ids[0], *(set(ids) & past.maybe)}
        if len(before) > 1 or device_id not in right:
            raise Problem(f"{device_id} is offered, not {right}")
        if node_of(device_id) in offered:
            raise Problem(f"{node_of(device_id)} is offered twice")
        offered.add(node_of(device_id))
    _seats(declared, healthy, unhealthy, found, past)
    _missing(declared, unhealthy, found, past)
    return {node for node in offered if not is_token(node)}


def _base(advertised_id: str) -> str:
    return advertised_id.partition("::")[0]


def _shares(declared: Declared, base: str) -> list[str]:
    shares = [f"{base}::{share}" for share in range(declared.replicas)]
    return shares if declared.replicas > 1 else [base]


def _bases(declared: Declared, entries: Mapping[str, bool]) -> tuple[set[str], set[str]]:
    """Return the healthy and the unhealthy IDs without share; all shares must be there."""
    healthy: set[str] = set()
    unhealthy: set[str] = set()
    for base in {_base(one) for one in entries}:
        wells = {entries.get(one) for one in _shares(declared, base)}
        if len(wells) != 1 or wells == {None}:
            raise Problem(f"{base}: not all shares are listed alike")
        (healthy if wells == {True} else unhealthy).add(base)
    if len(entries) != declared.replicas * (len(healthy) + len(unhealthy)):
        raise Problem("there are other shares than those that are declared")
    return healthy, unhealthy


def _seats(
    declared: Declared,
    healthy: set[str],
    unhealthy: set[str],
    found: Mapping[str, list[str]],
    past: Past,
) -> None:
    limit = declared.max_devices
    if limit is None:
        if len(healthy) != len(found):
            raise Problem(f"not all of {sorted(found)} are offered")
        return
    if len(healthy) > limit:
        raise Problem(f"over the limit of {limit}")
    if len(healthy) < min(len(found), limit - len(unhealthy)):
        raise Problem(f"there are free seats: {limit}")
    kept = past.kept & {one for ids in found.values() for one in ids}
    if not (kept <= healthy or (len(kept) > limit and healthy <= kept)):
        raise Problem(f"{kept} were offered before others: limit {limit}")


def _missing(
    declared: Declared, unhealthy: set[str], found: Mapping[str, list[str]], past: Past
) -> None:
    if not declared.never:
        if unhealthy:
            raise Problem(f"{unhealthy} are missing, and should have left")
        return
    lost = {one for one in past.lost if declared.covers(name_of(one))}
    there = {one for ids in found.values() for one in ids}
    possible = {
        one for one in past.maybe | lost if one not in there and declared.covers(name_of(one))
    }
    if not lost <= unhealthy:
        raise Problem(f"{lost - unhealthy} are missing, and left the list")
    if not unhealthy <= possible:
        raise Problem(f"{unhealthy - possible} are unhealthy without need")

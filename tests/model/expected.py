"""The lists that are right at rest: by the file tree, the declaration and what was before.

The model says only what is certain. What depends on a moment that nobody saw (a file that
came and went again before anybody looked) may be either way.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.model.declared import Declared, is_token, name_of, node_of


@dataclass(slots=True)
class Past:
    """The past of one resource's devices, by IDs without share.

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
    seen: set[str] = field(default_factory=set)
    before: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)

    @property
    def may_leave(self) -> set[str]:
        """The nodes that a resource behind it keeps, if it had them."""
        return self.left | (self.seen - self.before)

    def step(self, declared: Declared, root: Path) -> None:
        """Take over the tree as it is now."""
        seen = declared.found(root)
        now = {declared.id_of(name) for names in seen.values() for name in names}
        self.maybe |= self.now
        self.lost = {device for device in self.lost | self.kept if device not in now}
        self.lost = {device for device in self.lost if node_of(device) not in seen}
        self.kept &= now
        self.now, self.seen = now, set(seen)

    def changed(self, before: Declared, after: Declared) -> None:
        """Take over another declaration."""
        if (before.sources, before.id, before.here) != (after.sources, after.id, after.here):
            self.maybe |= self.kept | self.lost
            self.orphans |= self.kept | self.lost
            self.lost.clear()
        if before.id != after.id or not after.here:
            self.kept.clear()

    def forget(self) -> None:
        """Allow that whatever was listed goes or stays."""
        self.maybe |= self.kept | self.lost
        self.kept.clear()
        self.lost.clear()

    def uncertain(self, names: Collection[str]) -> None:
        """Allow that what was offered of files of these names goes or stays, as missing."""
        ids = {device for device in self.kept | self.lost if node_of(device) in names}
        self.kept -= ids
        self.lost -= ids
        self.maybe |= ids

    def was_full(self) -> None:
        """Allow that there was no seat for what it finds."""
        self.left = self.left | self.seen

    def rest(self, entries: Mapping[str, bool], behind: set[str], limit: int | None) -> None:
        """Take over what is listed at rest, there and for the resources behind it."""
        bases = {_base(token) for token in entries}
        if limit is not None and len(bases) >= limit:
            self.was_full()
        self.left, self.before = self.may_leave & behind, self.seen
        healthy = {_base(token) for token, well in entries.items() if well}
        self.orphans &= bases - healthy
        self.kept, self.lost, self.maybe = healthy, bases - healthy - self.orphans, set(bases)


def listed_for_pods(
    declared: Declared, entries: Mapping[str, bool], past: Past, held: Collection[str]
) -> set[str]:
    """Return the unhealthy IDs that are listed because pods hold them, not as missing devices."""
    listed = set[str]()
    for base in {_base(token) for token in held if entries.get(token) is False}:
        shares = {token for token, well in entries.items() if _base(token) == base and not well}
        if not declared.never:
            listed |= shares & set(held)
        elif base in past.lost and declared.covers(name_of(base)):
            listed |= shares & set(held) - set(_shares(declared, base))
        else:  # it may also be missing
            listed |= shares
    return listed


class Problem(Exception):  # noqa: N818 - what is not yet as it should be
    """The difference between what is listed and what is expected."""


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
    kept = {node_of(device) for device in past.kept | past.maybe} & {
        node_of(device) for device in healthy
    }
    left = behind & past.may_leave - {node_of(device) for device in healthy}
    devices_by_node = {
        node: [declared.id_of(name) for name in names]
        for node, names in declared.found(root).items()
        if declared.overlap or (node not in taken | left) or node in shared & kept
    }
    offered = set()
    for device_id in healthy:
        ids = devices_by_node.get(node_of(device_id), [])
        if device_id not in ids:
            raise Problem(f"{device_id} is offered, but not there, or another's")
        before = past.kept & set(ids)
        right = before or {ids[0], *(set(ids) & past.maybe)}
        if len(before) > 1 or device_id not in right:
            raise Problem(f"{device_id} is offered, not {right}")
        if node_of(device_id) in offered:
            raise Problem(f"{node_of(device_id)} is offered twice")
        offered.add(node_of(device_id))
    _seats(declared, healthy, unhealthy, devices_by_node, past)
    _missing(declared, unhealthy, devices_by_node, past)
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
    for base in {_base(token) for token in entries}:
        wells = {entries.get(token) for token in _shares(declared, base)}
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
    devices_by_node: Mapping[str, list[str]],
    past: Past,
) -> None:
    limit = declared.max_devices
    if limit is None:
        if len(healthy) != len(devices_by_node):
            raise Problem(f"not all of {sorted(devices_by_node)} are offered")
        return
    if len(healthy) > limit:
        raise Problem(f"over the limit of {limit}")
    if len(healthy) < min(len(devices_by_node), limit - len(unhealthy)):
        raise Problem(f"there are free seats: {limit}")
    kept = past.kept & {device for ids in devices_by_node.values() for device in ids}
    if not (kept <= healthy or (len(kept) > limit and healthy <= kept)):
        raise Problem(f"{kept} were offered before others: limit {limit}")


def _missing(
    declared: Declared, unhealthy: set[str], devices_by_node: Mapping[str, list[str]], past: Past
) -> None:
    if not declared.never:
        if unhealthy:
            raise Problem(f"{unhealthy} are missing, and should have left")
        return
    lost = {device for device in past.lost if declared.covers(name_of(device))}
    there = {device for ids in devices_by_node.values() for device in ids}
    possible = {
        device
        for device in past.maybe | lost
        if device not in there and declared.covers(name_of(device))
    }
    if not lost <= unhealthy:
        raise Problem(f"{lost - unhealthy} are missing, and left the list")
    if not unhealthy <= possible:
        raise Problem(f"{unhealthy - possible} are unhealthy without need")

"""A look at a few names instead of at everything, where that gives the same.

A device comes or goes: its directory's event names it, and among ten thousand others only that
name is looked at, judged and rendered. Whatever might concern other devices too (a link, an ID
that is taken, a limit, a group, a directory that failed) is left to the whole look. The tests
hold both against each other.
"""

from collections.abc import Collection, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

from devhost.allocation import rendering
from devhost.discovery import identity, topology
from devhost.discovery.candidates import Claimed, Moment
from devhost.discovery.roots import Root, entangled, roots_of
from devhost.discovery.scan import Scanner
from devhost.discovery.survey import DANGLING, IN_USE, Judge, Survey, finder
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.device import FileKind, HostDevice, Node, Skipped, Snapshot

NAMES_MAX: Final = 256  # more are no part any more


@immutable
class Part:
    """What a look at a few names has found.

    Attributes:
        before: The snapshot that it changes.
        after: The snapshot then.
        devices: The devices that were looked at, by ID.
        gone: The IDs of those that are known no more.
    """

    before: Snapshot
    after: Snapshot
    devices: dict[str, HostDevice]
    gone: frozenset[str]


@dataclass(slots=True)
class _Known:
    """What a whole look has left, looked up by path and by place."""

    roots: list[Root]
    ids: dict[str, str]  # by path
    places: dict[rendering.ContainerKey, str]  # of names and container paths, who has them
    passing: set[str]  # devices that change with time


class PartialLook:
    """Looks at names for one resource; only one look at a time.

    What it knows is of the snapshot that it was told last, or that it has made.
    """

    def __init__(self) -> None:
        self._learnt: tuple[Scanner, Survey, Snapshot] | None = None
        self._known: _Known | None = None

    def learn(self, scanner: Scanner, found: Survey, snapshot: Snapshot) -> None:
        """Take note of a whole look."""
        self._learnt = (scanner, found, snapshot) if _suitable(scanner, found, snapshot) else None
        self._known = None

    def may(self, scanner: Scanner, snapshot: Snapshot) -> bool:
        """Whether it can begin with a snapshot."""
        learnt = self._learnt
        return learnt is not None and learnt[0] is scanner and learnt[2] is snapshot

    def look(self, changed: Collection[str], claimed: Claimed, now: float) -> Part | None:
        """Look at what has changed, beside what changes with time. Blocks.

        Args:
            changed: Paths as this process sees them.
            claimed: Names the resource that offers a node (by `Node.key`) before this one.
            now: Seconds on the host's clock.

        Returns:
            What that changes; ``None`` where a whole look is needed.
        """
        if self._learnt is None:
            return None
        scanner, found, before = self._learnt
        if self._known is None:
            self._known = _known(scanner, found, before)
        if self._known is None:
            self._learnt = None
            return None
        return self._changed(_looked(scanner, self._known, before, changed, claimed, now))

    def _changed(self, part: Part | None) -> Part | None:
        if part is not None and self._learnt is not None:
            self._learnt = self._learnt[0], Survey(), part.after
        return part


def _suitable(scanner: Scanner, found: Survey, snapshot: Snapshot) -> bool:
    """Whether the devices of a resource do not depend on each other; the quick half of that."""
    resource = scanner.resource
    return (
        scanner.by_path
        and scanner.self_contained
        and resource.group is None
        and resource.health is None
        and resource.inject != "cdi"
        and not (found.failed or snapshot.error or snapshot.notes)
        and not (snapshot.held or snapshot.mixed)
        and len(found.skipped) == len(snapshot.skipped)
        and all(finder(source.kind).by_path for source in resource.sources)
    )


def _known(scanner: Scanner, found: Survey, snapshot: Snapshot) -> _Known | None:
    """Index a snapshot; ``None`` if its devices depend on each other after all."""
    known = _Known(list(roots_of(scanner)), {}, {}, set())
    if any(skipped.reason == DANGLING for skipped in found.skipped):
        return None
    if any(node.state and entangled(known.roots, node) for node in found.nodes):
        return None
    for device in snapshot.devices.values():
        if device.replaced or not _enter(scanner, known, device):
            return None
    return known


def _enter(scanner: Scanner, known: _Known, device: HostDevice) -> bool:
    """Index a device; false if it has a place of another one's."""
    for place in _places(scanner, device):
        if known.places.setdefault(place, device.id) != device.id:
            return False
    known.ids |= dict.fromkeys(device.paths, device.id)
    if device.missing_since is not None or device.swapped_at is not None:
        known.passing.add(device.id)
    return True


def _drop(scanner: Scanner, known: _Known, device: HostDevice) -> None:
    for place in _places(scanner, device):
        known.places.pop(place, None)
    for path in device.paths:
        known.ids.pop(path, None)
    known.passing.discard(device.id)


def _places(scanner: Scanner, device: HostDevice) -> Iterator[rendering.ContainerKey]:
    if device.rendered is not None:
        yield from rendering.exclusive_keys(scanner.rules, device.rendered)


def _looked(
    scanner: Scanner,
    known: _Known,
    before: Snapshot,
    changed: Collection[str],
    claimed: Claimed,
    now: float,
) -> Part | None:
    passing = {device_id: before.devices[device_id] for device_id in known.passing}
    due = (one for one in passing.values() if any(time <= now for time in scanner.times(one)))
    paths = _host_paths(known, changed)
    paths |= {path for device in due for path in device.paths} if paths else set()
    found = _surveyed(scanner, known, paths) if paths and len(paths) <= NAMES_MAX else None
    if found is None:
        return None
    ids = {known.ids[path] for path in paths if path in known.ids}
    labels = {names.printable(path) for path in paths}
    kept = tuple(skipped for skipped in before.skipped if skipped.candidate not in labels)
    if not (found.nodes or found.skipped or ids) and len(kept) == len(before.skipped):
        return Part(before, before, {}, frozenset())  # of another resource's directory, say
    affected = {device_id: before.devices[device_id] for device_id in ids}
    files = {identity.file_of(node.state) for node in found.nodes if node.state}
    others = (device for device_id, device in passing.items() if device_id not in ids)
    if not all(files.isdisjoint(identity.files_of(device)) for device in others):
        return None  # a device that is missing goes on under another name, perhaps
    moment = Moment(Snapshot(affected), claimed, now, scanner.hold_s, scanner.constants)
    present, judged = scanner.judged(found, moment)
    devices, mixed = topology.placed(
        scanner.resource.topology, judged, moment.previous, scanner.files
    )
    # One that ends now keeps its seat in this look: the next one gives the seat away.
    total = len(before.devices) + len(devices.keys() - before.devices.keys())
    limit = scanner.resource.limit
    if (
        present.held
        or len(present.skipped) > len(found.skipped)  # claimed, without an ID, or with another's
        or any(device.replaced for device in devices.values())
        or any(device_id in before.devices for device_id in devices.keys() - ids)
        or (limit is not None and total > limit)
        or mixed
        or not _alike(devices, before, ids)
        or not _free(scanner, known, devices, ids)
    ):
        return None
    for device in affected.values():
        _drop(scanner, known, device)
    for device in devices.values():
        _enter(scanner, known, device)
    gone = ids - devices.keys()
    all_devices = {**before.devices, **devices}
    for device_id in gone:
        del all_devices[device_id]
    if not (all_devices or kept or found.skipped):
        return None  # to say why there are none takes a whole look
    passing = {device_id: all_devices[device_id] for device_id in known.passing}
    again_at = scanner.again_at(passing, present, now)
    after = Snapshot(all_devices, (*kept, *found.skipped), again_at=again_at)
    return Part(before, after, devices, frozenset(gone))


def _host_paths(known: _Known, changed: Collection[str]) -> set[str]:
    """Return the host's paths to look at; none if some change is of no source's."""
    paths: set[str] = set()
    for shown in changed:
        roots = [root for root in known.roots if shown.startswith(root.shown + "/")]
        if not roots:
            return set()
        paths |= {root.path + shown[len(root.shown) :] for root in roots}
    return paths


def _surveyed(scanner: Scanner, known: _Known, paths: Collection[str]) -> Survey | None:
    """Look at these paths as a survey does; ``None`` if that is not all that matters.

    Links and failures come into it, or a block device: no event tells what uses it.
    """
    nodes: list[Node] = []
    skipped: list[Skipped] = []
    ordered = names.natural(paths)
    for index, source in enumerate(scanner.resource.sources):
        judge = Judge(index, source, scanner.files, uses=False)
        seen: set[str] = set()  # one may be below several roots
        for root in (root for root in known.roots if root.index == index):
            for path in (path for path in ordered if path.startswith(root.path + "/")):
                match = None if path in seen else root.finder.one(path)
                if match is None:
                    continue
                seen.add(path)
                real = root.real + path[len(root.path) :]
                try:
                    result = judge.judge(match)
                    if isinstance(result, Skipped) and not scanner.files.exists(real):
                        continue
                except OSError:
                    return None
                if isinstance(result, Skipped):
                    skipped.append(result)
                else:
                    nodes.append(result)
    if any(one.reason == DANGLING or one.reason.startswith(IN_USE) for one in skipped):
        return None
    if any(_is_block(one) or entangled(known.roots, one) for one in nodes):
        return None
    return Survey(tuple(nodes), tuple(skipped))


def _is_block(node: Node) -> bool:
    return node.state is not None and node.state.kind is FileKind.BLOCK


def _alike(devices: Mapping[str, HostDevice], before: Snapshot, ids: AbstractSet[str]) -> bool:
    """Whether these devices are attached to NUMA nodes if, and only if, the others are."""
    other = next((one for device_id, one in before.devices.items() if device_id not in ids), None)
    return other is None or all(
        bool(device.numa_nodes) is bool(other.numa_nodes) for device in devices.values()
    )


def _free(
    scanner: Scanner, known: _Known, devices: Mapping[str, HostDevice], ids: AbstractSet[str]
) -> bool:
    """Whether the devices' names and container paths are nobody else's."""
    places: set[rendering.ContainerKey] = set()
    for device in devices.values():
        for place in _places(scanner, device):
            holder = known.places.get(place, device.id)
            if place in places or (holder != device.id and holder not in ids):
                return False
            places.add(place)
    return True

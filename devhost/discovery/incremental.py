"""A scan of a few names instead of everything, by the same functions, where that gives the same.

A device comes or goes: its directory's event has its name, and among ten thousand others only that
name is read, selected, identified and rendered. Whatever might concern other devices too (a link,
an ID that is taken, a limit, a group, a directory that failed) is left to a full scan. The tests
hold both against each other.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Final

from devhost.allocation import rendering
from devhost.discovery import identity, topology
from devhost.discovery.roots import Root, read_names
from devhost.discovery.scan import Scanner, ScanResult
from devhost.discovery.selection import Selection, select
from devhost.errors import AllocationError
from devhost.limits import SKIPPED_MAX
from devhost.model import names
from devhost.model.device import HostDevice, Snapshot

NAMES_MAX: Final = 256  # of more, everything is scanned

Changed = Mapping[Root, AbstractSet[str]]
"""By root: the names that may be different."""


def is_independent(scanner: Scanner, found: Selection, snapshot: Snapshot) -> bool:
    """Whether the devices of a resource do not depend on each other, by a quick check."""
    resource = scanner.resource
    return (
        found.direct
        and scanner.self_contained
        and resource.group is None
        and resource.health is None
        and resource.inject != "cdi"
        and not (snapshot.error or snapshot.notes or snapshot.deferred or snapshot.mixed)
        and len(found.skipped) == snapshot.skipped_count  # none depends on the other devices
    )


class Incremental:
    """Scans names for one resource, from the snapshot of one scan to the next.

    Attributes:
        scanner: The declaration.
        snapshot: That of the last scan.
    """

    def __init__(self, scanner: Scanner, snapshot: Snapshot) -> None:
        self.scanner, self.snapshot = scanner, snapshot
        self._indexed = False
        self._ids: dict[str, str] = {}  # by path
        self._keys: dict[int, str] = {}  # who has a name or container path, by its hash
        self._passing: set[str] = set()  # devices that change with time

    def scan(self, changed: Changed, now: float) -> ScanResult | None:
        """Scan what has changed, and what changes with time. Blocks.

        Args:
            changed: The names that may be different.
            now: Seconds on the host's clock.

        Returns:
            What that changes, if no other resource has the nodes; ``None`` where everything has
            to be scanned: this object cannot be used again then.
        """
        if not self._indexed:
            if not all(map(self._enter, self.snapshot.devices.values())):
                return None
            self._indexed = True
        paths = self._paths(changed, now)
        if not 0 < len(paths) <= NAMES_MAX:
            return None
        readings = {
            root: read_names(root, self.scanner.files, _below(root, paths))
            for root in self.scanner.roots
        }
        found = select(self.scanner.resource, readings, tokens=False)
        return self._result(found, paths, now) if found.direct else None

    def _paths(self, changed: Changed, now: float) -> set[str]:
        paths = {f"{root.base}/{name}" for root, some in changed.items() for name in some}
        for device in map(self.snapshot.devices.__getitem__, self._passing):
            if any(time <= now for time in self.scanner.times(device)):
                paths |= {*device.paths}
        return paths

    def _result(self, found: Selection, paths: set[str], now: float) -> ScanResult | None:
        before, scanner = self.snapshot, self.scanner
        ids = {self._ids[path] for path in paths if path in self._ids}
        labels = {names.printable(path) for path in paths}
        kept = tuple(skipped for skipped in before.skipped if skipped.candidate not in labels)
        count, new = len(kept) + len(found.skipped), found.skipped
        if before.skipped_count > len(before.skipped):  # not all of it is known
            count, new = before.skipped_count, ()
        if not (found.nodes or new or ids) and len(kept) == len(before.skipped):
            return ScanResult(before, before, {}, frozenset())  # of another resource, say
        affected = Snapshot({device_id: before.devices[device_id] for device_id in ids})
        if self._is_former(found, ids):
            return None
        identified = scanner.identify(found, affected, lambda _: None, now)
        scanner.render(identified, affected)
        rendered, _ = scanner.present(identified, affected, now)
        choice = scanner.resource.topology
        devices, mixed = topology.placed(choice, rendered, affected, scanner.files)
        # One that ends now keeps its slot in this scan: the next one gives the slot away.
        total = len(before.devices) + len(devices.keys() - before.devices.keys())
        limit = scanner.resource.limit
        if (
            identified.deferred
            or len(identified.skipped) > len(found.skipped)  # without an ID, or with another's
            or any(device.replaced for device in devices.values())
            or any(device_id in before.devices for device_id in devices.keys() - ids)
            or (limit is not None and total > limit)
            or mixed
            or not _alike(devices, before, ids)
            or not self._are_free(devices, ids)
        ):
            return None
        for device in affected.devices.values():
            self._drop(device)
        for device in devices.values():
            self._enter(device)
        gone = frozenset(ids - devices.keys())
        known = {**before.devices, **devices}
        for device_id in gone:
            del known[device_id]
        skipped = (*kept, *new)[:SKIPPED_MAX]
        if not (known or skipped):
            return None  # to say why there are none takes a full scan
        passing = {device_id: known[device_id] for device_id in self._passing}
        again_at = scanner.again_at(passing, identified, now)
        self.snapshot = Snapshot(known, skipped, count, again_at=again_at, scanned=True)
        return ScanResult(before, self.snapshot, devices, gone)

    def _is_former(self, found: Selection, ids: AbstractSet[str]) -> bool:
        """Whether a device that is missing may go on under another name."""
        files = {identity.file_of(node.state) for node in found.nodes if node.state}
        others = (self.snapshot.devices[one] for one in self._passing if one not in ids)
        return not all(files.isdisjoint(identity.files_of(device)) for device in others)

    # ── what is known of the other devices ──

    def _enter(self, device: HostDevice) -> bool:
        """Index a device; false if it has to go, or has a key of another one's."""
        if device.replaced:
            return False
        for key in self._keys_of(device):
            if self._keys.setdefault(key, device.id) != device.id:
                return False
        self._ids |= dict.fromkeys(device.paths, device.id)
        if device.missing_since is not None or device.swapped_at is not None:
            self._passing.add(device.id)
        return True

    def _drop(self, device: HostDevice) -> None:
        for key in self._keys_of(device):
            self._keys.pop(key, None)
        for path in device.paths:
            self._ids.pop(path, None)
        self._passing.discard(device.id)

    def _keys_of(self, device: HostDevice) -> rendering.Taken:
        taken: rendering.Taken = {}
        exclusive = tuple(rule for rule in self.scanner.rules if rule.exclusive)
        with contextlib.suppress(AllocationError):
            rendering.clash(taken, device.id, self.scanner.alone(device, exclusive))
        return taken

    def _are_free(self, devices: Mapping[str, HostDevice], ids: AbstractSet[str]) -> bool:
        """Whether the devices' names and container paths are those of no other device."""
        seen: set[int] = set()
        for device in devices.values():
            for key in self._keys_of(device):
                other = self._keys.get(key, device.id)
                if key in seen or (other != device.id and other not in ids):
                    return False
                seen.add(key)
        return True


def _below(root: Root, paths: Iterable[str]) -> Iterator[str]:
    above = f"{root.base}/"
    return (path[len(above) :] for path in paths if path.startswith(above))


def _alike(devices: Mapping[str, HostDevice], before: Snapshot, ids: AbstractSet[str]) -> bool:
    """Whether these devices are attached to NUMA nodes if, and only if, the others are."""
    other = next((one for device_id, one in before.devices.items() if device_id not in ids), None)
    return other is None or all(
        bool(device.numa_nodes) is bool(other.numa_nodes) for device in devices.values()
    )

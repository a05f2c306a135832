"""A scan of the host for one resource: a selection, then devices, answers, their health."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from devhost.allocation import rendering
from devhost.allocation.declaration import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.rules import bound, rules_of
from devhost.discovery import identity, topology
from devhost.discovery.candidates import HOLD_S, Moment, OwnerOf
from devhost.discovery.identity import NO_SOURCE, Identified
from devhost.discovery.match import Readings
from devhost.discovery.roots import Root
from devhost.discovery.selection import Selection, roots_of, select
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.limits import SKIPPED_MAX
from devhost.model import names
from devhost.model.allocation import Allocation, Rendered
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Node, Snapshot


@dataclass(frozen=True, slots=True)
class Scanner(Declaration):
    """A declaration that can be scanned and allocated from.

    Attributes:
        hold_s: How long a node waits for an earlier source to name it.
    """

    hold_s: float = HOLD_S

    @classmethod
    def of(
        cls, resource: Resource, files: HostFiles, policy: Policy, node_name: str, *, hold_s: float
    ) -> "Scanner":
        """Compile a resource."""
        rules = bound(rules_of(resource), resource.name, node_name)
        return cls(resource, rules, files, policy, node_name, hold_s)

    @property
    def roots(self) -> tuple[Root, ...]:
        """What has to be read of the host."""
        return roots_of(self.resource)

    def select(self, readings: Readings) -> Selection:
        """Return what the resource's sources find among what was read. Blocks."""
        return select(self.resource, readings)

    def failed(self, reason: str) -> Selection:
        """Return what is found where the host does not say."""
        return Selection(failed=dict.fromkeys(range(len(self.resource.sources)), reason))

    def identify(
        self,
        found: Selection,
        previous: Snapshot,
        owner_of: OwnerOf,
        now: float,
        *,
        links_to_come: bool = False,
    ) -> Identified:
        """Find out which devices there are; pure."""
        moment = Moment(previous, owner_of, now, self.hold_s, self.constants, links_to_come)
        return identity.identify(self.resource, found, moment)

    def conclude(
        self, found: Selection, identified: Identified, previous: Snapshot, now: float
    ) -> Snapshot:
        """Return the next snapshot. Looks at host paths, so it blocks."""
        devices, unseen = self.rendered(identified, previous, now)
        devices, mixed = topology.placed(self.resource.topology, devices, previous, self.files)
        return Snapshot(
            devices={device_id: devices[device_id] for device_id in names.natural(devices)},
            skipped=tuple(identified.skipped[:SKIPPED_MAX]),
            skipped_count=len(identified.skipped),
            error="; ".join(found.failed.values()) or None,
            notes=(*found.notes, *_unseen(unseen, self.files.root), *_cut(identified)),
            unmatched=() if devices else found.unmatched,
            deferred=identified.deferred,
            again_at=self.again_at(devices, identified, now),
            mixed=mixed,
            scanned=True,
        )

    def snapshot(
        self, found: Selection, previous: Snapshot, owner_of: OwnerOf, now: float
    ) -> Snapshot:
        """Do both; for a resource alone. Blocks."""
        identified = self.identify(found, previous, owner_of, now)
        return self.conclude(found, identified, previous, now)

    def rendered(
        self, identified: Identified, previous: Snapshot, now: float
    ) -> tuple[dict[str, HostDevice], list[str]]:
        """Return all devices that are known then, but for their NUMA nodes.

        Returns:
            The devices, and the host paths of optional mounts that this process cannot see.
        """
        devices: dict[str, HostDevice] = {}
        found: dict[str, Rendered] = {}
        alone: dict[str, Allocation] = {}
        unseen: list[str] = []
        for device_id, device in identified.devices.items():
            try:
                rendered, allocated = rendering.render(self.rules, device_id, device.nodes)
            except AllocationError as error:
                devices[device_id] = replace(device, reason=str(error))
            else:
                found[device_id], alone[device_id] = rendered, allocated
        offered = {key: value for key, value in found.items() if key in previous.devices}
        reasons = rendering.clashes(self.rules, offered | found)
        host_paths = HostPaths(self.files, self.policy)
        for device_id, rendered in found.items():
            nodes = identified.devices[device_id].nodes
            for node in nodes:
                if node.state is not None:
                    host_paths.known(node.path, node.state)
            reason = (
                next((node.problem for node in nodes if node.problem), None)
                or reasons.get(device_id)
                or self.name_refusal(alone[device_id])
                or _unfit(alone[device_id], host_paths)
            )
            devices[device_id] = HostDevice(device_id, nodes, reason, rendered=rendered)
            unseen += [
                mount.host_path
                for mount in alone[device_id].mounts
                if mount.optional and host_paths.is_unseen(mount)
            ]
        return {**identified.gone, **dict(_swapped(devices, previous, now))}, unseen

    def again_at(
        self, devices: Mapping[str, HostDevice], present: Identified, now: float
    ) -> float | None:
        """Return when to scan again even if nothing happens, by these devices."""
        taken = sum(1 for device in devices.values() if not device.replaced)
        if present.over_limit and taken < (self.resource.limit or 0):
            return now  # a device was given up, and its slot is free for another
        times = [time for device in devices.values() for time in self.times(device)]
        times += [since + self.hold_s for since in present.deferred.values()]
        return min((time for time in times if time > now and time != float("inf")), default=None)

    def times(self, device: HostDevice) -> Iterator[float]:
        """Yield when a device changes even if nothing happens."""
        if device.missing_since is not None:
            yield device.missing_since + identity.remembered(self.resource, device)
        if device.swapped_at is not None:
            yield device.swapped_at + identity.SWAP_S


@immutable
class ScanResult:
    """What a scan has found, of everything or of a few names.

    Attributes:
        before: The snapshot that it changes.
        snapshot: The snapshot then.
        devices: The devices that were scanned, by ID.
        gone: The IDs of those that are known no longer.
    """

    before: Snapshot
    snapshot: Snapshot
    devices: Mapping[str, HostDevice]
    gone: frozenset[str]

    @property
    def offered(self) -> frozenset[str]:
        """The nodes (`Node.key`) of the devices that were scanned."""
        return identity.keys_of(self.devices.values())

    @property
    def released(self) -> frozenset[str]:
        """The nodes that they had before, and have no longer."""
        former = (self.before.devices.get(one) for one in (*self.devices, *self.gone))
        return identity.keys_of(one for one in former if one is not None) - self.offered


def events_suffice(scanner: Scanner, found: Selection, snapshot: Snapshot) -> bool:
    """Whether the events of the watched directories report all that may change a snapshot.

    There are none for the targets of links, the use of block devices, other host paths that
    containers get, the CDI spec's directory, and what makes a device unhealthy.
    """
    return (
        found.direct
        and scanner.resource.inject != "cdi"
        and snapshot.error is None
        and scanner.self_contained
        and not any(one.reason and one.missing_since is None for one in snapshot.devices.values())
    )


def _cut(identified: Identified) -> Iterator[str]:
    if identified.cut:
        yield f"{identified.cut} devices left out: {identity.NO_ROOM}"


def _unfit(alone: Allocation, host_paths: HostPaths) -> str | None:
    """Return why a container could not be given a device alone."""
    for spec in alone.specs:
        if not spec.optional and (problem := host_paths.problem(spec)):
            return problem
    return None


def _unseen(paths: Iterable[str], root: str) -> Iterator[str]:
    """Yield a note for optional mounts that are left out because they cannot be seen."""
    if different := list(dict.fromkeys(paths)):
        more = f" and {len(different) - 1} more" if len(different) > 1 else ""
        yield (
            f"mount {different[0]}{more}: not visible below {root} (the chart's hostPaths), left "
            "out, because it is optional"
        )


def _swapped(
    devices: Mapping[str, HostDevice], previous: Snapshot, now: float
) -> Iterator[tuple[str, HostDevice]]:
    """Make a device unhealthy for a while that is another node than before.

    A pod that holds it has lost it, for containers are given numbers, and kubelet would hear
    nothing of it. It is unhealthy for the same time whether or not a scan has seen that the former
    node was gone: then that time counts from there.
    """
    for device_id, device in devices.items():
        before = previous.devices.get(device_id)
        if before is None:
            yield device_id, device
            continue
        known = before.numbers
        other = any(known.get(path, number) != number for path, number in device.numbers.items())
        lost_at = now if before.missing_since is None else before.missing_since
        since = lost_at if other else before.swapped_at
        if since is not None:
            reason = (
                "another device was found in its place" if now < since + identity.SWAP_S else None
            )
            device = replace(device, reason=device.reason or reason, swapped_at=since)  # noqa: PLW2901
        yield device_id, device


def carried_over(found: Snapshot, old: Resource, new: Resource) -> Snapshot:
    """Return what was known under an old declaration, for the next scan by a new one.

    Each node gets the number of the new source that is its former one, or none.
    """
    places = [
        next((at for at, source in enumerate(new.sources) if source == former), NO_SOURCE)
        for former in old.sources
    ]

    def moved(node: Node) -> Node:
        return replace(node, source=places[node.source] if node.source >= 0 else NO_SOURCE)

    devices = {
        device_id: replace(device, nodes=tuple(moved(node) for node in device.nodes))
        for device_id, device in found.devices.items()
    }
    return replace(found, devices=devices)

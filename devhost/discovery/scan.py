"""A scan of the host for one resource: a selection, then devices, answers, their health."""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final, Literal

from devhost.allocation.declaration import Declaration, Rules, rules_of
from devhost.allocation.host_paths import HostPaths, Spec
from devhost.allocation.policy import Policy
from devhost.allocation.variables import CONTAINER_VARIABLES
from devhost.discovery import identity
from devhost.discovery.identity import HOLD_S, NO_SOURCE, Identified, Moment, OwnerOf
from devhost.discovery.sources.base import Listings, Location
from devhost.discovery.sources.filter import CompiledSource, Selection, select
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import sysfs_by_number
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.device import FileKind, HostDevice, Node, Snapshot
from devhost.model.limits import DEVICE_IDS_MAX, SKIPPED_MAX

_REASON_MAX: Final = 500  # characters


@dataclass(frozen=True)
class Scanner(Declaration):
    """A declaration that can be scanned; a node waits `hold_s` for an earlier source to name it."""

    hold_s: float = HOLD_S

    @classmethod
    def of(
        cls, resource: Resource, files: HostFiles, policy: Policy, node_name: str, *, hold_s: float
    ) -> "Scanner":
        """Compile a resource."""
        return cls(resource, rules_of(resource), files, policy, node_name, hold_s)

    @functools.cached_property
    def sources(self) -> tuple[CompiledSource, ...]:
        """The sources, compiled."""
        mentioned, specs = self.resource.mentioned, enumerate(self.resource.sources)
        return tuple(CompiledSource.of(index, spec, mentioned) for index, spec in specs)

    @property
    def locations(self) -> tuple[Location, ...]:
        """The parts of the host that have to be listed."""
        return tuple(
            dict.fromkeys(location for source in self.sources for location in source.locations)
        )

    @functools.cached_property
    def _limit(self) -> int | None:
        """How many devices it may have."""
        return self.resource.limit

    @functools.cached_property
    def _clashing(self) -> Rules:
        """The rules by which two devices may come to the same name or container path."""
        exclusive = tuple(rule for rule in self.rules if rule.exclusive)
        made_of = {name for rule in exclusive for name in rule.key.names - CONTAINER_VARIABLES}
        return () if len(exclusive) == 1 and made_of in ({"id"}, {"realpath"}) else exclusive

    @functools.cached_property
    def _host_rules(self) -> Rules:
        """The rules that give paths of the host."""
        return tuple(rule for rule in self.rules if rule.target in ("devices", "mounts"))

    @property
    def keeps(self) -> bool:
        """Whether a device with equal nodes is as it was."""
        return True

    def select(self, listings: Listings) -> Selection:
        """Return what the resource's sources find among what was read. Blocks."""
        return select(self.sources, listings, grouped=self.resource.group is not None)

    def failed(self, reason: str) -> Selection:
        """Return what is found where the host does not say."""
        return Selection(failed_sources=dict.fromkeys(range(len(self.resource.sources)), reason))

    def identify(
        self,
        found: Selection,
        previous: Snapshot,
        owner_of: OwnerOf,
        now: float,
        *,
        links_to_come: bool = False,
        most: int = DEVICE_IDS_MAX,
    ) -> Identified:
        """Return the devices, at most so many, of what was found; pure."""
        moment = Moment(
            previous, owner_of, now, self.hold_s, self.constants, self._limit, links_to_come
        )
        identified = identity.identify(self.resource, found, moment)
        identified.cut_to(most)
        return identified

    def verify(self, identified: Identified, *, thorough: bool = True) -> Snapshot:
        """Return the next snapshot. Blocks: looks at host paths.

        Only if it is `thorough`, the host is asked again about devices that are as they were.
        """
        thorough = thorough or not self.self_contained
        found, previous = identified.selection, identified.moment.previous
        devices, unseen = self._judged(identified, thorough=thorough)
        devices, mixed = placed(
            self.resource.topology, devices, previous, self.files, thorough=thorough
        )
        cut = [f"{identified.cut} devices left out: {identity.NO_ROOM}"] if identified.cut else ()
        if identified.gone:
            devices = {one: devices[one] for one in names.natural(devices)}
        return Snapshot(
            devices=devices,
            skipped=tuple(identified.skipped[:SKIPPED_MAX]),
            skipped_count=len(identified.skipped),
            error="; ".join(found.failed_sources.values()) or None,
            notes=(*found.notes, *_unseen(unseen, self.files.root), *cut),
            why_none=tuple if devices else found.explain_empty,
            deferred=identified.deferred,
            again_at=self._again_at(devices, identified),
            mixed=mixed,
            scanned=True,
            cut=identified.cut,
        )

    def _judged(
        self, identified: Identified, *, thorough: bool
    ) -> tuple[dict[str, HostDevice], list[str]]:
        """Find out which devices no container can have, by what they bring and what is there.

        Returns all devices, and the host paths of optional mounts that are unseen. A device that is
        as it was is the same object. Blocks.
        """
        previous, now = identified.moment.previous, identified.moment.now
        devices = dict(identified.devices)
        host_paths: HostPaths | None = None
        nodes, unseen = self._exclusive(identified), list[str]()
        taken: Taken = {}
        formers = previous.devices
        turns = list(devices.values())
        if self._clashing:
            turns.sort(key=lambda one: _turn(formers.get(one.id)))
        for device in turns:
            former = formers.get(device.id)
            one, alone = self._rendered(device, former)
            if one.legal and self._clashing:
                reason = clash(taken, device.id, self.alone(device, self._clashing))
                one = one if reason is None else replace(device, reason=reason, legal=True)
            if one.reason is None and (one is not former or thorough):
                alone = alone or self.alone(device, self._host_rules)
                reason = next((node.problem for node in device.nodes if node.problem), None)
                if alone.devices or alone.mounts:
                    host_paths = host_paths or HostPaths(self.files, self.policy)
                    reason = reason or _unfit(device, alone, host_paths, nodes)
                    optional = (mount for mount in alone.mounts if mount.optional)
                    unseen += [it.host_path for it in optional if host_paths.is_invisible(it)]
                one = one if reason is None else replace(one, reason=_shortened(reason))
            devices[device.id] = one
        return {**identified.gone, **dict(_swapped(devices, previous, now))}, unseen

    def _rendered(
        self, device: HostDevice, former: HostDevice | None
    ) -> tuple[HostDevice, Allocation | None]:
        """Return a device with what is wrong with what it brings, and that; pure.

        What was legal before is not put together again for the same nodes.
        """
        if former is not None and former.legal and former.nodes == device.nodes:
            return former if former.sound and self.keeps else replace(device, legal=True), None
        try:
            alone = self.alone(device, self.rules)
        except AllocationError as error:
            return replace(device, reason=_shortened(str(error))), None
        return replace(device, legal=True), alone

    def _exclusive(self, identified: Identified) -> Mapping[str, str]:
        """Return whose a node (`Node.key`) is, where no entry may give it to other devices."""
        shared = self.resource.replicas > 1 or self.resource.overlap == "allow"
        if shared or self.self_contained:
            return {}
        devices = identified.devices.values()
        return {node.key: one.id for one in devices for node in one.nodes if node.state}

    def _again_at(self, devices: Mapping[str, HostDevice], present: Identified) -> float | None:
        """Return when to scan again even if nothing happens, by these devices."""
        now = present.moment.now
        taken = sum(1 for device in devices.values() if not device.replaced)
        if present.over_limit and taken < (self._limit or 0):
            return now  # a device was given up, and its slot is free for another
        changing = (one for one in devices.values() if not one.sound)
        times = [time for device in changing for time in self._times(device)]
        times += [since + self.hold_s for since in present.deferred.values()]
        return min((time for time in times if time > now and time != float("inf")), default=None)

    def _times(self, device: HostDevice) -> Iterator[float]:
        """Yield when a device changes even if nothing happens."""
        if device.missing_since is not None:
            yield device.missing_since + identity.remembered(self.resource, device)
        if device.swapped_at is not None:
            yield device.swapped_at + identity.SWAP_S


def placed(
    choice: int | Literal["auto", "none"],
    devices: Mapping[str, HostDevice],
    previous: Snapshot,
    files: HostFiles,
    *,
    thorough: bool = True,
) -> tuple[dict[str, HostDevice], bool]:
    """Return the devices with their NUMA nodes, and whether only some have any: then none has.

    Those without would never satisfy a hint (k8s.io/kubernetes v1.37.1
    pkg/kubelet/cm/devicemanager/topology_hints.go). Blocks.
    """
    sysfs = functools.cache(lambda: sysfs_by_number(files))

    def numa_nodes(device: HostDevice) -> tuple[int, ...]:
        if choice != "auto":
            return () if choice == "none" else (choice,)
        before = previous.devices.get(device.id)
        kept = device.missing_since is not None or (device is before and not thorough)
        if before is not None and kept and not previous.mixed:
            return before.numa_nodes
        found: set[int | None] = set()
        for node in device.nodes:
            if node.hardware is not None:
                found.add(sysfs().numa(node.hardware.numa))
            elif node.state is not None and node.state.number is not None:
                kind = "block" if node.state.kind is FileKind.BLOCK else "char"
                place = sysfs().device_by_number(kind, node.state.number)
                found |= set(map(sysfs().numa, sysfs().parts(place) if place else ()))
        return tuple(sorted(one for one in found if one is not None))

    nodes = {device_id: numa_nodes(device) for device_id, device in devices.items()}
    mixed = any(nodes.values()) and not all(nodes.values())
    if mixed:
        nodes = dict.fromkeys(devices, ())
    placed = {
        key: device if device.numa_nodes == nodes[key] else replace(device, numa_nodes=nodes[key])
        for key, device in devices.items()
    }
    return placed, mixed


def _shortened(reason: str) -> str:
    """Return a reason as it is kept for each device: it may cite a text of the file."""
    return f"{reason[:_REASON_MAX]}…" if len(reason) > _REASON_MAX else reason


def _unfit(
    device: HostDevice, alone: Allocation, host_paths: HostPaths, taken: Mapping[str, str]
) -> str | None:
    """Return why a container could not be given a device alone."""
    for node in device.nodes:
        if node.state is not None:
            host_paths.remember(node.path, node.state)
    specs: tuple[Spec, ...] = (*alone.devices, *alone.mounts)
    for spec in specs:
        if not spec.optional and (problem := host_paths.problem(spec)):
            return problem
    for given in alone.devices:
        other = taken.get(host_paths.resolve(given.host_path).realpath, device.id)
        if other != device.id:
            return f"it would get {given.host_path}, a node of {other}: use `group`, or exclude it"
    return None


def _unseen(paths: Iterable[str], root: str) -> Iterator[str]:
    """Yield a note for optional mounts that are left out because they cannot be seen."""
    if different := list(dict.fromkeys(paths)):
        more = f" and {len(different) - 1} more" if len(different) > 1 else ""
        where = f"not visible below {root} (the chart's hostPaths)"
        yield f"mount {different[0]}{more}: {where}, left out, because it is optional"


def _swapped(
    devices: Mapping[str, HostDevice], previous: Snapshot, now: float
) -> Iterator[tuple[str, HostDevice]]:
    """Make a device unhealthy for a while that is another node than before.

    A pod that holds it has lost it, for containers are given numbers, and kubelet would hear
    nothing of it. The time counts from when a scan has seen that the former node was gone, if so.
    """
    for device_id, device in devices.items():
        before = previous.devices.get(device_id)
        if before is None or before is device:
            yield device_id, device
            continue
        known = before.numbers
        other = any(known.get(path, number) != number for path, number in device.numbers.items())
        lost_at = now if before.missing_since is None else before.missing_since
        since = lost_at if other else before.swapped_at
        if since is not None:
            swapped = now < since + identity.SWAP_S
            reason = "another device was found in its place" if swapped else None
            device = replace(device, reason=device.reason or reason, swapped_at=since)  # noqa: PLW2901
        yield device_id, device


def carried_over(found: Snapshot, old: Resource, new: Resource) -> Snapshot:
    """Return what was known under an old declaration, for the next scan by a new one.

    Each node gets the number of the new source that is its former one, or none; what its devices
    bring is put together again.
    """
    places = [
        next((at for at, source in enumerate(new.sources) if source == former), NO_SOURCE)
        for former in old.sources
    ]

    def moved(node: Node) -> Node:
        return replace(node, source=places[node.source] if node.source >= 0 else NO_SOURCE)

    devices = {
        device_id: replace(device, nodes=tuple(moved(node) for node in device.nodes), legal=False)
        for device_id, device in found.devices.items()
    }
    return replace(found, devices=devices)


# ── devices that cannot be offered beside each other ──

Taken = dict[int, tuple[int, str]]
"""What devices have: names and container paths with their values, as hashes, and the device."""


def _turn(former: HostDevice | None) -> int:
    """Return whose turn it is to have its names: who was healthy keeps them; new ones come last."""
    return 2 if former is None else int(former.reason is not None)


def clash(taken: Taken, device_id: str, alone: Allocation) -> str | None:
    """Enter what a device has by the `clashing` rules; return why it cannot be offered, if so.

    A constant name or path is the author's word that a container gets one device.
    """
    named = [
        *(("env", *one) for one in alone.envs.items()),
        *(("annotation", *one) for one in alone.annotations.items()),
        *(("container path", one.container_path, one.host_path) for one in alone.specs),
    ]
    problem = None
    for what, key, value in named:
        mine = hash(value)
        text, other = taken.setdefault(hash((what, key)), (mine, device_id))
        if text != mine:
            problem = f"{what} {key} is used by device {other} too"
    return problem

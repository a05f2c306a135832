"""A scan of the host for one resource: a selection, then devices, answers, their health."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from devhost.allocation.compiled import Declaration
from devhost.allocation.host_paths import HostPaths, Spec
from devhost.allocation.rules import Rules
from devhost.allocation.variables import CONTAINER_VARIABLES, names_paths
from devhost.devices import identify as identity
from devhost.devices.identify import SETTLE_S, SOURCE_REMOVED, Identified, Owners, ScanContext
from devhost.errors import AllocationError, MissingRightError
from devhost.hostfs.files import note_answer
from devhost.hostfs.sysfs import SysfsTree, sysfs_by_number
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.device import (
    Cause,
    FileKind,
    HostDevice,
    Snapshot,
    Verdict,
    no_explanation,
)
from devhost.model.limits import SKIPPED_MAX
from devhost.sources.base import Listings, Location
from devhost.sources.selection import CompiledSource, Selection, select

_REASON_MAX: Final = 500  # characters


@dataclass(frozen=True)
class Scanner(Declaration):
    """A compiled resource; a node waits `settle_s` for an earlier source to name it."""

    settle_s: float = SETTLE_S

    @functools.cached_property
    def sources(self) -> tuple[CompiledSource, ...]:
        """The compiled sources."""
        mentioned, specs = self.resource.mentioned_variables, enumerate(self.resource.sources)
        directories = self.files.cdi_dirs
        return tuple(CompiledSource.of(*spec, mentioned, directories) for spec in specs)

    @property
    def locations(self) -> tuple[Location, ...]:
        """The places of the host that have to be read."""
        return tuple(
            dict.fromkeys(place for compiled in self.sources for place in compiled.source.locations)
        )

    @functools.cached_property
    def _clashing(self) -> Rules:
        """The rules by which two devices may come to the same name or container path."""
        exclusive = tuple(rule for rule in self.rules if rule.exclusive)
        variables = {name for rule in exclusive for name in rule.key.names - CONTAINER_VARIABLES}
        return () if len(exclusive) == 1 and variables in ({"id"}, {"realpath"}) else exclusive

    @functools.cached_property
    def _host_rules(self) -> Rules:
        """The rules that give paths of the host."""
        return tuple(rule for rule in self.rules if rule.target in ("devices", "mounts"))

    @property
    def reuses_devices(self) -> bool:
        """Whether a device with equal nodes is as it was."""
        return True

    def select(self, listings: Listings) -> Selection:
        """Return what the resource's sources find among what was read. Blocks."""
        return select(self.sources, listings, grouped=self.resource.group is not None)

    def failed(self, reason: str) -> Selection:
        """Return the selection of a host that does not answer."""
        return Selection(failed_sources=dict.fromkeys(range(len(self.resource.sources)), reason))

    def identify(
        self,
        selection: Selection,
        previous: Snapshot,
        now: float,
        owners: Mapping[str, str] = MappingProxyType({}),
        *,
        links_to_come: bool = False,
    ) -> Identified:
        """Return the devices of a selection, if its nodes have no owners but these; pure.

        The parameters are those of `ScanContext`.
        """
        limits = now, self.settle_s, self.constants, links_to_come
        context = ScanContext(self.resource, previous, Owners(owners.get), *limits)
        return identity.identify(selection, context)

    def verify(self, identified: Identified, *, full: bool = True) -> Snapshot:
        """Return the next snapshot. Blocks: looks at host paths.

        Only if it is `full`, the host is asked again about devices that are as they were.
        """
        full = full or not self.self_contained
        selection, previous = identified.selection, identified.context.previous
        devices = self._verified(identified, full=full)
        devices, partly_numa = self.with_places(devices, previous, full=full)
        notes = [*selection.notes]
        if truncated := identified.truncated:
            notes.append(f"{truncated} devices left out: {identity.ID_LIMIT_REACHED}")
        if identified.missing:
            devices = {device_id: devices[device_id] for device_id in names.natural(devices)}
        return Snapshot(
            devices=devices,
            skipped=tuple(identified.skipped[:SKIPPED_MAX]),
            skipped_count=len(identified.skipped),
            error="; ".join(selection.failed_sources.values()) or None,
            notes=tuple(notes),
            explain_empty=no_explanation if devices else selection.explain_empty,
            settling=identified.settling,
            again_at=self._again_at(devices, identified),
            partly_numa=partly_numa,
            scanned=True,
            truncated=truncated,
        )

    def _verified(self, identified: Identified, *, full: bool) -> dict[str, HostDevice]:
        """Return all devices, with why no container can have some. Blocks.

        A device that is as it was is the same object.
        """
        previous, now = identified.context.previous.devices, identified.context.now
        devices = dict(identified.devices)
        host_paths: HostPaths | None = None
        owners, taken = self._owners_of_nodes(identified), TakenNames()
        in_turn = list(devices.values())
        if self._clashing:
            in_turn.sort(key=lambda device: _turn(previous.get(device.id)))
        asks = full or self._clashing or not self.reuses_devices
        for found_device in in_turn:
            former = previous.get(found_device.id)
            if found_device is former and former.is_rendered and not asks:
                continue
            note_answer()  # what takes long for many devices is not a host that hangs
            device, allocation = self._rendered(found_device, former)
            if device.is_rendered and self._clashing:
                text = find_clash(taken, device.id, self.alone(device, self._clashing))
                if text is not None:
                    verdict = Verdict(Cause.CLASH, text)
                    device = replace(device, verdict=verdict, is_rendered=True)
            if device.verdict is None and (device is not former or full):
                allocation = allocation or self.alone(device, self._host_rules)
                problems = (node.problem for node in device.nodes if node.problem)
                problem: AllocationError | str | None = next(problems, None)
                if allocation.devices or allocation.mounts or self.resource.pre_start:
                    host_paths = host_paths or HostPaths(self.files, self.policy)
                    problem = problem or _path_problem(device, allocation, host_paths, owners)
                    problem = problem or self._step_problem(device, host_paths)
                if problem is not None:
                    device = replace(device, verdict=_verdict(Cause.HOST_PATH, problem))
            if former is not None and former is not device:
                device = _with_swap(device, former, now)
            devices[device.id] = device
        return {**identified.missing, **devices}

    def _rendered(
        self, device: HostDevice, former: HostDevice | None
    ) -> tuple[HostDevice, Allocation | None]:
        """Return a device, with why `allocate` fails for it, and what it brings; pure.

        For the same nodes it is not put together again.
        """
        if former is not None and former.is_rendered and former.nodes == device.nodes:
            is_same = former.is_stable and self.reuses_devices
            return former if is_same else replace(device, is_rendered=True), None
        try:
            allocation = self.alone(device, self.rules)
        except AllocationError as error:
            return replace(device, verdict=_verdict(Cause.RENDERING, error)), None
        return replace(device, is_rendered=True), allocation

    def _step_problem(self, device: HostDevice, host_paths: HostPaths) -> AllocationError | None:
        """Return why a step may not use the nodes of a device, handed out or not."""
        steps = (step for step in self.resource.pre_start if step.run or step.mode)
        try:
            for step in steps:
                host_paths.current_nodes(device, files=names_paths(step.run or ()))
        except AllocationError as error:
            return error
        return None

    def _owners_of_nodes(self, identified: Identified) -> Mapping[str, str]:
        """Return the device of each node (`Node.key`) that no entry may give to other devices."""
        shared = self.resource.replicas > 1 or self.resource.overlap == "allow"
        if shared or self.self_contained:
            return {}
        devices = identified.devices.values()
        return {node.key: device.id for device in devices for node in device.nodes if node.state}

    def with_places(
        self, devices: Mapping[str, HostDevice], previous: Snapshot, *, full: bool
    ) -> tuple[dict[str, HostDevice], bool]:
        """Return the devices with their places in sysfs and their NUMA nodes.

        Also returns whether only some are attached to NUMA nodes: then none is shown with any.
        Those without would never satisfy a hint (k8s.io/kubernetes v1.37.1
        pkg/kubelet/cm/devicemanager/topology_hints.go). Blocks.
        """
        topology = self.resource.topology
        sysfs = functools.cache(lambda: sysfs_by_number(self.files))

        def locate(device: HostDevice) -> tuple[tuple[str, ...], tuple[int, ...]]:
            former = previous.devices.get(device.id)
            if previous.partly_numa or (device.is_present and (device is not former or full)):
                former = None
            places = former.places if former else tuple(sorted({*self._places(device, sysfs)}))
            if topology != "auto":
                return places, () if topology == "none" else (topology,)
            if former is not None:
                return places, former.numa_nodes
            numbers = {sysfs().numa_node(place) for place in places}
            return places, tuple(sorted(number for number in numbers if number is not None))

        by_device = {device_id: locate(device) for device_id, device in devices.items()}
        has_numa_nodes = {bool(numbers) for _, numbers in by_device.values()}
        is_partial = len(has_numa_nodes) > 1
        placed = dict[str, HostDevice]()
        for device_id, (places, numbers) in by_device.items():
            device, numa_nodes = devices[device_id], () if is_partial else numbers
            if (places, numa_nodes) != (device.places, device.numa_nodes):
                device = replace(device, places=places, numa_nodes=numa_nodes)
            placed[device_id] = device
        return placed, is_partial

    def _places(self, device: HostDevice, sysfs: Callable[[], SysfsTree]) -> Iterator[str]:
        for node in device.nodes:
            if node.hardware is not None:
                yield node.hardware.numa
            elif node.state is not None and node.state.number is not None:
                kind = "block" if node.state.kind is FileKind.BLOCK else "char"
                place = sysfs().device_by_number(kind, node.state.number)
                yield from sysfs().parts(place) if place else ()

    def _again_at(self, devices: Mapping[str, HostDevice], identified: Identified) -> float | None:
        """Return when to scan again even if nothing happens, by these devices."""
        now = identified.context.now
        taken = sum(not device.is_leaving for device in devices.values())
        is_cut = identified.truncated > 0  # then it is read again when IDs come free
        if identified.over_limit and not is_cut and taken < (self.resource.limit or 0):
            return now  # a device was given up, and its slot is free for another
        times = [since + self.settle_s for since in identified.settling.values()]
        for device in devices.values():
            if device.absence is not None:
                kept = identity.keep_missing_for(self.resource, device)
                times.append(device.absence.since + kept)
            if device.swapped_at is not None:
                times.append(device.swapped_at + identity.SWAP_S)
        return min((time for time in times if now < time < math.inf), default=None)


def _verdict(cause: Cause, problem: AllocationError | str) -> Verdict:
    """Return a verdict as it is kept for each device: its text, which may cite the file, is cut."""
    text, cause = str(problem), Cause.REFUSED if isinstance(problem, MissingRightError) else cause
    return Verdict(cause, f"{text[:_REASON_MAX]}…" if len(text) > _REASON_MAX else text)


def _path_problem(
    device: HostDevice, allocation: Allocation, host_paths: HostPaths, owners: Mapping[str, str]
) -> AllocationError | str | None:
    """Return why a container could not be given the host paths of a device alone."""
    for node in device.nodes:
        if node.state is not None:
            host_paths.remember(node.path, node.state)
    specs: tuple[Spec, ...] = (*allocation.devices, *allocation.mounts)
    for spec in specs:
        if problem := host_paths.problem(spec):
            return problem
    for spec in allocation.devices:
        owner = owners.get(host_paths.resolve(spec.host_path).realpath, device.id)
        if owner != device.id:
            return f"it would get {spec.host_path}, a node of {owner}: use `group`, or exclude it"
    return None


def _with_swap(device: HostDevice, former: HostDevice, now: float) -> HostDevice:
    """Return a device, unhealthy for a while if it is another node than before.

    A pod that holds it has lost it, for containers are given numbers, and kubelet would hear
    nothing of it. The time counts from when a scan has seen that the former node was gone, if so.
    """
    before, numbers = former.numbers, device.numbers
    lost, new = {*before.values()} - {*numbers.values()}, {*numbers.values()} - {*before.values()}
    is_swapped = bool(lost and new) or any(before.get(at, n) != n for at, n in numbers.items())
    lost_at = former.absence.since if former.absence else now
    since = lost_at if is_swapped else former.swapped_at
    if since is None:
        return device
    verdict = device.verdict
    if verdict is None and now < since + identity.SWAP_S:
        verdict = Verdict(Cause.SWAPPED, "another device was found in its place")
    return replace(device, verdict=verdict, swapped_at=since)


def for_new_spec(snapshot: Snapshot, old: Resource, new: Resource) -> Snapshot:
    """Return the devices of an old specification, for the next scan by a new one.

    Each node gets the number of the new source that is its former one, or none; what its devices
    bring is put together again.
    """
    sources = new.sources
    numbers = {
        number: sources.index(former) if former in sources else SOURCE_REMOVED
        for number, former in enumerate(old.sources)
    }
    devices = {}
    for device_id, device in snapshot.devices.items():
        nodes = tuple(
            replace(node, source=numbers.get(node.source, SOURCE_REMOVED)) for node in device.nodes
        )
        devices[device_id] = replace(device, nodes=nodes, is_rendered=False)
    return replace(snapshot, devices=devices)


# ── devices that cannot be offered beside each other ──

TakenNames = dict[int, tuple[int, str]]
"""The names and container paths that devices have, with their values, as hashes, and the device."""


def _turn(former: HostDevice | None) -> int:
    """Return the turn to get names: who was healthy keeps them; new devices come last."""
    return 2 if former is None else int(former.verdict is not None)


def find_clash(taken: TakenNames, device_id: str, allocation: Allocation) -> str | None:
    """Add the names that a device has by the clashing rules; return why it cannot be offered.

    A constant name or path is the author's word that a container gets one device.
    """
    named = [
        *(("env", *pair) for pair in allocation.envs.items()),
        *(("annotation", *pair) for pair in allocation.annotations.items()),
        *(("container path", spec.container_path, spec.host_path) for spec in allocation.specs),
    ]
    problem = None
    for kind, name, value in named:
        value_hash = hash(value)
        former_hash, user = taken.setdefault(hash((kind, name)), (value_hash, device_id))
        if former_hash != value_hash:
            problem = f"{kind} {name} is used by device {user} too"
    return problem

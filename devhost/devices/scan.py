"""A scan of the host for one resource: a selection, then devices, answers, their health."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import ClassVar, Final

from devhost.allocation.compiled import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.rules import Rules
from devhost.allocation.variables import names_paths
from devhost.devices import absence, clashes
from devhost.devices.context import Owners, ScanContext
from devhost.devices.identify import ID_LIMIT_REACHED, SETTLE_S, Identified, identify
from devhost.devices.places import with_places
from devhost.errors import AllocationError, MissingRightError
from devhost.hostfs.files import note_answer
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice, Snapshot, Verdict, no_explanation
from devhost.model.limits import SKIPPED_MAX
from devhost.sources.base import Listings, Location
from devhost.sources.selection import CompiledSource, Selection, select

_REASON_MAX: Final = 500  # characters


@dataclass(frozen=True)
class Scanner(Declaration):
    """A compiled resource; a node waits `settle_s` for an earlier source to name it."""

    settle_s: float = SETTLE_S
    reuses_devices: ClassVar[bool] = True  # with equal nodes, a device is as it was

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
        return clashes.clashing_rules(self.rules)

    @functools.cached_property
    def _host_rules(self) -> Rules:
        """The rules that give paths of the host."""
        return tuple(rule for rule in self.rules if rule.target in ("devices", "mounts"))

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
        context = ScanContext(
            self.resource,
            previous,
            Owners(owners.get),
            now,
            self.settle_s,
            self.constants,
            links_to_come,
        )
        return identify(selection, context)

    def verify(self, identified: Identified, *, full: bool = True) -> Snapshot:
        """Return the next snapshot. Blocks: looks at host paths.

        Only if it is `full`, the host is asked again about devices that are as they were.
        """
        full = full or not self.self_contained
        selection, previous = identified.selection, identified.context.previous
        devices = self._verified(identified, full=full)
        devices, partly_numa = with_places(devices, previous, self.resource, self.files, full=full)
        notes = [*selection.notes]
        if truncated := identified.truncated:
            notes.append(f"{truncated} devices left out: {ID_LIMIT_REACHED}")
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
        host_paths, taken = HostPaths(self.files, self.policy), clashes.TakenNames()
        owners = self._owners_of_nodes(identified)
        in_turn = list(devices.values())
        if self._clashing:
            in_turn.sort(key=lambda device: clashes.turn(previous.get(device.id)))
        asks = full or self._clashing or not self.reuses_devices
        for found_device in in_turn:
            former = previous.get(found_device.id)
            if found_device is former and former.is_rendered and not asks:
                continue
            note_answer()  # what takes long for many devices is not a host that hangs
            device, allocation = self._rendered(found_device, former)
            if device.is_rendered and self._clashing:
                text = taken.take(device.id, self.alone(device, self._clashing))
                if text is not None:
                    device = replace(device, verdict=Verdict(Cause.CLASH, text))
            if device.verdict is None and (device is not former or full):
                allocation = allocation or self.alone(device, self._host_rules)
                try:
                    self._check_host(device, allocation, host_paths, owners)
                except AllocationError as error:
                    device = replace(device, verdict=_verdict(Cause.HOST_PATH, error))
            if former is not None and former is not device:
                device = absence.with_swap(device, former, now)
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

    def _check_host(
        self,
        device: HostDevice,
        allocation: Allocation,
        host_paths: HostPaths,
        owners: Mapping[str, str],
    ) -> None:
        """Raise `AllocationError` if a container could not be given a device alone, as it is."""
        for problem in (node.problem for node in device.nodes if node.problem):
            raise AllocationError(problem)
        for node in device.nodes:
            if node.state is not None:
                host_paths.remember(node.path, node.state)
        for refusal in filter(None, map(host_paths.problem, allocation.specs)):
            raise refusal
        for spec in allocation.devices:
            owner = owners.get(host_paths.resolve(spec.host_path).realpath, device.id)
            if owner != device.id:
                hint = "use `group`, or exclude it"
                raise AllocationError(f"it would get {spec.host_path}, a node of {owner}: {hint}")
        for step in self.resource.pre_start:  # it uses the nodes, handed out or not
            if step.run or step.mode:
                host_paths.current_nodes(device, files=names_paths(step.run or ()))

    def _owners_of_nodes(self, identified: Identified) -> Mapping[str, str]:
        """Return the device of each node (`Node.key`) that no entry may give to other devices."""
        shared = self.resource.replicas > 1 or self.resource.overlap == "allow"
        if shared or self.self_contained:
            return {}
        devices = identified.devices.values()
        return {node.key: device.id for device in devices for node in device.nodes if node.state}

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
                kept = absence.keep_missing_for(self.resource, device)
                times.append(device.absence.since + kept)
            if device.swapped_at is not None:
                times.append(device.swapped_at + absence.SWAP_S)
        return min((time for time in times if now < time < math.inf), default=None)


def _verdict(cause: Cause, error: AllocationError) -> Verdict:
    """Return a verdict as it is kept for each device: its text, which may cite the file, is cut."""
    text, cause = str(error), Cause.REFUSED if isinstance(error, MissingRightError) else cause
    return Verdict(cause, f"{text[:_REASON_MAX]}…" if len(text) > _REASON_MAX else text)


def for_new_spec(snapshot: Snapshot, old: Resource, new: Resource) -> Snapshot:
    """Return the devices of an old specification, for the next scan by a new one.

    Each node gets the number of the new source that is its former one, or none; what its devices
    bring is put together again.
    """
    sources = new.sources
    numbers = {
        number: sources.index(former) if former in sources else absence.SOURCE_REMOVED
        for number, former in enumerate(old.sources)
    }
    devices = {}
    for device_id, device in snapshot.devices.items():
        nodes = tuple(
            replace(node, source=numbers.get(node.source, absence.SOURCE_REMOVED))
            for node in device.nodes
        )
        devices[device_id] = replace(device, nodes=nodes, is_rendered=False)
    return replace(snapshot, devices=devices)

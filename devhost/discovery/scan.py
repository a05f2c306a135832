"""A scan of the host for one resource: a selection, then devices, answers, their health."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from devhost.allocation import rendering
from devhost.allocation.declaration import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.rules import rules_of
from devhost.discovery import identity, topology
from devhost.discovery.candidates import HOLD_S, Moment, OwnerOf
from devhost.discovery.identity import NO_SOURCE, Identified
from devhost.discovery.match import Readings
from devhost.discovery.roots import Root
from devhost.discovery.selection import Selection, roots_of, select
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.limits import SKIPPED_MAX
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Node, Snapshot

_REASON_MAX: Final = 500  # characters


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
        return cls(resource, rules_of(resource), files, policy, node_name, hold_s)

    @property
    def roots(self) -> tuple[Root, ...]:
        """What has to be read of the host."""
        return roots_of(self.resource)

    @property
    def keeps(self) -> bool:
        """Whether a device with equal nodes is as it was."""
        return True

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
        self,
        found: Selection,
        identified: Identified,
        previous: Snapshot,
        now: float,
        *,
        thorough: bool = True,
    ) -> Snapshot:
        """Return the next snapshot. Looks at host paths, so it blocks.

        Args:
            found: What the sources have found.
            identified: The devices, rendered.
            previous: What was known before.
            now: Seconds on the host's clock.
            thorough: Whether the host is asked again about devices that are as they were.
        """
        thorough = thorough or not self.self_contained
        devices, unseen = self.present(identified, previous, now, thorough=thorough)
        devices, mixed = topology.placed(
            self.resource.topology, devices, previous, self.files, thorough=thorough
        )
        return Snapshot(
            devices={device_id: devices[device_id] for device_id in names.natural(devices)},
            skipped=tuple(identified.skipped[:SKIPPED_MAX]),
            skipped_count=len(identified.skipped),
            error="; ".join(found.failed.values()) or None,
            notes=(*found.notes, *_unseen(unseen, self.files.root), *_cut(identified)),
            why_none=tuple if devices else found.why_none,
            deferred=identified.deferred,
            again_at=self.again_at(devices, identified, now),
            mixed=mixed,
            scanned=True,
        )

    def snapshot(
        self, found: Selection, previous: Snapshot, owner_of: OwnerOf, now: float
    ) -> Snapshot:
        """Do all of it; for a resource alone. Blocks."""
        identified = self.identify(found, previous, owner_of, now)
        self.render(identified, previous)
        return self.conclude(found, identified, previous, now)

    def render(self, identified: Identified, previous: Snapshot) -> None:
        """Find out which devices no container can have, by what they bring; pure.

        What was legal before is not put together again for the same nodes; a device that is as it
        was is the same object.
        """
        clashing = rendering.clashing(self.rules)
        taken: rendering.Taken = {}
        # Those that were offered before keep their names.
        for device in sorted(
            identified.devices.values(), key=lambda one: one.id not in previous.devices
        ):
            former = previous.devices.get(device.id)
            if former is None or not former.legal or former.nodes != device.nodes:
                reason = self._problem(device)
                one = replace(device, reason=_shortened(reason), legal=reason is None)
            else:
                kept = former.sound and self.keeps
                one = former if kept else replace(device, legal=True)
            if one.legal and clashing:
                reason = rendering.clash(taken, device.id, self.alone(device, clashing))
                one = one if reason is None else replace(device, reason=reason, legal=True)
            identified.devices[device.id] = one

    def _problem(self, device: HostDevice) -> str | None:
        """Return why no container can have a device, by the texts that it brings."""
        try:
            return self.name_refusal(self.alone(device, self.rules))
        except AllocationError as error:
            return str(error)

    def present(
        self, identified: Identified, previous: Snapshot, now: float, *, thorough: bool
    ) -> tuple[dict[str, HostDevice], list[str]]:
        """Return all devices that are known then, but for their NUMA nodes. Blocks.

        Returns:
            The devices, and the host paths of optional mounts that this process cannot see.
        """
        paths = tuple(rule for rule in self.rules if rule.target in ("devices", "mounts"))
        devices: dict[str, HostDevice] = {}
        unseen: list[str] = []
        host_paths = HostPaths(self.files, self.policy)
        for device_id, device in identified.devices.items():
            devices[device_id] = device
            as_before = device is previous.devices.get(device_id)
            if device.reason is not None or (as_before and not thorough):
                continue
            for node in device.nodes:
                if node.state is not None:
                    host_paths.known(node.path, node.state)
            alone = self.alone(device, paths)
            problem = next((node.problem for node in device.nodes if node.problem), None)
            reason = _shortened(problem or _unfit(alone, host_paths))
            if reason is not None:
                devices[device_id] = replace(device, reason=reason)
            unseen += [
                mount.host_path
                for mount in alone.mounts
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


def _cut(identified: Identified) -> Iterator[str]:
    if identified.cut:
        yield f"{identified.cut} devices left out: {identity.NO_ROOM}"


def _shortened(reason: str | None) -> str | None:
    """Return a reason as it is kept for each device: it may cite a text of the file."""
    return f"{reason[:_REASON_MAX]}…" if reason and len(reason) > _REASON_MAX else reason


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
        if before is None or before is device:
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

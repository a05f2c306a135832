"""One look at the host for one resource: a survey, then devices, answers, health."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from devhost.allocation import rendering
from devhost.allocation.declaration import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.rules import bound, rules_of
from devhost.discovery import identity, topology
from devhost.discovery.candidates import HOLD_S, Claimed, Moment
from devhost.discovery.identity import NO_SOURCE, Identified
from devhost.discovery.match import WatchRoot
from devhost.discovery.survey import Survey, survey, watch_roots
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.model import names
from devhost.model.allocation import Allocation, MountSpec, Rendered
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Node, Skipped, Snapshot

SKIPPED_MAX: Final = 1000  # that are kept: there may be as many as files in a directory


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
    def by_path(self) -> bool:
        """Whether what is at a path may be judged alone."""
        return True

    def watch_roots(self) -> frozenset[WatchRoot]:
        """Return the host directories whose changes may change what is found."""
        return watch_roots(self.resource)

    def survey(self) -> Survey:
        """Look at the host. Blocks."""
        return survey(self.resource, self.files)

    def snapshot(self, found: Survey, previous: Snapshot, claimed: Claimed, now: float) -> Snapshot:
        """Turn a survey into the next snapshot. Looks at host paths, so it blocks."""
        moment = Moment(previous, claimed, now, self.hold_s, self.constants)
        present, devices = self.judged(found, moment)
        devices, mixed = topology.placed(self.resource.topology, devices, previous, self.files)
        return Snapshot(
            devices={device_id: devices[device_id] for device_id in names.natural(devices)},
            skipped=_listed(present.skipped),
            error="; ".join(found.failed.values()) or None,
            notes=(*found.notes, *_unseen(present.unseen, self.files.root)),
            unmatched=() if devices else found.unmatched,
            held=present.held,
            again_at=self.again_at(devices, present, now),
            mixed=mixed,
        )

    def judged(self, found: Survey, moment: Moment) -> tuple[Identified, dict[str, HostDevice]]:
        """Return who is there, and all devices that are known then, but for their NUMA nodes."""
        present = identity.identify(self.resource, found, moment)
        gone = identity.vanished(self.resource, found, moment.previous, present, moment.now)
        rendered = self._rendered(present, moment.previous)
        return present, {**gone, **dict(_swapped(rendered, moment.previous, moment.now))}

    def _rendered(self, present: Identified, previous: Snapshot) -> dict[str, HostDevice]:
        devices: dict[str, HostDevice] = {}
        found: dict[str, Rendered] = {}
        alone: dict[str, Allocation] = {}
        for device_id, device in present.devices.items():
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
            nodes = present.devices[device_id].nodes
            for node in nodes:
                if node.state is not None:
                    host_paths.known(node.path, node.state)
            reason = reasons.get(device_id) or _unfit(alone[device_id], host_paths)
            devices[device_id] = HostDevice(device_id, nodes, reason, rendered=rendered)
            present.unseen += filter(host_paths.is_unseen, alone[device_id].mounts)
        return devices

    def again_at(
        self, devices: Mapping[str, HostDevice], present: Identified, now: float
    ) -> float | None:
        """Return when to look again even if nothing happens, by these devices."""
        seated = sum(1 for device in devices.values() if not device.replaced)
        if present.crowded and seated < (self.resource.limit or 0):
            return now  # a device was given up, and its seat is free for another
        times = [time for device in devices.values() for time in self.times(device)]
        times += [since + self.hold_s for since in present.held.values()]
        return min((time for time in times if time > now and time != float("inf")), default=None)

    def times(self, device: HostDevice) -> Iterator[float]:
        """Yield when a device changes even if nothing happens."""
        if device.missing_since is not None:
            yield device.missing_since + identity.remembered(self.resource, device)
        if device.swapped_at is not None:
            yield device.swapped_at + identity.SWAP_S


def _listed(skipped: Sequence[Skipped]) -> tuple[Skipped, ...]:
    """Return the first `SKIPPED_MAX` of what is not offered, and that there are more."""
    if len(skipped) <= SKIPPED_MAX:
        return tuple(skipped)
    return (*skipped[:SKIPPED_MAX], Skipped("and more", f"only {SKIPPED_MAX} are listed"))


def _unfit(alone: Allocation, host_paths: HostPaths) -> str | None:
    """Return why a container could not be given a device alone."""
    for spec in alone.specs:
        if not spec.optional and (problem := host_paths.problem(spec)):
            return problem
    return None


def _unseen(mounts: Iterable[MountSpec], root: str) -> Iterator[str]:
    """Yield a note for the mounts whose host paths cannot be seen: required, and optional ones."""
    for optional, outcome in (
        (False, "handed out without a check"),
        (True, "left out, because it is optional"),
    ):
        paths = dict.fromkeys(mount.host_path for mount in mounts if mount.optional is optional)
        if paths:
            more = f" and {len(paths) - 1} more" if len(paths) > 1 else ""
            yield (
                f"mount {next(iter(paths))}{more}: not visible below {root} (the chart's "
                f"hostPaths), {outcome}"
            )


def _swapped(
    devices: Mapping[str, HostDevice], previous: Snapshot, now: float
) -> Iterator[tuple[str, HostDevice]]:
    """Make a device unhealthy for a while that is another node than before.

    Whoever holds it has lost it, for containers are given numbers, and kubelet would hear
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

    Each node is told by which of the new sources it was found; by none, if its source is gone.
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

"""The dry run: what this host would advertise, and what a container would receive."""

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from devhost.allocation.cdi import spec
from devhost.allocation.cdi_devices import cdi_devices, named
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.pre_start import PlannedStep, planned
from devhost.discovery.explanation import Explanation, explain, mistakes
from devhost.discovery.health import check
from devhost.discovery.identity import keys_of
from devhost.discovery.ownership import Ownership
from devhost.discovery.roots import Reading, Root
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import read_all
from devhost.errors import AllocationError, PreStartError
from devhost.hostfs.file_owners import FileOwners
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.config import Config, Resource
from devhost.model.device import HostDevice, Skipped, Snapshot
from devhost.model.names import distinct, share_ids

_PARALLEL_CHECKS: Final = 8
_DIGITS_MAX: Final = 18  # enough for any count; Python refuses to parse more than 4300


@immutable
class ResourceReport:
    """One resource: its snapshot, and the requested allocation.

    Attributes:
        resource: The resource's configuration.
        snapshot: The result of the scan.
        warnings: Problems that are not errors, and what would need a flag.
        allocation: What the container would receive; ``None`` if not requested.
        allocation_error: Why the allocation would fail.
        pre_start: The preStart steps that would run.
        cdi_spec: The CDI spec of the CDI devices in the allocation.
        listed: The numbers of IDs, and of healthy IDs, in kubelet's list; by default those of the
            snapshot.
        explained: What each source has looked at; ``None`` if not requested.
    """

    resource: Resource
    snapshot: Snapshot
    warnings: tuple[str, ...] = ()
    allocation: Allocation | None = None
    allocation_error: str | None = None
    pre_start: Sequence[PlannedStep] = ()
    cdi_spec: Mapping[str, object] | None = None
    listed: tuple[int, int] | None = None
    explained: tuple[Explanation, ...] | None = None

    @property
    def failed(self) -> bool:
        """Whether a source could not be read or the allocation is impossible."""
        return self.snapshot.error is not None or self.allocation_error is not None

    def _skipped(self) -> Iterator[Skipped]:
        skipped = self.snapshot.skipped
        yield from skipped
        if (more := self.snapshot.skipped_count - len(skipped)) > 0:
            yield Skipped(f"and {more:,} more", f"only {len(skipped)} are listed")

    def as_json(self) -> dict[str, Any]:
        """Return the shape of ``plan -o json``, which is stable."""
        devices = self.snapshot.devices.values()
        replicas, healthy = self.resource.replicas, sum(device.healthy for device in devices)
        capacity, allocatable = self.listed or (len(devices) * replicas, healthy * replicas)
        shown: dict[str, Any] = {
            "name": self.resource.name,
            "capacity": capacity,
            "allocatable": allocatable,
            "error": self.snapshot.error,
            "warnings": list(self.warnings),
            "devices": [_device_json(device) for device in devices],
            "skipped": [
                {"candidate": skipped.candidate, "reason": skipped.reason}
                for skipped in self._skipped()
            ],
        }
        if self.explained is not None:
            shown["explain"] = [_explained_json(one) for one in self.explained]
        if self.allocation is not None or self.allocation_error is not None:
            allocation = allocation_json(self.allocation, self.allocation_error)
            shown["allocation"] = allocation | {"preStart": list(self.pre_start)}
            if self.cdi_spec is not None:
                shown["allocation"]["cdiSpec"] = self.cdi_spec
        return shown


def _device_json(device: HostDevice) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": device.id,
        "health": "Healthy" if device.healthy else "Unhealthy",
        "reason": device.reason,
        "numaNodes": list(device.numa_nodes),
        "paths": [node.shown for node in device.nodes if node.shown],
    }
    if device.checked is not None:
        shown["checked"] = {
            "at": device.checked.at.isoformat(timespec="seconds"),
            "failure": device.checked.failure,
            "unknown": device.checked.unknown,
        }
    return shown


def _explained_json(one: Explanation) -> dict[str, Any]:
    return {
        "source": one.source,
        "summary": one.summary,
        "other": one.other,
        "candidates": [
            {
                "candidate": names.printable(candidate.candidate),
                "taken": candidate.taken,
                "reasons": list(candidate.reasons),
                "paths": list(candidate.paths),
            }
            for candidate in one.candidates
        ],
    }


def allocation_json(allocation: Allocation | None, error: str | None) -> dict[str, Any]:
    """Return an allocation with the names of kubelet's API."""
    answer = allocation or Allocation()
    return {
        "deviceIds": list(answer.device_ids),
        "envs": dict(answer.envs),
        "mounts": [
            {
                "hostPath": mount.host_path,
                "containerPath": mount.container_path,
                "readOnly": mount.read_only,
            }
            for mount in answer.mounts
        ],
        "devices": [
            {
                "hostPath": device.host_path,
                "containerPath": device.container_path,
                "permissions": device.permissions,
            }
            for device in answer.devices
        ],
        "annotations": dict(answer.annotations),
        "cdiDevices": list(answer.cdi_devices),
        "preStart": [],
        "error": error,
    }


def report(
    config: Config,
    files: HostFiles,
    policy: Policy,
    node_name: str,
    requests: Mapping[str, str] | None = None,
    *,
    explained: bool = False,
) -> tuple[ResourceReport, ...]:
    """Scan the host once and return what it would advertise. Blocks.

    Args:
        config: The configuration.
        files: The host's files.
        policy: What containers may get; anything else is a warning.
        node_name: The name of the node.
        requests: What to allocate, by resource name: a number, or IDs separated by commas.
        explained: Whether to say what sources have looked at.
    """
    ownership = Ownership()
    readings: dict[Root, Reading] = {}  # of all resources
    reports = []
    for resource in config.resources:
        if not resource.applies_to(node_name):
            continue
        scanner = Scanner.of(resource, files, policy, node_name, hold_s=0.0)
        member = ownership.add(resource.name, rescan=lambda: None)
        member.shares = resource.overlap == "allow"
        readings |= read_all((root for root in scanner.roots if root not in readings), files)
        owner_of = functools.partial(ownership.owner, member)
        snapshot = scanner.snapshot(scanner.select(readings), Snapshot(), owner_of, now=0.0)
        ownership.decide(member, keys_of(snapshot.devices.values()))
        snapshot = _injected(scanner, _checked(scanner, snapshot))
        request = (requests or {}).get(resource.name)
        found = _report(scanner, snapshot, request)
        if explained:
            owners = FileOwners(files)
            why = explain(resource, readings, snapshot, owners)
            found = replace(found, explained=tuple(why))
        reports.append(found)
    return tuple(reports)


def _checked(scanner: Scanner, snapshot: Snapshot) -> Snapshot:
    """Run the health checks once, as the running host does first."""
    checks = scanner.resource.health
    if checks is None:
        return snapshot

    def judged(device: HostDevice) -> HostDevice:
        if not device.healthy:
            return device
        found = check(checks, device, scanner.files, scanner.constants, allow=scanner.policy)
        reason = f"check failed: {found.failure}" if found.failure else None
        return replace(device, reason=reason, checked=found)

    with ThreadPoolExecutor(_PARALLEL_CHECKS) as pool:
        devices = {device.id: device for device in pool.map(judged, snapshot.devices.values())}
    return replace(snapshot, devices=devices)


def _injected(scanner: Scanner, snapshot: Snapshot) -> Snapshot:
    """Return the snapshot with CDI names, if the resource is injected by CDI."""
    if scanner.resource.inject != "cdi":
        return snapshot
    return named(scanner.resource.name, snapshot, cdi_devices(scanner, snapshot, {}))


def _report(scanner: Scanner, snapshot: Snapshot, request: str | None) -> ResourceReport:
    warnings = (
        *snapshot.notes,
        *snapshot.why_none(),
        *mistakes(scanner.resource, snapshot),
        *_unknown(snapshot),
        *_needed(scanner, snapshot),
    )
    found = ResourceReport(scanner.resource, snapshot, warnings)
    if request is None:
        return found
    try:
        chosen = choose(scanner, snapshot, request)
        return replace(
            found,
            allocation=scanner.allocate(snapshot, chosen),
            pre_start=_pre_start(scanner, snapshot, chosen),
            cdi_spec=_cdi_spec(scanner, snapshot, chosen),
        )
    except (AllocationError, PreStartError) as error:
        return replace(found, allocation_error=str(error))


def _pre_start(
    scanner: Scanner, snapshot: Snapshot, advertised_ids: Iterable[str]
) -> Sequence[PlannedStep]:
    devices = [snapshot.devices[device_id] for device_id in distinct(advertised_ids)]
    files = scanner.files
    return planned(
        scanner.resource,
        devices,
        scanner.constants,
        lambda path: files.to_local(files.resolve(path)),
    )


def _cdi_spec(
    scanner: Scanner, snapshot: Snapshot, advertised_ids: Iterable[str]
) -> Mapping[str, object] | None:
    if scanner.resource.inject != "cdi":
        return None
    devices = {device_id: snapshot.devices[device_id] for device_id in distinct(advertised_ids)}
    found = cdi_devices(scanner, Snapshot(devices), {})
    return spec(scanner.resource.name, list(found.values()))


def _unknown(snapshot: Snapshot) -> dict[str, None]:
    """Return warnings for the checks that could not be made."""
    return {
        f"device {device.id} not checked: {device.checked.unknown}": None
        for device in snapshot.devices.values()
        if device.checked and device.checked.unknown
    }


def _needed(scanner: Scanner, snapshot: Snapshot) -> list[str]:
    host_paths = HostPaths(scanner.files, scanner.policy)
    needed: dict[str, None] = {}
    for device in snapshot.devices.values():
        if device.healthy:
            whole = scanner.alone(device, scanner.rules)
            refusals = scanner.policy.name_refusals(whole)
            needed |= dict.fromkeys(refusals) | host_paths.needs(whole)
    return list(needed)


def choose(scanner: Scanner, snapshot: Snapshot, request: str) -> tuple[str, ...]:
    """Return the advertised IDs for a request: a number, or IDs separated by commas.

    Raises:
        AllocationError: There are fewer devices, or no such device.
    """
    resource = scanner.resource
    healthy = [
        share
        for device in snapshot.devices.values()
        if device.healthy
        for share in share_ids(device.id, resource.replicas)
    ]
    known = {
        share
        for device in snapshot.devices.values()
        for share in share_ids(device.id, resource.replicas)
    }
    if request.isdecimal():  # always a number; write "3," for the device 3
        if len(request) > _DIGITS_MAX:
            requested = f"a number of {len(request)} digits requested"
            raise AllocationError(f"{resource.name}: {requested}, {len(healthy)} available")
        count = int(request)
        if count > len(healthy):
            raise AllocationError(f"{resource.name}: {count} requested, {len(healthy)} available")
        preferred = scanner.preferred(snapshot, healthy, (), count)
        return preferred or tuple(healthy[:count])
    ids = tuple(part for part in request.split(",") if part)
    for device_id in ids:
        if device_id not in known:
            raise AllocationError(f"{resource.name}: no device {device_id}")
    return tuple(names.natural(set(ids)))

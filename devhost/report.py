"""The dry run, as a value: what this host would advertise, what a container would receive."""

from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, Final

from devhost.allocation.cdi import spec
from devhost.allocation.cdi_devices import cdi_devices, named
from devhost.allocation.declaration import combine
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.pre_start import PlannedStep, planned
from devhost.discovery.health import check
from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError, PreStartError
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.config import Config, Resource
from devhost.model.device import HostDevice, Snapshot
from devhost.model.names import distinct, share_ids

_CHECKS_AT_ONCE: Final = 8
_DIGITS_MAX: Final = 18  # more than any number that can be had; Python reads no more than 4300


@immutable
class ResourceReport:
    """One resource: its snapshot, and the allocation that was asked for.

    Attributes:
        resource: The declaration.
        snapshot: What was found.
        warnings: What does not work as it is meant, or would have to be allowed.
        allocation: What the container would receive; ``None`` where that was not asked for.
        allocation_error: Why it would receive nothing.
        pre_start: What would be done before the container starts.
        cdi_spec: What the names of CDI devices in the allocation would stand for.
        listed: Of how many IDs the kubelet is told, and of how many that they are healthy; all of
            the snapshot's unless told.
    """

    resource: Resource
    snapshot: Snapshot
    warnings: tuple[str, ...] = ()
    allocation: Allocation | None = None
    allocation_error: str | None = None
    pre_start: Sequence[PlannedStep] = ()
    cdi_spec: Mapping[str, object] | None = None
    listed: tuple[int, int] | None = None

    @property
    def failed(self) -> bool:
        """Whether a source could not be read or an allocation is impossible."""
        return self.snapshot.error is not None or self.allocation_error is not None

    def as_json(self) -> dict[str, Any]:
        """Return the shape of ``plan -o json``, which is a contract."""
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
                for skipped in self.snapshot.skipped
            ],
        }
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
        "paths": list(device.paths),
    }
    if device.checked is not None:
        shown["checked"] = {
            "at": device.checked.at.isoformat(timespec="seconds"),
            "failure": device.checked.failure,
            "unknown": device.checked.unknown,
        }
    return shown


def allocation_json(allocation: Allocation | None, error: str | None) -> dict[str, Any]:
    """Return an allocation in kubelet's names."""
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
    wanted: Mapping[str, str] | None = None,
) -> tuple[ResourceReport, ...]:
    """Look at the host once and say what it would advertise. Blocks.

    Args:
        config: The configuration.
        files: Where the host's files are seen.
        policy: What answers may name; what they would need beyond it is a warning.
        node_name: The name of the node.
        wanted: By resource name, what to allocate: a number, or IDs joined by commas.
    """
    claims: dict[str, str] = {}
    reports = []
    for resource in config.resources:
        if not resource.applies_to(node_name):
            continue
        scanner = Scanner.of(resource, files, policy, node_name, hold_s=0.0)
        claimed = claims.get if resource.overlap == "deny" else (lambda _key: None)
        snapshot = scanner.snapshot(scanner.survey(), Snapshot(), claimed, now=0.0)
        snapshot = _injected(scanner, _checked(scanner, snapshot))
        for device in snapshot.devices.values():
            for node in device.nodes:
                if node.state:
                    claims.setdefault(node.key, resource.name)
        wish = (wanted or {}).get(resource.name)
        reports.append(_report(scanner, snapshot, wish))
    return tuple(reports)


def _checked(scanner: Scanner, snapshot: Snapshot) -> Snapshot:
    """Check the devices' health once, as the running host does at first."""
    checks = scanner.resource.health
    if checks is None:
        return snapshot

    def judged(device: HostDevice) -> HostDevice:
        if not device.healthy:
            return device
        found = check(checks, device, scanner.files, scanner.constants, allow=scanner.policy)
        reason = f"check failed: {found.failure}" if found.failure else None
        return replace(device, reason=reason, checked=found)

    with ThreadPoolExecutor(_CHECKS_AT_ONCE) as pool:
        devices = {device.id: device for device in pool.map(judged, snapshot.devices.values())}
    return replace(snapshot, devices=devices)


def _injected(scanner: Scanner, snapshot: Snapshot) -> Snapshot:
    """Name the devices as a CDI spec would, if there is to be one."""
    if scanner.resource.inject != "cdi":
        return snapshot
    return named(scanner.resource.name, snapshot, cdi_devices(scanner, snapshot, {}))


def _report(scanner: Scanner, snapshot: Snapshot, wish: str | None) -> ResourceReport:
    warnings = (
        *snapshot.notes,
        *snapshot.unmatched,
        *_unknown(snapshot),
        *_needed(scanner, snapshot),
    )
    found = ResourceReport(scanner.resource, snapshot, warnings)
    if wish is None:
        return found
    try:
        chosen = choose(scanner, snapshot, wish)
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
    return planned(scanner.resource, devices, scanner.constants, scanner.files.to_local)


def _cdi_spec(
    scanner: Scanner, snapshot: Snapshot, advertised_ids: Iterable[str]
) -> Mapping[str, object] | None:
    if scanner.resource.inject != "cdi":
        return None
    devices = {device_id: snapshot.devices[device_id] for device_id in distinct(advertised_ids)}
    found = cdi_devices(scanner, Snapshot(devices), {})
    return spec(scanner.resource.name, list(found.values()))


def _unknown(snapshot: Snapshot) -> dict[str, None]:
    """Return what could not be checked, each once."""
    return {
        f"device {device.id} is not checked: {device.checked.unknown}": None
        for device in snapshot.devices.values()
        if device.checked and device.checked.unknown
    }


def _needed(scanner: Scanner, snapshot: Snapshot) -> list[str]:
    host_paths = HostPaths(scanner.files, scanner.policy)
    needed: dict[str, None] = {}
    for device in snapshot.devices.values():
        if device.rendered is not None and device.healthy:
            whole = combine(scanner.rules, {device.id: device.rendered}, (device.id,))
            needed |= host_paths.needs(whole)
    return list(needed)


def choose(scanner: Scanner, snapshot: Snapshot, wish: str) -> tuple[str, ...]:
    """Return the advertised IDs that a wish names: a number, or IDs joined by commas.

    Raises:
        AllocationError: There are not so many, or no such device.
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
    if wish.isdecimal():  # always a number; a device called 3 is written "3,"
        if len(wish) > _DIGITS_MAX:
            wanted = f"a number of {len(wish)} digits requested"
            raise AllocationError(f"{resource.name}: {wanted}, {len(healthy)} available")
        count = int(wish)
        if count > len(healthy):
            raise AllocationError(f"{resource.name}: {count} requested, {len(healthy)} available")
        preferred = scanner.preferred(snapshot, healthy, (), count)
        return preferred or tuple(healthy[:count])
    ids = tuple(part for part in wish.split(",") if part)
    for device_id in ids:
        if device_id not in known:
            raise AllocationError(f"{resource.name}: there is no device {device_id}")
    return tuple(names.natural(set(ids)))

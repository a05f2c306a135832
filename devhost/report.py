"""The dry run, as a value: what this host would advertise, what a container would receive."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from devhost.allocation import allocate
from devhost.discovery.host_files import HostFiles
from devhost.discovery.host_paths import HostPaths
from devhost.discovery.scan import Scanner
from devhost.errors import AllocationError
from devhost.model import names
from devhost.model.answer import Allocation
from devhost.model.config import Config, Resource
from devhost.model.device import Snapshot, share_ids
from devhost.trust import Policy


@dataclass(frozen=True, slots=True)
class ResourceReport:
    """One resource: its snapshot, and the allocation that was asked for."""

    resource: Resource
    snapshot: Snapshot
    warnings: tuple[str, ...] = ()
    allocation: Allocation | None = None
    allocation_error: str | None = None

    @property
    def failed(self) -> bool:
        """Whether a source could not be read or an allocation is impossible."""
        return self.snapshot.error is not None or self.allocation_error is not None

    def as_json(self) -> dict[str, Any]:
        """Return the shape of ``plan -o json``, which is a contract."""
        devices = self.snapshot.devices.values()
        replicas = self.resource.replicas
        shown: dict[str, Any] = {
            "name": self.resource.name,
            "capacity": len(devices) * replicas,
            "allocatable": sum(device.healthy for device in devices) * replicas,
            "error": self.snapshot.error,
            "warnings": list(self.warnings),
            "devices": [
                {
                    "id": device.id,
                    "health": "Healthy" if device.healthy else "Unhealthy",
                    "reason": device.reason,
                    "numaNodes": list(device.numa_nodes),
                    "paths": list(device.paths),
                }
                for device in devices
            ],
            "skipped": [
                {"candidate": skipped.candidate, "reason": skipped.reason}
                for skipped in self.snapshot.skipped
            ],
        }
        if self.allocation is not None or self.allocation_error is not None:
            shown["allocation"] = allocation_json(self.allocation, self.allocation_error)
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
        for device in snapshot.devices.values():
            for node in device.nodes:
                if node.state:
                    claims.setdefault(node.key, resource.name)
        wish = (wanted or {}).get(resource.name)
        reports.append(_report(scanner, snapshot, wish))
    return tuple(reports)


def _report(scanner: Scanner, snapshot: Snapshot, wish: str | None) -> ResourceReport:
    warnings = [*snapshot.notes, *_needed(scanner, snapshot)]
    result, error = None, None
    if wish is not None:
        try:
            chosen = choose(scanner, snapshot, wish)
            result = scanner.hand_out(snapshot, chosen)
        except AllocationError as failure:
            error = str(failure)
    return ResourceReport(scanner.resource, snapshot, tuple(warnings), result, error)


def _needed(scanner: Scanner, snapshot: Snapshot) -> list[str]:
    host_paths = HostPaths(scanner.files, scanner.policy)
    needed: dict[str, None] = {}
    for device in snapshot.devices.values():
        if device.answer is not None and device.healthy:
            whole = allocate(scanner.rules, [device], [device.id])
            needed |= host_paths.needs(whole.specs)
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

"""What devices bring into containers by CDI, as it is on the host now."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice, CdiNode
from devhost.allocation.declaration import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.rules import Rules
from devhost.errors import AllocationError
from devhost.limits import CDI_SPEC_MAX
from devhost.model.allocation import DeviceSpec
from devhost.model.device import FileKind, HostDevice, Snapshot

_TOO_LARGE: Final = f"the CDI spec would be larger than {CDI_SPEC_MAX >> 20} MiB"


def cdi_devices(
    declaration: Declaration, snapshot: Snapshot, before: Mapping[str, CdiDevice]
) -> dict[str, CdiDevice]:
    """Return what each device brings, by its ID. Blocks.

    Args:
        declaration: The declaration.
        snapshot: What was found.
        before: What was returned before: what does not exist now stays as it was, because a
            container that has it may start again.
    """
    host_paths = HostPaths(declaration.files, declaration.policy)
    rules = tuple(rule for rule in declaration.rules if rule.in_cdi_spec)
    found: dict[str, CdiDevice] = {}
    size = 0

    def is_new(device: HostDevice) -> bool:
        return device.id not in before or before[device.id].problem is not None

    for device in sorted(snapshot.devices.values(), key=is_new):
        device_id = device.id
        present = device.missing_since is None and not device.replaced
        brought = _brought(declaration, rules, device, host_paths) if present else None
        if brought is None:
            brought = before.get(device_id)
        if brought is None:
            continue
        if size + (more := cdi.size(brought)) > CDI_SPEC_MAX:
            brought, more = CdiDevice(brought.name, problem=_TOO_LARGE), 0
        found[device_id], size = brought, size + more
    return found


def named(resource: str, snapshot: Snapshot, written: Mapping[str, CdiDevice]) -> Snapshot:
    """Return the snapshot in which each device has its name in the spec that was written."""
    names = {
        device_id: cdi.qualified_name(resource, one.name)
        for device_id, one in written.items()
        if not one.empty
    }
    problems = {device_id: one.problem for device_id, one in written.items()}
    devices = {
        device_id: replace(
            device,
            cdi_name=names.get(device_id),
            reason=device.reason or problems.get(device_id),
        )
        for device_id, device in snapshot.devices.items()
    }
    return replace(snapshot, devices=devices)


def _brought(
    declaration: Declaration, rules: Rules, device: HostDevice, host_paths: HostPaths
) -> CdiDevice | None:
    try:
        whole = declaration.alone(device, rules)
        if declaration.name_refusal(whole):
            return None
        devices, mounts = host_paths.present(whole.devices), host_paths.present(whole.mounts)
    except (AllocationError, OSError):  # it is unhealthy for that, or will be
        return None
    return CdiDevice(
        cdi.device_name(device.id),
        tuple(node for spec in devices if (node := _node(spec, host_paths)) is not None),
        tuple(replace(spec, host_path=host_paths.realpath(spec.host_path)) for spec in mounts),
        whole.envs,
    )


def _node(spec: DeviceSpec, host_paths: HostPaths) -> CdiNode | None:
    state = host_paths.state(spec.host_path)
    if state is None or state.number is None:
        return None
    return CdiNode(
        spec.container_path,
        state.realpath,
        "b" if state.kind is FileKind.BLOCK else "c",
        *state.number,
        permissions=spec.permissions,
        uid=spec.uid,
        gid=spec.gid,
        file_mode=state.mode if spec.mode is None else spec.mode,
    )

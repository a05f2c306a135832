"""What devices bring into containers by CDI, as it is on the host at this moment."""

from collections.abc import Mapping
from dataclasses import replace

from devhost.allocation import allocate as allocation
from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice, CdiNode
from devhost.allocation.declaration import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.rules import LATE_VARIABLES, Rule
from devhost.errors import AllocationError
from devhost.model.answer import DeviceSpec, MountSpec
from devhost.model.device import Device, FileKind, Snapshot


def in_spec(rule: Rule) -> bool:
    """Whether an entry stands in the CDI spec: it is the same whatever else a container gets."""
    if rule.target == "env":
        return not rule.joined and not (rule.key.names | rule.value.names) & LATE_VARIABLES
    return rule.target in ("devices", "mounts")


def cdi_devices(
    declaration: Declaration, snapshot: Snapshot, before: Mapping[str, CdiDevice]
) -> dict[str, CdiDevice]:
    """Return what each device brings, by its ID. Blocks.

    Args:
        declaration: The declaration.
        snapshot: What was found.
        before: What was returned the last time: what is not there now stays as it was, because
            a container that has it may start again.
    """
    host_paths = HostPaths(declaration.files, declaration.policy)
    found: dict[str, CdiDevice] = {}
    for device_id, device in snapshot.devices.items():
        present = device.missing_since is None and not device.replaced
        brought = _brought(declaration, device, host_paths) if present else None
        if brought is None:
            brought = before.get(device_id)
        if brought is not None:
            found[device_id] = brought
    return found


def named(resource: str, snapshot: Snapshot, written: Mapping[str, CdiDevice]) -> Snapshot:
    """Return the snapshot in which each device has its name in the spec that was written."""
    names = {
        device_id: cdi.qualified_name(resource, one.name)
        for device_id, one in written.items()
        if not one.empty
    }
    devices = {
        device_id: replace(device, cdi_name=names.get(device_id))
        for device_id, device in snapshot.devices.items()
    }
    return replace(snapshot, devices=devices)


def _brought(declaration: Declaration, device: Device, host_paths: HostPaths) -> CdiDevice | None:
    if device.answer is None:
        return None
    try:
        whole = allocation.allocate(declaration.rules, [device], [device.id], only=in_spec)
        specs: list[DeviceSpec | MountSpec] = []
        for spec in whole.specs:
            if host_paths.problem(spec) is None:
                specs += host_paths.parts(spec)
            elif not spec.optional:
                return None
    except (AllocationError, OSError):  # it is unhealthy for that, or will be
        return None
    return CdiDevice(
        cdi.device_name(device.id),
        tuple(
            node
            for spec in specs
            if isinstance(spec, DeviceSpec) and (node := _node(spec, host_paths)) is not None
        ),
        tuple(
            replace(spec, host_path=host_paths.realpath(spec.host_path))
            for spec in specs
            if isinstance(spec, MountSpec)
        ),
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

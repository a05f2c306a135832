"""What a container receives, put together and looked at on the host at this moment."""

from collections import Counter
from dataclasses import replace

from devhost.allocation import allocate as allocation
from devhost.allocation.declaration import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.injection import in_spec
from devhost.errors import AllocationError
from devhost.model import names
from devhost.model.answer import Allocation, DeviceSpec, MountSpec
from devhost.model.device import Device, Snapshot, distinct, without_share


def hand_out(
    declaration: Declaration, snapshot: Snapshot, advertised_ids: tuple[str, ...]
) -> Allocation:
    """Put together what a container receives, and look that it is all there. Blocks.

    Raises:
        AllocationError: A device is unknown, unhealthy, gone or refused; the text names it.
    """
    name, host_paths = declaration.resource.name, HostPaths(declaration.files, declaration.policy)
    _check_shares(declaration, advertised_ids)
    devices = []
    for device_id in names.natural(distinct(advertised_ids)):
        device = snapshot.devices.get(device_id)
        if device is None:
            raise AllocationError(f"{name}: there is no device {device_id}")
        if device.reason is not None:
            raise AllocationError(f"{name}: device {device_id}: {device.reason}")
        _present(declaration, device, host_paths)
        devices.append(device)
    try:
        whole = allocation.allocate(declaration.rules, devices, advertised_ids)
    except AllocationError as error:
        raise AllocationError(f"{name}: {error}") from None
    seen = _looked_at(declaration, whole, host_paths)
    return _by_cdi(declaration, devices, whole) if declaration.resource.inject == "cdi" else seen


def looked_at(declaration: Declaration, whole: Allocation) -> Allocation:
    """Return an allocation without the optional that is not there, directories as their nodes.

    Blocks.

    Raises:
        AllocationError: A path is not there, or refused.
    """
    return _looked_at(declaration, whole, HostPaths(declaration.files, declaration.policy))


def _looked_at(declaration: Declaration, whole: Allocation, host_paths: HostPaths) -> Allocation:
    kept: list[DeviceSpec | MountSpec] = []
    specs = whole.specs
    for spec in specs:
        problem = host_paths.problem(spec)
        if problem is None:
            kept += host_paths.parts(spec)
        elif not spec.optional:
            of = f"device {spec.device}: " if spec.device else ""
            raise AllocationError(f"{declaration.resource.name}: {of}{problem}")
    if kept == [*specs]:
        return whole
    return replace(
        whole,
        devices=tuple(spec for spec in kept if isinstance(spec, DeviceSpec)),
        mounts=tuple(spec for spec in kept if isinstance(spec, MountSpec)),
    )


def _by_cdi(declaration: Declaration, devices: list[Device], whole: Allocation) -> Allocation:
    """Name what stands in the CDI spec, and give what does not; never both."""
    rest = allocation.allocate(
        declaration.rules, devices, whole.device_ids, only=lambda rule: not in_spec(rule)
    )
    found = tuple(device.cdi_name for device in devices if device.cdi_name)
    return replace(rest, cdi_devices=(*found, *rest.cdi_devices))


def _check_shares(declaration: Declaration, advertised_ids: tuple[str, ...]) -> None:
    """Refuse more shares of one device than a container may have: the last resort."""
    most = declaration.resource.max_per_container
    if most is None:
        return
    for device_id, shares in Counter(map(without_share, advertised_ids)).items():
        if shares > most:
            raise AllocationError(
                f"{declaration.resource.name}: {shares} shares of device {device_id}, but "
                f"maxPerContainer is {most} and no other device had one free"
            )


def _present(declaration: Declaration, device: Device, host_paths: HostPaths) -> None:
    """Look that each node of a device is there and still of its kind."""
    for node in device.nodes:
        if node.state is None:
            continue
        state = host_paths.look(node.path)
        if isinstance(state, str):
            reason = f"{node.path}: {state}"
        elif state is None or state.kind is not node.state.kind:
            reason = f"{node.path} is not there any more"
        elif declaration.resource.inject == "cdi" and state.number != node.state.number:
            reason = f"{node.path} is another device than its CDI spec says: look again"
        else:
            continue
        raise AllocationError(f"{declaration.resource.name}: device {device.id}: {reason}")

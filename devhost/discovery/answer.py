"""What a container receives, put together and looked at on the host at this moment."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from devhost import allocation
from devhost.discovery.host_paths import HostPaths
from devhost.discovery.injection import in_spec
from devhost.errors import AllocationError
from devhost.model import names
from devhost.model.answer import Allocation, DeviceSpec, MountSpec
from devhost.model.device import Device, Snapshot, distinct, without_share

if TYPE_CHECKING:
    from devhost.discovery.scan import Scanner


def hand_out(scanner: "Scanner", snapshot: Snapshot, advertised_ids: tuple[str, ...]) -> Allocation:
    """Put together what a container receives, and look that it is all there. Blocks.

    Raises:
        AllocationError: A device is unknown, unhealthy, gone or refused; the text names it.
    """
    _check_shares(scanner, advertised_ids)
    devices = []
    for device_id in names.natural(distinct(advertised_ids)):
        device = snapshot.devices.get(device_id)
        if device is None:
            raise AllocationError(f"{scanner.resource.name}: there is no device {device_id}")
        if device.reason is not None:
            raise AllocationError(f"{scanner.resource.name}: device {device_id}: {device.reason}")
        _present(scanner, device)
        devices.append(device)
    try:
        whole = allocation.allocate(scanner.rules, devices, advertised_ids)
    except AllocationError as error:
        raise AllocationError(f"{scanner.resource.name}: {error}") from None
    seen = looked_at(scanner, whole)
    return _by_cdi(scanner, devices, whole) if scanner.resource.inject == "cdi" else seen


def looked_at(scanner: "Scanner", whole: Allocation) -> Allocation:
    """Return an allocation without the optional that is not there, directories as their nodes.

    Blocks.

    Raises:
        AllocationError: A path is not there, or refused.
    """
    host_paths = HostPaths(scanner.files, scanner.policy)
    kept: list[DeviceSpec | MountSpec] = []
    for spec in whole.specs:
        problem = host_paths.problem(spec)
        if problem is None:
            kept += host_paths.parts(spec)
        elif not spec.optional:
            of = f"device {spec.device}: " if spec.device else ""
            raise AllocationError(f"{scanner.resource.name}: {of}{problem}")
    return replace(
        whole,
        devices=tuple(spec for spec in kept if isinstance(spec, DeviceSpec)),
        mounts=tuple(spec for spec in kept if isinstance(spec, MountSpec)),
    )


def _by_cdi(scanner: "Scanner", devices: list[Device], whole: Allocation) -> Allocation:
    """Name what stands in the CDI spec, and give what does not; never both."""
    rest = allocation.allocate(
        scanner.rules, devices, whole.device_ids, only=lambda rule: not in_spec(rule)
    )
    found = tuple(device.cdi_name for device in devices if device.cdi_name)
    return replace(rest, cdi_devices=(*found, *rest.cdi_devices))


def _check_shares(scanner: "Scanner", advertised_ids: tuple[str, ...]) -> None:
    """Refuse more shares of one device than a container may have: the last resort."""
    most = scanner.resource.max_per_container
    for device_id, shares in Counter(map(without_share, advertised_ids)).items():
        if most is not None and shares > most:
            raise AllocationError(
                f"{scanner.resource.name}: {shares} shares of device {device_id}, but "
                f"maxPerContainer is {most} and no other device had one free"
            )


def _present(scanner: "Scanner", device: Device) -> None:
    """Look that each node of a device is there and still of its kind."""
    for node in device.nodes:
        if node.state is None:
            continue
        try:
            state = scanner.files.look(node.path)
        except OSError as error:
            reason = f"{node.path}: {error.strerror or error}"
        else:
            if state is None or state.kind is not node.state.kind:
                reason = f"{node.path} is not there any more"
            elif scanner.resource.inject == "cdi" and state.number != node.state.number:
                reason = f"{node.path} is another device than its CDI spec says: look again"
            else:
                continue
        raise AllocationError(f"{scanner.resource.name}: device {device.id}: {reason}")

"""What a container receives, put together and looked at on the host at this moment."""

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from devhost import allocation
from devhost.discovery.host_files import HostFiles
from devhost.discovery.host_paths import HostPaths
from devhost.discovery.injection import in_spec
from devhost.discovery.instant_files import InstantFiles, WouldWait
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
    return _handed_out(scanner, snapshot, advertised_ids, scanner.files)


def hand_out_at_once(
    scanner: "Scanner", snapshot: Snapshot, advertised_ids: tuple[str, ...]
) -> Allocation | None:
    """Return what `hand_out` does where nothing has to be waited for, else ``None``.

    Raises:
        AllocationError: As `hand_out` does.
    """
    try:
        return _handed_out(scanner, snapshot, advertised_ids, InstantFiles(scanner.files.root))
    except WouldWait:
        return None


def _handed_out(
    scanner: "Scanner", snapshot: Snapshot, advertised_ids: tuple[str, ...], files: HostFiles
) -> Allocation:
    host_paths = HostPaths(files, scanner.policy)
    _check_shares(scanner, advertised_ids)
    devices = []
    for device_id in names.natural(distinct(advertised_ids)):
        device = snapshot.devices.get(device_id)
        if device is None:
            raise AllocationError(f"{scanner.resource.name}: there is no device {device_id}")
        if device.reason is not None:
            raise AllocationError(f"{scanner.resource.name}: device {device_id}: {device.reason}")
        _present(scanner, device, host_paths)
        devices.append(device)
    try:
        whole = allocation.allocate(scanner.rules, devices, advertised_ids)
    except AllocationError as error:
        raise AllocationError(f"{scanner.resource.name}: {error}") from None
    seen = _looked_at(scanner, whole, host_paths)
    return _by_cdi(scanner, devices, whole) if scanner.resource.inject == "cdi" else seen


def looked_at(scanner: "Scanner", whole: Allocation) -> Allocation:
    """Return an allocation without the optional that is not there, directories as their nodes.

    Blocks.

    Raises:
        AllocationError: A path is not there, or refused.
    """
    return _looked_at(scanner, whole, HostPaths(scanner.files, scanner.policy))


def _looked_at(scanner: "Scanner", whole: Allocation, host_paths: HostPaths) -> Allocation:
    kept: list[DeviceSpec | MountSpec] = []
    specs = whole.specs
    for spec in specs:
        problem = host_paths.problem(spec)
        if problem is None:
            kept += host_paths.parts(spec)
        elif not spec.optional:
            of = f"device {spec.device}: " if spec.device else ""
            raise AllocationError(f"{scanner.resource.name}: {of}{problem}")
    if kept == [*specs]:
        return whole
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
    if most is None:
        return
    for device_id, shares in Counter(map(without_share, advertised_ids)).items():
        if shares > most:
            raise AllocationError(
                f"{scanner.resource.name}: {shares} shares of device {device_id}, but "
                f"maxPerContainer is {most} and no other device had one free"
            )


def _present(scanner: "Scanner", device: Device, host_paths: HostPaths) -> None:
    """Look that each node of a device is there and still of its kind."""
    for node in device.nodes:
        if node.state is None:
            continue
        state = host_paths.look(node.path)
        if isinstance(state, str):
            reason = f"{node.path}: {state}"
        elif state is None or state.kind is not node.state.kind:
            reason = f"{node.path} is not there any more"
        elif scanner.resource.inject == "cdi" and state.number != node.state.number:
            reason = f"{node.path} is another device than its CDI spec says: look again"
        else:
            continue
        raise AllocationError(f"{scanner.resource.name}: device {device.id}: {reason}")

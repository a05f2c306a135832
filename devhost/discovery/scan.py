"""One look at the host for one resource: a survey, then devices, answers, health."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from devhost import allocation
from devhost.discovery import identity
from devhost.discovery.host_files import HostFiles
from devhost.discovery.host_paths import HostPaths
from devhost.discovery.identity import HOLD_S, NO_SOURCE, Claimed, Identified
from devhost.discovery.survey import Survey
from devhost.errors import AllocationError
from devhost.model import names
from devhost.model.answer import Allocation, Answer, DeviceSpec, MountSpec
from devhost.model.config import Resource
from devhost.model.device import Device, Node, Snapshot
from devhost.rules import Rules, bound, rules_of
from devhost.trust import Policy


@dataclass(frozen=True, slots=True)
class Scanner:
    """All that a scan of one resource needs beside the moment.

    Attributes:
        resource: The declaration.
        rules: Its ``allocate``, bound to the resource and the node.
        files: Where the host's files are seen.
        policy: What answers may name.
        node_name: The value of ``${nodeName}``.
        hold_s: How long a node waits for an earlier source to name it.
    """

    resource: Resource
    rules: Rules
    files: HostFiles
    policy: Policy
    node_name: str
    hold_s: float = HOLD_S

    @classmethod
    def of(
        cls, resource: Resource, files: HostFiles, policy: Policy, node_name: str, *, hold_s: float
    ) -> "Scanner":
        """Compile a resource."""
        rules = bound(rules_of(resource), resource.name, node_name)
        return cls(resource, rules, files, policy, node_name, hold_s)

    def snapshot(self, found: Survey, previous: Snapshot, claimed: Claimed, now: float) -> Snapshot:
        """Turn a survey into the next snapshot. Looks at host paths, so it blocks."""
        present = identity.identify(
            self.resource,
            found,
            previous,
            claimed,
            now=now,
            hold_s=self.hold_s,
            constants={"resource": self.resource.name, "nodeName": self.node_name},
        )
        devices = {
            **identity.vanished(self.resource, found, previous, present, now),
            **self._rendered(present, previous),
        }
        return Snapshot(
            devices={device_id: devices[device_id] for device_id in names.natural(devices)},
            skipped=tuple(present.skipped),
            error="; ".join(found.failed.values()) or None,
            notes=found.notes,
            held=present.held,
            again_at=self._again_at(devices, present, now),
        )

    def _rendered(self, present: Identified, previous: Snapshot) -> dict[str, Device]:
        devices: dict[str, Device] = {}
        answers: dict[str, Answer] = {}
        for device_id, device in present.devices.items():
            try:
                answers[device_id] = allocation.render(self.rules, device_id, device.nodes)
            except AllocationError as error:
                devices[device_id] = replace(device, reason=str(error))
        offered = {key: value for key, value in answers.items() if key in previous.devices}
        reasons = allocation.clashes(self.rules, offered | answers)
        host_paths = HostPaths(self.files, self.policy)
        for device_id, answer in answers.items():
            device = replace(present.devices[device_id], answer=answer)
            reason = reasons.get(device_id) or self._unfit(device, host_paths)
            devices[device_id] = replace(device, reason=reason)
        return devices

    def _unfit(self, device: Device, host_paths: HostPaths) -> str | None:
        """Return why a container could not be given the device alone."""
        try:
            whole = allocation.allocate(self.rules, [device], [device.id])
        except AllocationError as error:
            return str(error)
        for spec in whole.specs:
            if not spec.optional and (problem := host_paths.problem(spec)):
                return problem
        return None

    def _again_at(
        self, devices: Mapping[str, Device], present: Identified, now: float
    ) -> float | None:
        seated = sum(1 for device in devices.values() if not device.replaced)
        if present.crowded and seated < (self.resource.max_devices or 0):
            return now  # a device was given up, and its seat is free for another
        times = [
            device.missing_since + self.resource.remove_missing_after
            for device in devices.values()
            if device.missing_since is not None
        ]
        times += [since + self.hold_s for since in present.held.values()]
        return min((time for time in times if time > now and time != float("inf")), default=None)


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


def hand_out(
    scanner: Scanner, snapshot: Snapshot, advertised_ids: tuple[str, ...], device_ids: set[str]
) -> Allocation:
    """Put together what a container receives, and look that it is all there. Blocks.

    Raises:
        AllocationError: A device is unknown, unhealthy, gone or refused; the text names it.
    """
    devices = []
    for device_id in names.natural(device_ids):
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
    host_paths = HostPaths(scanner.files, scanner.policy)
    kept: list[DeviceSpec | MountSpec] = []
    for spec in whole.specs:
        problem = host_paths.problem(spec)
        if problem is None:
            kept.append(spec)
        elif not spec.optional:
            of = f"device {spec.device}: " if spec.device else ""
            raise AllocationError(f"{scanner.resource.name}: {of}{problem}")
    return replace(
        whole,
        devices=tuple(spec for spec in kept if isinstance(spec, DeviceSpec)),
        mounts=tuple(spec for spec in kept if isinstance(spec, MountSpec)),
    )


def _present(scanner: Scanner, device: Device) -> None:
    """Look that each node of a device is there and still of its kind."""
    for node in device.nodes:
        if node.state is None:
            continue
        try:
            state = scanner.files.look(node.path)
        except OSError as error:
            reason = f"{node.path}: {error.strerror or error}"
        else:
            if state is not None and state.kind is node.state.kind:
                continue
            reason = f"{node.path} is not there any more"
        raise AllocationError(f"{scanner.resource.name}: device {device.id}: {reason}")

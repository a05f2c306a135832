"""A resource of the configuration, compiled, and what a container receives for its devices."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from devhost.allocation import preference
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.rules import Rules, combine
from devhost.allocation.variables import constants
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is fixed for a resource until the configuration changes; `rules` is its ``allocate``."""

    resource: Resource
    rules: Rules
    files: HostFiles
    policy: Policy
    node_name: str

    @property
    def self_contained(self) -> bool:
        """Whether containers are given no other host paths than those of the devices' nodes."""
        return not any(rule.shares for rule in self.rules)

    @property
    def pre_start_required(self) -> bool:
        """Whether the resource prepares its devices before a container starts."""
        return bool(self.resource.pre_start)

    @property
    def constants(self) -> Mapping[str, str]:
        """The variables that are the same for all devices."""
        return constants(self.resource.name, self.node_name)

    def preferred(
        self, snapshot: Snapshot, available: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return which of the available IDs a container should get; none to leave it open."""
        resource = self.resource
        return preference.preferred(
            resource.prefer,
            available,
            must,
            size,
            replicas=resource.replicas,
            max_per_container=resource.max_per_container,
            numa_nodes={device.id: device.numa_nodes for device in snapshot.devices.values()},
        )

    def allocate(self, snapshot: Snapshot, advertised_ids: Sequence[str]) -> Allocation:
        """Put together what a container receives, and check that it is there. Blocks.

        The error for a device that is unknown, unhealthy, gone or refused names it.
        """
        host_paths = HostPaths(self.files, self.policy)
        try:
            self._check_shares(advertised_ids)
            devices = [
                self._present(snapshot, device_id, host_paths)
                for device_id in names.natural(names.distinct(advertised_ids))
            ]
            checked = host_paths.checked(self._combined(self.rules, devices, advertised_ids))
            if self.resource.inject != "cdi":
                return checked
            # What is in the CDI spec is named, what is not is given: never both.
            own = tuple(rule for rule in self.rules if not rule.in_cdi_spec)
            rest = self._combined(own, devices, advertised_ids)
            cdi_devices = tuple(device.cdi_name for device in devices if device.cdi_name)
            return replace(
                rest,
                cdi_devices=(*cdi_devices, *rest.cdi_devices),
                in_cdi_spec=checked.specs,
                numbers=checked.numbers,
            )
        except AllocationError as error:
            raise AllocationError(f"{self.resource.name}: {error}") from None

    def alone(self, device: HostDevice, rules: Rules) -> Allocation:
        """Return what a container receives by these rules for one device alone; pure.

        The text of an error, such as a refusal, is meant for the device's health.
        """
        return self._combined(rules, (device,), (device.id,))

    def checked(self, allocation: Allocation) -> Allocation:
        """Return an allocation as `allocate` would, if it is there and allowed. Blocks."""
        try:
            return HostPaths(self.files, self.policy).checked(allocation)
        except AllocationError as error:
            raise AllocationError(f"{self.resource.name}: {error}") from None

    def _combined(
        self, rules: Rules, devices: Iterable[HostDevice], advertised_ids: Iterable[str]
    ) -> Allocation:
        whole = combine(rules, self.constants, devices, advertised_ids)
        if self.policy.enforced and (refused := self.policy.refused_names(whole)):
            raise AllocationError(refused[0])
        return whole

    def _check_shares(self, advertised_ids: Iterable[str]) -> None:
        """Refuse more shares of one device than a container may have: the last resort."""
        most = self.resource.max_per_container
        if most is None:
            return
        for device_id, shares in Counter(map(names.without_share, advertised_ids)).items():
            if shares > most:
                limit = f"maxPerContainer is {most} and no other device had one free"
                raise AllocationError(f"{shares} shares of device {device_id}, but {limit}")

    def _present(self, snapshot: Snapshot, device_id: str, host_paths: HostPaths) -> HostDevice:
        """Return a device if each of its nodes exists and is still of its kind."""
        device = snapshot.devices.get(device_id)
        if device is None:
            raise AllocationError(f"there is no device {device_id}")
        if device.reason is not None:
            raise AllocationError(f"device {device_id}: {device.reason}")
        in_cdi_spec = self.resource.inject == "cdi"  # with its number
        for node in device.nodes:
            if problem := host_paths.node_problem(node, same_number=in_cdi_spec):
                raise AllocationError(f"device {device_id}: {problem}")
        return device

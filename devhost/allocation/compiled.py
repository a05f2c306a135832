"""A resource of the configuration, compiled, and what a container receives for its devices.

Its ``allocate`` becomes rules. What they give is put together for each device alone when the device
is found, so that what cannot be rendered makes the device unhealthy instead of failing a pod for
good. Only the error is kept, not the text: at Allocate the same is done for the devices of one
container.
"""

import functools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from devhost.allocation import preference
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.rules import Rule, Rules, command_problems, rules_of
from devhost.allocation.variables import FILE_VARIABLES, moving_variables
from devhost.errors import AllocationError, MissingRightError
from devhost.hostfs.files import HostFiles
from devhost.model import names
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec, Target
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot
from devhost.model.device_node import LINK_VARIABLES
from devhost.model.limits import ANSWER_MAX
from devhost.model.template import MissingVariableError, variables


@dataclass(frozen=True)  # no slots: what follows from the declaration is kept in it
class Declaration:
    """The rules of a resource's ``allocate`` on a host, compiled once for a configuration."""

    resource: Resource
    files: HostFiles
    policy: Policy
    node_name: str

    @functools.cached_property
    def rules(self) -> Rules:
        """The compiled rules."""
        return rules_of(self.resource)

    @functools.cached_property
    def self_contained(self) -> bool:
        """Whether containers are given no other host paths than those of the devices' nodes."""
        return not any(rule.shares for rule in self.rules)

    @property
    def pre_start_required(self) -> bool:
        """Whether the resource prepares its devices before a container starts."""
        return bool(self.resource.pre_start)

    @functools.cached_property
    def constants(self) -> Mapping[str, str]:
        """The variables that are the same for all devices."""
        return {"resource": self.resource.name, "nodeName": self.node_name}

    @property
    def by_dra(self) -> bool:
        """Whether DRA offers the resource on the node."""
        return self.resource.uses_dra(self.node_name)

    @property
    def has_cdi_file(self) -> bool:
        """Whether containers get its devices by the resource's CDI spec: DRA has one per claim."""
        return self.resource.inject == "cdi" and not self.by_dra

    def preferred(
        self,
        snapshot: Snapshot,
        available: Sequence[OfferedId],
        must: Sequence[OfferedId],
        size: int,
    ) -> tuple[OfferedId, ...]:
        """Return which of the available IDs a container should get; none to leave it open."""
        resource = self.resource
        policy = resource.prefer
        if policy == "none":
            if resource.replicas == 1 and resource.max_per_container is None:
                return ()
            policy = "spread"  # kubelet would pick at random, also two shares of one device
        return preference.preferred(
            policy,
            available,
            must,
            size,
            replicas=resource.replicas,
            numa_nodes={device.id: device.numa_nodes for device in snapshot.devices.values()},
        )

    def allocate(self, snapshot: Snapshot, ids: Sequence[OfferedId]) -> Allocation:
        """Put together what a container receives, and check that it is there. Blocks.

        The error for a device that is unknown, unhealthy, gone or refused names it.
        """
        host_paths = HostPaths(self.files, self.policy)
        try:
            self._check_shares(ids)
            advertised_ids = [offered.id for offered in ids]
            devices = [
                self._present(snapshot, device_id, host_paths)
                for device_id in names.natural({offered.device for offered in ids})
            ]
            checked = host_paths.resolve_checked(
                self._combined(self.rules, devices, advertised_ids)
            )
            if not self.has_cdi_file:
                return checked
            # What is in the CDI spec is named, what is not is given: never both.
            given_rules = tuple(rule for rule in self.rules if not rule.in_cdi_spec)
            rest = self._combined(given_rules, devices, advertised_ids)
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
            return HostPaths(self.files, self.policy).resolve_checked(allocation)
        except AllocationError as error:
            raise AllocationError(f"{self.resource.name}: {error}") from None

    def _combined(
        self, rules: Rules, devices: Iterable[HostDevice], advertised_ids: Iterable[str]
    ) -> Allocation:
        whole = combine(rules, self.constants, devices, advertised_ids)
        if self.policy.enforced:
            refusals = (text for _, text in command_problems(self.resource, self.policy))
            if refusal := next(refusals, None) or self.policy.allocation_problem(whole):
                raise MissingRightError(refusal)
        return whole

    def _check_shares(self, ids: Iterable[OfferedId]) -> None:
        """Refuse more shares of one device than a container may have: the last resort."""
        most = self.resource.max_per_container
        if most is None:
            return
        for device_id, shares in Counter(offered.device for offered in ids).items():
            if shares > most:
                limit = f"maxPerContainer is {most}"
                limit += "" if self.by_dra else " and no other device had one free"
                raise AllocationError(f"{shares} shares of device {device_id}, but {limit}")

    def _present(self, snapshot: Snapshot, device_id: str, host_paths: HostPaths) -> HostDevice:
        """Return a device if each of its nodes exists and is still of its kind."""
        device = snapshot.devices.get(device_id)
        if device is None:
            raise AllocationError(f"there is no device {device_id}")
        if not device.healthy:
            raise AllocationError(f"device {device_id}: {device.reason}")
        in_cdi_spec = self.resource.inject == "cdi" or self.by_dra  # with its number
        for node in device.nodes:
            if problem := host_paths.node_problem(node, same_number=in_cdi_spec):
                raise AllocationError(f"device {device_id}: {problem}")
        return device


# ── what a container receives by rules; pure ──


def combine(
    rules: Rules,
    constants: Mapping[str, str],
    devices: Iterable[HostDevice],
    advertised_ids: Iterable[str],
) -> Allocation:
    """Put together what one container receives by these rules, without looking at the host.

    It is an error if a variable has no value, a result is illegal, or the devices cannot be in one
    container together.
    """
    by_id = {device.id: device for device in devices}
    container_values = {**constants, "count": str(len(by_id))}
    container = _Container()
    for rule in rules:
        if not rule.per_device:
            container.add(rule, [container_values])
    for index, device_id in enumerate(names.natural(by_id)):
        nodes, last = by_id[device_id].nodes, {**container_values, "index": str(index)}
        values_by_node = [variables(node, device_id, nodes) | last for node in nodes]
        device_nodes = []
        for node, values in zip(nodes, values_by_node, strict=True):
            _check_paths(rules, moving_variables(node, values))
            if node.state is not None and node.state.number is not None:
                device_nodes.append(values)
        with_path = [values for values in values_by_node if "path" in values] or values_by_node
        for rule in rules:
            if rule.per_device:
                by_path = rule.target == "devices" and rule.value.names & FILE_VARIABLES
                of_nodes = with_path if by_path else values_by_node
                container.add(rule, device_nodes if rule.nodes_only else of_nodes, device_id)
    return container.allocation(advertised_ids)


def _check_paths(rules: Rules, moving: Mapping[str, str]) -> None:
    """Refuse what a device says of itself where it leads a path to another directory."""
    for rule in rules if moving else ():
        for name in sorted(moving.keys() & (rule.key.names | rule.value.names)):
            if rule.spec is not None:
                raise AllocationError(f"{rule.label}: {moving[name]}")


class _Container:
    """Collects rendered entries; refuses what is illegal, or has two different values."""

    def __init__(self) -> None:
        self._size = 0
        self._texts: dict[Target, dict[str, tuple[Rule, list[str]]]] = {}
        self._specs: dict[str, DeviceSpec | MountSpec] = {}  # by container path
        self._cdi: dict[str, str | None] = {}  # with the device that it is of

    def add(
        self, rule: Rule, values_of_nodes: Iterable[Mapping[str, str]], device: str | None = None
    ) -> None:
        """Add what a rule gives, by the variables of each node of a device, or of the container."""
        entries: dict[tuple[str, str], None] = {}  # equal results of one device count once
        for values in values_of_nodes:
            try:
                entries[rule.key.render(values), rule.value.render(values)] = None
            except MissingVariableError as error:
                if not rule.optional:
                    raise AllocationError(_no_value(rule, error)) from None
        for key, value in entries:
            self._size += len(key) + len(value)
            if self._size > ANSWER_MAX:
                most = f"{ANSWER_MAX >> 20} MiB"
                raise AllocationError(f"a container would receive more than {most} of text")
            _check(rule, key, value)
            if rule.target == "cdi":
                owner = self._cdi.setdefault(value, device)
                self._cdi[value] = device if owner == device else None
            elif rule.spec is None:
                self._add_text(rule, key, value)
            else:
                self._add_spec(rule, key, value, rule.spec, device)

    def _add_text(self, rule: Rule, key: str, value: str) -> None:
        first, values = self._texts.setdefault(rule.target, {}).setdefault(key, (rule, []))
        if not values or (rule.joined and first.joined):
            values.append(value)
        elif values != [value]:
            texts = f"{values[0]!r} and {value!r}"
            hint = _hint(rule, of_nodes="index" in rule.key.names)
            raise AllocationError(f"{rule.target} {key} has two values, {texts}{hint}")

    def _add_spec(
        self, rule: Rule, path: str, host: str, like: DeviceSpec | MountSpec, device: str | None
    ) -> None:
        spec = replace(
            like, host_path=host, container_path=path, optional=rule.optional, device=device
        )
        former = self._specs.setdefault(path, spec)
        if _essence(former) != _essence(spec):
            hosts = f"{former.host_path} and to {host}"
            hint = _hint(rule, of_nodes=former.device == device)
            raise AllocationError(f"container path {path} is set twice: to {hosts}{hint}")

    def allocation(self, advertised_ids: Iterable[str]) -> Allocation:
        """Return what was collected."""
        envs, annotations = (
            {key: first.separator.join(values) for key, (first, values) in texts.items()}
            for texts in (self._texts.get("env", {}), self._texts.get("annotations", {}))
        )
        specs = self._specs.values()
        return Allocation(
            device_ids=tuple(names.natural(advertised_ids)),
            envs=envs,
            mounts=tuple(spec for spec in specs if isinstance(spec, MountSpec)),
            devices=tuple(spec for spec in specs if isinstance(spec, DeviceSpec)),
            annotations=annotations,
            cdi_devices=tuple(self._cdi),
            cdi_owners=self._cdi,
        )


def _no_value(rule: Rule, error: MissingVariableError) -> str:
    directory = LINK_VARIABLES.get(error.name.rpartition(".")[2])
    if directory is not None:
        return f"no link below /dev/*/{directory} leads to it"
    return f"{rule.label}: {error}"


def _hint(rule: Rule, *, of_nodes: bool) -> str:
    use = "${name} to tell its nodes apart" if of_nodes else "${index} to tell devices apart"
    return f"; use {use}" if rule.per_device else ""


def _essence(spec: DeviceSpec | MountSpec) -> tuple[object, ...]:
    mode = spec.permissions if isinstance(spec, DeviceSpec) else spec.read_only
    return type(spec), spec.host_path, mode


_CHECKS: Final[Mapping[Target, tuple[Callable[[str], str | None], Callable[[str], str | None]]]] = {
    "env": (names.env_name_problem, names.text_problem),
    "annotations": (names.annotation_key_problem, names.text_problem),
    "devices": (names.path_problem, names.path_problem),
    "mounts": (names.path_problem, names.path_problem),
    "cdi": (names.cdi_name_problem, names.cdi_name_problem),
}


def _check(rule: Rule, key: str, value: str) -> None:
    """Refuse what no container can hold."""
    check_key, check_value = _CHECKS[rule.target]
    if problem := check_key(key) or check_value(value):
        raise AllocationError(f"{rule.label}: {problem}")
    if rule.joined and rule.separator and rule.separator in value:
        problem = f"the value {value!r} contains the separator {rule.separator!r}"
        raise AllocationError(f"{rule.label}: {problem}")

"""A resource of the configuration, compiled, and what a container receives for its devices."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from devhost.allocation import name_policy, preference
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.rules import Rule, Rules, Target
from devhost.allocation.variables import constants
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.model import names
from devhost.model.allocation import (
    Allocation,
    DeviceSpec,
    MountSpec,
    Rendered,
    RenderedEntry,
)
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot
from devhost.model.template import Template


@dataclass(frozen=True, slots=True)
class Declaration:
    """What is fixed for a resource until the configuration changes.

    Attributes:
        resource: As the configuration has it.
        rules: Its ``allocate``, bound to the resource and the node.
        files: Where the host's files are seen.
        policy: What containers may be given.
        node_name: The value of ``${nodeName}``.
    """

    resource: Resource
    rules: Rules
    files: HostFiles
    policy: Policy
    node_name: str

    @property
    def self_contained(self) -> bool:
        """Whether containers are given no other host paths than those of the devices' nodes."""
        return all(rule.own or rule.target not in ("devices", "mounts") for rule in self.rules)

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

        Raises:
            AllocationError: A device is unknown, unhealthy, gone or refused; the text names it.
        """
        host_paths = HostPaths(self.files, self.policy)
        try:
            self._check_shares(advertised_ids)
            devices = [
                self._present(snapshot, device_id, host_paths)
                for device_id in names.natural(names.distinct(advertised_ids))
            ]
            rendered = {device.id: device.rendered for device in devices if device.rendered}
            whole = combine(self.rules, rendered, advertised_ids)
            self._check_names(whole)
            checked = _on_host(whole, host_paths)
            if self.resource.inject != "cdi":
                return checked
            # What is in the CDI spec is named, what is not is given: never both.
            rest = combine(self.rules, rendered, advertised_ids, lambda rule: not rule.in_cdi_spec)
            cdi_devices = tuple(device.cdi_name for device in devices if device.cdi_name)
            return replace(
                rest,
                cdi_devices=(*cdi_devices, *rest.cdi_devices),
                in_cdi_spec=checked.specs,
                numbers=checked.numbers,
            )
        except AllocationError as error:
            raise AllocationError(f"{self.resource.name}: {error}") from None

    def name_refusal(self, allocation: Allocation) -> str | None:
        """Return why an answer may not be given, by the names in it; ``None`` where it may."""
        if not self.policy.enforced:
            return None
        return next(name_policy.refusals(self.policy, self.resource.name, allocation), None)

    def _check_names(self, allocation: Allocation) -> None:
        """Refuse names that only several devices make, by ``${index}`` or ``${count}``.

        All others were judged at the scan.
        """
        late = any(rule.late for rule in self.rules)
        if late and (refusal := self.name_refusal(allocation)):
            raise AllocationError(refusal)

    def checked(self, allocation: Allocation) -> Allocation:
        """Return an allocation as `allocate` would, if it is there and allowed. Blocks.

        Raises:
            AllocationError: A path does not exist, or is refused.
        """
        try:
            return _on_host(allocation, HostPaths(self.files, self.policy))
        except AllocationError as error:
            raise AllocationError(f"{self.resource.name}: {error}") from None

    def _check_shares(self, advertised_ids: Iterable[str]) -> None:
        """Refuse more shares of one device than a container may have: the last resort."""
        most = self.resource.max_per_container
        if most is None:
            return
        for device_id, shares in Counter(map(names.without_share, advertised_ids)).items():
            if shares > most:
                raise AllocationError(
                    f"{shares} shares of device {device_id}, but maxPerContainer is {most} and no "
                    "other device had one free"
                )

    def _present(self, snapshot: Snapshot, device_id: str, host_paths: HostPaths) -> HostDevice:
        """Return a device if each of its nodes exists and is still of its kind."""
        device = snapshot.devices.get(device_id)
        if device is None:
            raise AllocationError(f"there is no device {device_id}")
        if device.reason is not None or device.rendered is None:
            raise AllocationError(f"device {device_id}: {device.reason}")
        in_cdi_spec = self.resource.inject == "cdi"  # with its number
        for node in device.nodes:
            if problem := host_paths.node_problem(node, same_number=in_cdi_spec):
                raise AllocationError(f"device {device_id}: {problem}")
        return device


def _on_host(allocation: Allocation, host_paths: HostPaths) -> Allocation:
    devices = host_paths.present(allocation.devices)
    return replace(
        allocation,
        devices=devices,
        mounts=host_paths.present(allocation.mounts),
        numbers=host_paths.numbers(devices),
    )


def combine(
    rules: Rules,
    rendered: Mapping[str, Rendered],
    advertised_ids: Iterable[str],
    only: Callable[[Rule], bool] | None = None,
) -> Allocation:
    """Put together what one container receives, without looking at the host.

    Args:
        rules: The resource's rules, bound.
        rendered: By the IDs of the distinct devices, what they bring.
        advertised_ids: The IDs that the kubelet asked for.
        only: Which rules count; by default all.

    Raises:
        AllocationError: The devices cannot be in one container together.
    """
    chosen = [True if only is None else only(rule) for rule in rules]
    container, late = _Container(), {"count": str(len(rendered))}
    for rule, counts in zip(rules, chosen, strict=True):
        if counts and not rule.per_device:
            container.add(rule, (RenderedEntry(rule.key, rule.value),), late)
    for index, device_id in enumerate(names.natural(rendered)):
        container.device, late["index"] = device_id, str(index)
        for rule, entries, counts in zip(rules, rendered[device_id].entries, chosen, strict=True):
            if counts and entries:
                container.add(rule, entries, late)
    return container.allocation(advertised_ids)


class _Container:
    """Collects rendered entries; refuses what is illegal, or has two different values."""

    def __init__(self) -> None:
        self._texts: dict[Target, dict[str, list[str]]] = {}
        self._joined: dict[tuple[Target, str], str] = {}
        self._paths: dict[str, DeviceSpec | MountSpec] = {}
        self._cdi: dict[str, None] = {}
        self.device: str | None = None

    def add(self, rule: Rule, entries: Iterable[RenderedEntry], late: Mapping[str, str]) -> None:
        """Add what was rendered of a rule for one device.

        Raises:
            AllocationError: An entry is illegal, or collides with another.
        """
        seen: set[str] = set()
        for entry in entries:
            key = _filled_in(entry.key, late)
            value = key if entry.value is entry.key else _filled_in(entry.value, late)
            _check(rule, key, value)
            if rule.target == "cdi":
                self._cdi[value] = None
            elif rule.target in ("devices", "mounts"):
                self._add_path(rule, key, value)
            elif value not in seen or not rule.joined:
                seen.add(value)
                self._add_text(rule, key, value)

    def _add_text(self, rule: Rule, key: str, value: str) -> None:
        values = self._texts.setdefault(rule.target, {}).setdefault(key, [])
        if rule.joined and (not values or (rule.target, key) in self._joined):
            self._joined[rule.target, key] = rule.separator
            values.append(value)
        elif not values:
            values.append(value)
        elif values != [value]:
            raise AllocationError(
                f"{rule.target} {key} has two values, {values[0]!r} and {value!r}{_hint(rule)}"
            )

    def _add_path(self, rule: Rule, container: str, host: str) -> None:
        device = self.device if rule.per_device else None
        spec: DeviceSpec | MountSpec
        if rule.target == "devices":
            spec = DeviceSpec(
                host,
                container,
                rule.permissions,
                rule.optional,
                device,
                rule.uid,
                rule.gid,
                rule.mode,
            )
        else:
            spec = MountSpec(host, container, rule.read_only, rule.optional, device)
        other = self._paths.setdefault(container, spec)
        if other is not spec and _essence(other) != _essence(spec):
            raise AllocationError(
                f"container path {container} is set twice: to {other.host_path} and to "
                f"{host}{_hint(rule)}"
            )

    def allocation(self, advertised_ids: Iterable[str]) -> Allocation:
        """Return what was collected."""
        specs = self._paths.values()
        return Allocation(
            device_ids=tuple(names.natural(advertised_ids)),
            envs=self._mapping("env"),
            mounts=tuple([spec for spec in specs if isinstance(spec, MountSpec)]),
            devices=tuple([spec for spec in specs if isinstance(spec, DeviceSpec)]),
            annotations=self._mapping("annotations"),
            cdi_devices=tuple(self._cdi),
        )

    def _mapping(self, target: Target) -> dict[str, str]:
        return {
            key: self._joined.get((target, key), "").join(values)
            for key, values in self._texts.get(target, {}).items()
        }


def _filled_in(text: str | Template, late: Mapping[str, str]) -> str:
    return text if isinstance(text, str) else text.render(late)


def _hint(rule: Rule) -> str:
    return "; use ${index} to tell devices apart" if rule.per_device else ""


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
    """Refuse what no container can hold.

    Raises:
        AllocationError: The rendered name, path or value is illegal.
    """
    check_key, check_value = _CHECKS[rule.target]
    same = key is value and check_key is check_value
    if problem := check_key(key) or (None if same else check_value(value)):
        raise AllocationError(f"{rule.label}: {problem}")
    if rule.joined and rule.separator and rule.separator in value:
        raise AllocationError(
            f"{rule.label}: the value {value!r} contains the separator {rule.separator!r}"
        )

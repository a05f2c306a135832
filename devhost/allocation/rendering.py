"""What containers receive by a resource's rules; pure.

It is put together for each device alone when the device is found, so that what cannot be rendered
makes the device unhealthy instead of failing a pod for good. Only the error is kept, not the text:
at Allocate the same is done for the devices of one container.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final

from devhost.allocation.rules import Rule, Rules, Target
from devhost.allocation.variables import (
    CONTAINER_VARIABLES,
    LINK_VARIABLES,
    PATH_VARIABLES,
    ToLocal,
    variables,
)
from devhost.errors import AllocationError
from devhost.limits import ANSWER_MAX
from devhost.model import names
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.device import HostDevice
from devhost.model.template import MissingVariableError, Template


def each(
    texts: Sequence[Template],
    device: HostDevice,
    constants: Mapping[str, str],
    to_local: ToLocal = str,
) -> tuple[tuple[str, ...], ...]:
    """Render the arguments of a step or check for each node of a device, equal results once.

    Raises:
        AllocationError: A variable has no value, or a device's name would become an option.
    """
    results: dict[tuple[str, ...], None] = {}
    for node in device.nodes:
        values = {**constants, **variables(node, device.id, device.nodes, to_local)}
        try:
            words = tuple(text.render(values) for text in texts)
        except MissingVariableError as error:
            raise AllocationError(str(error)) from None
        for text, word in zip(texts, words, strict=True):
            if word.startswith("-") and text.opening is not None:
                raise AllocationError(f"the argument {text} would be an option: {word!r}")
        results[words] = None
    return tuple(results)


def combine(
    rules: Rules,
    constants: Mapping[str, str],
    devices: Iterable[HostDevice],
    advertised_ids: Iterable[str],
) -> Allocation:
    """Put together what one container receives, without looking at the host.

    Args:
        rules: The rules that count.
        constants: The variables that are the same for all devices.
        devices: The distinct devices.
        advertised_ids: The IDs that the kubelet asked for.

    Raises:
        AllocationError: A variable has no value, a result is illegal, or the devices cannot be in
            one container together.
    """
    by_id = {device.id: device for device in devices}
    known = {**constants, "count": str(len(by_id))}
    container = _Container()
    for rule in rules:
        if not rule.per_device:
            container.add(rule, _entries(rule, [known]))
    for index, device_id in enumerate(names.natural(by_id)):
        nodes, last = by_id[device_id].nodes, {**known, "index": str(index)}
        values = [variables(node, device_id, nodes) | last for node in nodes]
        for node, own in zip(nodes, values, strict=True):
            if node.hardware is not None:
                _check_paths(rules, own)
        is_node = [node.state is not None and node.state.kind.is_node for node in nodes]
        for rule in rules:
            if rule.per_device:
                chosen = itertools.compress(values, is_node) if rule.nodes_only else values
                container.add(rule, _entries(rule, chosen), device_id)
    return container.allocation(advertised_ids)


def _entries(rule: Rule, each: Iterable[Mapping[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the names and values that a rule gives, by the variables of each node."""
    for values in each:
        try:
            key = rule.key.render(values)
            entry = key, key if rule.same else rule.value.render(values)
        except MissingVariableError as error:
            if not rule.optional:
                raise AllocationError(_no_value(rule, error)) from None
        else:
            yield entry


def _check_paths(rules: Rules, node: Mapping[str, str]) -> None:
    """Refuse what a device says of itself, such as its serial number, where it makes directories.

    Raises:
        AllocationError: A variable that is no path has a ``/``.
    """
    deep = {name for name, value in node.items() if "/" in value} - CONTAINER_VARIABLES
    for rule in rules if deep else ():
        for name in sorted(deep & (rule.key.names | rule.value.names)):
            if (
                rule.target in ("devices", "mounts")
                and name.rpartition(".")[2] not in PATH_VARIABLES
            ):
                raise AllocationError(f"{rule.label}: ${{{name}}} has a '/': {node[name]!r}")


def _no_value(rule: Rule, error: MissingVariableError) -> str:
    directory = LINK_VARIABLES.get(error.name.rpartition(".")[2])
    if directory is not None:
        return f"no link below /dev/*/{directory} leads to it"
    return f"{rule.label}: {error}"


class _Container:
    """Collects rendered entries; refuses what is illegal, or has two different values."""

    def __init__(self) -> None:
        self._size = 0
        self._texts: dict[Target, dict[str, list[str]]] = {}
        self._joined: dict[tuple[Target, str], str] = {}
        self._paths: dict[str, DeviceSpec | MountSpec] = {}
        self._cdi: dict[str, None] = {}

    def add(
        self, rule: Rule, entries: Iterable[tuple[str, str]], device: str | None = None
    ) -> None:
        """Add what a rule gives, for one device or for the container.

        Raises:
            AllocationError: An entry is illegal, or collides with another.
        """
        for key, value in dict.fromkeys(entries):  # equal results of one device count once
            self._size += len(key) + len(value)
            if self._size > ANSWER_MAX:
                most = f"{ANSWER_MAX >> 20} MiB"
                raise AllocationError(f"a container would receive more than {most} of text")
            _check(rule, key, value)
            if rule.target == "cdi":
                self._cdi[value] = None
            elif rule.target in ("devices", "mounts"):
                self._add_path(rule, key, value, device)
            else:
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

    def _add_path(self, rule: Rule, container: str, host: str, device: str | None) -> None:
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


Taken = dict[int, tuple[int, str]]
"""What devices have: names and container paths with their values, as hashes, and the device."""


def clashing(rules: Rules) -> Rules:
    """Return the rules by which two devices may come to the same name or container path."""
    exclusive = tuple(rule for rule in rules if rule.exclusive)
    made_of = {name for rule in exclusive for name in rule.key.names - CONTAINER_VARIABLES}
    return () if len(exclusive) == 1 and made_of in ({"id"}, {"realpath"}) else exclusive


def clash(taken: Taken, device_id: str, alone: Allocation) -> str | None:
    """Enter what a device has; return why it cannot be offered beside those entered before.

    Args:
        taken: What others have.
        device_id: The device.
        alone: What a container receives for it by the rules that are `clashing`. A constant name
            or path is the author's word that a container gets one device.
    """
    problem = None
    named: list[tuple[str, str, str, str]] = [
        *(("env", "env", *one) for one in alone.envs.items()),
        *(("annotations", "annotations", *one) for one in alone.annotations.items()),
        *(
            ("container path", "devices", one.container_path, one.host_path)
            for one in alone.devices
        ),
        *(("container path", "mounts", one.container_path, one.host_path) for one in alone.mounts),
    ]
    for space, what, key, value in named:
        mine = hash(value)
        text, other = taken.setdefault(hash((space, key)), (mine, device_id))
        if text != mine:
            problem = f"{what} {key} is used by device {other} too"
    return problem

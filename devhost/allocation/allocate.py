"""From the answers of devices to what one container receives; pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from devhost.allocation.rules import Rule, Rules, Target
from devhost.errors import AllocationError
from devhost.model import names
from devhost.model.answer import Allocation, Answer, DeviceSpec, MountSpec, Piece
from devhost.model.device import Device


def allocate(
    rules: Rules,
    devices: Iterable[Device],
    advertised_ids: Iterable[str],
    only: Callable[[Rule], bool] | None = None,
) -> Allocation:
    """Put together what one container receives.

    Args:
        rules: The resource's rules, bound.
        devices: The distinct devices, each rendered.
        advertised_ids: The IDs that the kubelet asked for.
        only: Which rules count; all unless told.

    Raises:
        AllocationError: The devices cannot be in one container together.
    """
    ordered = list(devices)
    if len(ordered) > 1:
        ordered.sort(key=lambda device: (names.natural_key(device.id), device.id))
    answers: list[tuple[str, Answer]] = []
    for device in ordered:
        if device.answer is None:
            raise AllocationError(f"device {device.id}: {device.reason}")
        answers.append((device.id, device.answer))
    return together(rules, answers, tuple(names.natural(advertised_ids)), only)


def together(
    rules: Rules,
    answers: Sequence[tuple[str, Answer]],
    advertised_ids: tuple[str, ...],
    only: Callable[[Rule], bool] | None = None,
) -> Allocation:
    """Do what `allocate` does, told the devices' IDs and answers in natural order of the IDs."""
    chosen = [True if only is None else only(rule) for rule in rules]
    collector, late = _Collector(), {"count": str(len(answers))}
    for rule, counts in zip(rules, chosen, strict=True):
        if counts and not rule.per_device:
            collector.add(rule, (Piece(rule.key, rule.value),), late)
    for index, (device_id, answer) in enumerate(answers):
        collector.device, late["index"] = device_id, str(index)
        for rule, pieces, counts in zip(rules, answer.pieces, chosen, strict=True):
            if counts and pieces:
                collector.add(rule, pieces, late)
    return collector.allocation(advertised_ids)


class _Collector:
    """Gathers pieces into an allocation; refuses what is illegal or said twice, differently."""

    def __init__(self) -> None:
        self._texts: dict[Target, dict[str, list[str]]] = {}
        self._joined: dict[tuple[Target, str], str] = {}
        self._paths: dict[str, DeviceSpec | MountSpec] = {}
        self._cdi: dict[str, None] = {}
        self.device: str | None = None

    def add(self, rule: Rule, pieces: Iterable[Piece], late: Mapping[str, str]) -> None:
        """Add what was rendered of a rule for one device.

        Raises:
            AllocationError: One is illegal, or collides with another.
        """
        seen: set[str] = set()
        for piece in pieces:
            key = piece.key.render(late)
            value = key if piece.value is piece.key else piece.value.render(late)
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
                f"{rule.target} {key} has two values, {values[0]!r} and {value!r}{self._hint(rule)}"
            )

    def _add_path(self, rule: Rule, container: str, host: str) -> None:
        spec: DeviceSpec | MountSpec
        if rule.target == "devices":
            spec = DeviceSpec(
                host,
                container,
                rule.permissions,
                rule.optional,
                self._owner(rule),
                rule.uid,
                rule.gid,
                rule.mode,
            )
        else:
            spec = MountSpec(host, container, rule.read_only, rule.optional, self._owner(rule))
        other = self._paths.setdefault(container, spec)
        if other is not spec and _essence(other) != _essence(spec):
            raise AllocationError(
                f"two things at {container} in the container: {other.host_path} and "
                f"{host}{self._hint(rule)}"
            )

    def _owner(self, rule: Rule) -> str | None:
        return self.device if rule.per_device else None

    @staticmethod
    def _hint(rule: Rule) -> str:
        return "; use ${index} to tell devices apart" if rule.per_device else ""

    def allocation(self, advertised_ids: tuple[str, ...]) -> Allocation:
        """Return what was gathered."""
        devices: list[DeviceSpec] = []
        mounts: list[MountSpec] = []
        for spec in self._paths.values():
            if isinstance(spec, DeviceSpec):
                devices.append(spec)
            else:
                mounts.append(spec)
        return Allocation(
            device_ids=advertised_ids,
            envs=self._mapping("env"),
            mounts=tuple(mounts),
            devices=tuple(devices),
            annotations=self._mapping("annotations"),
            cdi_devices=tuple(self._cdi),
        )

    def _mapping(self, target: Target) -> dict[str, str]:
        texts = self._texts.get(target)
        if texts is None:
            return {}
        return {
            key: self._joined.get((target, key), "").join(values) for key, values in texts.items()
        }


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

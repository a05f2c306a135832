"""Checks of what a plugin's methods return."""

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from devhost.library.calls import CallError, brief
from devhost.library.device import Device
from devhost.model import names
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.values import SHARES_MAX

_PERMISSIONS: Final = frozenset("rwm")


def described(value: object) -> str:
    """Return a value that is not valid, as messages show it."""
    try:
        return brief(f"{type(value).__name__} {value!r}") if value is not None else "None"
    except Exception:  # noqa: BLE001 (a plugin's __repr__ may raise anything)
        return type(value).__name__


def listed(result: object) -> list[object]:
    """Return the items that ``devices`` returned, of any type.

    Raises:
        CallError: It did not return an iterable, or too many items.
    """
    if isinstance(result, str | bytes) or not isinstance(result, Iterable):
        raise CallError(f"devices() returned {described(result)}, not a list of Devices or IDs")
    items = list(itertools.islice(result, SHARES_MAX + 1))
    if len(items) > SHARES_MAX:
        raise CallError(f"devices() returned more than {SHARES_MAX} devices")
    return items


def device_problem(item: object) -> str | None:
    """Return why an item of ``devices`` is not a valid device, or ``None``."""
    if not isinstance(item, Device):
        return "not a Device or an ID (a str)"
    if problem := _id_problem(item.id):
        return problem
    for path in item.paths:
        if not isinstance(path, str):
            return f"{described(path)} in its paths is not a str"
        if problem := names.path_problem(path):
            return problem
    for number in item.numa_nodes:
        if type(number) is not int or number < 0:
            return f"{described(number)} in its numa_nodes is not the number of a NUMA node"
    if item.reason is not None and not isinstance(item.reason, str):
        return f"its reason is {described(item.reason)}, not a str"
    return None


def _id_problem(device_id: object) -> str | None:
    if not isinstance(device_id, str):
        return f"its ID is {described(device_id)}, not a str"
    if len(device_id) > names.DEVICE_ID_MAX:
        most = names.DEVICE_ID_MAX
        return f"its ID has {len(device_id)} characters; at most {most} are allowed"
    return names.id_problem(device_id)


def allocation_problem(allocation: object) -> str | None:
    """Return why a result of ``allocate`` is invalid, or ``None``."""
    if not isinstance(allocation, Allocation):
        return f"it returned {described(allocation)}, not an Allocation or None"
    for what, texts, check in (
        ("envs", allocation.envs, names.env_name_problem),
        ("annotations", allocation.annotations, names.annotation_key_problem),
    ):
        if not isinstance(texts, Mapping):
            return f"{what} is {described(texts)}, not a dict"
        for key, value in texts.items():
            if not isinstance(key, str) or not isinstance(value, str):
                return f"{what}: {described(key)}: {described(value)} are not both str"
            if problem := check(key) or names.text_problem(value):
                return f"{what}: {problem}"
    for name in allocation.cdi_devices:
        if not isinstance(name, str):
            return f"cdi_devices: {described(name)} is not a str"
        if problem := names.cdi_name_problem(name):
            return f"cdi_devices: {problem}"
    return _paths_problem(allocation)


def _paths_problem(allocation: Allocation) -> str | None:
    seen: set[str] = set()
    for what, specs, kind in (
        ("devices", allocation.devices, DeviceSpec),
        ("mounts", allocation.mounts, MountSpec),
    ):
        for spec in specs:
            if not isinstance(spec, kind):
                return f"{what}: {described(spec)} is not a {kind.__name__}"
            for path in (spec.host_path, spec.container_path):
                if not isinstance(path, str):
                    return f"{what}: the path {described(path)} is not a str"
                if problem := names.path_problem(path):
                    return f"{what}: {problem}"
            if isinstance(spec, DeviceSpec) and not _legal(spec.permissions):
                return f"{what}: permissions {spec.permissions!r} should be of the letters r, w, m"
            if spec.container_path in seen:
                return f"{what}: container path {spec.container_path} is set twice"
            seen.add(spec.container_path)
    return None


def _legal(permissions: str) -> bool:
    return bool(permissions) and len(permissions) == len(set(permissions) & _PERMISSIONS)


def preferred_problem(
    chosen: object, available: Collection[str], must_include: Collection[str], size: int
) -> str | None:
    """Return why a result of ``preferred`` is invalid, or ``None``."""
    if isinstance(chosen, str) or not isinstance(chosen, Sequence):
        return f"it returned {described(chosen)}, not a list of IDs or None"
    if len(chosen) != size or len(set(map(repr, chosen))) != size:
        return f"it returned {described(chosen)}, not {size} different IDs"
    if unknown := [one for one in chosen if one not in available]:
        return f"{described(unknown[0])} is not available"
    if missing := [one for one in must_include if one not in chosen]:
        return f"{described(missing[0])} must be included"
    return None

"""What ``preStart`` does for the devices of a container, without doing it; pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypedDict

from devhost.allocation import rendering
from devhost.allocation.variables import ToLocal
from devhost.errors import AllocationError, PreStartError
from devhost.model import names
from devhost.model.config import Resource, Step
from devhost.model.device import HostDevice

StepAction = Literal["run", "mode", "waitFor"]


class PlannedStep(TypedDict):
    """One thing that would be done before a container starts.

    ``value`` is the arguments of a command, the permission bits in octal, or a path of the
    host; ``timeout`` is in seconds and of the whole step, also where it has several commands.
    """

    device: str
    step: StepAction
    value: list[str] | str
    every: Literal["start", "holder"]
    timeout: float


def keeps_records(resource: Resource) -> bool:
    """Whether a step is to run once per holder, so that it has to be known who had what."""
    return any(step.every == "holder" for step in resource.pre_start)


def numbered(devices: Iterable[HostDevice]) -> list[tuple[HostDevice, dict[str, str]]]:
    """Return a container's distinct devices in order, each with its ``index`` and ``count``."""
    ordered = sorted(devices, key=lambda device: (names.natural_key(device.id), device.id))
    count = str(len(ordered))
    return [(device, {"index": str(index), "count": count}) for index, device in enumerate(ordered)]


def label(number: int, step: Step) -> str:
    """Return the name of a step in messages, by its place (from 0) in the list."""
    if step.run is not None:
        what = f"run {str(step.run[0]).rpartition('/')[2]}"
    elif step.mode is not None:
        what = f"mode {step.mode}"
    else:
        what = f"waitFor {step.wait_for}"
    return f"preStart[{number}] ({what})"


def commands(
    step: Step, device: HostDevice, constants: Mapping[str, str], to_local: ToLocal
) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a ``run`` step for a device, equal ones once.

    Args:
        step: The step.
        device: The device.
        constants: ``resource``, ``nodeName``, ``index`` and ``count``.
        to_local: From a path of the host to where devhost sees it.

    Raises:
        PreStartError: A variable has no value.
    """
    try:
        return rendering.each(step.run or (), device, constants, to_local)
    except AllocationError as error:
        raise PreStartError(str(error)) from None


def awaited(step: Step, device: HostDevice, constants: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of the host that a ``waitFor`` step waits for, equal ones once.

    Raises:
        PreStartError: A variable has no value, or the result is not an absolute path.
    """
    texts = (step.wait_for,) if step.wait_for else ()
    try:
        paths = tuple(path for (path,) in rendering.each(texts, device, constants))
    except AllocationError as error:
        raise PreStartError(str(error)) from None
    for path in paths:
        if problem := names.path_problem(path):
            raise PreStartError(problem)
    return paths


def planned(
    resource: Resource,
    devices: Iterable[HostDevice],
    constants: Mapping[str, str],
    to_local: ToLocal,
) -> list[PlannedStep]:
    """Return what a container's first start would do, device by device.

    Args:
        resource: The resource.
        devices: The container's distinct devices.
        constants: ``resource`` and ``nodeName``.
        to_local: From a path of the host to where devhost sees it.

    Raises:
        PreStartError: A step cannot be rendered; the text names it and the device.
    """
    plan: list[PlannedStep] = []
    for device, own in numbered(devices):
        for number, step in enumerate(resource.pre_start):
            try:
                plan += _planned(step, device, {**constants, **own}, to_local)
            except PreStartError as error:
                where = f"{label(number, step)} of device {device.id}"
                raise PreStartError(f"{where}: {error}") from None
    return plan


def _planned(
    step: Step, device: HostDevice, constants: Mapping[str, str], to_local: ToLocal
) -> Iterator[PlannedStep]:
    found: tuple[tuple[StepAction, list[str] | str], ...]
    if step.run is not None:
        found = tuple(("run", list(argv)) for argv in commands(step, device, constants, to_local))
    elif step.mode is not None:
        found = (("mode", f"{int(step.mode, 8):04o}"),)
    else:
        found = tuple(("waitFor", path) for path in awaited(step, device, constants))
    for action, value in found:
        yield PlannedStep(
            device=device.id, step=action, value=value, every=step.every, timeout=step.time_limit
        )

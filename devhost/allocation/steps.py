"""The steps of ``preStart`` for the devices of a container, as they would be run; pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypedDict

from devhost.allocation.variables import arguments
from devhost.errors import AllocationError, PreStartError
from devhost.model import names
from devhost.model.config import Resource, Step
from devhost.model.device import HostDevice
from devhost.model.device_node import ToLocal
from devhost.model.template import Template

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


def has_holder_steps(resource: Resource) -> bool:
    """Whether a step runs once per holder."""
    return any(step.repeat == "holder" for step in resource.pre_start)


def with_index(devices: Iterable[HostDevice]) -> list[tuple[HostDevice, dict[str, str]]]:
    """Return a container's distinct devices in order, each with its ``index`` and ``count``."""
    ordered = sorted(devices, key=lambda device: names.natural_key(device.id))
    count = str(len(ordered))
    return [(device, {"index": str(index), "count": count}) for index, device in enumerate(ordered)]


def label(number: int, step: Step) -> str:
    """Return the name of a step in messages, by its place (from 0) in the list."""
    if step.run is not None:
        action = f"run {str(step.run[0]).rpartition('/')[2]}"
    else:
        action = f"mode {step.mode}" if step.mode is not None else f"waitFor {step.wait_for}"
    return f"preStart[{number}] ({action})"


def awaited_paths(
    wait_for: Template, device: HostDevice, constants: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the paths of the host that a ``waitFor`` step waits for, equal ones once."""
    paths = tuple(path for (path,) in arguments((wait_for,), device, constants))
    for path in paths:
        if problem := names.path_problem(path):
            raise AllocationError(problem)
    return paths


def planned_steps(
    resource: Resource,
    devices: Iterable[HostDevice],
    constants: Mapping[str, str],
    to_local: ToLocal,
) -> list[PlannedStep]:
    """Return what the first start of a container with these distinct devices would do.

    The error for a step that cannot be rendered names it and the device.
    """
    plan: list[PlannedStep] = []
    for device, index in with_index(devices):
        for number, step in enumerate(resource.pre_start):
            try:
                plan += _planned(step, device, {**constants, **index}, to_local)
            except AllocationError as error:
                where = f"{label(number, step)} of device {device.id}"
                raise PreStartError(f"{where}: {error}") from None
    return plan


def _planned(
    step: Step, device: HostDevice, constants: Mapping[str, str], to_local: ToLocal
) -> Iterator[PlannedStep]:
    actions: list[tuple[StepAction, list[str] | str]] = []
    if step.run is not None:
        actions += [("run", [*argv]) for argv in arguments(step.run, device, constants, to_local)]
    elif step.mode is not None:
        actions += [("mode", f"{int(step.mode, 8):04o}")]
    elif step.wait_for is not None:
        actions += [("waitFor", path) for path in awaited_paths(step.wait_for, device, constants)]
    for key, value in actions:
        yield PlannedStep(
            device=device.id, step=key, value=value, every=step.repeat, timeout=step.timeout
        )

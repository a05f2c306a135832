"""What ``preStart`` does for the devices of a container, without doing it; pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Literal, TypedDict, assert_never

from devhost.allocation import rendering
from devhost.allocation.variables import ToLocal
from devhost.errors import AllocationError, PreStartError
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.config import Resource, Step
from devhost.model.device import HostDevice
from devhost.model.template import Template

StepAction = Literal["run", "mode", "waitFor"]


@immutable
class Run:
    """Runs a command."""

    argv: tuple[Template, ...]


@immutable
class SetMode:
    """Sets the permission bits of the device's nodes."""

    bits: int


@immutable
class WaitFor:
    """Waits for a path of the host."""

    path: Template


def action(step: Step) -> Run | SetMode | WaitFor:
    """Return what a step does; it has exactly one of these keys."""
    if step.run is not None:
        return Run(step.run)
    if step.mode is not None:
        return SetMode(int(step.mode, 8))
    if step.wait_for is not None:
        return WaitFor(step.wait_for)
    raise AssertionError(step)


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
    match action(step):
        case Run(argv):
            what = f"run {str(argv[0]).rpartition('/')[2]}"
        case SetMode():
            what = f"mode {step.mode}"
        case WaitFor(path):
            what = f"waitFor {path}"
        case other:
            assert_never(other)
    return f"preStart[{number}] ({what})"


def commands(
    run: Run, device: HostDevice, constants: Mapping[str, str], to_local: ToLocal
) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a ``run`` step for a device, equal ones once.

    Args:
        run: What the step does.
        device: The device.
        constants: ``resource``, ``nodeName``, ``index`` and ``count``.
        to_local: From a path of the host to where devhost sees it.

    Raises:
        PreStartError: A variable has no value.
    """
    try:
        return rendering.each(run.argv, device, constants, to_local)
    except AllocationError as error:
        raise PreStartError(str(error)) from None


def awaited(wait: WaitFor, device: HostDevice, constants: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of the host that a ``waitFor`` step waits for, equal ones once.

    Raises:
        PreStartError: A variable has no value, or the result is not an absolute path.
    """
    try:
        paths = tuple(path for (path,) in rendering.each((wait.path,), device, constants))
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
    match action(step):
        case Run() as run:
            found = tuple(
                ("run", list(argv)) for argv in commands(run, device, constants, to_local)
            )
        case SetMode(bits):
            found = (("mode", f"{bits:04o}"),)
        case WaitFor() as wait:
            found = tuple(("waitFor", path) for path in awaited(wait, device, constants))
        case other:
            assert_never(other)
    for key, value in found:
        yield PlannedStep(
            device=device.id, step=key, value=value, every=step.every, timeout=step.time_limit
        )

"""Prepares devices before a container starts: once per holder, and never on a guess.

Kubelet allocates an ID once to a pod, and asks to prepare it at each start of a container. So the
record of an Allocate says that the steps are pending; they run then, and it says that they are
done. Without either it cannot be told whether a container has used the device before.
"""

import asyncio
import contextlib
import errno
import os
import stat
import threading
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar

from devhost.allocation import steps as pre_start
from devhost.allocation.compiled import Declaration
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.variables import Seen, arguments, names_paths, real_paths
from devhost.custody.custody import unknown_steps
from devhost.custody.record_files import RecordFiles
from devhost.errors import AllocationError, PreStartError
from devhost.hostfs import command
from devhost.hostfs.files import HostFiles, pinned_path
from devhost.model import names
from devhost.model.advertised import OfferedId
from devhost.model.config import Resource, Step
from devhost.model.device import HostDevice
from devhost.model.device_node import FileKind
from devhost.model.names import printable
from devhost.model.records import Handout
from devhost.model.template import Template
from devhost.watch.threads import BlockingCalls

T = TypeVar("T")

PRE_START_TIMEOUT_S: Final = 28.0  # kubelet gives up at 30 s
_SYNC_S: Final = 2.0
_POLL_S: Final = 0.1
_KILL_S: Final = 1.0  # for a command that was stopped to end
_TYPES: Final = {FileKind.CHAR: stat.S_IFCHR, FileKind.BLOCK: stat.S_IFBLK}


class PreStart:
    """Prepares the devices of one resource, by any of its specifications."""

    def __init__(self, declaration: Declaration, records: RecordFiles) -> None:
        self._name, self._constants = declaration.resource.name, declaration.constants
        self._files, self._policy, self._records = declaration.files, declaration.policy, records
        self._calls = BlockingCalls(f"preStart {self._name}")
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by the device's ID
        self._has_no_steps = False

    async def spec_changed(self, resource: Resource) -> None:
        """Set the specification by which the resource is served from now on; never fails.

        To be awaited before kubelet can learn of it. Without a step for holders containers start
        unprepared, so that what is recorded would be wrong when such a step is added again.
        """
        # An Allocate by the former specification that still runs has no steps, either.
        self._has_no_steps = not pre_start.has_holder_steps(resource)
        if self._has_no_steps:
            await self.forget()

    async def forget(self) -> None:
        """Drop what is known of steps, as the resource is no longer served; never fails."""
        if with_steps := self._with_steps():
            self._records.set({handout.key: handout.with_steps("none") for handout in with_steps})
            await self._records.sync(_SYNC_S)

    def _with_steps(self) -> list[Handout]:
        return [
            handout
            for handout in self._records.table
            if handout.resource == self._name and handout.steps != "none"
        ]

    def needs_steps(self, resource: Resource) -> bool:
        """Whether what is allocated now has steps to run before a container starts."""
        return not self._has_no_steps and pre_start.has_holder_steps(resource)

    async def run_steps_for(
        self,
        resource: Resource,
        devices: Mapping[str, HostDevice],
        ids: Sequence[OfferedId],
        *,
        fresh: bool = False,
    ) -> None:
        """Run the steps before a container starts with advertised IDs of these devices.

        They are `fresh` for a claim that is not completed; else the records tell. If it is
        cancelled, running commands are killed.

        Raises:
            PreStartError: The container must not start; the text says why.
        """
        deadline = asyncio.get_running_loop().time() + PRE_START_TIMEOUT_S
        chosen = _present_devices(devices, ids)
        async with contextlib.AsyncExitStack() as locks:
            for device_id in sorted(chosen):  # in order, which avoids deadlocks
                late = f"device {device_id} is still being prepared for another start"
                async with _until(deadline, lambda: late):  # noqa: B023
                    await locks.enter_async_context(self._locks[device_id])
            by_record = pre_start.has_holder_steps(resource) and not fresh
            pending = await self._pending(ids) if by_record else []
            fresh_ids = chosen.keys() if fresh else {handout.device for handout in pending}
            running: dict[str, asyncio.Task[str | None]] = {}
            async with asyncio.TaskGroup() as group:
                for device, index in pre_start.with_index(chosen.values()):
                    constants = {**self._constants, **index}
                    host = self._files, self._policy, self._calls
                    run = StepRun(device, constants, *host, deadline)
                    steps = [*enumerate(resource.pre_start)]
                    if device.id not in fresh_ids:
                        steps = [(place, step) for place, step in steps if step.repeat == "start"]
                    running[device.id] = group.create_task(run_steps(steps, run))
            failures = {
                device_id: reason
                for device_id, task in running.items()
                if (reason := task.result())
            }
            reasons = names.natural(failures.values())
            done = [handout for handout in pending if handout.device not in failures]
            if problem := await self._mark_done(done):
                reasons.append(problem)
        if reasons:
            raise PreStartError("; ".join(reasons))

    async def _mark_done(self, handouts: Sequence[Handout]) -> str | None:
        """Record that steps are done; return why that is not so."""
        find = self._records.table.find
        if again := [handout.id for handout in handouts if find(handout.key) is not handout]:
            return f"{_list_devices(again)} was allocated again meanwhile"
        done = [handout.with_steps("done") for handout in handouts]
        if done and (problem := await self._records.give(lambda: done, _SYNC_S)):
            shown = _list_devices(handout.id for handout in done)
            return f"cannot save that {shown} is prepared: {problem}"
        return None

    async def _pending(self, ids: Sequence[OfferedId]) -> list[Handout]:
        """Return the records of the IDs for which the steps have to run."""
        problem = await self._records.sync(_SYNC_S) or self._records.read_problem(self._name)
        if not all(map(self._records.is_saved, self._with_steps())):
            problem = problem or self._records.problem
        shown = _list_devices(offered.id for offered in ids)
        if problem is not None:
            raise PreStartError(f"cannot tell whether {shown} was prepared: {problem}")
        pending = []
        for offered in ids:
            handout = self._records.table.find((self._name, offered.id))
            if handout is None or handout.steps == "none":
                raise PreStartError(unknown_steps(offered.id))
            if handout.steps == "pending":
                pending.append(handout)
        return pending


def _list_devices(ids: Iterable[str]) -> str:
    ordered = names.natural(ids)
    return f"device{'s' if len(ordered) > 1 else ''} {', '.join(ordered)}"


def _present_devices(
    devices: Mapping[str, HostDevice], ids: Iterable[OfferedId]
) -> dict[str, HostDevice]:
    """Return the devices of IDs; `PreStartError` if one is missing."""
    chosen = {}
    for device_id in {offered.device for offered in ids}:
        device = devices.get(device_id)
        if device is None or not (device.is_present or device.is_leaving):
            why = f": {device.reason}" if device and device.reason else ""
            raise PreStartError(f"device {device_id} is missing{why}")
        chosen[device_id] = device
    return chosen


# ── the steps of one device ──


@dataclass(frozen=True, slots=True)
class StepRun:
    """A run of the steps of one device; the deadline is on the event loop's clock."""

    device: HostDevice
    constants: Mapping[str, str]
    files: HostFiles
    policy: Policy
    calls: BlockingCalls
    deadline: float


async def run_steps(steps: Iterable[tuple[int, Step]], run: StepRun) -> str | None:
    """Run steps, given with their places (from 0) in the list; return why one has failed."""
    used = False
    where = device = f"device {run.device.id}"
    try:
        for number, step in steps:
            if step.run and step.repeat == "holder" and not used:
                where, used = device, True
                await _look(run, lambda: _refuse_in_use(run))
            where = f"{pre_start.label(number, step)} of {device}"
            ends = asyncio.get_running_loop().time() + step.timeout
            await _run_step(step, replace(run, deadline=min(run.deadline, ends)))
    except (PreStartError, AllocationError, OSError) as error:
        return printable(f"{where}: {error}")
    return None


def _refuse_in_use(run: StepRun) -> None:
    """Refuse a device with a block node that is in use: it must not be prepared again.

    A node that cannot be opened for another reason passes; the command will fail.
    """
    for node, state in _current_nodes(run):
        if state.kind is FileKind.BLOCK:
            try:
                # The kernel's answer covers all mount namespaces and all partitions.
                flags = os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC
                os.close(os.open(run.files.to_local(state.realpath), flags))
            except OSError as error:
                if error.errno == errno.EBUSY:
                    use = "is in use (mounted, or opened exclusively): it is not prepared again"
                    raise PreStartError(f"{node.path} {use}") from None


async def _run_step(step: Step, run: StepRun) -> None:
    if step.wait_for is not None:
        await _wait_for(step.wait_for, run)
    elif not run.policy.runs_commands:
        raise PreStartError(f"{'commands' if step.run else 'modes'} need --allow-exec")
    elif (command_line := step.run) is not None:
        for argv in await _look(run, lambda: _commands(command_line, run)):
            await _execute(argv, run)
    elif (mode := step.mode) is not None:
        await _look(run, lambda: _change_mode(int(mode, 8), run))


async def _wait_for(template: Template, run: StepRun) -> None:
    paths = pre_start.awaited_paths(template, run.device, run.constants)
    files = replace(run.files, shown=run.policy.shown_paths)
    missing: str | None = paths[0] if paths else None
    async with _until(run.deadline, lambda: f"{missing} did not appear in time"):
        while missing is not None:
            missing = await run.calls.run(lambda: _missing(files, paths))
            if missing is not None:
                await asyncio.sleep(_POLL_S)


def _missing(files: HostFiles, paths: Sequence[str]) -> str | None:
    for path in paths:
        try:
            files.check_shown(*path.rsplit("/", 1))
            if files.stat(path) is None:
                return path
        except OSError as error:
            return f"{path} ({error.strerror})"
    return None


def _commands(templates: Sequence[Template], run: StepRun) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a step; a path in them is the one that was looked at."""
    nodes = _current_nodes(run, files=names_paths(templates))
    here = real_paths(nodes, run.files.to_local)
    return arguments(templates, run.device, run.constants, here)


async def _execute(argv: Sequence[str], run: StepRun) -> None:
    stop = threading.Event()
    environment = command.environment(run.constants["resource"], run.device.id)
    until = time.monotonic() + run.deadline - asyncio.get_running_loop().time()

    def work() -> command.CommandResult:
        return command.run(argv, environment, until - time.monotonic(), stop)

    running = asyncio.create_task(run.calls.run(work))
    try:
        async with _until(run.deadline + _KILL_S, lambda: "did not end in time"):
            ended = await asyncio.shield(running)
    finally:  # nothing of it remains when a cancellation goes on
        stop.set()
        await asyncio.wait([running], timeout=_KILL_S)
        running.cancel()
    if ended.failure:
        lines = f": {'; '.join(ended.lines)}" if ended.lines else ""
        raise PreStartError(f"{ended.failure}{lines}")


def _change_mode(mode: int, run: StepRun) -> None:
    nodes = _current_nodes(run)
    if not nodes:
        raise PreStartError("the device has no device node whose mode could be changed")
    for _, state in nodes:
        path = run.files.to_local(state.realpath)
        with pinned_path(path) as same_file:
            status = os.stat(same_file)
            number = (os.major(status.st_rdev), os.minor(status.st_rdev))
            if stat.S_IFMT(status.st_mode) != _TYPES[state.kind] or number != state.number:
                raise PreStartError(f"{path} has become another file")
            Path(same_file).chmod(mode)


def _current_nodes(run: StepRun, *, files: bool = False) -> Seen:
    """Return the files at the paths of the device's nodes, right before they are touched."""
    device = run.device
    # A failed health check is what a step may be there to mend.
    ill = device.checked is not None and device.checked.failure is not None
    if not (device.healthy or device.is_leaving or ill):
        raise PreStartError(f"it is unhealthy: {device.reason}")
    return HostPaths(run.files, run.policy).current_nodes(device, files=files)


async def _look(run: StepRun, work: Callable[[], T]) -> T:
    async with _until(run.deadline, lambda: "the host did not answer in time"):
        return await run.calls.run(work)


@contextlib.asynccontextmanager
async def _until(deadline: float, problem: Callable[[], str]) -> AsyncIterator[None]:
    """Raise `PreStartError` at a deadline."""
    limit = asyncio.timeout_at(deadline)
    try:
        async with limit:
            yield
    except TimeoutError:
        if not limit.expired():  # an error of the filesystem
            raise
        raise PreStartError(problem()) from None

"""Prepares devices before a container starts: once per holder, and never on a guess.

Kubelet allocates an ID once to a pod, and asks to prepare it at each start of a container. So an
Allocate marks the ID as fresh; the steps run for what is fresh, and mark it as prepared. Without
either mark it cannot be told whether a container has used the device before.
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
from dataclasses import replace
from pathlib import Path
from typing import Final, TypeVar

from devhost.allocation import pre_start
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.variables import Seen, arguments, names_paths, real_paths
from devhost.discovery import command
from devhost.errors import AllocationError, PreStartError
from devhost.host.records import Mark, Records
from devhost.hostfs.files import HostFiles
from devhost.model import names
from devhost.model.config import Resource, Step
from devhost.model.device import FileKind, FileState, HostDevice
from devhost.model.immutable import immutable
from devhost.model.names import distinct, printable, without_share
from devhost.model.template import Template
from devhost.watch.threads import BlockingCalls

T = TypeVar("T")

WITHIN_S: Final = 28.0  # kubelet gives up at 30 s
_SYNC_S: Final = 2.0
_POLL_S: Final = 0.1
_KILL_S: Final = 1.0  # for a command that was stopped to end
_TYPES: Final = {FileKind.CHAR: stat.S_IFCHR, FileKind.BLOCK: stat.S_IFBLK}


class Preparation:
    """Prepares the devices of one resource, by any of its declarations."""

    def __init__(
        self,
        name: str,
        *,
        node_name: str,
        files: HostFiles,
        policy: Policy,
        records: Records,
    ) -> None:
        self._name, self._files, self._policy = name, files, policy
        self._constants = {"resource": name, "nodeName": node_name}
        self._records = records
        self._calls = BlockingCalls(f"preStart {name}")
        self._locks = defaultdict[str, asyncio.Lock](asyncio.Lock)  # by the device's ID
        self._allocations: dict[str, Mark] = {}  # the mark of each ID's last Allocate: which it is
        self._unmarked = False

    async def declared(self, resource: Resource) -> None:
        """Set the declaration by which the resource is served from now on; never fails.

        To be awaited before kubelet can learn of it. Without a step for holders containers start
        unmarked, so that former marks would be wrong when such a step is added again.
        """
        # An Allocate by the former declaration that still runs must not leave a mark, either.
        self._unmarked = not pre_start.marks(resource)
        if self._unmarked:
            await self.ended()

    async def ended(self) -> None:
        """Drop the marks of a resource that is no longer served; never fails."""
        if marks := self._records.marks(self._name):
            self._records.drop(marks.values())
            await self._records.sync(_SYNC_S)

    def allocated(self, resource: Resource, ids: Iterable[str]) -> list[Mark]:
        """Return the marks by which advertised IDs are fresh; their Allocate saves them."""
        if self._unmarked or not pre_start.marks(resource):
            return []
        fresh = [Mark(resource=self._name, id=one, prepared=False) for one in ids]
        self._allocations |= {one.id: one for one in fresh}
        return fresh

    async def prepare(
        self, resource: Resource, devices: Mapping[str, HostDevice], ids: Sequence[str]
    ) -> None:
        """Run the steps before a container starts with advertised IDs of these devices.

        If it is cancelled, running commands are killed.

        Raises:
            PreStartError: The container must not start; the text says why.
        """
        deadline = asyncio.get_running_loop().time() + WITHIN_S
        chosen = _present(devices, ids)
        async with contextlib.AsyncExitStack() as alone:
            for one in sorted(chosen):  # in order, which avoids deadlocks
                late = f"device {one} is still being prepared for another start"
                async with _until(deadline, lambda: late):  # noqa: B023
                    await alone.enter_async_context(self._locks[one])
            fresh = await self._fresh(ids) if pre_start.marks(resource) else {}
            starting: dict[str, asyncio.Task[str | None]] = {}
            async with asyncio.TaskGroup() as group:
                for device, own in pre_start.numbered(chosen.values()):
                    constants = {**self._constants, **own}
                    host = self._files, self._policy, self._calls
                    start = Start(self._name, device, constants, *host, deadline)
                    steps = [*enumerate(resource.pre_start)]
                    if device.id not in distinct(fresh):
                        steps = [one for one in steps if one[1].repeat == "start"]
                    starting[device.id] = group.create_task(run_steps(steps, start))
            failures = {one: why for one, task in starting.items() if (why := task.result())}
            reasons = names.natural(failures.values())
            done = {one: it for one, it in fresh.items() if without_share(one) not in failures}
            if again := [one for one, it in done.items() if self._allocations.get(one) is not it]:
                reasons.append(f"{_named(again)} was allocated again meanwhile")
            elif done:
                marks = [Mark(resource=self._name, id=one, prepared=True) for one in done]
                if problem := await self._records.save(marks, _SYNC_S):
                    reasons.append(f"cannot save that {_named(done)} is prepared: {problem}")
        if reasons:
            raise PreStartError("; ".join(reasons))

    async def _fresh(self, ids: Sequence[str]) -> dict[str, Mark | None]:
        """Return the IDs for which the steps have to run, with their allocation."""
        problem = await self._records.sync(_SYNC_S)
        fresh, marks = {}, self._records.marks(self._name)
        if not all(map(self._records.is_saved, marks.values())):
            problem = problem or self._records.problem
        if problem is not None:
            raise PreStartError(f"cannot tell whether {_named(ids)} was prepared: {problem}")
        for one in ids:
            if (mark := marks.get(one)) is None:
                raise PreStartError(
                    f"cannot tell whether {_named([one])} was prepared (no record of its "
                    "allocation): delete the pod to get a fresh device"
                )
            if not mark.prepared:
                fresh[one] = self._allocations.get(one)
        return fresh


def _named(ids: Iterable[str]) -> str:
    ordered = names.natural(ids)
    return f"device{'s' if len(ordered) > 1 else ''} {', '.join(ordered)}"


def _present(devices: Mapping[str, HostDevice], ids: Iterable[str]) -> dict[str, HostDevice]:
    found = {}
    for device_id in distinct(ids):
        device = devices.get(device_id)
        if device is None or not (device.is_present or device.is_leaving):
            why = f": {device.reason}" if device and device.reason else ""
            raise PreStartError(f"device {device_id} is missing{why}")
        found[device_id] = device
    return found


# ── the steps of one device ──


@immutable
class Start:
    """What the steps of one device need; the deadline is on the event loop's clock."""

    resource: str
    device: HostDevice
    constants: Mapping[str, str]
    files: HostFiles
    policy: Policy
    calls: BlockingCalls
    deadline: float


async def run_steps(steps: Iterable[tuple[int, Step]], start: Start) -> str | None:
    """Run steps, given with their places (from 0) in the list; return why one has failed."""
    used = False
    where = device = f"device {start.device.id}"
    try:
        for number, step in steps:
            if step.run and step.repeat == "holder" and not used:
                where, used = device, True
                await _look(start, lambda: _refuse_in_use(start))
            where = f"{pre_start.label(number, step)} of {device}"
            ends = asyncio.get_running_loop().time() + step.timeout
            await _run_step(step, replace(start, deadline=min(start.deadline, ends)))
    except (PreStartError, AllocationError, OSError) as error:
        return printable(f"{where}: {error}")
    return None


def _refuse_in_use(start: Start) -> None:
    """Refuse a device with a block node that is in use: it must not be prepared again.

    A node that cannot be opened for another reason passes; the command will fail.
    """
    for node, state in _seen(start):
        if state.kind is FileKind.BLOCK:
            try:
                # The kernel's answer covers all mount namespaces and all partitions.
                flags = os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC
                os.close(os.open(start.files.to_local(state.realpath), flags))
            except OSError as error:
                if error.errno == errno.EBUSY:
                    use = "is in use (mounted, or opened exclusively): it is not prepared again"
                    raise PreStartError(f"{node.path} {use}") from None


async def _run_step(step: Step, start: Start) -> None:
    if step.wait_for is not None:
        await _wait_for(step.wait_for, start)
    elif not start.policy.allow_exec:
        raise PreStartError(f"{'commands' if step.run else 'modes'} need --allow-exec")
    elif (run := step.run) is not None:
        for argv in await _look(start, lambda: _commands(run, start)):
            await _execute(argv, start)
    elif (mode := step.mode) is not None:
        await _look(start, lambda: _change_mode(int(mode, 8), start))


async def _wait_for(template: Template, start: Start) -> None:
    paths = pre_start.awaited(template, start.device, start.constants)
    files = replace(start.files, shown=start.policy.shown_paths)
    missing: str | None = paths[0] if paths else None
    async with _until(start.deadline, lambda: f"{missing} did not appear in time"):
        while missing is not None:
            missing = await start.calls.run(lambda: _missing(files, paths))
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


def _commands(run: Sequence[Template], start: Start) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a step; a path in them is the one that was looked at."""
    found = _seen(start, files=names_paths(run))
    here = real_paths(found, start.files.to_local)
    return arguments(run, start.device, start.constants, here)


async def _execute(argv: Sequence[str], start: Start) -> None:
    stop = threading.Event()
    environment = command.environment(start.resource, start.device.id)
    until = time.monotonic() + start.deadline - asyncio.get_running_loop().time()

    def work() -> command.CommandResult:
        return command.run(argv, environment, until - time.monotonic(), stop)

    running = asyncio.create_task(start.calls.run(work))
    try:
        async with _until(start.deadline + _KILL_S, lambda: "did not end in time"):
            ended = await asyncio.shield(running)
    finally:  # nothing of it remains when a cancellation goes on
        stop.set()
        await asyncio.wait([running], timeout=_KILL_S)
        running.cancel()
    if ended.failure:
        lines = f": {'; '.join(ended.lines)}" if ended.lines else ""
        raise PreStartError(f"{ended.failure}{lines}")


def _change_mode(mode: int, start: Start) -> None:
    found = _seen(start)
    if not found:
        raise PreStartError("the device has no device node whose mode could be changed")
    for _, state in found:
        _change_mode_of(start.files.to_local(state.realpath), state, mode)


def _change_mode_of(path: str, expected: FileState, mode: int) -> None:
    # Check and change the same file, even if the path leads to another one meanwhile.
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(descriptor)
        number = (os.major(found.st_rdev), os.minor(found.st_rdev))
        if stat.S_IFMT(found.st_mode) != _TYPES[expected.kind] or number != expected.number:
            raise PreStartError(f"{path} has become another file")
        Path(f"/proc/self/fd/{descriptor}").chmod(mode)
    finally:
        os.close(descriptor)


def _seen(start: Start, *, files: bool = False) -> Seen:
    """Return what is at the paths of the device's nodes, right before they are touched."""
    device = start.device
    # A failed health check is what a step may be there to mend.
    ill = device.checked is not None and device.checked.failure is not None
    if not (device.healthy or device.is_leaving or ill):
        raise PreStartError(f"it is unhealthy: {device.reason}")
    return HostPaths(start.files, start.policy).current_nodes(device, files=files)


async def _look(start: Start, work: Callable[[], T]) -> T:
    async with _until(start.deadline, lambda: "the host did not answer in time"):
        return await start.calls.run(work)


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

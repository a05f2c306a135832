"""Runs one preStart step for one device."""

import asyncio
import contextlib
import errno
import os
import stat
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import field, replace
from pathlib import Path
from typing import Final, TypeVar, assert_never

from devhost.allocation import pre_start
from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.allocation.pre_start import Run, SetMode, WaitFor
from devhost.allocation.variables import Seen, names_paths, real_paths
from devhost.discovery import command
from devhost.errors import AllocationError, PreStartError
from devhost.host.prestart import device_locks
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model.config import Step
from devhost.model.device import FileKind, FileState, HostDevice
from devhost.model.names import printable
from devhost.threads import BlockingCalls, NoAnswerError, in_thread

T = TypeVar("T")

_POLL_S: Final = 0.1
_KILL_S: Final = 1.0  # for a command that was stopped to end
_TYPES: Final = {FileKind.CHAR: stat.S_IFCHR, FileKind.BLOCK: stat.S_IFBLK}


@immutable
class Start:
    """What the steps of one device need.

    Attributes:
        resource: The resource's name.
        device: The device.
        constants: The template variables that do not depend on the device's nodes: ``resource``,
            ``nodeName``, ``index``, ``count``.
        files: Where the host's files are.
        policy: What the configuration may ask for.
        deadline: On the event loop's clock.
        pod: The pod (``namespace/name``) whose container starts; ``None`` where it is not known.
        calls: The resource's blocking calls to the host.
        locks: The directory of the locks of devices; ``None`` if they are not locked.
    """

    resource: str
    device: HostDevice
    constants: Mapping[str, str]
    files: HostFiles
    policy: Policy
    deadline: float
    pod: str | None = None
    calls: BlockingCalls = field(default_factory=lambda: BlockingCalls("preStart"))
    locks: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables of commands."""
        known = {"DEVHOST_POD": self.pod} if self.pod else {}
        return {
            "PATH": os.environ.get("PATH", os.defpath),
            "DEVHOST_RESOURCE": self.resource,
            "DEVHOST_DEVICE": self.device.id,
            **known,
        }


async def run_step(number: int, step: Step, start: Start) -> None:
    """Run one step for one device.

    Args:
        number: The step's place in the list, from 0.
        step: The step.
        start: The device, and what the step may need.

    Raises:
        PreStartError: It failed or did not end in time; the text names the step and the
            device, and contains the last lines of a command's output.
    """
    now = asyncio.get_running_loop().time()
    ends = min(start.deadline, now + step.time_limit)
    limit = _Limit(ends, f"within {round(max(ends - now, 0.0), 1):g}s")
    try:
        match pre_start.action(step):
            case Run() as run:
                await _run(run, start, limit)
            case SetMode(bits):
                _check_exec(start, "modes")
                await _look(start, limit, lambda: _change_mode(bits, start))
            case WaitFor() as wait:
                await _wait_for(wait, start, limit)
            case other:
                assert_never(other)
    except (PreStartError, OSError) as error:
        where = f"{pre_start.label(number, step)} of device {start.device.id}"
        raise PreStartError(printable(f"{where}: {error}")) from None


async def refuse_in_use(start: Start) -> None:
    """Refuse a device with a block node that is in use: it must not be prepared again.

    A node that cannot be opened for another reason passes; the command will fail.

    Raises:
        PreStartError: It is in use, or the host did not answer before the deadline.
    """
    limit = _Limit(start.deadline, "in time")
    try:
        busy = await _look(start, limit, lambda: _busy(start))
    except (PreStartError, NoAnswerError) as error:
        raise PreStartError(f"device {start.device.id}: {error}") from None
    if busy is not None:
        raise PreStartError(
            f"device {start.device.id}: {printable(busy)} is in use (mounted, or opened "
            "exclusively): it is not prepared again"
        )


def _busy(start: Start) -> str | None:
    for node, state in _seen(start):
        if state.kind is not FileKind.BLOCK:
            continue
        try:
            # The kernel's answer covers all mount namespaces and all partitions.
            flags = os.O_RDONLY | os.O_EXCL | os.O_NONBLOCK | os.O_CLOEXEC
            os.close(os.open(start.files.to_local(state.realpath), flags))
        except OSError as error:
            if error.errno == errno.EBUSY:
                return node.path
    return None


def _seen(start: Start, *, files: bool = False) -> Seen:
    """Return what is at the paths of the device's nodes, right before they are touched.

    Raises:
        PreStartError: The device is unhealthy, or `HostPaths.seen` refuses it.
    """
    device = start.device
    # A failed health check is what a step may be there to mend.
    ill = device.checked is not None and device.checked.failure is not None
    if device.reason is not None and not (device.replaced or ill):
        raise PreStartError(f"it is unhealthy: {device.reason}")
    try:
        return HostPaths(start.files, start.policy).seen(device, files=files)
    except AllocationError as error:
        raise PreStartError(str(error)) from None


# ── limits ──


@immutable
class _Limit:
    """A deadline (on the loop's clock), and its name in messages."""

    ends: float
    text: str

    @contextlib.asynccontextmanager
    async def keep(
        self, what: Callable[[], str], more: Callable[[], str] = str
    ) -> AsyncIterator[None]:
        """Raise `PreStartError` with "<what> within …<more>" at the deadline."""
        limit = asyncio.timeout_at(self.ends)
        try:
            async with limit:
                yield
        except TimeoutError:
            if not limit.expired():  # an error of the filesystem
                raise
            raise PreStartError(f"{what()} {self.text}{more()}") from None


async def _look(start: Start, limit: _Limit, work: Callable[[], T]) -> T:
    async with limit.keep(lambda: "the host did not answer"):
        return await start.calls.run(work)


# ── run ──


def _check_exec(start: Start, what: str) -> None:
    if not start.policy.allow_exec:
        raise PreStartError(f"{what} need --allow-exec")


async def _run(run: Run, start: Start, limit: _Limit) -> None:
    _check_exec(start, "commands")
    commands = await _look(start, limit, lambda: _commands(run, start))
    for argv in commands:
        await _execute(argv, start, limit)


def _commands(run: Run, start: Start) -> tuple[tuple[str, ...], ...]:
    """Return the commands of a step; a path in them is the one that was looked at."""
    found = _seen(start, files=names_paths(run.argv))
    here = real_paths(found, start.files.to_local)
    return pre_start.commands(run, start.device, start.constants, here)


async def _execute(argv: Sequence[str], start: Start, limit: _Limit) -> None:
    stop = threading.Event()
    until = time.monotonic() + limit.ends - asyncio.get_running_loop().time()

    def work() -> command.Ended:
        keys = device_locks.keys(start.resource, start.device) if start.locks else []
        left = until - time.monotonic()
        with device_locks.held(start.locks or Path(), keys, left, stop) as locks:
            return command.run(argv, start.environment, until - time.monotonic(), stop, locks)

    running = in_thread(f"preStart {start.resource}", work)
    running.add_done_callback(lambda late: late.cancelled() or late.exception())
    try:
        async with replace(limit, ends=limit.ends + _KILL_S).keep(lambda: "did not end"):
            ended = await asyncio.shield(running)
    except FileNotFoundError as error:
        raise PreStartError(error.strerror) from None
    except (OSError, ValueError) as error:
        raise PreStartError(f"cannot be run: {error}") from None
    finally:
        if not running.done():  # nothing of it remains when the cancellation goes on
            stop.set()
            start.calls.abandon(running)
            await asyncio.wait([running], timeout=_KILL_S)
    lines = f": {'; '.join(ended.lines)}" if ended.lines else ""
    if ended.status is None:
        raise PreStartError(f"did not end {limit.text}{lines}")
    if ended.status:
        raise PreStartError(f"{ended.description()}{lines}")


# ── mode, waitFor ──


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


async def _wait_for(wait: WaitFor, start: Start, limit: _Limit) -> None:
    paths = pre_start.awaited(wait, start.device, start.constants)
    files = replace(start.files, shown=start.policy.shown_paths)
    missing: str | None = paths[0] if paths else None
    async with limit.keep(lambda: f"{missing} did not appear"):
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

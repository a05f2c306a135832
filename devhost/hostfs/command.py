"""Runs a command to its end or its deadline; no process of it remains.

A regular exit of devhost kills the commands that are running. After SIGKILL, the end of the
container or of the systemd unit does.
"""

import atexit
import contextlib
import errno
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from devhost.model import names

_KEPT: Final = 4 * 1024  # of the output, from its end
_PIPE_MAX: Final = 1024 * 1024  # what a pipe can hold
_LINES: Final = 5
_LINE_MAX: Final = 200
_STEP_S: Final = 0.02
_KILL_S: Final = 0.3  # for killed processes to end
_lock: Final = threading.Lock()
_running: Final[set[int]] = set()  # process groups, under the lock
_ending: Final = threading.Event()


@dataclass(frozen=True, slots=True)
class CommandResult:
    """The end of a command: why it failed, if it did, and its last lines that are not empty."""

    failure: str | None
    lines: tuple[str, ...] = ()


def environment(resource: str, device: str) -> dict[str, str]:
    """Return the environment of a command for a device."""
    path = os.environ.get("PATH", os.defpath)
    return {"PATH": path, "DEVHOST_RESOURCE": resource, "DEVHOST_DEVICE": device}


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    stop: threading.Event | None = None,
) -> CommandResult:
    """Run a command in a session of its own, below ``/``, without input. Blocks.

    When it ends, after `timeout` seconds, when `stop` is set, or when this process ends, all
    processes that it has started are killed, unless they have left its process group.
    """
    until = time.monotonic() + timeout
    late = f"did not end within {round(max(timeout, 0.0), 1):g}s"
    stop = stop or threading.Event()
    # A program on a hanging filesystem hangs this search in its thread. Without the search, it
    # would hang the whole process inside vfork.
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        return CommandResult("there is no such program, or it may not be executed")
    if time.monotonic() >= until or stop.is_set() or _ending.is_set():
        return CommandResult(late)
    # Without the lock: a program on a hanging filesystem may hang its start.
    try:
        process = subprocess.Popen(  # noqa: S603 (needs --allow-exec)
            argv,
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment,
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return CommandResult(f"cannot be run: {error}")
    assert process.stdout is not None, "a pipe"  # noqa: S101
    with _lock:
        _running.add(process.pid)
        if _ending.is_set():
            _kill_group(process.pid)
    with process.stdout:
        pipe, output = process.stdout.fileno(), bytearray()
        try:
            os.set_blocking(pipe, False)
            in_time = _follow(process.pid, pipe, output, until, stop)
        finally:
            status = _kill(process)
        _read(pipe, output)
    return CommandResult(_failure(status) if in_time else late, _last_lines(output))


def _failure(status: int | None) -> str | None:
    """Return the exit status of a command that has failed, in words."""
    if status is not None and status < 0:
        return f"was killed by signal {-status} ({signal.strsignal(-status)})"
    return f"exited with {status}" if status != 0 else None


def _follow(child: int, pipe: int, output: bytearray, until: float, stop: threading.Event) -> bool:
    """Read until the command ends, not the pipe: children may keep that. Return if in time."""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    # Without reaping it: while it is a zombie, its group's ID is not reused.
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        left = until - time.monotonic()
        if left <= 0 or stop.is_set():
            return False
        if poll.poll(min(left, _STEP_S) * 1000) and not _read(pipe, output):
            poll.unregister(pipe)
    return True


def _read(pipe: int, output: bytearray) -> bool:
    """Read what a pipe holds, and keep the end of it; return whether it held anything."""
    try:
        content = os.read(pipe, _PIPE_MAX)
    except BlockingIOError:
        return False
    output += content
    del output[:-_KEPT]
    return bool(content)


def _kill(process: "subprocess.Popen[bytes]") -> int | None:
    """Kill a process group and reap it; return the exit status of its leader."""
    until = time.monotonic() + _KILL_S
    with _lock:  # before its leader is reaped, because then its ID could be reused
        _kill_group(process.pid)
        _running.discard(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
        process.wait(_KILL_S)
    while _is_left(process.pid) and time.monotonic() < until:
        time.sleep(_STEP_S)
    return process.returncode


def _is_left(group: int) -> bool:
    """Reap the dead processes of a group; return whether a process is left of it."""
    # Where devhost is the first process of a container, orphans become its children.
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    try:
        os.killpg(group, 0)
    except OSError as error:
        return error.errno != errno.ESRCH
    return True


def _last_lines(output: bytearray) -> tuple[str, ...]:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
    return tuple(names.printable(line)[:_LINE_MAX] for line in lines if line)[-_LINES:]


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _end() -> None:
    """Kill all groups, and start no further ones."""
    _ending.set()
    with _lock:
        for group in _running:
            _kill_group(group)


atexit.register(_end)

"""Runs a command to its end or its deadline; no process of it remains.

A regular exit of devhost kills the commands that are running. After SIGKILL, the end of the
container or of the systemd unit does.
"""

import atexit
import contextlib
import errno
import fcntl
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from devhost.immutable import immutable
from devhost.model import names

_KEPT: Final = 4 * 1024  # of the output, from its end
_PIPE_MAX: Final = 1024 * 1024  # what a pipe can hold
_LINES: Final = 5
_LINE_MAX: Final = 200
_STEP_S: Final = 0.02
_KILL_S: Final = 0.3  # for killed processes to end
_END_S: Final = 1.0  # for commands that are being started
_dying: Final[set[int]] = set()  # groups that were killed, to be reaped when another command ends


@immutable
class Ended:
    """How a command ended.

    Attributes:
        status: The exit status; negative: the signal that killed it; ``None``: it was killed
            because it had not ended in time.
        lines: The last non-empty lines of its output, printable.
    """

    status: int | None
    lines: tuple[str, ...] = ()

    @property
    def last_line(self) -> str:
        """The last line of the output; empty where there is none."""
        return self.lines[-1] if self.lines else ""

    def description(self) -> str:
        """Return the status in words."""
        if self.status is None:
            return "did not end in time"
        if self.status < 0:
            return f"was killed by signal {-self.status} ({signal.strsignal(-self.status)})"
        return f"exited with {self.status}"


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    stop: threading.Event | None = None,
    locks: Sequence[int] = (),
) -> Ended:
    """Run a command in a session of its own, below ``/``, without input. Blocks.

    When it ends, after `timeout` seconds, when `stop` is set, or when this process ends, all
    processes that it has started are killed, unless they have left its process group.

    Args:
        argv: The command.
        environment: All of its environment.
        timeout: Seconds.
        stop: Ends it early.
        locks: Descriptors of files that are locked by `flock`. The command inherits them; they
            are unlocked when its process group has ended.

    Raises:
        OSError, ValueError: It cannot be started.
    """
    until = time.monotonic() + timeout
    stop = stop or threading.Event()
    # A program on a hanging filesystem hangs this search in its thread. Without the search, it
    # would hang the whole process inside vfork.
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        text = f"there is no program {argv[0]}, or it may not be executed"
        raise FileNotFoundError(errno.ENOENT, text)
    if time.monotonic() >= until or stop.is_set():
        return Ended(None)
    process = _groups.start(
        lambda: subprocess.Popen(  # noqa: S603 (needs --allow-exec)
            argv,
            executable=program,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd="/",
            env=environment,
            start_new_session=True,
            pass_fds=locks,
        )
    )
    if process is None:
        return Ended(None)
    assert process.stdout is not None, "a pipe"  # noqa: S101
    _dying.discard(process.pid)  # that group is gone, and its ID used again
    with process.stdout as pipe:
        return _ended(process, pipe.fileno(), until, stop, locks)


def _ended(
    process: "subprocess.Popen[bytes]",
    pipe: int,
    until: float,
    stop: threading.Event,
    locks: Sequence[int],
) -> Ended:
    """Follow a command until it has ended, or has to."""
    os.set_blocking(pipe, False)
    output = bytearray()
    try:
        in_time = _follow(process.pid, pipe, output, until, stop)
    finally:
        status = _kill(process)
    if _is_gone(process.pid):  # a process that has left the group is not waited for
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_UN)
    _read(pipe, output)
    return Ended(status if in_time else None, _last_lines(output))


def _follow(child: int, pipe: int, output: bytearray, until: float, stop: threading.Event) -> bool:
    """Read the output until the command ends; return whether that was in time.

    It does not wait for the end of the pipe: children of the command may keep it open.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while not _has_ended(child):
        left = until - time.monotonic()
        if left <= 0 or stop.is_set():
            return False
        if poll.poll(min(left, _STEP_S) * 1000) and not _read(pipe, output):
            poll.unregister(pipe)
    return True


def _read(pipe: int, output: bytearray) -> bool:
    """Read what is there, and keep the end of it; return whether there was anything."""
    try:
        found = os.read(pipe, _PIPE_MAX)
    except BlockingIOError:
        return False
    output += found
    del output[:-_KEPT]
    return bool(found)


def _has_ended(child: int) -> bool:
    """Whether a process has ended; it remains a zombie, so that its group's ID is not reused."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _kill(process: "subprocess.Popen[bytes]") -> int | None:
    """Kill a process group and reap it; return the exit status of its leader."""
    until = time.monotonic() + _KILL_S
    _groups.kill(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
        process.wait(_KILL_S)
    while not (gone := _reaped(process.pid)) and time.monotonic() < until:
        time.sleep(_STEP_S)
    for group in list(_dying):
        if _reaped(group):
            _dying.discard(group)
    if not gone:
        _dying.add(process.pid)
    return process.returncode


def _reaped(group: int) -> bool:
    """Reap the dead of a group; return whether nobody is left of it.

    Where devhost is the first process of a container, orphans become its children.
    """
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0]:
            pass
    return _is_gone(group)


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _last_lines(output: bytearray) -> tuple[str, ...]:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
    return tuple(names.printable(line)[:_LINE_MAX] for line in lines if line)[-_LINES:]


class _Groups:
    """The process groups of running commands. All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running: set[int] = set()
        self._starting = 0  # without the lock: a program on a hanging filesystem may hang its start
        self._ending = False

    def start(
        self, begin: "Callable[[], subprocess.Popen[bytes]]"
    ) -> "subprocess.Popen[bytes] | None":
        """Start a command that leads a process group of its own; none while devhost is ending.

        Raises:
            Exception: Whatever `begin` raises.
        """
        with self._changed:
            if self._ending:
                return None
            self._starting += 1
        process = None
        try:
            process = begin()
        finally:
            with self._changed:
                self._starting -= 1
                if process is not None:
                    self._running.add(process.pid)
                    if self._ending:
                        _kill_group(process.pid)
                self._changed.notify_all()
        return process

    def kill(self, group: int) -> None:
        """Kill a group, before its leader is reaped, because then its ID could be reused."""
        with self._changed:
            _kill_group(group)
            self._running.discard(group)

    def end(self) -> None:
        """Kill all groups, and start no further ones."""
        with self._changed:
            self._ending = True
            for group in self._running:
                _kill_group(group)
            self._changed.wait_for(lambda: not self._starting, _END_S)


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


_groups: Final = _Groups()
atexit.register(_groups.end)

"""A command that is run to its end or its deadline, and leaves nothing behind."""

import contextlib
import errno
import fcntl
import os
import select
import shutil
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Final

from devhost.discovery.process_groups import GROUPS, EndingError
from devhost.immutable import immutable
from devhost.model import names

_KEPT: Final = 4 * 1024  # of the output, from its end
_PIPE_MAX: Final = 1024 * 1024  # what a pipe can hold
_LINES: Final = 5
_LINE_MAX: Final = 200
_STEP_S: Final = 0.02
_KILL_S: Final = 0.3  # until what was killed has to be gone


@immutable
class Ended:
    """How a command ended.

    Attributes:
        status: The exit status; negative: the signal that killed it; ``None``: it was killed,
            because it had not ended in time.
        lines: The last lines of its output, without empty ones, printable.
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
            return f"was killed by signal {-self.status}"
        return f"exited with {self.status}"


def run(
    argv: Sequence[str],
    environment: Mapping[str, str],
    timeout: float,
    stop: threading.Event | None = None,
    locks: Sequence[int] = (),
) -> Ended:
    """Run a command in a session of its own, below ``/``, without input. Blocks.

    When it ends, or after `timeout` seconds, or when `stop` is set, or when this process ends,
    whatever it has started is killed, except what has left its process group on purpose.

    Args:
        argv: The command.
        environment: All of its environment.
        timeout: Seconds.
        stop: Ends it early.
        locks: Descriptors of files that are locked by `flock`. The command inherits them, and
            the locks end with its process group.

    Raises:
        OSError, ValueError: It cannot be started.
    """
    until = time.monotonic() + timeout
    stop = stop or threading.Event()
    # A program on a filesystem that does not answer hangs this search, in its thread; started
    # without, it would hang the whole process, inside vfork.
    program = shutil.which(argv[0], path=environment.get("PATH"))
    if program is None:
        text = f"there is no program {argv[0]}, or it may not be executed"
        raise FileNotFoundError(errno.ENOENT, text)
    if time.monotonic() >= until or stop.is_set():
        return Ended(None)
    try:
        process = GROUPS.start(
            lambda: subprocess.Popen(  # noqa: S603 (who may edit the configuration is asked first)
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
    except EndingError:
        return Ended(None)
    assert process.stdout is not None  # noqa: S101 (a pipe)
    with process.stdout as pipe:
        os.set_blocking(pipe.fileno(), False)
        kept, in_time = _follow(process.pid, pipe.fileno(), until, stop)
        status = _kill(process)
        if _is_gone(process.pid):  # who has left the group on purpose is not waited for
            for lock in locks:
                fcntl.flock(lock, fcntl.LOCK_UN)
        kept = (kept + _available(pipe.fileno()))[-_KEPT:]
    return Ended(status if in_time else None, _last_lines(kept))


def _follow(child: int, pipe: int, until: float, stop: threading.Event) -> tuple[bytes, bool]:
    """Read the output until the command ends; return its end, and whether that was in time.

    The end of the pipe is not waited for: what the command has started may hold it open.
    """
    kept = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while not _has_ended(child):
        left = until - time.monotonic()
        if left <= 0 or stop.is_set():
            return kept, False
        if poll.poll(min(left, _STEP_S) * 1000):
            output = _available(pipe)
            kept = (kept + output)[-_KEPT:]
            if not output:
                poll.unregister(pipe)
    return kept, True


def _has_ended(child: int) -> bool:
    """Whether a process has ended; it stays a zombie, so that its group's number stays its own."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _available(pipe: int) -> bytes:
    try:
        return os.read(pipe, _PIPE_MAX)
    except BlockingIOError:
        return b""


def _kill(process: "subprocess.Popen[bytes]") -> int | None:
    """Kill a process group and bury the dead; return the exit status of its leader."""
    until = time.monotonic() + _KILL_S
    GROUPS.kill(process.pid)
    with contextlib.suppress(subprocess.TimeoutExpired):  # it hangs in the kernel
        process.wait(_KILL_S)
    while not _is_gone(process.pid) and time.monotonic() < until:
        # Where devhost is the first process of a container, orphans become its children.
        with contextlib.suppress(ChildProcessError):
            os.waitpid(-process.pid, os.WNOHANG)
        time.sleep(_STEP_S)
    return process.returncode


def _is_gone(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        pass
    return False


def _last_lines(output: bytes) -> tuple[str, ...]:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
    return tuple(names.printable(line)[:_LINE_MAX] for line in lines if line)[-_LINES:]

"""Runs a command to its end or its deadline; no process of it remains."""

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
from collections.abc import Mapping, Sequence
from typing import IO, Final

from devhost.discovery.process_groups import GROUPS, EndingError
from devhost.immutable import immutable
from devhost.model import names

_KEPT: Final = 4 * 1024  # of the output, from its end
_PIPE_MAX: Final = 1024 * 1024  # what a pipe can hold
_LINES: Final = 5
_LINE_MAX: Final = 200
_STEP_S: Final = 0.02
_KILL_S: Final = 0.3  # for killed processes to end
_dying: Final[set[int]] = set()  # groups that were killed, to be reaped when another command ends


@immutable
class Ended:
    """How a command ended.

    Attributes:
        status: The exit status; negative: the signal that killed it; ``None``: it was killed
            because it had not ended in time.
        lines: The last non-empty lines of its output, printable; of its standard error alone
            where the standard output is kept apart.
        output: Its standard output, if that is kept apart.
    """

    status: int | None
    lines: tuple[str, ...] = ()
    output: bytes = b""

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
    output_max: int | None = None,
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
        output_max: Keep its standard output apart, of up to so many bytes. A command that writes
            more is killed, and one byte more is returned.

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
    try:
        process = GROUPS.start(
            lambda: subprocess.Popen(  # noqa: S603 (needs --allow-exec)
                argv,
                executable=program,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT if output_max is None else subprocess.PIPE,
                cwd="/",
                env=environment,
                start_new_session=True,
                pass_fds=locks,
            )
        )
    except EndingError:
        return Ended(None)
    _dying.discard(process.pid)  # that group is gone, and its ID used again
    with contextlib.ExitStack() as closing:
        for pipe in filter(None, (process.stdout, process.stderr)):
            closing.callback(pipe.close)
        return _ended(process, until, stop, locks, output_max)


def _ended(
    process: "subprocess.Popen[bytes]",
    until: float,
    stop: threading.Event,
    locks: Sequence[int],
    output_max: int | None,
) -> Ended:
    """Follow a command until it has ended, or has to."""
    output = _Pipe(process.stdout, output_max)
    errors = output if process.stderr is None else _Pipe(process.stderr)
    pipes = {pipe.number: pipe for pipe in (output, errors)}
    try:
        in_time = _follow(process.pid, pipes, until, stop)
    finally:
        status = _kill(process)
    if _is_gone(process.pid):  # a process that has left the group is not waited for
        for lock in locks:
            fcntl.flock(lock, fcntl.LOCK_UN)
    for pipe in pipes.values():
        pipe.read()
    apart = b"" if output is errors else bytes(output.kept)
    return Ended(status if in_time else None, _last_lines(errors.kept), apart)


class _Pipe:
    """What a command writes: the end of it, or all of it up to a limit.

    Attributes:
        number: Its descriptor.
        kept: What was read.
    """

    def __init__(self, file: IO[bytes] | None, most: int | None = None) -> None:
        assert file is not None, "a pipe"  # noqa: S101
        self._most = most
        self.number, self.kept = file.fileno(), bytearray()
        os.set_blocking(self.number, False)

    @property
    def is_over(self) -> bool:
        """Whether there is more than the limit."""
        return self._most is not None and len(self.kept) > self._most

    def read(self) -> bool:
        """Read what is there; return whether there was anything."""
        found = _available(self.number)
        self.kept += found
        if self._most is None:
            del self.kept[:-_KEPT]
        else:
            del self.kept[self._most + 1 :]
        return bool(found)


def _follow(child: int, pipes: Mapping[int, _Pipe], until: float, stop: threading.Event) -> bool:
    """Read the output until the command ends; return whether that was in time.

    It does not wait for the end of the pipes: children of the command may keep them open.
    """
    poll = select.poll()
    for number in pipes:
        poll.register(number, select.POLLIN)
    while not _has_ended(child):
        left = until - time.monotonic()
        if left <= 0 or stop.is_set() or any(pipe.is_over for pipe in pipes.values()):
            return False
        for number, _ in poll.poll(min(left, _STEP_S) * 1000):
            if not pipes[number].read():
                poll.unregister(number)
    return True


def _has_ended(child: int) -> bool:
    """Whether a process has ended; it remains a zombie, so that its group's ID is not reused."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is not None


def _available(pipe: int) -> bytes:
    try:
        return os.read(pipe, _PIPE_MAX)
    except BlockingIOError:
        return b""


def _kill(process: "subprocess.Popen[bytes]") -> int | None:
    """Kill a process group and reap it; return the exit status of its leader."""
    until = time.monotonic() + _KILL_S
    GROUPS.kill(process.pid)
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


def _last_lines(output: bytes | bytearray) -> tuple[str, ...]:
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines()]
    return tuple(names.printable(line)[:_LINE_MAX] for line in lines if line)[-_LINES:]

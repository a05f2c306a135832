"""The process groups of running commands: none outlives this process, even after SIGKILL.

At a regular exit an exit handler kills them. After SIGKILL a helper process, which knows the
groups, kills them when its standard input ends. PR_SET_PDEATHSIG does not serve: it does not reach
the children of a command, it is sent when the *thread* that started the command ends, and
subprocess can only set it by running Python between fork and exec. Process 1 needs no helper: its
PID namespace ends with it.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Final

_END_S: Final = 1.0  # for commands that are being started
_HELPER: Final = """
import os, signal, sys
for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
line = b""
for line in sys.stdin.buffer:
    pass
for group in line.split():
    try:
        os.killpg(int(group), signal.SIGKILL)
    except OSError:
        pass
"""


class EndingError(Exception):
    """This process is ending: no command is started."""


class ProcessGroups:
    """All methods may be called from any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._groups: set[int] = set()
        self._starting = 0
        self._ending = False
        self._helper: tuple[int, int] | None = None  # its process ID, and a pipe to it

    def start(self, begin: "Callable[[], subprocess.Popen[bytes]]") -> "subprocess.Popen[bytes]":
        """Start a command that leads a process group of its own.

        Raises:
            EndingError: This process is ending.
            Exception: Whatever `begin` raises.
        """
        with self._changed:
            if self._ending:
                raise EndingError
            self._starting += 1
            self._inform_helper()  # so that it runs before the command
        try:
            process = begin()
        except BaseException:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()
            raise
        with self._changed:
            self._starting -= 1
            self._groups.add(process.pid)
            self._inform_helper()
            if self._ending:
                kill(process.pid)
            self._changed.notify_all()
        return process

    def kill(self, group: int) -> None:
        """Kill a group, before its leader is reaped, because then its ID could be reused."""
        with self._changed:
            kill(group)
            self._groups.discard(group)
            self._inform_helper()

    def end(self) -> None:
        """Kill all groups, and start no further ones."""
        with self._changed:
            self._ending = True
            for group in self._groups:
                kill(group)
            self._changed.wait_for(lambda: not self._starting, _END_S)

    def _inform_helper(self) -> None:
        """Send the helper the IDs of all groups; start it if it does not run."""
        if os.getpid() == 1:
            return
        line = " ".join(map(str, self._groups)).encode() + b"\n"
        with contextlib.suppress(OSError):  # the helper cannot be started
            if self._helper is not None:
                try:
                    os.write(self._helper[1], line)
                except OSError:
                    self._lose_helper(*self._helper)
                else:
                    return
            self._helper = _start_helper()
            os.write(self._helper[1], line)

    def _lose_helper(self, process_id: int, pipe: int) -> None:
        self._helper = None
        os.close(pipe)
        with contextlib.suppress(OSError):
            os.kill(process_id, signal.SIGKILL)
            os.waitpid(process_id, 0)


def kill(group: int) -> None:
    """Kill a process group, if it exists."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _start_helper() -> tuple[int, int]:
    reader, writer = os.pipe()
    try:
        os.set_blocking(writer, False)
        actions = [
            (os.POSIX_SPAWN_DUP2, reader, 0),
            (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ]
        argv = [sys.executable, "-IBSc", _HELPER]
        process_id = os.posix_spawn(
            sys.executable, argv, os.environ, file_actions=actions, setpgroup=0
        )
    except BaseException:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    return process_id, writer


GROUPS: Final = ProcessGroups()
atexit.register(GROUPS.end)

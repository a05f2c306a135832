"""A command beside the event loop, of which nothing is left when it ends or is given up."""

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Final

from devhost.model.names import printable
from devhost.threads import in_thread

_PIECE: Final = 64 * 1024
_PIPE_MAX: Final = 1024 * 1024  # what a pipe can hold
_TAIL: Final = 4 * 1024
_LINES: Final = 5
_KILL_S: Final = 1.0  # until what was killed has to be gone


class Output:
    """The end of what a command writes; read as it comes, so that the command never waits."""

    def __init__(self) -> None:
        self._source, self._sink = os.pipe()
        os.set_blocking(self._source, False)
        self._tail = b""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._source, self._read)

    def _read(self) -> bool:
        try:
            piece = os.read(self._source, _PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._loop.remove_reader(self._source)
        self._tail = (self._tail + piece)[-_TAIL:]
        return bool(piece)

    def spawn(
        self, argv: Sequence[str], program: str, environment: Mapping[str, str]
    ) -> "subprocess.Popen[bytes]":
        """Start the command that writes here; once.

        Raises:
            OSError, ValueError: It cannot be started.
        """
        try:
            return subprocess.Popen(  # noqa: S603 (whether it may be run is asked before)
                argv,
                executable=program,
                stdin=subprocess.DEVNULL,
                stdout=self._sink,
                stderr=self._sink,
                cwd="/",
                env=environment,
                start_new_session=True,
            )
        finally:
            os.close(self._sink)

    def close(self) -> None:
        """Take what is there and stop reading; who still writes is not waited for."""
        for _ in range(_PIPE_MAX // _PIECE):
            if not self._read():
                break
        self._loop.remove_reader(self._source)
        os.close(self._source)

    def told(self) -> str:
        """Return the last lines as the end of a message, printable; nothing if there are none."""
        lines = self._tail.decode("utf-8", "replace").splitlines()
        shown = [printable(line.strip()) for line in lines if line.strip()][-_LINES:]
        return ": " + "; ".join(shown) if shown else ""


async def run(
    argv: Sequence[str], program: str, environment: Mapping[str, str], output: Output
) -> int:
    """Run a command in a session of its own, below ``/``, without input.

    When it ends or the caller is cancelled, whatever is left of its process group is killed
    before this returns; so is a command that comes to be only afterwards.

    Returns:
        The exit status; negative: the signal that killed it.

    Raises:
        OSError, ValueError: It cannot be started.
    """
    spawning = in_thread(f"start {program}", lambda: output.spawn(argv, program, environment))
    try:
        process = await asyncio.shield(spawning)
    except asyncio.CancelledError:
        spawning.add_done_callback(_end_late)
        raise
    try:
        await asyncio.shield(_ended(process.pid))
    finally:
        await asyncio.wait([_end(process)], timeout=_KILL_S)
    return process.returncode


def _ended(leader: int) -> "asyncio.Future[object]":
    # It stays a zombie until it is buried, so that nobody else gets the group's number.
    def wait() -> object:
        with contextlib.suppress(ChildProcessError):
            return os.waitid(os.P_PID, leader, os.WEXITED | os.WNOWAIT)
        return None

    return in_thread(f"wait for {leader}", wait)


def _end(process: "subprocess.Popen[bytes]") -> "asyncio.Future[None]":
    """Kill a process group; the future is done when its processes are gone."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    return in_thread(f"bury {process.pid}", lambda: _bury(process))


def _bury(process: "subprocess.Popen[bytes]") -> None:
    process.wait()
    # Where devhost is the first process of a container, orphans become its children.
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-process.pid, 0)


def _end_late(spawning: "asyncio.Future[subprocess.Popen[bytes]]") -> None:
    if not spawning.cancelled() and spawning.exception() is None:
        _end(spawning.result())

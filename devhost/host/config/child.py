"""The child process that loads the configuration (`devhost.loading.child`), as its parent sees it.

Nothing else is imported, so that a start begins with it.
"""

import contextlib
import errno
import os
import select
import signal
import subprocess
import sys
import threading
import time
from typing import Final

PATIENCE_S: Final = 120.0
OUTPUT_MAX: Final = 64 << 20
_READ: Final = 1 << 16
_PROGRAM: Final = """
import gc, sys
gc.disable()  # nothing of a load is garbage
sys.path[:] = sys.argv[1:]
from devhost.loading.child import main
main()
"""


class UnloadableError(Exception):
    """The child ended without an answer: the content is to blame."""


class LoadingChild:
    """A child process that loads one content. It starts with its imports.

    All methods block, and may be called from any thread.
    """

    def __init__(self) -> None:
        self._turn = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._problem: OSError | None = None
        # Not what the environment or a user's directory say: the same modules as here.
        command = [sys.executable, "-IBSc", _PROGRAM, *sys.path]
        try:
            self._process = subprocess.Popen(  # noqa: S603 (ours)
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except OSError as error:
            reason = f"no process can be started: {error.strerror or error}"
            self._problem = OSError(error.errno, reason)

    def answer(self, request: bytes) -> bytes:
        """Return the answer to a request.

        Raises:
            OSError: The child cannot be started, or has ended or hangs for no fault of the content.
            UnloadableError: It has not answered; the text says why, for the user.
        """
        if self._process is None:
            assert self._problem is not None, "one or the other"  # noqa: S101
            raise self._problem
        with self._turn:
            raw = _exchange(self._process, request)
            status = self._process.wait()
        if status:
            raise _failure(status, raw)
        return raw

    def close(self) -> None:
        """End the child."""
        if (process := self._process) is None:
            return
        process.kill()
        with self._turn:  # it has an end now
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


def _exchange(process: "subprocess.Popen[bytes]", request: bytes) -> bytes:
    """Write the request and read the answer until the end, in time.

    Raises:
        TimeoutError: It takes too long; for the content there is a limit of CPU time.
        UnloadableError: The answer is too large.
    """
    assert process.stdin is not None, "a pipe"  # noqa: S101
    assert process.stdout is not None, "a pipe"  # noqa: S101
    until = time.monotonic() + PATIENCE_S
    reader, writer = process.stdout.fileno(), process.stdin.fileno()
    os.set_blocking(writer, False)
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    poll.register(writer, select.POLLOUT)
    left, found = memoryview(request), bytearray()
    while True:
        ready = poll.poll(max(until - time.monotonic(), 0.0) * 1000)
        if not ready:
            process.kill()
            raise TimeoutError(errno.ETIMEDOUT, f"no answer in {PATIENCE_S:g} s")
        for number, _ in ready:
            if number == writer:
                # The pipe stays open: its end would end the child.
                with contextlib.suppress(BrokenPipeError):
                    left = left[os.write(writer, left) :]
                    if left:
                        continue
                poll.unregister(writer)
                continue
            piece = os.read(reader, _READ)
            found += piece
            if not piece:
                return bytes(found)
            if len(found) > OUTPUT_MAX:
                process.kill()
                raise UnloadableError("is too large once its aliases are written out")


def _failure(status: int, raw: bytes) -> OSError | UnloadableError:
    """Return what an exit status says: of the content, or else of the machine."""
    from devhost.loading.child import CPU_S, FAILED, MEMORY_MAX, OUT_OF_MEMORY, UNABLE  # noqa: PLC0415 (as above)

    text = raw.decode(errors="replace").strip()
    match status:
        case _ if status == OUT_OF_MEMORY:
            return UnloadableError(f"takes more than {MEMORY_MAX >> 20} MiB of memory to load")
        case _ if status == -signal.SIGXCPU:
            return UnloadableError(f"takes more than {CPU_S} s of CPU time to load")
        case _ if status == FAILED:
            return UnloadableError(f"cannot be loaded because of a bug: {text.splitlines()[-1]}")
        case _ if status == UNABLE:
            reason = text
        case _ if status < 0:
            reason = f"signal {-status} ended it, maybe for lack of memory"
        case _:
            reason = f"the process for it exited with {status}"
    return OSError(errno.EAGAIN, reason)

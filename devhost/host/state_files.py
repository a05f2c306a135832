"""Files in the state directory: locked, replaced atomically, and kept up to date."""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from devhost.limits import STATE_BYTES_MAX
from devhost.threads import PATIENCE_S

LOCK_S: Final = 5.0  # another instance holds a lock for milliseconds; less than PATIENCE_S
CLOSE_S: Final = 2.0  # the process ends: others may wait for that
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0
_POLL_S: Final = 0.02
_LOG: Final = logging.getLogger(__name__)


class StateWriter:
    """Writes one file of the state directory in the background, and retries what fails.

    One write at a time; a directory that hangs delays nothing else. A failure is logged once,
    and so is its end.

    Args:
        what: What the file contains, for log lines.
        path: The file.
        write: Writes what has changed; raises `OSError` where that fails, and is called again.
        on_problem: Called when `problem` changes.

    Attributes:
        problem: Why the file is not up to date; ``None`` where it is, or is about to be.
    """

    def __init__(
        self,
        what: str,
        path: Path,
        write: Callable[[], Awaitable[None]],
        *,
        patience: float | None = None,
        on_problem: Callable[[str | None], None] = lambda _problem: None,
    ) -> None:
        self._what, self._path, self._write = what, path, write
        self._patience, self._on_problem = patience or PATIENCE_S, on_problem
        self._changed = asyncio.Event()
        # Set when the write that runs, and the one after it, have ended or are known to fail.
        self._current, self._next = asyncio.Event(), asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.problem: str | None = None

    def changed(self) -> None:
        """Write what has changed, soon; returns immediately."""
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"save {self._what}")

    async def settled(self) -> None:
        """Wait until all changes so far are written; not while that fails or takes too long."""
        if self._task is not None and self.problem is None:
            await (self._next if self._changed.is_set() else self._current).wait()

    async def close(self) -> None:
        """Write what has changed, at most `CLOSE_S`, and nothing more.

        What has failed is tried once more. A write that takes longer is left to its thread.
        """
        if (task := self._task) is None:
            return
        self._closing = True
        if self.problem is not None:
            self._changed.set()  # not after the pause
        try:
            await asyncio.wait([task], timeout=CLOSE_S)
            if not task.done():
                reason = f"no answer in {CLOSE_S:g} s"
                _LOG.warning("cannot save %s: %s: %s", self._what, self._path, reason)
        finally:
            task.cancel()

    async def _run(self) -> None:
        pause = RETRY_S
        try:
            while self._changed.is_set():
                self._changed.clear()
                self._current, self._next = self._next, asyncio.Event()
                if await self._attempt():
                    self._current.set()
                    pause = RETRY_S
                    continue
                if self._closing:
                    break
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                self._changed.set()
                pause = min(pause * 2, RETRY_MAX_S)
        finally:
            self._task = None
            self._release()

    async def _attempt(self) -> bool:
        late = asyncio.get_running_loop().call_later(
            self._patience, self._report, f"no answer in {self._patience:g} s"
        )
        try:
            await self._write()
        except OSError as error:
            self._report(error.strerror or str(error))
            return False
        finally:
            late.cancel()
        if not self._changed.is_set():
            self._report(None)
        return True

    def _release(self) -> None:
        for event in (self._current, self._next):
            event.set()
        self._current, self._next = asyncio.Event(), asyncio.Event()

    def _report(self, reason: str | None) -> None:
        problem = reason and f"{self._path}: {reason}"
        if problem == self.problem:
            return
        self.problem = problem
        if problem:
            self._release()
            _LOG.warning("cannot save %s: %s", self._what, problem)
        else:
            _LOG.info("%s saved again", self._what)
        self._on_problem(problem)


# ── in a thread ──


@contextlib.contextmanager
def locked(directory: Path, patience: float | None = None) -> Iterator[None]:
    """Lock a directory, which instances may share; it is created if it does not exist.

    Args:
        directory: The state directory, or one in it.
        patience: Seconds to wait for another process that holds the lock; `LOCK_S` by default.

    Raises:
        OSError: The directory cannot be used; a `TimeoutError` where it stays locked.
    """
    patience = LOCK_S if patience is None else patience
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        lock(descriptor, patience, str(directory))
        yield
    finally:
        os.close(descriptor)


def lock(descriptor: int, patience: float, path: str, stop: threading.Event | None = None) -> None:
    """Take the exclusive lock of an open file, which ends with the file's last descriptor.

    Args:
        descriptor: Its descriptor.
        patience: Seconds to wait for another process that holds the lock.
        path: The file, for the message.
        stop: Ends the wait early.

    Raises:
        TimeoutError: It stays locked.
    """
    until = time.monotonic() + patience
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until or (stop and stop.is_set()):
                raise TimeoutError(errno.ETIMEDOUT, "locked by another process", path) from None
        time.sleep(_POLL_S)


def write_atomically(path: Path, raw: bytes) -> None:
    """Replace a file atomically, in a directory that is `locked`.

    Raises:
        OSError: It cannot be written. The former file is still there, unless only the last
            flush failed; then the new one is.
    """
    for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed
        left.unlink(missing_ok=True)
    replace_file(path, raw, prefix=f".{path.name}.")
    # Without this the former file may be back after a power cut.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_state(path: Path) -> bytes | None:
    """Return the content of a file; ``None`` where there is none, or none that can be devhost's.

    Raises:
        OSError: It cannot be read.
    """
    try:
        with path.open("rb") as stream:
            raw = stream.read(STATE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None
    if len(raw) > STATE_BYTES_MAX:
        move_aside(path, f"larger than {STATE_BYTES_MAX >> 20} MiB")
        return None
    return raw


def move_aside(path: Path, why: str) -> None:
    """Rename a file that is none of devhost's, or damaged, and say so.

    Raises:
        OSError: It cannot be renamed.
    """
    aside = path.replace(path.with_name(f"{path.name}.damaged"))
    _LOG.warning("%s is %s, moved to %s", path, why, aside)


def replace_file(
    path: Path, raw: bytes, *, prefix: str, suffix: str = "", mode: int = 0o600
) -> None:
    """Replace a file, by renaming a temporary one with this prefix and suffix.

    Raises:
        OSError: It cannot be written; the former file is still there.
    """
    descriptor, name = tempfile.mkstemp(prefix=prefix, suffix=suffix, dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

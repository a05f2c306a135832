"""Files in the state directory, which all instances of devhost on the machine share.

They are replaced atomically under the directory's lock, and what fails is tried again.
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import os
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Final

from devhost.model.limits import STATE_BYTES_MAX
from devhost.watch.threads import PATIENCE_S

LAST_GOOD: Final = "last-good.yaml"
CLOSE_S: Final = 2.0  # the process ends: others may wait for that
RETRY_S: Final = 2.0
_LOG: Final = logging.getLogger(__name__)


class StateWriter:
    """Writes one file of the state directory in the background, and retries what fails.

    One write at a time; a directory that hangs delays nothing else. Where `write` raises `OSError`
    it is called again. A failure is logged once, and so is its end; meanwhile it is the `problem`.
    """

    def __init__(self, what: str, path: Path, write: Callable[[], Awaitable[None]]) -> None:
        self._what, self._path, self._write = what, path, write
        self._changed, self._ended = asyncio.Event(), asyncio.Condition()
        self._begun = self._done = 0  # attempts
        self._task: asyncio.Task[None] | None = None
        self._closing = False
        self.problem: str | None = None

    def changed(self) -> None:
        """Write what has changed, soon; returns immediately."""
        self._changed.set()
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"save {self._what}")

    async def tried(self, within: float) -> bool:
        """Wait for an attempt to write all changes so far; return whether it ended in time."""
        last = self._begun + self._changed.is_set()
        try:
            async with asyncio.timeout(within), self._ended:
                await self._ended.wait_for(lambda: self._done >= last)
        except TimeoutError:
            return False
        return True

    async def close(self) -> None:
        """Write what has changed, at most `CLOSE_S`, and nothing more.

        What has failed is tried once more. A write that takes longer is left to its thread.
        """
        if (task := self._task) is None:
            return
        self._closing = True
        if self.problem is not None:
            self._changed.set()  # not after the pause
        await asyncio.wait([task], timeout=CLOSE_S)
        if not task.done():
            task.cancel()
            _LOG.warning("cannot save %s: %s: no answer", self._what, self._path)

    async def _run(self) -> None:
        try:
            while self._changed.is_set():
                self._changed.clear()
                self._begun += 1
                written = await self._attempt()
                async with self._ended:
                    self._done = self._begun
                    self._ended.notify_all()
                if not written and not self._closing:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(RETRY_S):
                            await self._changed.wait()
                    self._changed.set()
        finally:
            self._task = None

    async def _attempt(self) -> bool:
        late = asyncio.get_running_loop().call_later(
            PATIENCE_S, self._report, f"no answer in {PATIENCE_S:g} s"
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

    def _report(self, reason: str | None) -> None:
        problem = reason and f"{self._path}: {reason}"
        if problem == self.problem:
            return
        self.problem = problem
        if problem:
            _LOG.warning("cannot save %s: %s", self._what, problem)
        else:
            _LOG.info("%s saved again", self._what)


class LastGood:
    """The copy of the configuration that was applied last, for a start with an invalid file."""

    def __init__(self, state_dir: Path, name: str = LAST_GOOD) -> None:
        self.path = state_dir / name

    def read(self) -> bytes | None:
        """Return the copy, ``None`` where there is none; raise `OSError` if it cannot be read."""
        return read_state(self.path)[0]

    def write(self, raw: bytes) -> None:
        """Replace the copy; raise `OSError` if it cannot be written."""
        with contextlib.suppress(OSError):  # it may be replaced all the same
            if self.read() == raw:
                return
        with locked(self.path.parent):
            write_atomically(self.path, raw)


# ── in a thread ──


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the state directory, made if it does not exist; wait for who has the lock."""
    directory.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, raw: bytes) -> None:
    """Replace a file atomically, in a directory that is `locked`.

    If that fails, the former file is still there, unless only the last flush has failed.
    """
    if len(raw) > STATE_BYTES_MAX:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed
        left.unlink(missing_ok=True)
    replace_file(path, raw, prefix=f".{path.name}.")
    # Without this the former file may be back after a power cut.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_state(path: Path) -> tuple[bytes | None, str | None]:
    """Return the content of a file, ``None`` where there is none; and what was wrong with it."""
    try:
        with path.open("rb") as stream:
            raw = stream.read(STATE_BYTES_MAX + 1)
    except FileNotFoundError:
        return None, None
    if len(raw) > STATE_BYTES_MAX:
        return None, move_aside(path, f"larger than {STATE_BYTES_MAX >> 20} MiB")
    return raw, None


def move_aside(path: Path, why: str) -> str:
    """Rename a file that is damaged, or none of devhost's; log and return that."""
    said = f"{path} was {why}: moved to {path.replace(path.with_name(f'{path.name}.damaged'))}"
    _LOG.warning("%s", said)
    return said


def replace_file(
    path: Path, raw: bytes, *, prefix: str, suffix: str = "", mode: int = 0o600
) -> None:
    """Replace a file, by renaming a temporary one; if that fails, the former one is still there."""
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

"""A lock of one process on the node, which the kernel frees when the process ends.

The lock is an ``flock`` of a file. Who has it also has a shared lock of the open file description
(fcntl(2)): whether there is such a lock can be asked for without taking one, and the file need not
be open for writing, with which its filesystem could not become read-only.
"""

import contextlib
import fcntl
import os
import struct
from pathlib import Path
from typing import Final

_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO opens immediately, and is a lock too
_SHARED, _EXCLUSIVE = (
    struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK)
)


class FileLock:
    """The lock of a file, for one process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    @property
    def exists(self) -> bool:
        """Whether a process has had it, and the file was not removed since."""
        return self._path.exists()

    @property
    def locked_by_other(self) -> bool:
        """Whether another process has it; may be asked in any thread."""
        return is_locked(self._path) and not self.held

    @property
    def held(self) -> bool:
        """Whether this process has it, and the file is still the one that others would lock."""
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        return False

    def acquire(self) -> bool:
        """Take the lock, unless another process has it; make the file and its directory."""
        if self.held:
            return True
        self.release()
        self._path.parent.mkdir(mode=0o700, exist_ok=True)
        self._descriptor = _lock_file(self._path)
        return self.held  # who had it may have removed the file meanwhile

    def release(self, *, remove: bool = False) -> None:
        """Give the lock up; `remove` its file, too, if it stands for nothing any longer."""
        if remove and self.held:
            with contextlib.suppress(OSError):  # the directory became read-only
                self._path.unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def is_locked(path: Path) -> bool:
    """Whether a process has locked a file, without locking it."""
    with contextlib.suppress(OSError):  # nobody has made it
        descriptor = os.open(path, _FLAGS)
        try:
            answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _EXCLUSIVE)
        finally:
            os.close(descriptor)
        return bool(struct.unpack_from("h", answer)[0] != fcntl.F_UNLCK)
    return False


def _lock_file(path: Path) -> int | None:
    """Return the descriptor of a file that is locked by it; ``None`` if another one has it."""
    descriptor = os.open(path, _FLAGS | os.O_CREAT, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _SHARED)
    except OSError as error:
        os.close(descriptor)
        if isinstance(error, BlockingIOError):
            return None
        raise
    return descriptor

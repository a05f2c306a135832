"""Files in the state directory: replaced whole, and on the disk when that is said."""

import errno
import fcntl
import math
import os
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_POLL_S: Final = 0.02


@contextmanager
def locked(directory: Path, patience: float = math.inf) -> Iterator[None]:
    """Keep other instances away, which may share the state directory; it is made if need be.

    Args:
        directory: The state directory.
        patience: Seconds to wait for another process that holds the lock.

    Raises:
        OSError: The directory cannot be used; a `TimeoutError` where it stays locked.
    """
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
        descriptor: Of the file.
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
    """Replace a file, whole or not at all, in a directory that is `locked`.

    Raises:
        OSError: It cannot be written. The former file is still there, unless only the last
            flush failed; then the new one is.
    """
    for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed
        left.unlink(missing_ok=True)
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    # Without this the former file may be back after a power cut.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

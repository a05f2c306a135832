"""Files in the state directory, which all instances of devhost on the machine share.

They are replaced atomically under the directory's lock.
"""

import contextlib
import errno
import fcntl
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from devhost.model.limits import STATE_BYTES_MAX

LOCK: Final = "lock"
RECORDS: Final = "records"
CLAIMS: Final = "claims"
SUBDIRECTORIES: Final = (RECORDS, CLAIMS)
CLOSE_S: Final = 2.0  # for the last write before the process ends
_LOG: Final = logging.getLogger(__name__)


def log_transition(content: str, before: str | None, problem: str | None) -> str | None:
    """Return the problem why a content is not saved; log another one than before, and its end."""
    if problem is not None and problem != before:
        _LOG.warning("cannot save %s: %s", content, problem)
    elif problem is None and before is not None:
        _LOG.info("%s saved again", content)
    return problem


@contextlib.contextmanager
def directory_lock(directory: Path) -> Iterator[None]:
    """Lock the state directory, made if it does not exist; wait for its present holder."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Not the directory itself: other users may open that, and hold its lock.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    descriptor = os.open(directory / LOCK, flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def write_atomically(path: Path, raw: bytes) -> None:
    """Replace a file atomically, in a directory whose `directory_lock` is held.

    If that fails, the old file is still there, unless only the last flush has failed.
    """
    if len(raw) > STATE_BYTES_MAX:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG), str(path))
    replace_file(path, raw)
    # Without this the old file may be back after a power cut.
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_state(path: Path) -> bytes:
    """Return the content of a file; raise `OSError`, or `ValueError` if it is too large."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a pipe would wait
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        raw = stream.read(STATE_BYTES_MAX + 1)
    if len(raw) > STATE_BYTES_MAX:
        raise ValueError(f"larger than {STATE_BYTES_MAX:,} bytes")
    return raw


def move_aside(path: Path, damage: Exception) -> str:
    """Rename a file that is damaged, or none of devhost's; log a message of it and return it."""
    aside = path.replace(path.with_name(f"{path.name}.damaged"))
    message = f"{path} was damaged ({damage}): moved to {aside}"
    _LOG.warning("%s", message)
    return message


def replace_file(path: Path, raw: bytes, mode: int = 0o600, *, writer: str = "") -> None:
    """Replace a file, by renaming a temporary one; if that fails, the old file is still there.

    Where no lock is held, the name of the temporary file ends with its `writer`.
    """
    fresh = path.with_name(f".{path.name}{writer}.tmp")
    fresh.unlink(missing_ok=True)  # by a process that was killed
    try:
        with fresh.open("xb") as stream:
            os.fchmod(stream.fileno(), mode)
            stream.write(raw)
            stream.flush()
            os.fsync(stream.fileno())
        fresh.replace(path)
    except OSError:
        fresh.unlink(missing_ok=True)
        raise

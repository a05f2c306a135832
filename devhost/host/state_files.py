"""Files in the state directory: replaced whole, and on the disk when that is said."""

import contextlib
import os
import tempfile
import time
from pathlib import Path
from typing import Final

_LEFT_S: Final = 60.0  # no writer takes that long; another instance may be about to write


def write_atomically(path: Path, raw: bytes) -> None:
    """Replace a file, whole or not at all; missing directories are made.

    Raises:
        OSError: It cannot be written. The former file is still there, unless only the last
            flush failed; then the new one is.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for left in path.parent.glob(f".{path.name}.*"):  # by a process that was killed
        with contextlib.suppress(FileNotFoundError):
            if left.lstat().st_mtime < time.time() - _LEFT_S:
                left.unlink()
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

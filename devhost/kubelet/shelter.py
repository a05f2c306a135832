"""Where sockets outlive a kubelet that starts: it removes all from its directory but directories.

There a server's socket has a second name, a hard link. When the kubelet has removed the first, a
fresh one is linked to it, so a thousand servers need not be made anew. Where that is not
possible, they are: nothing depends on it.
"""

import contextlib
import fcntl
import os
import re
import shutil
from pathlib import Path
from typing import Final

from devhost.kubelet.instances import PREFIX

_NAME: Final = re.compile(rf"{PREFIX}[0-9a-f]{{20}}")


class Shelter:
    """A directory of one instance in the plugin directory, locked for as long as it lives."""

    def __init__(self, directory: Path, instance: str) -> None:
        self._directory = directory
        self._path = directory / f"{PREFIX}{instance}"
        self._lock: int | None = None

    def keep(self, socket: Path) -> Path | None:
        """Give a socket a second name; return it, or ``None`` where that is not possible."""
        kept = self._path / socket.name
        try:
            if self._lock is None or not self._path.is_dir():
                self._make()
            kept.hardlink_to(socket)
        except OSError:
            return None
        return kept

    def _make(self) -> None:
        """Make it for the first time, or after the plugin directory was made anew."""
        self._unlock()
        self._path.mkdir(mode=0o700)
        self._lock = _locked(self._path)

    def _unlock(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove_dead(self) -> None:
        """Remove those of instances that were killed: nobody holds their locks."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self._directory):  # noqa: PTH208 (names are all that is wanted)
                if _NAME.fullmatch(name) and name != self._path.name:
                    _remove(self._directory / name)

    def close(self) -> None:
        """Remove it."""
        if self._lock is not None:
            shutil.rmtree(self._path, ignore_errors=True)
            self._unlock()


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):
        lock = _locked(path)
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def _locked(path: Path) -> int:
    """Lock a directory; the kernel ends that with the process.

    Raises:
        OSError: Another process holds it.
    """
    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock

"""Filesystems that do not answer: what leads into one fails, so that the rest can be read.

Nobody can tell before that a call will hang. So a call shows where it is; when it has been there
for long, the mount is marked until the call returns, and the same work is done again without it.
"""

import errno
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from devhost.hostfs.mounts import mounts

_MOUNTS: Final = "/proc/self/mountinfo"
_here: Final = threading.local()
_lock: Final = threading.Lock()
_marked: Final[dict["HostCall", str]] = {}
_hung: tuple[str, ...] = ()  # the mounts in `_marked`


class HungError(OSError):
    """A path that leads into a mount that does not answer."""


class HostCall:
    """Work on the host's files, for a thread."""

    def __init__(self, work: Callable[[], Any]) -> None:
        self._work = work
        self._at, self._since, self._done = "", 0.0, False

    def __call__(self) -> Any:
        """Do the work."""
        _here.call = self
        try:
            return self._work()
        finally:
            _here.call = None
            self._done = True
            with _lock:
                _marked.pop(self, None)
                _publish()

    def at(self, path: str) -> None:
        """Show that it is about to touch a path."""
        self._at, self._since = path, time.monotonic()

    def mark(self, seconds: float, own: Iterable[str]) -> bool:
        """Mark the mount at which it has hung for so long; return whether there is one.

        Args:
            seconds: How long.
            own: Directories whose mounts the work is about: to wait for these is up to the caller.
        """
        path = self._at
        if not path or time.monotonic() - self._since < seconds:
            return False
        points = {mount.point for mount in mounts(_MOUNTS)}
        mount = _mount_of(path, points)
        if mount in {_mount_of(one, points) for one in own}:
            return False
        with _lock:
            if not self._done:
                _marked[self] = mount
                _publish()
        return True


def touched(path: str) -> str:
    """Return a path of this process that is about to be read.

    Raises:
        HungError: It would hang.
    """
    for mount in _hung:
        if path == mount or path.startswith(f"{mount}/"):
            raise HungError(errno.ETIMEDOUT, "its filesystem does not answer", path)
    call: HostCall | None = getattr(_here, "call", None)
    if call is not None:
        call.at(path)
    return path


def _publish() -> None:
    global _hung  # noqa: PLW0603 (the kernel's mounts are the whole process's, too)
    _hung = tuple(set(_marked.values()))


def _mount_of(path: str, points: Iterable[str]) -> str:
    """Return the mount point that a path is on or below."""
    above = [point for point in points if f"{path}/".startswith(f"{point.rstrip('/')}/")]
    return max(above, key=len, default="/")

"""kubelet.sock: whether it is still the same one, and whether somebody listens on it."""

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Final

from devhost.kubelet.instances import connected

KUBELET_SOCKET: Final = "kubelet.sock"
_HEARD_S: Final = 0.02  # one connect answers all who ask within that time
_PROBLEMS: Final = {
    errno.ENOENT: f"{KUBELET_SOCKET} is not there",
    errno.ECONNREFUSED: f"nobody listens on {KUBELET_SOCKET}",
}

Identity = int


class KubeletSocket:
    """Tells one kubelet.sock from the next.

    Each kubelet that starts makes it anew, but filesystems reuse inode numbers. While a
    descriptor of the file is open its number cannot be given to another one, so device and inode
    are enough. The time of change would not do: a chmod, a relabel or a backup's link set it too.
    """

    def __init__(self, directory: Path) -> None:
        self.path = str(directory / KUBELET_SOCKET)
        self._pin: int | None = None
        self._pinned: tuple[int, int] | None = None
        self._serial: Identity = 0
        self._heard: tuple[Identity, float] | None = None

    def identity(self) -> Identity | None:
        """Return a number that is another one for each kubelet.sock; ``None`` if there is none."""
        try:
            found = os.stat(self.path)  # asked often, and a Path costs more
        except OSError:
            return None
        if (found.st_dev, found.st_ino) != self._pinned:
            self._follow(found)
        return self._serial

    def _follow(self, found: os.stat_result) -> None:
        pin = None
        with contextlib.suppress(OSError):  # no descriptor is left: the number has to do
            pin = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
            found = os.fstat(pin)
        self.close()
        self._pin, self._pinned = pin, (found.st_dev, found.st_ino)
        self._serial += 1

    def replaced(self, identity: Identity) -> bool:
        """Whether another kubelet took the place of the one with this identity."""
        return self.identity() not in (identity, None)

    def problem(self) -> str | None:
        """Return why no kubelet can be connected to, or ``None``: existence alone says nothing."""
        identity, now = self.identity(), time.monotonic()
        if identity is not None and self._heard is not None:
            heard, at = self._heard
            if heard == identity and now - at <= _HEARD_S:
                return None
        error = connected(self.path)
        if error:
            reason = f"cannot connect to {KUBELET_SOCKET}: {os.strerror(error)}"
            return _PROBLEMS.get(error, reason)
        if identity is not None:
            self._heard = identity, now
        return None

    def doubt(self) -> None:
        """Have the next question answered by a new connect."""
        self._heard = None

    def close(self) -> None:
        """Let go of the file."""
        if self._pin is not None:
            os.close(self._pin)
            self._pin = None

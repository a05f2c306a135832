"""kubelet.sock: whether it is still the same socket, and whether somebody listens on it."""

import contextlib
import errno
import os
import time
from pathlib import Path
from typing import Final

from devhost.kubelet.channel import connect_error

KUBELET_SOCKET: Final = "kubelet.sock"
_CONNECTED_S: Final = 0.02  # for so long a successful connect is not repeated
_PROBLEMS: Final = {
    errno.ENOENT: f"{KUBELET_SOCKET} is not there",
    errno.ECONNREFUSED: f"nobody listens on {KUBELET_SOCKET}",
}

SocketIdentity = int


class KubeletSocket:
    """Distinguishes one kubelet.sock from the next.

    Each kubelet that starts creates a new one, but filesystems reuse inode numbers. While a
    descriptor of the file is open its number is not reused, so device and inode are enough. The
    time of change would not do: a chmod, a relabel or a backup's hard link set it too.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = str(directory / KUBELET_SOCKET)
        self._descriptor: int | None = None
        self._device_inode: tuple[int, int] | None = None
        self._serial: SocketIdentity = 0
        self._connected: tuple[SocketIdentity, float] | None = None  # which one, and when

    def identity(self) -> SocketIdentity | None:
        """Return a number that differs for each kubelet.sock; ``None`` if there is none."""
        try:
            found = os.stat(self.path)  # asked often; Path.stat costs more
        except OSError:
            return None
        if self._descriptor is None or (found.st_dev, found.st_ino) != self._device_inode:
            self._follow(found)
        return self._serial

    def _follow(self, found: os.stat_result) -> None:
        descriptor = None
        with contextlib.suppress(OSError):  # no descriptor is left: the number has to do until then
            descriptor = os.open(self.path, os.O_PATH | os.O_CLOEXEC)
            found = os.fstat(descriptor)
        self.close()
        before, self._device_inode = self._device_inode, (found.st_dev, found.st_ino)
        self._descriptor = descriptor
        self._serial += before != self._device_inode

    def replaced(self, identity: SocketIdentity | None) -> bool:
        """Whether another kubelet took the place of the one with this identity."""
        return self.identity() not in (identity, None)

    def problem(self) -> str | None:
        """Return why no kubelet can be connected to, or ``None``.

        That the socket exists says nothing: a kubelet that ends leaves it behind.
        """
        identity, now = self.identity(), time.monotonic()
        if identity is not None and self._connected is not None:
            connected, at = self._connected
            if connected == identity and now - at <= _CONNECTED_S:
                return None
        error = connect_error(self.path)
        if error:
            if error == errno.ENOENT and not self._directory.is_dir():
                return f"{self._directory} is not there"
            reason = f"cannot connect to {KUBELET_SOCKET}: {os.strerror(error)}"
            return _PROBLEMS.get(error, reason)
        if identity is not None:
            self._connected = identity, now
        return None

    def recheck(self) -> None:
        """Make the next `problem` make a new connection."""
        self._connected = None

    def close(self) -> None:
        """Close the descriptor."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

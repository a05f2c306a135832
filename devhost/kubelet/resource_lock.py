"""Which devhost on a node serves a resource: the one that has its lock; its sockets.

The lock is an ``flock`` of a file in a directory of the plugin directory; kubelet, which removes
the files there when it starts, leaves directories alone. The kernel frees the lock when the
process ends, however it ends, so that who gets it knows that no other devhost serves the resource.

A server listens in that directory, too, and has another name beside kubelet.sock for each
registration: so it outlives a restart of kubelet.
"""

import contextlib
import fcntl
import hashlib
import itertools
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "devhost-"
_LOCKS: Final = "devhost-locks"
_HASH_LENGTH: Final = 12
_SOCKET_PATH_MAX: Final = 107  # sun_path, less its terminating zero
_OWN: Final = secrets.token_hex(4)
_SERIAL: Final = itertools.count(1)


def server_socket(resource: str) -> str:
    """Return where a new server of a resource listens, below the plugin directory."""
    return f"{_LOCKS}/{_hash(resource)}-{_OWN}-{next(_SERIAL)}"


def fresh_name(resource: str) -> str:
    """Return a socket name that kubelet has not seen before.

    Kubelet leaves 75 bytes of a socket path's 107, so the resource is hashed. Since 1.37
    kubelet refuses a path that it takes as connected, and the refusal hides the end of that
    connection (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/manager.go, PluginConnected,
    and plugin/v1beta1/handler.go, deregisterClient).
    """
    return f"{_PREFIX}{_hash(resource)}-{_OWN}-{next(_SERIAL)}.sock"


@contextlib.contextmanager
def linked(directory: Path, socket: str, resource: str) -> Iterator[str]:
    """Give a server's socket a fresh name beside kubelet.sock, or raise `OSError`."""
    endpoint = fresh_name(resource)
    try:
        os.link(directory / socket, directory / endpoint)
    except OSError as error:
        # Without the names, which differ each time: the same reason is the same text.
        raise OSError(f"cannot make a socket in {directory}: {error.strerror}") from None
    try:
        yield endpoint
    finally:
        with contextlib.suppress(OSError):  # it is gone, or the directory became read-only
            os.unlink(directory / endpoint)  # noqa: PTH108 (quick)


def path_length_problem(directory: Path) -> str | None:
    """Say that a directory's path leaves no room for a socket's name, or return ``None``."""
    longest = len(os.fsencode(directory)) + 1 + len(server_socket("")) + len("00000")
    if longest <= _SOCKET_PATH_MAX:
        return None
    return f"{directory} is too long: with a socket's name, {longest} bytes of {_SOCKET_PATH_MAX}"


class ResourceLock:
    """The lock of one resource, for one process."""

    def __init__(self, directory: Path, resource: str) -> None:
        self._directory, self._hash = directory, _hash(resource)
        self._path = directory / _LOCKS / f"{self._hash}.lock"
        self._descriptor: int | None = None

    @property
    def exists(self) -> bool:
        """Whether a process has had it."""
        return self._path.exists()

    @property
    def elsewhere(self) -> bool:
        """Whether another process has it."""
        return not self.held and _is_locked(self._path)

    @property
    def held(self) -> bool:
        """Whether this process has it, and the file is still the one that others would lock."""
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        return False

    def acquire(self) -> bool:
        """Take the lock, unless another process has it; remove sockets that others have left."""
        if self.held:
            return True
        self.release()
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = _locked(self._path, os.O_CREAT)
        except OSError as error:
            reason = f"cannot make a lock in {self._directory}: {error.strerror}"
            raise OSError(reason) from None
        if self._descriptor is None:
            return False
        for name in (f"{_PREFIX}{self._hash}-*", f"{_LOCKS}/{self._hash}-*"):
            for left in self._directory.glob(name):
                left.unlink(missing_ok=True)
        return True

    def release(self) -> None:
        """Let another process have it."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _is_locked(path: Path) -> bool:
    try:
        descriptor = _locked(path)
    except OSError:
        return False  # nobody has made it
    if descriptor is not None:
        os.close(descriptor)
    return descriptor is None


def _locked(path: Path, flags: int = 0) -> int | None:
    """Return the descriptor of a file that is locked by it; ``None`` if another one has it."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _hash(resource: str) -> str:
    return hashlib.sha256(resource.encode()).hexdigest()[:_HASH_LENGTH]

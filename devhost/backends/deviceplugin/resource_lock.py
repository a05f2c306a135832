"""The lock by which one devhost on a node serves a resource, and the names of its sockets.

The lock is that of a file in a directory of the plugin directory; kubelet, which removes the files
there when it starts, leaves directories alone. Who gets it knows that no other devhost serves the
resource. The file stays where pods may have devices of the resource: it tells that devhost has
served it.

A server listens in that directory, too, and has another name beside kubelet.sock for each
registration: so it outlives a restart of kubelet.
"""

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from devhost.backends.file_lock import FileLock, is_locked
from devhost.backends.sockets import SOCKET_PATH_MAX

_PREFIX: Final = "devhost-"
_LOCKS: Final = "devhost-locks"
_HASH_LENGTH: Final = 12
_PROCESS: Final = secrets.token_hex(4)
_SERIAL: Final = itertools.count(1)
_SOCKET: Final = re.compile(
    r"(devhost-)?(?P<hash>[0-9a-f]{12})-(?P<process>[0-9a-f]{8})-\d+(\.sock)?"
)
_POLL_S: Final = 0.02  # from one lock of another process to the next


def server_socket(resource: str) -> str:
    """Return where a new server of a resource listens, below the plugin directory."""
    return f"{_LOCKS}/{_hash(resource)}-{_PROCESS}-{next(_SERIAL)}"


def fresh_name(resource: str) -> str:
    """Return a socket name that kubelet has not seen before.

    Kubelet leaves 75 bytes of a socket path's 107, so the resource is hashed. Since 1.37
    kubelet refuses a path that it takes as connected, and the refusal hides the end of that
    connection (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/manager.go, PluginConnected,
    and plugin/v1beta1/handler.go, deregisterClient).
    """
    return f"{_PREFIX}{_hash(resource)}-{_PROCESS}-{next(_SERIAL)}.sock"


@contextlib.contextmanager
def link_socket(directory: Path, socket: str, resource: str) -> Iterator[str]:
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
    """Return why a directory's path leaves no room for a socket's name, or ``None``."""
    longest = len(os.fsencode(directory)) + 1 + len(server_socket("")) + len("00000")
    if longest <= SOCKET_PATH_MAX:
        return None
    return f"{directory} is too long: with a socket's name, {longest} bytes of {SOCKET_PATH_MAX}"


class ResourceLock(FileLock):
    """The lock of one resource, for one process."""

    def __init__(self, directory: Path, resource: str) -> None:
        self._directory, self.hash = directory, _hash(resource)
        super().__init__(_lock_path(directory, self.hash))

    def acquire(self) -> bool:
        """Take the lock, unless another process has it."""
        try:
            return super().acquire()
        except OSError as error:
            reason = f"cannot make a lock in {self._directory}: {error.strerror}"
            raise OSError(reason) from None


class ResourceLocks:
    """The locks of all resources of a process, with the wait for those that are taken."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._locks: dict[str, ResourceLock] = {}
        self._turn = asyncio.Lock()  # to poll: when a lock is free, mostly all of them are
        self.freed = asyncio.Event()  # by another process, which may have left sockets

    def get(self, resource: str) -> ResourceLock:
        """Return the lock of a resource: one devhost at a time serves it; in any thread."""
        return self._locks.setdefault(resource, ResourceLock(self._directory, resource))

    async def wait_until_locked(self, lock: ResourceLock, waiting: Callable[[], None]) -> None:
        """Take a resource's lock; `waiting` is called while another process has it."""
        while not lock.acquire():
            waiting()
            async with self._turn:
                if lock.acquire():
                    self.freed.set()
                else:
                    await asyncio.sleep(_POLL_S)

    def remove_dead_sockets(self) -> None:
        """Remove the sockets that other processes have left; it blocks, or raises `OSError`."""
        locks = {lock.hash: lock for lock in list(self._locks.values())}
        # All are listed before a lock is asked for: who has made a socket had the lock then.
        glob = self._directory.glob
        for path in [*glob(f"{_PREFIX}*-*"), *glob(f"{_LOCKS}/*-*")]:
            match = _SOCKET.fullmatch(path.name)
            if match and match["process"] != _PROCESS:
                lock = locks.get(match["hash"])
                lock_path = _lock_path(self._directory, match["hash"])
                if not (lock.locked_by_other if lock else is_locked(lock_path)):
                    path.unlink(missing_ok=True)


def _lock_path(directory: Path, resource_hash: str) -> Path:
    return directory / _LOCKS / f"{resource_hash}.lock"


def _hash(resource: str) -> str:
    return hashlib.sha256(resource.encode()).hexdigest()[:_HASH_LENGTH]

"""The lock by which one devhost on a node serves a resource, and the names of its sockets.

The lock is an ``flock`` of a file in a directory of the plugin directory; kubelet, which removes
the files there when it starts, leaves directories alone. The kernel frees the lock when the
process ends, however it ends, so that who gets it knows that no other devhost serves the resource.
Who has it also has a shared lock of the open file description (fcntl(2)): whether there is such a
lock can be asked for without taking one, and the file need not be open for writing, with which its
filesystem could not become read-only. The file stays where pods may have devices of the resource:
it tells that devhost has served it.

A server listens in that directory, too, and has another name beside kubelet.sock for each
registration: so it outlives a restart of kubelet.
"""

import asyncio
import contextlib
import fcntl
import hashlib
import itertools
import os
import re
import secrets
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

_PREFIX: Final = "devhost-"
_LOCKS: Final = "devhost-locks"
_HASH_LENGTH: Final = 12
_SOCKET_PATH_MAX: Final = 107  # sun_path, less its terminating zero
_PROCESS: Final = secrets.token_hex(4)
_SERIAL: Final = itertools.count(1)
_SOCKET: Final = re.compile(
    r"(devhost-)?(?P<hash>[0-9a-f]{12})-(?P<process>[0-9a-f]{8})-\d+(\.sock)?"
)
_POLL_S: Final = 0.02  # from one lock of another process to the next
_FLAGS: Final = os.O_CLOEXEC | os.O_NONBLOCK  # a FIFO opens immediately, and is a lock too
_SHARED, _EXCLUSIVE = (
    struct.pack("hhqqi4x", kind, os.SEEK_SET, 0, 0, 0) for kind in (fcntl.F_RDLCK, fcntl.F_WRLCK)
)


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
    if longest <= _SOCKET_PATH_MAX:
        return None
    return f"{directory} is too long: with a socket's name, {longest} bytes of {_SOCKET_PATH_MAX}"


class ResourceLock:
    """The lock of one resource, for one process."""

    def __init__(self, directory: Path, resource: str) -> None:
        self._directory, self.hash = directory, _hash(resource)
        self._path = _lock_path(directory, self.hash)
        self._descriptor: int | None = None

    @property
    def exists(self) -> bool:
        """Whether a process has had it, and has not given the resource up since."""
        return self._path.exists()

    @property
    def locked_by_other(self) -> bool:
        """Whether another process has it; may be asked in any thread."""
        return _is_locked(self._path) and not self.held

    @property
    def held(self) -> bool:
        """Whether this process has it, and the file is still the one that others would lock."""
        if self._descriptor is None:
            return False
        with contextlib.suppress(OSError):
            return os.path.samestat(os.fstat(self._descriptor), self._path.stat())
        return False

    def acquire(self) -> bool:
        """Take the lock, unless another process has it."""
        if self.held:
            return True
        self.release()
        try:
            self._path.parent.mkdir(mode=0o700, exist_ok=True)
            self._descriptor = _lock_file(self._path)
        except OSError as error:
            reason = f"cannot make a lock in {self._directory}: {error.strerror}"
            raise OSError(reason) from None
        return self.held  # who had it may have removed the file meanwhile

    def release(self, *, remove: bool = False) -> None:
        """Give the lock up; `remove` its file, too, if no pod has what was served."""
        if remove and self.held:
            with contextlib.suppress(OSError):  # the directory became read-only
                self._path.unlink()
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


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
                if not (lock.locked_by_other if lock else _is_locked(lock_path)):
                    path.unlink(missing_ok=True)


def _is_locked(path: Path) -> bool:
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


def _lock_path(directory: Path, resource_hash: str) -> Path:
    return directory / _LOCKS / f"{resource_hash}.lock"


def _hash(resource: str) -> str:
    return hashlib.sha256(resource.encode()).hexdigest()[:_HASH_LENGTH]

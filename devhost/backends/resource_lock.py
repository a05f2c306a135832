"""The lock of a resource: who has it publishes the resource on this node, by either backend.

It is the lock of a file in a directory of kubelet's plugin directory; kubelet, which removes the
files there when it starts, leaves directories alone. Another process waits, and says for whom.

The lock is an ``flock``, which the kernel frees when the process ends. Who has it also has a shared
lock of the open file description (fcntl(2)): whether there is such a lock can be asked for without
taking one, and the file need not be open for writing, with which its filesystem could not become
read-only. It is of one byte, whose place says by what the resource is published.
"""

import asyncio
import contextlib
import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Final, Literal

from devhost.model.names import text_hash
from devhost.watch.threads import wait_at_most
from devhost.watch.watcher import Subscription, Watcher, WatchTarget

LockState = Literal["ours", "other", "free"]
"""Who has the lock of a resource: this process, another instance of devhost, or nobody."""
LOCKS: Final = "devhost-locks"
_HASH_LENGTH: Final = 12
_FLAGS: Final = os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK  # a FIFO opens immediately
_RANGE: Final = struct.Struct("hhqqi4x")  # flock of fcntl(2): type, whence, start, length, pid
_NUMBER_BYTES: Final = 7  # a place in a file is positive
_LINK_ERRORS: Final = (errno.ELOOP, errno.ENOTDIR)
# A lock becomes free a little after the event of its file's close (Linux, fs/file_table.c,
# __fput: fsnotify_close comes before locks_remove_file).
_AFTER_CLOSE_S: Final = (0.002, 0.03)
_POLL_S: Final = 5.0  # in addition to the events, of which some may be lost
_BLIND_POLL_S: Final = 0.5  # without events


class ResourceLock:
    """The lock of one resource, for one process.

    Beside its file may be another one, which tells that pods may have devices of the resource by
    the device plugin (`has_served`).
    """

    def __init__(self, directory: Path, lock_hash: str) -> None:
        self._directory, self._path = directory, directory / LOCKS / f"{lock_hash}.lock"
        self._served = self._path.with_suffix(".served")
        self._descriptor: int | None = None  # also open while another process has the lock
        self._driver: str | None = None  # while this one has it

    @property
    def held(self) -> bool:
        """Whether this process has it, and the file is still the one that others would lock."""
        return self._driver is not None and self._is_current(self._descriptor)

    @property
    def other_publisher(self) -> int | None:
        """The `publisher_number` of another process that has it, if one has; in any thread."""
        descriptor = self._descriptor
        if descriptor is not None and self._is_current(descriptor):
            with contextlib.suppress(OSError):  # closed just now
                publisher = _publisher(descriptor)
                if self._is_current(descriptor):
                    return publisher  # without a close, which is an event for all who wait
        with contextlib.suppress(OSError):  # nobody has made it
            descriptor = os.open(self._path, _FLAGS)
            try:
                return _publisher(descriptor)
            finally:
                os.close(descriptor)
        return None

    def acquire(self, driver: str) -> bool:
        """Take the lock, unless another process has it; raise `OSError` if it cannot be made.

        `driver` is that by which the resource is published; a device plugin has none.
        """
        try:
            if self._descriptor is None or not self._is_current(self._descriptor):
                self._close()
                self._descriptor = _open(self._path)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if driver != self._driver:  # which others are shown
                whole = fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0
                place = fcntl.F_RDLCK, os.SEEK_SET, publisher_number(driver), 1, 0
                for lock in (whole, place):
                    fcntl.fcntl(self._descriptor, fcntl.F_OFD_SETLK, _RANGE.pack(*lock))
                self._driver = driver
        except BlockingIOError:
            return False  # the file stays open: a close is an event for all who wait
        except OSError as error:
            self._close()
            raise OSError(_problem(self._directory, error)) from None
        return self.held  # if who had it has not removed the file meanwhile

    def release(self, *, remove: bool = False) -> None:
        """Give the lock up; `remove` the files, too, if this process has it."""
        if remove and self.held:
            with contextlib.suppress(OSError):  # the directory became read-only
                self._served.unlink(missing_ok=True)
                self._path.unlink()
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor, self._driver = self._descriptor, None, None
        if descriptor is not None:
            os.close(descriptor)

    def _is_current(self, descriptor: int | None) -> bool:
        """Whether a file that is open is the one at the path."""
        with contextlib.suppress(OSError):
            if descriptor is not None:
                return os.path.samestat(os.fstat(descriptor), self._path.lstat())
        return False

    # ── whether pods may have devices by the device plugin ──

    @property
    def has_served(self) -> bool:
        """Whether a device plugin of devhost has served it, and pods may have devices by that."""
        return os.path.lexists(self._served)

    def set_served(self, has_served: bool) -> None:
        """Keep whether pods may have devices by the device plugin; may raise `OSError`."""
        if has_served and not self.has_served:
            try:
                os.close(_open(self._served))
            except OSError as error:
                raise OSError(_problem(self._directory, error)) from None
        elif not has_served:
            with contextlib.suppress(OSError):  # the directory became read-only
                self._served.unlink(missing_ok=True)


class ResourceLocks:
    """The locks of all resources of a process, with the wait for those that are taken."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._locks: dict[str, ResourceLock] = {}  # by the hash of the resource
        self.looked = asyncio.Event()  # set when locks may be free; another one after each
        self.freed = asyncio.Event()  # by another process; another one after each

    def get(self, resource: str) -> ResourceLock:
        """Return the lock of a resource; in any thread."""
        lock_hash = resource_hash(resource)
        lock = self._locks.get(lock_hash)
        return lock or self._locks.setdefault(lock_hash, ResourceLock(self.directory, lock_hash))

    def lock_of(self, resource: str) -> LockState:
        """Return who publishes a resource, by either backend; in any thread."""
        lock = self.get(resource)
        if lock.held:
            return "ours"
        return "free" if lock.other_publisher is None else "other"

    def locked_by_other(self, resource: str) -> bool:
        """Whether another instance of devhost publishes a resource; in any thread."""
        return self.lock_of(resource) == "other"

    def has_served(self, resource: str) -> bool:
        """Whether pods may have devices of a resource by a device plugin of devhost."""
        return self.get(resource).has_served

    def has_other(self, lock_hash: str) -> bool:
        """Whether another process publishes the resource with a hash; in any thread."""
        lock = self._locks.get(lock_hash) or ResourceLock(self.directory, lock_hash)
        return lock.other_publisher is not None

    async def wait_until_locked(
        self, lock: ResourceLock, driver: str, waiting: Callable[[str], None]
    ) -> None:
        """Take a resource's lock, or raise `OSError`; until then `waiting` gets who has it."""
        has_waited = False
        while not lock.acquire(driver):
            by = {None: "", 0: " by a device plugin"}.get(lock.other_publisher, " by DRA")
            waiting(f"another instance of devhost serves it{by}")
            has_waited = True
            await self.looked.wait()
        if has_waited:
            self.freed.set()
            self.freed = asyncio.Event()

    async def run(self, watcher: Watcher) -> None:
        """Look for locks that became free, until cancelled."""
        closed = asyncio.Event()
        subscription = Subscription(watcher, closed.set)
        targets = frozenset({WatchTarget(str(self.directory / LOCKS), closes=True)})
        try:
            while True:
                await subscription.watch(targets)
                self.look()
                pause = _BLIND_POLL_S if subscription.polling_reason else _POLL_S
                await wait_at_most(pause, lambda: self._look_after(closed))
        finally:
            subscription.close()

    async def _look_after(self, closed: asyncio.Event) -> None:
        while True:
            await closed.wait()
            closed.clear()
            for pause in _AFTER_CLOSE_S:
                await asyncio.sleep(pause)
                self.look()

    def look(self) -> None:
        """Wake those who wait for a lock, so that they try to take it."""
        self.looked.set()
        self.looked = asyncio.Event()


def resource_hash(resource: str) -> str:
    """Return what stands for a resource in the names of files."""
    return text_hash(resource, _HASH_LENGTH)


def publisher_number(driver: str) -> int:
    """Return what stands for a driver where its name cannot be; 0 for the device plugin."""
    digest = hashlib.sha256(driver.encode()).digest()
    return 1 + int.from_bytes(digest[:_NUMBER_BYTES]) if driver else 0


def _publisher(descriptor: int) -> int | None:
    """Return the publisher's number of another open file's lock; ``None`` where there is none."""
    query = _RANGE.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, start, _, _ = _RANGE.unpack(fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, query))
    return None if kind == fcntl.F_UNLCK else start


def _open(path: Path) -> int:
    """Return a file of the directory of locks, opened; both are made, and the owner's alone."""
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(mode=0o700)
    directory = os.open(path.parent, os.O_DIRECTORY | _FLAGS)
    try:
        return os.open(path.name, os.O_CREAT | _FLAGS, 0o600, dir_fd=directory)
    finally:
        os.close(directory)


def _problem(directory: Path, error: OSError) -> str:
    is_link = error.errno in _LINK_ERRORS
    reason = f"{LOCKS} or a file in it is a link, or of another kind" if is_link else error.strerror
    return f"cannot make a lock in {directory}: {reason}"

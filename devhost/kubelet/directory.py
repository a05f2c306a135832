"""Kubelet's plugin directory, and kubelet itself."""

import asyncio
import contextlib
import errno
import functools
import itertools
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import KubeletError
from devhost.kubelet.device_list import LEAVE_AFTER_S
from devhost.kubelet.podresources import PodResources, ServedNames
from devhost.kubelet.resource_lock import ResourceLock, remove_dead_sockets
from devhost.kubelet.sockets import connect_error, open_channel
from devhost.watch.threads import run_in_thread
from devhost.watch.watcher import Subscription, Watcher, WatchTarget

KUBELET_SOCKET: Final = "kubelet.sock"
REGISTER_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 5.0  # in addition to the watch, which may miss something
_CONNECT_FIRST_S: Final = 0.001  # the socket file appears before it listens
_CONNECT_MAX_S: Final = 1.0
_REACHED_S: Final = 0.05  # it is not tried again: all resources try at the same time
_GONE_S: Final = 10.0
_LOCK_POLL_S: Final = 0.05  # while another instance has locks
_LOCKS_AT_A_TIME: Final = 10
_CONCURRENT_MAX: Final = 32
_PROBLEMS: Final = {
    errno.ENOENT: f"{KUBELET_SOCKET} is not there",
    errno.ECONNREFUSED: f"nobody listens on {KUBELET_SOCKET}",
}

SocketIdentity = tuple[int, int, int]
"""Device, inode and time of creation of a kubelet.sock.

A socket's time of modification is that of its creation. Its time of change would not do: a chmod,
a relabel or a backup's hard link set it too.
"""


class DirectoryGoneError(KubeletError):
    """The plugin directory was removed; a container's mount of it cannot heal."""


class PluginDirectory:
    """Watches for kubelet; registers. One for all resources of a process.

    `served_names` tells which resources have a device plugin. `concurrency` limits how many start a
    server or register at a time: if a thousand did, memory would grow for good, and kubelet's calls
    would have to wait.
    """

    def __init__(
        self,
        path: Path,
        pod_resources: PodResources | None = None,
        leave_after: float = LEAVE_AFTER_S,
    ) -> None:
        self.path, self.leave_after = path, leave_after
        self.unanswered = pod_resources.unanswered if pod_resources else []
        self.served_names = ServedNames(pod_resources) if pod_resources else None
        self._socket = str(path / KUBELET_SOCKET)
        self._locks: dict[str, ResourceLock] = {}
        self._awaited: dict[ResourceLock, asyncio.Event] = {}
        self._waits = asyncio.Event()  # somebody does, for a lock
        self.concurrency = asyncio.Semaphore(_CONCURRENT_MAX)
        self._changed = asyncio.Event()  # another one after each change
        self._reached_until = 0.0
        self._channel: grpc.aio.Channel | None = None
        self._channel_of: SocketIdentity | None = None
        self._known = self.identity()
        self._registered_with: SocketIdentity | None = None
        self._gone_since = math.inf
        self.restarts = 0

    def on_change(self) -> None:
        """See whether kubelet.sock is another one: something has changed in the directory."""
        if (identity := self.identity()) != self._known:
            self._known = identity
            self._changed.set()
            self._changed = asyncio.Event()

    def lock(self, resource: str) -> ResourceLock:
        """Return the lock of a resource: one devhost at a time serves it."""
        return self._locks.setdefault(resource, ResourceLock(self.path, resource))

    async def until_locked(self, lock: ResourceLock, waiting: Callable[[], None]) -> None:
        """Take a resource's lock; `waiting` is called while another instance has it."""
        while not lock.acquire():
            waiting()
            free = self._awaited[lock] = asyncio.Event()
            self._waits.set()
            try:
                await free.wait()
            finally:
                del self._awaited[lock]

    async def _until_lock_is_free(self) -> None:
        """Ask for a few of the locks at a time: mostly the other instance has ended, with all."""
        while True:
            await self._waits.wait()
            await asyncio.sleep(_LOCK_POLL_S)
            for lock in list(itertools.islice(self._awaited, _LOCKS_AT_A_TIME)):
                if not lock.locked_by_other:
                    return
                self._awaited[lock] = self._awaited.pop(lock)  # its turn comes again
            if not self._awaited:
                self._waits.clear()

    def locked_by_other(self, resource: str) -> bool:
        """Whether another instance of devhost serves a resource; may be asked in any thread."""
        return (self._locks.get(resource) or ResourceLock(self.path, resource)).locked_by_other

    def has_served(self, resource: str) -> bool:
        """Whether an instance of devhost has served a resource on this node."""
        return ResourceLock(self.path, resource).exists

    async def run(self, watcher: Watcher) -> None:
        """Watch the directory; check it regularly too, in case the watch missed something.

        Raises:
            DirectoryGoneError: The directory was removed and the path leads to no new one.
        """
        subscription = Subscription(watcher, self.on_change)
        targets = frozenset({WatchTarget(str(self.path))})
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await subscription.watch(targets)
                self._check(clock())
                with contextlib.suppress(OSError):  # it is gone, or became read-only
                    locks = list(self._locks.values())
                    work = functools.partial(remove_dead_sockets, self.path, locks)
                    await run_in_thread("dead sockets", work)
                for lock, free in self._awaited.items():
                    if not lock.locked_by_other:
                        free.set()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_POLL_S):
                        await self._until_lock_is_free()
        finally:
            subscription.close()

    def _check(self, now: float) -> None:
        self.on_change()
        self._gone_since = math.inf if self._exists() else min(self._gone_since, now)
        if now - self._gone_since >= _GONE_S:
            raise DirectoryGoneError(f"{self.path} was removed and not recreated")

    def _exists(self) -> bool:
        try:
            return os.stat(self.path).st_nlink > 0  # 0: removed, but mounted here
        except OSError:
            return False

    # ── kubelet ──

    def identity(self) -> SocketIdentity | None:
        """Return what differs from one kubelet.sock to the next; ``None`` if there is none."""
        try:
            found = os.stat(self._socket)  # asked often; Path.stat costs more
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_mtime_ns

    async def until_replaced(self, identity: SocketIdentity | None) -> None:
        """Wait until another kubelet has taken the place of the one with this identity."""
        while self.identity() in (identity, None):
            await self._changed.wait()

    def kubelet_problem(self) -> str | None:
        """Return why no kubelet can be connected to, or ``None``.

        That the socket exists says nothing: a kubelet that ends leaves it behind.
        """
        error = connect_error(self._socket)
        if not error:
            return None
        if error == errno.ENOENT and not self._exists():
            return f"no kubelet: {self.path} is not there"
        reason = f"cannot connect to {KUBELET_SOCKET}: {os.strerror(error)}"
        return f"no kubelet: {_PROBLEMS.get(error, reason)}"

    async def until_kubelet(self, waiting: Callable[[str], None]) -> SocketIdentity | None:
        """Wait until a kubelet accepts connections; return which.

        `waiting` gets the reason if there is none.
        """
        clock, pause = asyncio.get_running_loop().time, _CONNECT_FIRST_S
        if clock() < self._reached_until:
            return self.identity()
        while (problem := self.kubelet_problem()) is not None:
            waiting(problem)
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                pause = _CONNECT_FIRST_S
            except TimeoutError:
                pause = min(pause * 1.25, _CONNECT_MAX_S)
        self._reached_until = clock() + _REACHED_S
        return self.identity()

    async def register(self, resource: str, endpoint: str) -> SocketIdentity | None:
        """Register one resource; return which kubelet has connected and asked for the options.

        Raises:
            KubeletError: The kubelet refused, or did not answer in time.
        """
        if self._channel is None or self._channel_of != self.identity():
            # The calls on the former one end with it, when nobody refers to it any more.
            self._channel, self._channel_of = open_channel(self._socket), self.identity()
        channel, identity = self._channel, self._channel_of
        request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and channel is self._channel:
                self._channel = None  # or it would wait out its back-off
            # Without the socket's name, which differs each time: the same reason is the same text.
            details = (error.details() or "").replace(endpoint, "the socket")
            raise KubeletError(details or error.code().name.lower()) from None
        self.restarts += self._registered_with not in (identity, None)
        self._registered_with = identity
        return identity

    async def close(self) -> None:
        """Close the connection to kubelet, and end what is running."""
        if self.served_names is not None:
            self.served_names.close()
        if self._channel is not None:
            await self._channel.close()

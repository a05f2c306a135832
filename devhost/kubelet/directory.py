"""Kubelet's plugin directory, and kubelet itself."""

import asyncio
import errno
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
from devhost.kubelet.resource_lock import ResourceLock
from devhost.kubelet.sockets import connect_error, open_channel
from devhost.watch.watcher import Subscription, Watcher, WatchTarget

KUBELET_SOCKET: Final = "kubelet.sock"
REGISTER_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 5.0  # in addition to the watch, which may miss something
_CONNECT_FIRST_S: Final = 0.001  # the socket file appears before it listens
_CONNECT_MAX_S: Final = 1.0
_REACHED_S: Final = 0.05  # it is not tried again: all resources try at the same time
_GONE_S: Final = 10.0
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
        self.concurrency = asyncio.Semaphore(_CONCURRENT_MAX)
        self._changed = asyncio.Event()  # another one after each change
        self._reached_until = 0.0
        self._channel: grpc.aio.Channel | None = None
        self._channel_of: SocketIdentity | None = None
        self._known = self.identity()
        self._registered_with: SocketIdentity | None = None
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

    def served_elsewhere(self, resource: str) -> bool:
        """Whether another instance of devhost serves a resource."""
        return self.lock(resource).elsewhere

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
        await subscription.watch(targets)
        clock = asyncio.get_running_loop().time
        seen_at: float | None = None
        while True:
            self.on_change()
            if self._exists():
                seen_at = clock()
            elif seen_at is not None and clock() - seen_at >= _GONE_S:
                raise DirectoryGoneError(f"{self.path} was removed and not recreated")
            await asyncio.sleep(_POLL_S)
            if subscription.degraded:
                await subscription.watch(targets)

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

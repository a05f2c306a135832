"""Kubelet's plugin directory, and kubelet itself."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import KubeletError
from devhost.kubelet import call_log
from devhost.kubelet.channel import open_channel
from devhost.kubelet.kubelet_socket import KUBELET_SOCKET, KubeletSocket, SocketIdentity
from devhost.kubelet.resource_lock import ResourceLock, remove_dead_sockets

REGISTER_TIMEOUT_S: Final = 15.0
_POLL_S: Final = 5.0  # in addition to the watch, which may miss something
_CONNECT_FIRST_S: Final = 0.001  # the socket file appears before it listens
_CONNECT_MAX_S: Final = 1.0
_GONE_S: Final = 10.0
_CONCURRENT_MAX: Final = 32
_LOG: Final = logging.getLogger(__name__)


class DirectoryGoneError(KubeletError):
    """The plugin directory was removed; a container's mount of it cannot heal."""


class PluginDirectory:
    """Watches for kubelet; registers.

    Attributes:
        restarts: How often a resource was registered with another kubelet than before.
        concurrency: Limits how many resources start a server or register at a time. If a thousand
            did, memory would grow for good, and kubelet's calls would have to wait.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kubelet = KubeletSocket(path)
        self._locks: dict[str, ResourceLock] = {}
        self.concurrency = asyncio.Semaphore(_CONCURRENT_MAX)
        self._changed = asyncio.Event()
        self._subscribers: set[Callable[[], None]] = set()
        self._connecting_to: asyncio.Task[SocketIdentity] | None = None
        self._channel: grpc.aio.Channel | None = None
        self._channel_of: SocketIdentity | None = None
        self._channel_lock = asyncio.Lock()
        self._known = self.identity()
        self._registered_with: SocketIdentity | None = None
        self._slow_logged = False
        self.restarts = 0

    def on_change(self, path: str | None = None) -> None:
        """Check what changed in the directory: one entry, or anything if there is no path."""
        name = path.rpartition("/")[2] if path else KUBELET_SOCKET
        if name == KUBELET_SOCKET and (identity := self.identity()) != self._known:
            self._known = identity
            self._changed.set()
            for notice in tuple(self._subscribers):
                notice()

    def subscribe(self, notice: Callable[[], None]) -> None:
        """Call `notice` whenever kubelet.sock changed."""
        self._subscribers.add(notice)

    def unsubscribe(self, notice: Callable[[], None]) -> None:
        """Undo `subscribe`."""
        self._subscribers.discard(notice)

    def lock(self, resource: str) -> ResourceLock:
        """Return the lock of a resource: one devhost at a time serves it."""
        return self._locks.setdefault(resource, ResourceLock(self.path, resource))

    def identity(self) -> SocketIdentity | None:
        """Return what differs from one kubelet.sock to the next; ``None`` if there is none."""
        return self._kubelet.identity()

    def replaced(self, identity: SocketIdentity | None) -> bool:
        """Whether another kubelet took the place of the one with this identity."""
        return self._kubelet.replaced(identity)

    async def run(self) -> None:
        """Check the directory regularly, in case the watch missed something.

        Raises:
            DirectoryGoneError: The directory was unlinked and the path leads to no new one.
        """
        with contextlib.suppress(OSError):
            remove_dead_sockets(self.path)
        descriptor = self._open()
        gone_since: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while True:
                self.on_change()
                if descriptor is None or self._is_another(descriptor):
                    if descriptor is not None:
                        os.close(descriptor)
                    descriptor = self._open()
                unlinked = descriptor is not None and os.fstat(descriptor).st_nlink == 0
                gone_since = (gone_since or clock()) if unlinked else None
                if gone_since is not None and clock() - gone_since >= _GONE_S:
                    raise DirectoryGoneError(f"{self.path} was removed and not recreated")
                await asyncio.sleep(_POLL_S)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open(self) -> int | None:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None

    def _is_another(self, descriptor: int) -> bool:
        try:
            return not os.path.samestat(os.fstat(descriptor), self.path.stat())
        except OSError:
            return False

    # ── kubelet ──

    def kubelet_problem(self) -> str | None:
        """Return why there is no kubelet, or ``None`` if there is one."""
        problem = self._kubelet.problem()
        return problem and f"no kubelet: {problem}"

    def recheck_kubelet(self) -> None:
        """Reconnect in the next check: kubelet ended a stream, so it may be about to end."""
        self._kubelet.recheck()

    async def until_kubelet(self) -> SocketIdentity:
        """Wait until a kubelet accepts connections; return which one."""
        identity = self.identity()
        if identity is not None and self._kubelet.problem() is None:
            return identity
        if self._connecting_to is None:
            self._connecting_to = asyncio.create_task(self._connect(), name="connect to kubelet")
        return await asyncio.shield(self._connecting_to)

    async def _connect(self) -> SocketIdentity:
        """Try until kubelet accepts a connection, on behalf of all resources."""
        pause = _CONNECT_FIRST_S
        while True:
            self._changed.clear()
            identity = self.identity()
            if identity is not None and self._kubelet.problem() is None:
                self._connecting_to = None
                return identity
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                pause = _CONNECT_FIRST_S
            except TimeoutError:
                pause = min(pause * 2, _CONNECT_MAX_S)

    async def register(self, resource: str, endpoint: str, *, pre_start: bool) -> None:
        """Register one resource; return when kubelet has connected and asked for the options.

        Args:
            resource: Its name.
            endpoint: The name of its socket.
            pre_start: Whether PreStartContainer is required.

        Raises:
            KubeletError: The kubelet refused, or did not answer in time.
        """
        channel = await self._channel_to_kubelet()
        request = pb.RegisterRequest(
            version="v1beta1",
            endpoint=endpoint,
            resource_name=resource,
            # Kubelet ignores these and asks (v1.37.1 pkg/kubelet/cm/devicemanager/manager.go,
            # PluginConnected); they are here for people who read traces.
            options=pb.DevicePluginOptions(
                pre_start_required=pre_start, get_preferred_allocation_available=True
            ),
        )
        slow = asyncio.get_running_loop().call_later(call_log.LATE_S, self._log_slow, resource)
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)
            self._slow_logged = False
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await self._close_channel(channel)  # or it would wait out its back-off
            # Without the socket's name, which differs each time: the same reason is the same text.
            details = (error.details() or "").replace(endpoint, "the socket")
            raise KubeletError(details or error.code().name.lower()) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Another resource closed the channel, which cancels the calls on it.
            raise KubeletError("the connection to the kubelet was lost") from None
        finally:
            slow.cancel()

    def _log_slow(self, resource: str) -> None:
        """Log that kubelet does not answer: once, until it has answered."""
        if not self._slow_logged:
            self._slow_logged = True
            call_log.log_slow_registration(resource, self._kubelet.path)

    def record_registered(self, identity: SocketIdentity) -> None:
        """Record that a resource is registered with the kubelet of this identity."""
        self.restarts += self._registered_with not in (identity, None)
        self._registered_with = identity

    async def _channel_to_kubelet(self) -> grpc.aio.Channel:
        async with self._channel_lock:
            identity = self.identity()
            if self._channel is None or self._channel_of != identity:
                await self._close_channel(self._channel)
                self._channel_of = identity
                self._channel = open_channel(self._kubelet.path)
            return self._channel

    async def _close_channel(self, channel: grpc.aio.Channel | None) -> None:
        if channel is not None:
            if channel is self._channel:
                self._channel = None
            await channel.close(grace=None)

    async def close(self) -> None:
        """Close the connection to kubelet, and end what is running."""
        if self._connecting_to is not None:
            self._connecting_to.cancel()
        self._kubelet.close()
        await self._close_channel(self._channel)

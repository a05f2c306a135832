"""Kubelet's plugin directory: kubelet itself, and the other instances of devhost."""

import asyncio
import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import KubeletError
from devhost.kubelet import call_log
from devhost.kubelet.channel import open_channel
from devhost.kubelet.instances import Instances, resource_hash
from devhost.kubelet.kubelet_socket import KUBELET_SOCKET, KubeletSocket, SocketIdentity
from devhost.kubelet.liveness import Liveness
from devhost.kubelet.requests import Requests

REGISTER_TIMEOUT_S: Final = 15.0  # an older instance waits for a newer one for longer than that
_POLL_S: Final = 5.0  # in addition to the watch, which may miss something
_SHARED_POLL_S: Final = 1.0  # with another instance: when one is killed there is no event
_REFUSED_POLL_S: Final = 0.05  # a socket that refuses a connection is tried a second time
_BURST_S: Final = 0.01
_CONNECT_FIRST_S: Final = 0.001  # the socket file appears before it listens
_CONNECT_MAX_S: Final = 1.0
_PAUSE_PER_READ: Final = 10  # reading the directory takes a tenth of the time at most
_PAUSE_MAX_S: Final = 1.0  # but no registration waits for long, because one reading took long
_GONE_S: Final = 10.0
_CONCURRENT_MAX: Final = 32
_LOG: Final = logging.getLogger(__name__)


class DirectoryGoneError(KubeletError):
    """The plugin directory was removed; a container's mount of it cannot heal."""


class PluginDirectory:
    """Watches for kubelet and for other instances of devhost; registers.

    Attributes:
        restarts: How often a resource was registered with another kubelet than before.
        concurrency: Limits how many resources start a server or register at a time. If a thousand
            did, memory would grow for good, and kubelet's calls would have to wait.
        requests: The bounds of what clients of all servers may ask for.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._kubelet = KubeletSocket(path)
        self._check_due = asyncio.Event()
        self.instances = Instances(path)
        self._liveness = Liveness(self.instances.sockets_of, self._check_due.set)
        self.instances.answers = self._liveness.answers
        self.concurrency = asyncio.Semaphore(_CONCURRENT_MAX)
        self.requests = Requests()
        self._changed = asyncio.Event()
        self._subscribers: dict[str, set[Callable[[], None]]] = {}
        self._reading: asyncio.Task[None] | None = None
        self._next_read = 0.0
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
        if path is None or self.instances.may_be_other(name):
            self._check_due.set()
        if name == KUBELET_SOCKET and (identity := self.identity()) != self._known:
            self._known = identity
            self._notify(self._subscribers)

    def _notify(self, resources: Iterable[str]) -> None:
        self._changed.set()
        for resource in tuple(resources):
            for notice in tuple(self._subscribers.get(resource, ())):
                notice()

    def subscribe(self, resource: str, notice: Callable[[], None]) -> None:
        """Call `notice` whenever kubelet.sock, or which instances serve a resource, changed."""
        self._subscribers.setdefault(resource_hash(resource), set()).add(notice)

    def unsubscribe(self, resource: str, notice: Callable[[], None]) -> None:
        """Undo `subscribe`."""
        of_resource = self._subscribers[resource_hash(resource)]
        of_resource.discard(notice)
        if not of_resource:
            del self._subscribers[resource_hash(resource)]

    def identity(self) -> SocketIdentity | None:
        """Return what differs from one kubelet.sock to the next; ``None`` if there is none."""
        return self._kubelet.identity()

    def replaced(self, identity: SocketIdentity) -> bool:
        """Whether another kubelet took the place of the one with this identity."""
        return self._kubelet.replaced(identity)

    # ── the other instances ──

    async def run(self) -> None:
        """Check for other instances after each event, and regularly in case the watch missed one.

        Raises:
            DirectoryGoneError: The directory was unlinked and the path leads to no new one.
        """
        descriptor = self._open()
        self._check_due.set()  # for the instances that are there already
        gone_since: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await self._until_check_due()
                self._check_instances()
                self.on_change()
                self._check_due.clear()
                if descriptor is None or self._is_another(descriptor):
                    if descriptor is not None:
                        os.close(descriptor)
                    descriptor = self._open()
                unlinked = descriptor is not None and os.fstat(descriptor).st_nlink == 0
                gone_since = (gone_since or clock()) if unlinked else None
                if gone_since is not None and clock() - gone_since >= _GONE_S:
                    raise DirectoryGoneError(f"{self.path} was removed and not recreated")
        finally:
            if descriptor is not None:
                os.close(descriptor)

    async def _until_check_due(self) -> None:
        pause = _POLL_S if self.instances.alone else _SHARED_POLL_S
        if self.instances.has_refused:
            pause = _REFUSED_POLL_S
        try:
            async with asyncio.timeout(pause):
                await self._check_due.wait()
            await asyncio.sleep(_BURST_S)  # one check for a thousand sockets of our own
        except TimeoutError:
            pass

    def _check_instances(self) -> None:
        changed, removed = self.instances.check_all()
        if removed:
            _LOG.info("removed dead sockets", extra={"fields": {"count": removed}})
        if changed:
            self._notify(changed)
        self._liveness.probe(self.instances.listed())

    async def until_others_known(self, resource: str) -> None:
        """Wait until it is known which other instances have a socket for a resource, and answer.

        What changes in the directory before this call is seen.
        """
        await self.read()
        await self._liveness.until_known(self.instances.listed(resource))
        self.instances.check(resource)

    async def read(self) -> None:
        """Read the directory (`Instances.read_directory`), not earlier than this call.

        Calls share a reading that has not begun: a thousand resources call at a time.
        """
        if self._reading is None:
            self._reading = asyncio.create_task(self._read(), name="read the plugin directory")
        await asyncio.shield(self._reading)

    async def _read(self) -> None:
        clock = asyncio.get_running_loop().time
        await asyncio.sleep(self._next_read - clock())
        self._reading = None
        began = clock()
        self.instances.read_directory()
        pause = _PAUSE_PER_READ * (clock() - began)
        self._next_read = clock() + min(pause, _PAUSE_MAX_S)

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
        for task in (self._reading, self._connecting_to):
            if task is not None:
                task.cancel()
        self._kubelet.close()
        await self._liveness.close()
        await self._close_channel(self._channel)

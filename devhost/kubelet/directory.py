"""The kubelet's plugin directory: who is there, and is it still the same one?"""

import asyncio
import logging
import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import KubeletError
from devhost.kubelet.instances import Instances, connected

KUBELET_SOCKET: Final = "kubelet.sock"
REGISTER_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 5.0  # behind the watch, which may miss something
_COMPANY_POLL_S: Final = 1.0  # another instance may be killed, and of that there is no event
_DOUBT_POLL_S: Final = 0.05  # a socket that refuses is looked at twice
_BURST_S: Final = 0.01
_PROBE_FIRST_S: Final = 0.001  # the socket file appears before it listens
_PROBE_MAX_S: Final = 1.0
_GONE_S: Final = 10.0
_LOG: Final = logging.getLogger(__name__)

Identity = tuple[int, int, int]


class DirectoryGoneError(KubeletError):
    """The plugin directory was removed; a container's mount of it cannot heal."""


class PluginDirectory:
    """Watches for the kubelet and for other instances of devhost; registers.

    Attributes:
        restarts: How often something was registered with another kubelet than before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.instances = Instances(path)
        self._due = asyncio.Event()
        self._changed = asyncio.Event()
        self._waiters: set[asyncio.Event] = set()
        self._probing = asyncio.Lock()
        self._channel: grpc.aio.Channel | None = None
        self._channel_of: Identity | None = None
        self._connecting = asyncio.Lock()
        self._known = self.identity()
        self._registered_with: Identity | None = None
        self.restarts = 0

    def look_again(self) -> None:
        """Something happened in the directory."""
        self._due.set()
        if (identity := self.identity()) != self._known:
            self._known = identity
            self._notify()

    def _notify(self) -> None:
        self._changed.set()
        for waiter in self._waiters:
            waiter.set()

    def subscribe(self, waiter: asyncio.Event) -> None:
        """Set an event whenever kubelet.sock, or who else is there, has changed."""
        self._waiters.add(waiter)

    def unsubscribe(self, waiter: asyncio.Event) -> None:
        """Undo `subscribe`."""
        self._waiters.discard(waiter)

    def identity(self) -> Identity | None:
        """Return what tells one kubelet.sock from the next; inode numbers alone are reused."""
        try:
            found = (self.path / KUBELET_SOCKET).stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino, found.st_ctime_ns

    def replaced(self, identity: Identity) -> bool:
        """Whether another kubelet took the place of the one with this identity."""
        return self.identity() not in (identity, None)

    # ── looking ──

    async def run(self) -> None:
        """Look for other instances when something happens, and poll behind the watch, for ever.

        Raises:
            DirectoryGoneError: The directory was unlinked and the path leads to no new one.
        """
        descriptor = self._opened()
        gone_since: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await self._until_due()
                self._look_for_others()
                self.look_again()
                self._due.clear()
                if descriptor is None or self._is_other(descriptor):
                    if descriptor is not None:
                        os.close(descriptor)
                    descriptor = self._opened()
                unlinked = descriptor is not None and os.fstat(descriptor).st_nlink == 0
                gone_since = (gone_since or clock()) if unlinked else None
                if gone_since is not None and clock() - gone_since >= _GONE_S:
                    raise DirectoryGoneError(f"{self.path} was removed, and no new one came")
        finally:
            if descriptor is not None:
                os.close(descriptor)

    async def _until_due(self) -> None:
        pause = _POLL_S if self.instances.alone else _COMPANY_POLL_S
        if self.instances.in_doubt:
            pause = _DOUBT_POLL_S
        try:
            async with asyncio.timeout(pause):
                await self._due.wait()
            await asyncio.sleep(_BURST_S)  # a thousand sockets of our own are one reason to look
        except TimeoutError:
            pass

    def _look_for_others(self) -> None:
        changed, removed = self.instances.look()
        if removed:
            _LOG.info("removed dead sockets", extra={"fields": {"count": removed}})
        if changed:
            self._notify()

    def _opened(self) -> int | None:
        try:
            return os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except OSError:
            return None

    def _is_other(self, descriptor: int) -> bool:
        try:
            return not os.path.samestat(os.fstat(descriptor), self.path.stat())
        except OSError:
            return False

    # ── the kubelet ──

    def absence(self) -> str | None:
        """Say why there is no kubelet, or return ``None``: existence alone says nothing."""
        if self.identity() is None:
            return f"no kubelet: {KUBELET_SOCKET} is not there"
        if connected(self.path / KUBELET_SOCKET) != 0:
            return f"no kubelet: nobody listens on {KUBELET_SOCKET}"
        return None

    async def kubelet(self) -> Identity:
        """Wait until a kubelet accepts connections; return which one."""
        async with self._probing:  # one asks for all
            pause = _PROBE_FIRST_S
            while True:
                self._changed.clear()
                identity = self.identity()
                if identity is not None and connected(self.path / KUBELET_SOCKET) == 0:
                    return identity
                try:
                    async with asyncio.timeout(pause):
                        await self._changed.wait()
                    pause = _PROBE_FIRST_S
                except TimeoutError:
                    pause = min(pause * 2, _PROBE_MAX_S)

    async def register(self, resource: str, endpoint: str) -> None:
        """Register one resource; returns when the kubelet has connected and has the options.

        Raises:
            KubeletError: The kubelet refused, or did not answer in time.
        """
        channel = await self._channel_to_kubelet()
        request = pb.RegisterRequest(
            version="v1beta1",
            endpoint=endpoint,
            resource_name=resource,
            # The kubelet ignores these and asks; they are here for people who read traces.
            options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await self._drop(channel)  # or it would wait out its back-off
            raise KubeletError(error.details() or error.code().name.lower()) from None
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # What another resource's `_drop` does to calls that are under way.
            raise KubeletError("the connection to the kubelet was lost") from None

    def registered_with(self, identity: Identity) -> None:
        """Take note that something is registered with the kubelet of this identity."""
        self.restarts += self._registered_with not in (identity, None)
        self._registered_with = identity

    async def _channel_to_kubelet(self) -> grpc.aio.Channel:
        async with self._connecting:
            identity = self.identity()
            if self._channel is None or self._channel_of != identity:
                await self._drop(self._channel)
                self._channel_of = identity
                self._channel = grpc.aio.insecure_channel(
                    f"unix:{quote(str(self.path / KUBELET_SOCKET))}",
                    options=[
                        ("grpc.default_authority", "localhost"),
                        ("grpc.use_local_subchannel_pool", 1),
                    ],
                )
            return self._channel

    async def _drop(self, channel: grpc.aio.Channel | None) -> None:
        if channel is not None:
            if channel is self._channel:
                self._channel = None
            await channel.close(grace=None)

    async def close(self) -> None:
        """Close the connection to the kubelet."""
        await self._drop(self._channel)

"""The kubelet's plugin directory: is the kubelet there, and is it still the same one?"""

import asyncio
import os
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.errors import KubeletError

KUBELET_SOCKET: Final = "kubelet.sock"
REGISTER_TIMEOUT_S: Final = 20.0
_POLL_S: Final = 5.0  # behind the watch, which may miss something
_PROBE_FIRST_S: Final = 0.001  # the socket file appears before it listens
_PROBE_MAX_S: Final = 1.0
_GONE_S: Final = 10.0

Identity = tuple[int, int, int]


class DirectoryGoneError(KubeletError):
    """The plugin directory was removed; a container's mount of it cannot heal."""


class PluginDirectory:
    """Watches for the kubelet and registers with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._changed = asyncio.Event()
        self._waiters: set[asyncio.Event] = set()
        self._channel: grpc.aio.Channel | None = None
        self._channel_of: Identity | None = None
        self._lock = asyncio.Lock()
        self._known = self.identity()

    def look_again(self) -> None:
        """Something happened in the directory; only kubelet.sock matters of it."""
        if (identity := self.identity()) == self._known:
            return
        self._known = identity
        self._changed.set()
        for waiter in self._waiters:
            waiter.set()

    def subscribe(self, waiter: asyncio.Event) -> None:
        """Set an event whenever something happens in the directory."""
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

    async def run(self) -> None:
        """Poll behind the watch, for ever.

        Raises:
            DirectoryGoneError: The directory was unlinked and the path leads to no new one.
        """
        descriptor = self._opened()
        gone_since: float | None = None
        clock = asyncio.get_running_loop().time
        try:
            while True:
                await asyncio.sleep(_POLL_S)
                self.look_again()
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

    async def kubelet(self) -> Identity:
        """Wait until a kubelet accepts connections; return which one."""
        pause = _PROBE_FIRST_S
        while True:
            self._changed.clear()
            identity = self.identity()
            if identity is not None and await self._accepts():
                return identity
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
                pause = _PROBE_FIRST_S
            except TimeoutError:
                pause = min(pause * 2, _PROBE_MAX_S)

    async def _accepts(self) -> bool:
        try:
            _, writer = await asyncio.open_unix_connection(self.path / KUBELET_SOCKET)
        except OSError:
            return False
        writer.close()
        return True

    async def register(self, resource: str, endpoint: str) -> None:
        """Register one resource; returns when the kubelet has connected and has the options.

        Raises:
            KubeletError: The kubelet refused, or did not answer in time.
        """
        stub = pb_grpc.RegistrationStub(await self._channel_to_kubelet())
        request = pb.RegisterRequest(
            version="v1beta1",
            endpoint=endpoint,
            resource_name=resource,
            # The kubelet ignores these and asks; they are here for people who read traces.
            options=pb.DevicePluginOptions(get_preferred_allocation_available=True),
        )
        try:
            await stub.Register(request, timeout=REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                await self.close()  # or the channel would wait out its back-off
            raise KubeletError(error.details() or error.code().name.lower()) from None

    async def _channel_to_kubelet(self) -> grpc.aio.Channel:
        async with self._lock:
            identity = self.identity()
            if self._channel is None or self._channel_of != identity:
                await self.close()
                self._channel_of = identity
                self._channel = grpc.aio.insecure_channel(
                    f"unix:{quote(str(self.path / KUBELET_SOCKET))}",
                    options=[
                        ("grpc.default_authority", "localhost"),
                        ("grpc.use_local_subchannel_pool", 1),
                    ],
                )
            return self._channel

    async def close(self) -> None:
        """Close the connection to the kubelet."""
        channel, self._channel, self._channel_of = self._channel, None, None
        if channel is not None:
            await channel.close(grace=None)

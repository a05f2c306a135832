"""kubelet.sock in kubelet's plugin directory, for all resources of a process."""

import asyncio
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.backends.sockets import SocketIdentity, connect_error, open_channel, socket_identity
from devhost.errors import KubeletError

KUBELET_SOCKET: Final = "kubelet.sock"
REGISTER_TIMEOUT_S: Final = 15.0
_CONNECT_FIRST_S: Final = 0.001  # the socket file appears before it listens
_CONNECT_MAX_S: Final = 1.0
_REACHED_S: Final = 0.05  # it is not tried again: all resources try at the same time
_PROBLEMS: Final = {
    errno.ENOENT: f"{KUBELET_SOCKET} is not there",
    errno.ECONNREFUSED: f"nobody listens on {KUBELET_SOCKET}",
}


class KubeletSocket:
    """kubelet.sock of one plugin directory: who listens there, and registrations with them."""

    def __init__(self, directory: Path) -> None:
        self._directory, self._path = directory, str(directory / KUBELET_SOCKET)
        self._identity = self.identity()
        self._changed = asyncio.Event()  # another one after each change
        self._reached_until = 0.0
        self._channel: grpc.aio.Channel | None = None
        self._channel_identity: SocketIdentity | None = None
        self._registered_with: SocketIdentity | None = None
        self.restarts = 0

    def check(self) -> None:
        """Wake those who wait for another kubelet.sock, if it is another one."""
        if (identity := self.identity()) != self._identity:
            self._identity = identity
            self._changed.set()
            self._changed = asyncio.Event()

    def identity(self) -> SocketIdentity | None:
        """Return what differs from one kubelet.sock to the next; ``None`` if there is none."""
        return socket_identity(self._path)

    async def wait_until_replaced(self, identity: SocketIdentity | None) -> None:
        """Wait until another kubelet has taken the place of the one with this identity."""
        while self.identity() in (identity, None):
            await self._changed.wait()

    def kubelet_problem(self) -> str | None:
        """Return why no kubelet can be connected to, or ``None``.

        That the socket exists says nothing: a kubelet that ends leaves it behind.
        """
        error = connect_error(self._path)
        if not error:
            return None
        if error == errno.ENOENT and not self._directory.is_dir():
            return f"no kubelet: {self._directory} is not there"
        reason = f"cannot connect to {KUBELET_SOCKET}: {os.strerror(error)}"
        return f"no kubelet: {_PROBLEMS.get(error, reason)}"

    async def wait_until_reachable(self, waiting: Callable[[str], None]) -> SocketIdentity | None:
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
        request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
        if self._channel is None or self._channel_identity != self.identity():
            # One is kept as long as the process lives: when gRPC's last channel or server is
            # closed, its thread ends, and waits for clients of servers that do not read.
            self._channel, self._channel_identity = open_channel(self._path), self.identity()
        channel, identity = self._channel, self._channel_identity
        try:
            await pb_grpc.RegistrationStub(channel).Register(request, timeout=REGISTER_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE and channel is self._channel:
                self._channel = open_channel(self._path)  # the former would wait out its back-off
            # Without the socket's name, which differs each time: the same reason is the same text.
            details = (error.details() or "").replace(endpoint, "the socket")
            raise KubeletError(details or error.code().name.lower()) from None
        self.restarts += self._registered_with not in (identity, None)
        self._registered_with = identity
        return identity

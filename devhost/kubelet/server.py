"""One gRPC server on one socket, for one resource; each registration has a new one."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from devhost import limits
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.kubelet.servicer import AllocationBackend, Servicer

_STOP_GRACE_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 2.0

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES_MAX),
    ("grpc.max_concurrent_streams", limits.CONNECTION_CALLS_MAX),
    ("grpc.max_allowed_incoming_connections", limits.CONNECTIONS_MAX),
    ("grpc.max_connection_idle_ms", int(limits.IDLE_CONNECTION_S * 1000)),
    ("grpc.so_reuseport", 0),
)
_STOPPING: Final[set["asyncio.Future[None]"]] = set()


class PluginServer:
    """A server with its socket; it is started once and stopped once."""

    def __init__(self, backend: AllocationBackend, directory: Path, endpoint: str) -> None:
        self.endpoint = endpoint
        self._directory = directory
        self.path = directory / self.endpoint
        self.servicer = Servicer(backend)
        self._server = grpc.aio.server(options=_OPTIONS)
        pb_grpc.add_DevicePluginServicer_to_server(self.servicer, self._server)

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            OSError: The directory is not there or not writable.
        """
        try:
            self._server.add_insecure_port(f"unix:{quote(str(self.path))}")
        except RuntimeError:
            # Without the socket's name, which differs each time: the same reason is the same text.
            reason = f"cannot listen in {self._directory}: {self._bind_problem()}"
            raise OSError(reason) from None
        starting = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # otherwise it could not be stopped
            await self.stop()
            raise

    def _bind_problem(self) -> str:
        """Bind as gRPC did, for the reason that it does not return."""
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(str(self.path))
        except OSError as error:
            return error.strerror or str(error)
        self.path.unlink(missing_ok=True)
        return "gRPC failed to"

    async def stop(self) -> None:
        """End the streams, stop serving and unlink the socket."""
        self.servicer.close()
        # gRPC waits for a client that does not read, perhaps without end.
        stopping = asyncio.ensure_future(self._server.stop(_STOP_GRACE_S))
        _STOPPING.add(stopping)
        stopping.add_done_callback(_STOPPING.discard)
        try:
            await asyncio.wait({stopping}, timeout=_STOP_TIMEOUT_S)
        finally:
            with contextlib.suppress(OSError):  # the directory became read-only
                self.path.unlink(missing_ok=True)

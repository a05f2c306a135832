"""One gRPC server on one socket, for one resource; a fresh name of it for each registration."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet import marks
from devhost.kubelet.servicer import Backend, Servicer

_STOP_GRACE_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 2.0
_RECEIVE_BYTES_MAX: Final = 16 * 1024 * 1024  # GetPreferredAllocation carries every free ID

_STOPPING: Final[set["asyncio.Future[None]"]] = set()


class PluginServer:
    """A server with its socket; start it once, stop it once."""

    def __init__(self, backend: Backend, directory: Path, endpoint: str) -> None:
        self.endpoint = endpoint
        self.servicer = Servicer(backend, lambda: marks.silent(self.path))
        self._directory = directory
        self.path = directory / self.endpoint
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((_handlers(self.servicer),))

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            OSError: The directory is not there or not writable.
        """
        try:
            self._server.add_insecure_port(f"unix:{quote(str(self.path))}")
        except RuntimeError:
            # Each attempt has a name of its own; the same reason is to be the same text.
            reason = f"cannot listen in {self._directory}: {self._bind_problem()}"
            raise OSError(reason) from None
        starting = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # or it could not be stopped any more
            await self.stop()
            raise

    def _bind_problem(self) -> str:
        """Try what gRPC has tried, for the reason that it does not tell."""
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
        # It waits for a client that does not read, and that may be for ever.
        stopping = asyncio.ensure_future(self._server.stop(_STOP_GRACE_S))
        _STOPPING.add(stopping)
        stopping.add_done_callback(_STOPPING.discard)
        try:
            await asyncio.wait({stopping}, timeout=_STOP_TIMEOUT_S)
        finally:
            with contextlib.suppress(OSError):  # a directory that became read-only
                self.path.unlink(missing_ok=True)


def _handlers(servicer: Servicer) -> grpc.GenericRpcHandler:
    """Return the handlers of the device plugin service.

    The generated ``add_DevicePluginServicer_to_server`` would also register each method with the
    server, for which grpc.aio keeps a task and a pending call per method and server.
    """
    unary = grpc.unary_unary_rpc_method_handler
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetDevicePluginOptions": unary(
            servicer.GetDevicePluginOptions,
            pb.Empty.FromString,
            pb.DevicePluginOptions.SerializeToString,
        ),
        # Without a serializer: the list is bytes already.
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(
            servicer.ListAndWatch, pb.Empty.FromString
        ),
        "GetPreferredAllocation": unary(
            servicer.GetPreferredAllocation,
            pb.PreferredAllocationRequest.FromString,
            pb.PreferredAllocationResponse.SerializeToString,
        ),
        "Allocate": unary(
            servicer.Allocate,
            pb.AllocateRequest.FromString,
            pb.AllocateResponse.SerializeToString,
        ),
        "PreStartContainer": unary(
            servicer.PreStartContainer,
            pb.PreStartContainerRequest.FromString,
            pb.PreStartContainerResponse.SerializeToString,
        ),
    }
    return grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers)

"""One gRPC server on one socket, for one resource; each registration has a new one."""

import asyncio
import contextlib
import functools
import socket
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import grpc
from google.protobuf.message import Message

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet.instances import is_standby
from devhost.kubelet.servicer import AllocationBackend, Servicer

_STOP_GRACE_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 2.0
_RECEIVE_BYTES_MAX: Final = 16 * 1024 * 1024  # GetPreferredAllocation carries every free ID

_UNARY: Final[dict[str, tuple[type[Message], type[Message]]]] = {
    "GetDevicePluginOptions": (pb.Empty, pb.DevicePluginOptions),
    "GetPreferredAllocation": (pb.PreferredAllocationRequest, pb.PreferredAllocationResponse),
    "Allocate": (pb.AllocateRequest, pb.AllocateResponse),
    "PreStartContainer": (pb.PreStartContainerRequest, pb.PreStartContainerResponse),
}

_STOPPING: Final[set["asyncio.Future[None]"]] = set()


class PluginServer:
    """A server with its socket; it is started once and stopped once."""

    def __init__(self, backend: AllocationBackend, directory: Path, endpoint: str) -> None:
        self.endpoint = endpoint
        self._directory = directory
        self.path = directory / self.endpoint
        self.servicer = Servicer(backend, functools.partial(is_standby, self.path))
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((_Handlers(self.servicer),))

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


class _Handlers(grpc.GenericRpcHandler):
    """Finds what answers a call of the device plugin service.

    The generated ``add_DevicePluginServicer_to_server`` would also register each method with the
    server, for which grpc.aio keeps a task and a pending call per method and server. Handlers are
    made for each call, because those of all methods would take 2 KiB per resource.
    """

    __slots__ = ("_servicer",)

    def __init__(self, servicer: Servicer) -> None:
        self._servicer = servicer

    def service(self, handler_call_details: Any) -> Any:
        """Return what answers a call, or ``None`` if the method is not known."""
        name = handler_call_details.method.removeprefix("/v1beta1.DevicePlugin/")
        if name == "ListAndWatch":  # without a serializer: the list is bytes already
            return grpc.unary_stream_rpc_method_handler(
                self._servicer.ListAndWatch, pb.Empty.FromString
            )
        if name not in _UNARY:
            return None
        request, response = _UNARY[name]
        return grpc.unary_unary_rpc_method_handler(
            getattr(self._servicer, name), request.FromString, response.SerializeToString
        )

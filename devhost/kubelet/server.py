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

from devhost import limits
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.kubelet.requests import RequestError, Requests, id_count
from devhost.kubelet.servicer import AllocationBackend, Servicer

_STOP_GRACE_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 2.0

_OPTIONS: Final = (
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES_MAX),
    ("grpc.max_concurrent_streams", limits.CONNECTION_CALLS_MAX),
    ("grpc.max_allowed_incoming_connections", limits.CONNECTIONS_MAX),
    ("grpc.max_connection_idle_ms", int(limits.IDLE_CONNECTION_S * 1000)),
    ("grpc.http2.bdp_probe", 0),  # else a call that nobody reads yet may send megabytes
    ("grpc.so_reuseport", 0),
)
_UNARY: Final[dict[str, tuple[type[Message], type[Message]]]] = {
    "GetDevicePluginOptions": (pb.Empty, pb.DevicePluginOptions),
    "GetPreferredAllocation": (pb.PreferredAllocationRequest, pb.PreferredAllocationResponse),
    "Allocate": (pb.AllocateRequest, pb.AllocateResponse),
    "PreStartContainer": (pb.PreStartContainerRequest, pb.PreStartContainerResponse),
}

_STOPPING: Final[set["asyncio.Future[None]"]] = set()


class PluginServer:
    """A server with its socket; it is started once and stopped once."""

    def __init__(
        self, backend: AllocationBackend, directory: Path, endpoint: str, requests: Requests
    ) -> None:
        self.endpoint = endpoint
        self._directory = directory
        self.path = directory / self.endpoint
        self.servicer = Servicer(backend)
        self._server = grpc.aio.server(options=_OPTIONS)
        self._server.add_generic_rpc_handlers((_Handlers(self.servicer, backend, requests),))

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

    __slots__ = ("_backend", "_calls", "_requests", "_servicer")

    def __init__(self, servicer: Servicer, backend: AllocationBackend, requests: Requests) -> None:
        self._servicer, self._backend, self._requests = servicer, backend, requests
        self._calls = 0

    def service(self, handler_call_details: Any) -> Any:
        """Return what answers a call, or ``None`` if the method is not known."""
        name = handler_call_details.method.removeprefix("/v1beta1.DevicePlugin/")
        if name == "ListAndWatch":  # without a serializer: the list is bytes already
            return grpc.stream_stream_rpc_method_handler(self._stream)
        if name not in _UNARY:
            return None
        request, response = _UNARY[name]
        answer = functools.partial(self._answer, getattr(self._servicer, name), request)
        return grpc.stream_unary_rpc_method_handler(
            answer, response_serializer=response.SerializeToString
        )

    async def _stream(self, _requests: Any, context: Any) -> None:
        streams = self._servicer.streams
        if len(streams) >= limits.STREAMS_MAX * (2 if streams.expecting else 1):
            await self._refuse(context, f"more than {limits.STREAMS_MAX} streams")
        await self._servicer.ListAndWatch(pb.Empty(), context)

    async def _answer(
        self, method: Any, kind: type[Message], _requests: Any, context: Any
    ) -> Message:
        if self._calls >= limits.CALLS_MAX:
            await self._refuse(context, f"more than {limits.CALLS_MAX} calls at a time")
        answer: Message
        if kind is pb.Empty:
            # Not read: few requests may come in at a time, and kubelet asks for all resources
            # when devhost starts. On a busy machine some would be taken for ones that never come.
            answer = await method(pb.Empty(), context)
            return answer
        self._calls += 1
        picked = kind in (pb.AllocateRequest, pb.PreferredAllocationRequest)
        try:
            with self._servicer.calling() if picked else contextlib.nullcontext():
                device_list = self._backend.device_list
                request = await self._requests.receive(context, kind, device_list)
                async with self._requests.turn(id_count(request) if picked else 0):
                    answer = await method(request, context)
                    return answer
        except RequestError as error:
            reason = str(error)
        finally:
            self._calls -= 1
        await self._refuse(context, reason)
        raise AssertionError("abort raises")

    async def _refuse(self, context: Any, reason: str) -> None:
        self._requests.refused(self._backend.name, reason)
        await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, f"{self._backend.name}: {reason}")

"""The sockets of the stand-in kubelet: its own, and its connections to plugins."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.kubelet import sockets
from devhost.model.names import resource_name_problem
from devhost.standin.state import AdmissionError

_T = TypeVar("_T")

_VERSION: Final = "v1beta1"
_DIAL_S: Final = 10.0


class RefusedError(Exception):
    """The kubelet refused a registration."""


@dataclass(slots=True, eq=False)
class PluginEndpoint:
    """One connection to one plugin (plugin/v1beta1/client.go)."""

    resource: str
    socket: Path
    channel: grpc.aio.Channel
    stub: "pb2_grpc.DevicePluginAsyncStub"
    options: pb2.DevicePluginOptions = field(default_factory=pb2.DevicePluginOptions)

    @property
    def key(self) -> tuple[str, Path]:
        """What identifies a connection for the kubelet."""
        return self.resource, self.socket


def endpoint_of(request: pb2.RegisterRequest, directory: Path) -> PluginEndpoint:
    """Open a connection to the plugin that registers (plugin/v1beta1/server.go, Register)."""
    if request.version != _VERSION:
        raise RefusedError(
            f'requested API version "{request.version}" is not supported by kubelet. '
            f'Supported version is ["{_VERSION}"]'
        )
    if resource_name_problem(request.resource_name) is not None:
        raise RefusedError(f'the ResourceName "{request.resource_name}" is invalid')
    # As Go joins paths: an absolute endpoint is below the directory too, ".." leaves it.
    socket = Path(os.path.normpath(f"{directory}/{request.endpoint}"))
    channel = sockets.open_channel(socket)
    plugin = pb2_grpc.DevicePluginStub(channel)
    return PluginEndpoint(request.resource_name, socket, channel, plugin)


async def greet(endpoint: PluginEndpoint, left: Callable[[], float | None]) -> None:
    """Reach a plugin and ask for its options, in what remains of its own call's time."""
    try:
        async with asyncio.timeout(_DIAL_S):
            await endpoint.channel.channel_ready()
        call = endpoint.stub.GetDevicePluginOptions(pb2.Empty(), timeout=left())
        endpoint.options = await call
    except TimeoutError:
        raise RefusedError("failed to dial device plugin: context deadline exceeded") from None
    except grpc.aio.AioRpcError as error:
        raise RefusedError(f"failed to get device plugin options: {in_go(error)}") from error


async def ask(call: Awaitable[_T], prefix: str = "") -> _T:
    """Return a plugin's answer, or raise an error or a closed connection as `AdmissionError`."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise AdmissionError(prefix + in_go(error)) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The call was cancelled, not the task: its channel was closed.
        reason = "rpc error: code = Canceled desc = grpc: the client connection is closing"
        raise AdmissionError(prefix + reason) from None


def in_go(error: grpc.aio.AioRpcError) -> str:
    """Write an error as Go's gRPC does."""
    code = error.code().name.title().replace("_", "").replace("Cancelled", "Canceled")
    return f"rpc error: code = {code} desc = {error.details()}"


async def serve(server: grpc.aio.Server, socket: Path) -> None:
    """Serve on a socket whose file stays when the server ends, as after SIGKILL."""
    bound = socket.with_name(".kubelet.new")
    server.add_insecure_port(f"unix:{quote(str(bound))}")
    await sockets.start_server(server)
    try:
        # gRPC unlinks the path that it bound when it stops. The public name must outlive it, and
        # appear by a creation, not a rename, as watchers know it.
        os.link(bound, socket)
        bound.unlink()
    except OSError:
        await server.stop(None)
        raise


def clear_of_sockets(directory: Path) -> None:
    """Make the plugin directory, or remove all sockets in it, as a kubelet does when it starts."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    for entry in directory.iterdir():
        if entry.is_socket():
            entry.unlink(missing_ok=True)  # its owner may be quicker

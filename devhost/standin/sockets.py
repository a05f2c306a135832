"""The sockets of the stand-in kubelet: its own, and its connections to plugins."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.kubelet.channel import open_channel
from devhost.standin import state
from devhost.standin.state import AdmissionError, RefusedError, in_go

_T = TypeVar("_T")

_DIAL_S: Final = 10.0


async def serve(server: grpc.aio.Server, socket: Path) -> None:
    """Serve on a socket whose file stays when the server ends, as after SIGKILL.

    Raises:
        OSError: The file cannot be made; the server is stopped.
    """
    starting: asyncio.Future[None] | None = None
    try:
        bound = socket.with_name(".kubelet.new")
        server.add_insecure_port(f"unix:{quote(str(bound))}")
        starting = asyncio.ensure_future(server.start())
        await asyncio.shield(starting)
        _publish(bound, socket)
    except BaseException:
        if starting is not None:
            await asyncio.wait({starting})  # a start that is interrupted cannot be stopped
        await server.stop(None)
        raise


def _publish(bound: Path, socket: Path) -> None:
    # grpc unlinks the path that it bound when it stops. The public name must outlive it,
    # and appear by a creation, not a rename, as watchers know it.
    socket.hardlink_to(bound)
    bound.unlink()


def endpoint_of(request: pb2.RegisterRequest, directory: Path) -> state.PluginEndpoint:
    """Open a connection to the plugin that registers; nothing is sent yet."""
    # As Go joins paths: an absolute endpoint is below the directory too, ".." leaves it.
    socket = Path(os.path.normpath(f"{directory}/{request.endpoint}"))
    channel = open_channel(socket)
    plugin = pb2_grpc.DevicePluginStub(channel)
    return state.PluginEndpoint(request.resource_name, socket, channel, plugin)


async def greet(endpoint: state.PluginEndpoint, left: Callable[[], float | None]) -> None:
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
    """Return a plugin's answer.

    Raises:
        AdmissionError: It answered with an error, or the connection to it was closed.
    """
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


def clear_of_sockets(directory: Path) -> None:
    """Make the plugin directory, or remove all sockets in it, as a kubelet does when it starts."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    for entry in directory.iterdir():
        if entry.is_socket():
            entry.unlink(missing_ok=True)  # its owner may be quicker

"""The sockets of the stand-in kubelet: its own, and its connections to plugins."""

import asyncio
import contextlib
import logging
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeVar

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.backends import sockets
from devhost.fake_kubelet.state import UNHEALTHY, AdmissionError, Ids, Ledger, shuffled

_T = TypeVar("_T")

_DIAL_S: Final = 10.0
_PRE_START_S: Final = 30.0
_LOG: Final = logging.getLogger(__name__)


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
        """The resource and socket, by which the kubelet tells connections apart."""
        return self.resource, self.socket


class Plugins:
    """The plugins that are registered: their lists, kept in a ledger, and calls to them."""

    def __init__(self, directory: Path, ledger: Ledger) -> None:
        self._directory, self._ledger = directory, ledger
        self._streams: set[asyncio.Task[None]] = set()
        self.connected: dict[tuple[str, Path], PluginEndpoint] = {}
        self._primary: dict[str, PluginEndpoint] = {}  # gets the calls of its resource

    async def register(
        self, request: pb2.RegisterRequest, time_left: Callable[[], float | None]
    ) -> None:
        """Connect to the plugin that registers, or raise `RefusedError`; watch its devices."""
        endpoint = _open_endpoint(request, self._directory)
        async with contextlib.AsyncExitStack() as undo:
            undo.push_async_callback(endpoint.channel.close)
            await _reach(endpoint, time_left)
            if endpoint.key in self.connected:
                raise RefusedError(f"device plugin already connected: {endpoint.socket}")
            undo.pop_all()
        resource = endpoint.resource
        self.connected[endpoint.key] = self._primary[resource] = endpoint
        task = asyncio.create_task(self._watch(endpoint), name=f"kubelet: watch {resource}")
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        self._ledger.notify()

    async def _watch(self, endpoint: PluginEndpoint) -> None:
        resource = endpoint.resource
        try:
            async for message in endpoint.stub.ListAndWatch(pb2.Empty()):
                healths = {device.ID: device.health for device in message.devices}
                self._ledger.tables[resource] = healths
                self._ledger.notify()
        except grpc.aio.AioRpcError as error:
            _LOG.debug("ListAndWatch of %s ended: %s", resource, _in_go(error))
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # else its channel was closed
        del self.connected[endpoint.key]
        left = [plugin for plugin in self.connected.values() if plugin.resource == resource]
        if left:
            self._primary[resource] = left[-1]
        else:
            devices = self._ledger.tables.get(resource, ())
            self._ledger.tables[resource] = dict.fromkeys(devices, UNHEALTHY)
        await endpoint.channel.close()
        self._ledger.notify()

    async def close(self) -> None:
        """End all connections, as when the kubelet dies."""
        for task in self._streams:
            task.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        connected, self.connected, self._primary = self.connected, {}, {}
        # The checkpoint keeps the pods, and the resources without their devices.
        self._ledger.tables = {resource: {} for resource in self._ledger.tables}
        for endpoint in connected.values():
            await endpoint.channel.close()
        self._ledger.notify()

    def options(self, resource: str) -> pb2.DevicePluginOptions:
        """Return a resource's options; after a restart of the kubelet they are unknown."""
        primary = self._primary.get(resource)
        return primary.options if primary else pb2.DevicePluginOptions()

    def _stub(self, resource: str) -> "pb2_grpc.DevicePluginAsyncStub":
        """Return where a resource's calls go."""
        primary = self._primary.get(resource)
        if primary is None or primary.key not in self.connected:
            raise AdmissionError(f"endpoint of {resource} has been stopped")
        return primary.stub

    async def allocate(self, resource: str, ids: Ids) -> pb2.ContainerAllocateResponse:
        """Return the answer of a resource's plugin for one container."""
        container = pb2.ContainerAllocateRequest(devices_ids=shuffled(ids))
        request = pb2.AllocateRequest(container_requests=[container])
        response = await _answer(self._stub(resource).Allocate(request))
        if not response.container_responses:
            raise AdmissionError("no containers return in allocation response")
        return response.container_responses[0]

    async def prefer(self, resource: str, available: Ids, count: int) -> Ids:
        """Return which devices a resource's plugin prefers; none if it has no preference."""
        if not self.options(resource).get_preferred_allocation_available:
            return frozenset()
        container = pb2.ContainerPreferredAllocationRequest(
            available_deviceIDs=shuffled(available), allocation_size=count
        )
        request = pb2.PreferredAllocationRequest(container_requests=[container])
        call = self._stub(resource).GetPreferredAllocation(request)
        response = await _answer(call, "device plugin GetPreferredAllocation rpc failed with err: ")
        return frozenset(*(first.deviceIDs for first in response.container_responses[:1]))

    async def pre_start(self, resource: str, ids: Ids) -> None:
        """Ask a resource's plugin to prepare devices, if its options say so."""
        if self.options(resource).pre_start_required:
            request = pb2.PreStartContainerRequest(devices_ids=shuffled(ids))
            call = self._stub(resource).PreStartContainer(request, timeout=_PRE_START_S)
            await _answer(call, "device plugin PreStartContainer rpc failed with err: ")


def _open_endpoint(request: pb2.RegisterRequest, directory: Path) -> PluginEndpoint:
    """Open a connection to the plugin that registers (plugin/v1beta1/server.go, Register)."""
    # As Go joins paths: an absolute endpoint is below the directory too, ".." leaves it.
    socket = Path(os.path.normpath(f"{directory}/{request.endpoint}"))
    channel = sockets.open_channel(socket)
    stub = pb2_grpc.DevicePluginStub(channel)
    return PluginEndpoint(request.resource_name, socket, channel, stub)


async def _reach(endpoint: PluginEndpoint, time_left: Callable[[], float | None]) -> None:
    """Reach a plugin and get its options, in what remains of its own call's time."""
    try:
        async with asyncio.timeout(_DIAL_S):
            await endpoint.channel.channel_ready()
        call = endpoint.stub.GetDevicePluginOptions(pb2.Empty(), timeout=time_left())
        endpoint.options = await call
    except TimeoutError:
        raise RefusedError("failed to dial device plugin: context deadline exceeded") from None
    except grpc.aio.AioRpcError as error:
        raise RefusedError(f"failed to get device plugin options: {_in_go(error)}") from error


async def _answer(call: Awaitable[_T], prefix: str = "") -> _T:
    """Return a plugin's answer, or raise an error or a closed connection as `AdmissionError`."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise AdmissionError(prefix + _in_go(error)) from error
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or task.cancelling():
            raise
        # The call was cancelled, not the task: its channel was closed.
        reason = "rpc error: code = Canceled desc = grpc: the client connection is closing"
        raise AdmissionError(prefix + reason) from None


def _in_go(error: grpc.aio.AioRpcError) -> str:
    """Return the text of an error as Go's gRPC writes it."""
    code = error.code().name.title().replace("_", "").replace("Cancelled", "Canceled")
    return f"rpc error: code = {code} desc = {error.details()}"


async def serve(server: grpc.aio.Server, socket: Path) -> None:
    """Serve on a socket whose file stays when the server ends, as after SIGKILL."""
    bound = socket.with_name(".kubelet.new")
    await sockets.start_server(server, bound)
    try:
        # gRPC unlinks the path that it bound when it stops. The public name must outlive it, and
        # appear by a creation, not a rename, as watchers know it.
        os.link(bound, socket)
        bound.unlink()
    except OSError:
        await server.stop(None)
        raise


def remove_sockets(directory: Path) -> None:
    """Make the plugin directory, or remove all sockets in it, as a kubelet does when it starts."""
    directory.mkdir(mode=0o750, parents=True, exist_ok=True)
    for entry in directory.iterdir():
        if entry.is_socket():
            entry.unlink(missing_ok=True)  # its owner may be quicker

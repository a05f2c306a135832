"""A stand-in kubelet and plugins on it that do what a test tells them."""
# ruff: noqa: N802 - the protocol's names

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from devhost.api.v1beta1 import deviceplugin_pb2 as pb2
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb2_grpc
from devhost.standin.kubelet import SimulatedKubelet

COLA = "example.com/cola"
TEA = "example.com/tea"

Context = grpc.aio.ServicerContext[Any, Any]


def healthy(*ids: str) -> list[pb2.Device]:
    return [pb2.Device(ID=each, health="Healthy") for each in ids]


def unhealthy(*ids: str) -> list[pb2.Device]:
    return [pb2.Device(ID=each, health="Unhealthy") for each in ids]


class Bell(list[str]):
    """A list that tells of its first entry."""

    def __init__(self) -> None:
        super().__init__()
        self.rung = asyncio.Event()

    def append(self, entry: str) -> None:
        super().append(entry)
        self.rung.set()


class Plugin(pb2_grpc.DevicePluginServicer):
    """A plugin that does what its attributes say, and records what it is asked."""

    def __init__(self, socket_path: Path, devices: Iterable[pb2.Device]) -> None:
        self.socket = socket_path
        self.devices = list(devices)
        self.options = pb2.DevicePluginOptions()
        self.allocated: list[list[str]] = []
        self.preferred: list[pb2.ContainerPreferredAllocationRequest] = []
        self.started: list[list[str]] = []
        self.options_time_left: float | None = None
        self.prestart_time_left: float | None = None
        self.prefer: Callable[[list[str], int], list[str]] = lambda ids, size: sorted(ids)[:size]
        self.before_allocate: Callable[[], Awaitable[None]] | None = None
        self.answer: Callable[[list[str]], pb2.ContainerAllocateResponse] = lambda ids: (
            pb2.ContainerAllocateResponse(envs={"IDS": ",".join(ids)})
        )
        self.error: tuple[grpc.StatusCode, str] | None = None
        self.start_error: tuple[grpc.StatusCode, str] | None = None
        self.stream_ended = asyncio.Event()
        self._news = asyncio.Event()
        self._hang_up = False
        self._server: grpc.aio.Server | None = None

    async def serve(self) -> None:
        self._server = grpc.aio.server()
        pb2_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def list(self, *devices: pb2.Device) -> None:
        self.devices = [*devices]
        self._news.set()

    def hang_up(self) -> None:
        self._hang_up = True
        self._news.set()

    async def GetDevicePluginOptions(
        self, request: pb2.Empty, context: Context
    ) -> pb2.DevicePluginOptions:
        self.options_time_left = context.time_remaining()
        return self.options

    async def ListAndWatch(
        self, request: pb2.Empty, context: Context
    ) -> AsyncIterator[pb2.ListAndWatchResponse]:
        try:
            while not self._hang_up:
                self._news.clear()
                yield pb2.ListAndWatchResponse(devices=self.devices)
                await self._news.wait()
        finally:
            self.stream_ended.set()

    async def GetPreferredAllocation(
        self, request: pb2.PreferredAllocationRequest, context: Context
    ) -> pb2.PreferredAllocationResponse:
        if self.error is not None:
            await context.abort(*self.error)
        entry = request.container_requests[0]
        self.preferred.append(entry)
        ids = self.prefer(list(entry.available_deviceIDs), entry.allocation_size)
        answer = pb2.ContainerPreferredAllocationResponse(deviceIDs=ids)
        return pb2.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(
        self, request: pb2.AllocateRequest, context: Context
    ) -> pb2.AllocateResponse:
        if self.before_allocate is not None:
            await self.before_allocate()
        if self.error is not None:
            await context.abort(*self.error)
        ids = sorted(request.container_requests[0].devices_ids)
        self.allocated.append(ids)
        return pb2.AllocateResponse(container_responses=[self.answer(ids)])

    async def PreStartContainer(
        self, request: pb2.PreStartContainerRequest, context: Context
    ) -> pb2.PreStartContainerResponse:
        self.prestart_time_left = context.time_remaining()
        if self.start_error is not None:
            await context.abort(*self.start_error)
        self.started.append(sorted(request.devices_ids))
        return pb2.PreStartContainerResponse()


async def register(
    kubelet: SimulatedKubelet,
    endpoint: str,
    resource: str = COLA,
    version: str = "v1beta1",
    deadline: float = 15.0,
) -> None:
    path = f"unix:{kubelet.plugin_dir / 'kubelet.sock'}"
    async with grpc.aio.insecure_channel(path) as channel:
        request = pb2.RegisterRequest(version=version, endpoint=endpoint, resource_name=resource)
        await pb2_grpc.RegistrationStub(channel).Register(request, timeout=deadline)


async def refused(*args: object, **more: object) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await register(*args, **more)  # type: ignore[arg-type]
    return caught.value.code(), caught.value.details() or ""


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


async def next_change(kubelet: SimulatedKubelet, act: Callable[[], None]) -> None:
    changed = asyncio.Event()
    kubelet.on_change = changed.set
    act()
    await changed.wait()


class Node:
    """A kubelet and the plugins on it."""

    def __init__(self, kubelet: SimulatedKubelet, stack: AsyncExitStack) -> None:
        self.kubelet = kubelet
        self._stack = stack
        self._numbers = itertools.count()

    async def plugin(self, *devices: pb2.Device) -> Plugin:
        path = self.kubelet.plugin_dir / f"plugin-{next(self._numbers)}.sock"
        plugin = Plugin(path, devices)
        await plugin.serve()
        self._stack.push_async_callback(plugin.close)
        return plugin

    async def registered(
        self,
        *devices: pb2.Device,
        resource: str = COLA,
        options: pb2.DevicePluginOptions | None = None,
    ) -> Plugin:
        plugin = await self.plugin(*devices)
        plugin.options = options or plugin.options
        await register(self.kubelet, plugin.socket.name, resource)
        alive = sum(device.health == "Healthy" for device in devices)
        await self.kubelet.wait(resource, len(devices), alive)
        return plugin


@asynccontextmanager
async def a_node(directory: Path, pod_resources: Path | None = None) -> AsyncIterator[Node]:
    async with AsyncExitStack() as stack:
        kubelet = SimulatedKubelet(directory, pod_resources)
        stack.push_async_callback(kubelet.stop)
        await kubelet.start()
        yield Node(kubelet, stack)

"""A small device plugin of the tests' own, to see what a kubelet does to it."""
# ruff: noqa: N802 - the protocol's names

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from devhost.api.podresources.v1 import podresources_pb2 as pr
from devhost.api.podresources.v1 import podresources_pb2_grpc as pr_grpc
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.backends.sockets import open_channel
from tests.support.hosting import Kubelet

COLA: Final = "example.com/cola"
TEA: Final = "example.com/tea"

Context = grpc.aio.ServicerContext[Any, Any]
Hook = Callable[[], Awaitable[None]]

# By pod and container, the resource and ID of each device.
Listed = dict[str, dict[str, list[tuple[str, str]]]]


def healthy(*ids: str) -> list[pb.Device]:
    return [pb.Device(ID=device_id, health="Healthy") for device_id in ids]


def unhealthy(*ids: str) -> list[pb.Device]:
    return [pb.Device(ID=device_id, health="Unhealthy") for device_id in ids]


async def nothing() -> None:
    pass


class Plugin(pb_grpc.DevicePluginServicer):
    """A plugin that does what its attributes say, and records what it is asked."""

    def __init__(self, socket: Path, devices: Iterable[pb.Device]) -> None:
        self.socket, self.devices = socket, list(devices)
        self.options = pb.DevicePluginOptions()
        self.allocated: list[list[str]] = []
        self.preferred: list[tuple[list[str], list[str], int]] = []  # available, must, how many
        self.started: list[list[str]] = []
        self.time_left: dict[str, float | None] = {}  # of the caller's deadline, by call
        self.prefer: Callable[[list[str], int], list[str]] = lambda ids, size: ids[:size]
        self.on_prefer: Hook = nothing
        self.on_allocate: Hook = nothing
        self.on_start: Hook = nothing
        self.answer: Callable[[list[str]], pb.ContainerAllocateResponse] = lambda ids: (
            pb.ContainerAllocateResponse(envs={"IDS": ",".join(ids)})
        )
        self.errors: dict[str, tuple[grpc.StatusCode, str]] = {}  # by call
        self.stream_ended = asyncio.Event()
        self._news = asyncio.Event()
        self._hang_up = False
        self._server: grpc.aio.Server | None = None

    async def serve(self) -> None:
        self._server = grpc.aio.server()
        pb_grpc.add_DevicePluginServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self.socket}")
        await self._server.start()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.stop(None)

    def list(self, *devices: pb.Device) -> None:
        self.devices = [*devices]
        self._news.set()

    def hang_up(self) -> None:
        self._hang_up = True
        self._news.set()

    async def _called(self, call: str, context: Context) -> None:
        self.time_left[call] = context.time_remaining()
        if call in self.errors:
            await context.abort(*self.errors[call])

    async def GetDevicePluginOptions(
        self, request: pb.Empty, context: Context
    ) -> pb.DevicePluginOptions:
        await self._called("options", context)
        return self.options

    async def ListAndWatch(
        self, request: pb.Empty, context: Context
    ) -> AsyncIterator[pb.ListAndWatchResponse]:
        try:
            while not self._hang_up:
                self._news.clear()
                yield pb.ListAndWatchResponse(devices=self.devices)
                await self._news.wait()
        finally:
            self.stream_ended.set()

    async def GetPreferredAllocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        await self.on_prefer()
        await self._called("prefer", context)
        (entry,) = request.container_requests
        available, must = sorted(entry.available_deviceIDs), sorted(entry.must_include_deviceIDs)
        self.preferred.append((available, must, entry.allocation_size))
        free = [device_id for device_id in available if device_id not in must]
        ids = [*must, *self.prefer(free, entry.allocation_size - len(must))]
        answer = pb.ContainerPreferredAllocationResponse(deviceIDs=ids)
        return pb.PreferredAllocationResponse(container_responses=[answer])

    async def Allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        ids = sorted(request.container_requests[0].devices_ids)
        self.allocated.append(ids)
        await self.on_allocate()
        await self._called("allocate", context)
        return pb.AllocateResponse(container_responses=[self.answer(ids)])

    async def PreStartContainer(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        await self.on_start()
        await self._called("start", context)
        self.started.append(sorted(request.devices_ids))
        return pb.PreStartContainerResponse()


async def register(
    kubelet: Kubelet,
    endpoint: str,
    resource: str = COLA,
    deadline: float = 15.0,
) -> None:
    async with open_channel(kubelet.plugin_dir / "kubelet.sock") as channel:
        request = pb.RegisterRequest(version="v1beta1", endpoint=endpoint, resource_name=resource)
        await pb_grpc.RegistrationStub(channel).Register(request, timeout=deadline)


async def refused(*args: Any, **options: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await register(*args, **options)
    return caught.value.code(), caught.value.details() or ""


class Node:
    """A kubelet that runs, and plugins that end with it."""

    def __init__(self, kubelet: Kubelet, stack: AsyncExitStack) -> None:
        self.kubelet, self._stack = kubelet, stack
        self._numbers = itertools.count()

    async def plugin(self, *devices: pb.Device, endpoint: str | None = None) -> Plugin:
        name = endpoint or f"plugin-{next(self._numbers)}.sock"
        plugin = Plugin(self.kubelet.plugin_dir / name, devices)
        await plugin.serve()
        self._stack.push_async_callback(plugin.close)
        return plugin

    async def registered(
        self,
        *devices: pb.Device,
        resource: str = COLA,
        options: pb.DevicePluginOptions | None = None,
    ) -> Plugin:
        """Serve a plugin until the kubelet counts its devices."""
        plugin = await self.plugin(*devices)
        plugin.options = options or plugin.options
        await register(self.kubelet, plugin.socket.name, resource)
        alive = sum(device.health == "Healthy" for device in devices)
        await self.kubelet.wait(resource, len(devices), alive)
        return plugin


@asynccontextmanager
async def a_node(kubelet: Kubelet) -> AsyncIterator[Node]:
    """Start a kubelet, and stop it and the plugins at the end."""
    async with AsyncExitStack() as stack:
        await kubelet.start()
        stack.push_async_callback(kubelet.stop)
        yield Node(kubelet, stack)


@asynccontextmanager
async def lister(kubelet: Kubelet) -> AsyncIterator["pr_grpc.PodResourcesListerAsyncStub"]:
    async with open_channel(kubelet.pod_resources) as channel:
        yield pr_grpc.PodResourcesListerStub(channel)


async def listed(kubelet: Kubelet) -> Listed:
    """Return the pods that pod-resources shows, without devhost's own."""
    async with lister(kubelet) as stub:
        reply = await stub.List(pr.ListPodResourcesRequest(), timeout=60)
    return {
        pod.name: {
            container.name: sorted((d.resource_name, d.device_ids[0]) for d in container.devices)
            for container in pod.containers
        }
        for pod in reply.pod_resources
        if pod.namespace != "devhost"
    }

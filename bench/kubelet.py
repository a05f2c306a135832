"""The least of a kubelet: it follows the lists of the plugins that register, and allocates."""

import asyncio
import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as rpc

_OPTIONS = [
    ("grpc.default_authority", "localhost"),
    ("grpc.max_receive_message_length", 16 << 20),
    ("grpc.use_local_subchannel_pool", 1),
]
PATIENCE_S = 300.0


class Kubelet(rpc.RegistrationServicer):
    """Serves below a directory between `start` and `stop`.

    Attributes:
        counts: How many healthy devices each resource has.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.counts: dict[str, int] = {}
        self._plugins: dict[str, rpc.DevicePluginStub] = {}
        self._changed = asyncio.Condition()
        self._streams: set[asyncio.Task[None]] = set()
        self._server: grpc.aio.Server | None = None

    async def start(self) -> None:
        for socket in self._directory.glob("*.sock"):  # as kubelet does
            socket.unlink(missing_ok=True)  # the plugin may remove it meanwhile
        self._server = grpc.aio.server()
        rpc.add_RegistrationServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix:{self._directory / 'kubelet.sock'}")
        await self._server.start()

    async def stop(self) -> None:
        assert self._server is not None
        await self._server.stop(None)  # first: nobody can register with a kubelet that has ended
        for stream in self._streams:
            stream.cancel()
        await asyncio.gather(*self._streams, return_exceptions=True)
        self.counts.clear()
        self._plugins.clear()

    async def Register(self, request: pb.RegisterRequest, _context: Any) -> pb.Empty:  # noqa: N802
        channel = grpc.aio.insecure_channel(
            f"unix:{self._directory / request.endpoint}", options=_OPTIONS
        )
        stub: Any = rpc.DevicePluginStub(channel)
        await stub.GetDevicePluginOptions(pb.Empty())
        task = asyncio.create_task(self._follow(request.resource_name, channel, stub))
        self._streams.add(task)
        task.add_done_callback(self._streams.discard)
        return pb.Empty()

    async def _follow(self, resource: str, channel: grpc.aio.Channel, stub: Any) -> None:
        async with channel:
            with contextlib.suppress(grpc.aio.AioRpcError):
                async for listed in stub.ListAndWatch(pb.Empty()):
                    self._plugins[resource] = stub
                    self.counts[resource] = sum(
                        device.health == "Healthy" for device in listed.devices
                    )
                    async with self._changed:
                        self._changed.notify_all()

    async def until(self, true: Callable[[], bool]) -> None:
        """Wait until the lists say so."""
        async with asyncio.timeout(PATIENCE_S), self._changed:
            await self._changed.wait_for(true)

    async def allocate(self, resource: str, device: str) -> None:
        """Allocate a device."""
        wanted = pb.ContainerAllocateRequest(devices_ids=[device])
        stub: Any = self._plugins[resource]
        await stub.Allocate(pb.AllocateRequest(container_requests=[wanted]))

"""Clients of plugin sockets that no kubelet would be."""

import asyncio
import contextlib
import random
from pathlib import Path
from typing import Any

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


class Rogues:
    """Clients that send garbage, that say nothing, and that never read."""

    def __init__(self, plugins: Path, lots: random.Random) -> None:
        self._plugins, self._lots = plugins, lots
        self._silent: list[asyncio.StreamWriter] = []
        self._deaf: list[tuple[grpc.aio.Channel, Any]] = []

    async def come(self) -> str:
        """Do one thing; return which."""
        paths = sorted(self._plugins.glob("devhost-*.sock"))
        if not paths:
            return "nothing"
        path = self._lots.choice(paths)
        what = self._lots.choice(("garbage", "garbage", "silent client", "deaf client"))
        with contextlib.suppress(OSError):
            match what:
                case "garbage":
                    await self._garbage(path)
                case "silent client":
                    _, writer = await asyncio.open_unix_connection(path)
                    self._silent.append(writer)
                case _:
                    for each in self._lots.sample(paths, min(5, len(paths))):
                        self._listen_and_never_read(each)
        return what

    async def _garbage(self, path: Path) -> None:
        _, writer = await asyncio.open_unix_connection(path)
        start = self._lots.choice((b"", PREFACE, PREFACE + b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"))
        writer.write(start + self._lots.randbytes(self._lots.randint(1, 5000)))
        with contextlib.suppress(OSError):
            await writer.drain()
            await asyncio.sleep(self._lots.uniform(0, 0.05))
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    def _listen_and_never_read(self, path: Path) -> None:
        options = [("grpc.use_local_subchannel_pool", 1)]
        channel = grpc.aio.insecure_channel(f"unix:{path}", options=options)
        self._deaf.append((channel, pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())))

    async def go(self) -> None:
        """End all that is open."""
        while self._silent:
            self._silent.pop().close()
        while self._deaf:
            channel, call = self._deaf.pop()
            call.cancel()
            await channel.close()

"""Another client that connects to a plugin's socket harms nobody."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, directories

pytestmark = pytest.mark.slow

A = "example.com/a"
SILENT = """
import sys, time, grpc
from devhost.api.v1beta1 import deviceplugin_pb2 as pb, deviceplugin_pb2_grpc as pb_grpc
channel = grpc.insecure_channel(f"unix:{sys.argv[1]}", [("grpc.default_authority", "localhost")])
stream = pb_grpc.DevicePluginStub(channel).ListAndWatch(pb.Empty())
next(stream)
print("open", flush=True)
time.sleep(600)
"""


@contextlib.asynccontextmanager
async def silent(daemon: Daemon) -> AsyncIterator[None]:
    """Run a client that opens a stream on the one socket, and is stopped after the first list."""
    (name,) = daemon.sockets()
    client = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SILENT, str(daemon.plugins / name)), stdout=asyncio.subprocess.PIPE
    )
    try:
        assert client.stdout is not None
        assert await client.stdout.readline() == b"open\n"
        client.send_signal(signal.SIGSTOP)
        yield
    finally:
        client.kill()
        await client.wait()


async def test_client_that_does_not_read_holds_up_neither_lists_nor_the_end(
    standin: SimulatedKubelet, daemon: Daemon, directory: Path
) -> None:
    (directory / "a").mkdir()
    for number in range(1500):  # more than a connection takes unread
        (directory / "a" / f"{number:060}").touch()
    await daemon.start(directories(directory, "a"))
    await standin.wait(A, 1500, 1500)
    async with silent(daemon):
        for number in range(1500, 1510):
            (directory / "a" / f"{number:060}").touch()
            await standin.wait(A, number + 1, number + 1)
        await standin.restart()
        await at_rest(standin, daemon, {A: {path.name for path in (directory / "a").iterdir()}})
    async with silent(daemon):
        (directory / "a" / f"{1510:060}").touch()
        await standin.wait(A, 1511, 1511)
        assert await daemon.stop() == 0
        assert daemon.sockets() == set()

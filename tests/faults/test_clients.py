"""Another client that connects to a plugin's socket harms nobody."""

import asyncio
import contextlib
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.standin.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, directories, numbers, tokens

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


@pytest.fixture
async def channel(daemon: Daemon, standin: SimulatedKubelet) -> AsyncIterator[grpc.aio.Channel]:
    """A connection to the socket of a resource with three tokens."""
    await daemon.start(tokens(a=3))
    await at_rest(standin, daemon, {A: numbers(3)})
    (name,) = daemon.sockets()
    options = [("grpc.default_authority", "localhost")]
    async with grpc.aio.insecure_channel(f"unix:{daemon.plugins / name}", options) as channel:
        yield channel


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


async def test_allocates_at_once_are_all_answered(
    standin: SimulatedKubelet, daemon: Daemon, channel: grpc.aio.Channel
) -> None:
    """Also those that ask for nonsense."""
    stub = pb_grpc.DevicePluginStub(channel)

    async def ask(number: int) -> str:
        ids = [str(number % 3)] if number % 2 else ["nonsense", "\0" * 100]
        entry = pb.ContainerAllocateRequest(devices_ids=ids)
        try:
            await stub.Allocate(pb.AllocateRequest(container_requests=[entry]))
        except grpc.aio.AioRpcError as error:
            return error.code().name
        return "OK"

    answers = await asyncio.gather(*(ask(number) for number in range(200)))
    assert set(answers[1::2]) == {"OK"}
    assert set(answers[::2]) == {"FAILED_PRECONDITION"}
    await standin.admit("pod", {"app": {A: 3}})
    await at_rest(standin, daemon, {A: numbers(3)})

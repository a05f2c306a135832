"""Requests that kubelet would not send neither end the process nor change what it serves."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model import limits
from tests.support.daemon import Daemon, at_rest, numbers, tokens, until

A, B = "example.com/a", "example.com/b"
_ALLOCATE, _OPTIONS = "Allocate", "GetDevicePluginOptions"


def one_id(text: str) -> bytes:
    container = pb.ContainerAllocateRequest(devices_ids=[text])
    return pb.AllocateRequest(container_requests=[container]).SerializeToString()


# What a client may send that is not kubelet, and what it gets.
REQUESTS = {
    "too large": (_ALLOCATE, b"\n\0" * (limits.REQUEST_BYTES_MAX // 2 + 1), "RESOURCE_EXHAUSTED"),
    "an ID of 60 KiB": (_ALLOCATE, one_id("\u202e" * 20_000), "FAILED_PRECONDITION"),
    "no UTF-8": (_ALLOCATE, b"\n\4\n\2\xff\xfe", "UNKNOWN"),
    "no protobuf": (_ALLOCATE, b"\xff" * 1000, "UNKNOWN"),
    "unknown fields": (_OPTIONS, b"\x1a\0" * 1000, "OK"),
    "nothing": (_ALLOCATE, b"", "OK"),
}


@pytest.fixture
async def served(daemon: Daemon, standin: SimulatedKubelet) -> AsyncIterator[Daemon]:
    await daemon.start(tokens(a=3, b=3))
    await at_rest(standin, daemon, {A: numbers(3), B: numbers(3)})
    yield daemon
    await daemon.kill()


@contextlib.asynccontextmanager
async def channels(daemon: Daemon) -> AsyncIterator[list[grpc.aio.Channel]]:
    options = [
        ("grpc.default_authority", "localhost"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
    ]
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(f"unix:{daemon.plugins / name}", options)
            )
            for name in sorted(daemon.sockets())
        ]


async def ask(channel: grpc.aio.Channel, method: str, request: bytes, **options: Any) -> str:
    """Send bytes; return the status of the answer."""
    call: Any = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
    try:
        await call(request, timeout=60.0, **options)
    except grpc.aio.AioRpcError as error:
        assert len(error.details() or "") < 5000
        return error.code().name
    return "OK"


async def still_serves(standin: SimulatedKubelet, daemon: Daemon) -> None:
    pid = daemon.pid
    await standin.admit("pod", {"app": {A: 2, B: 2}})
    await standin.free("pod")
    await at_rest(standin, daemon, {A: numbers(3), B: numbers(3)})
    assert daemon.pid == pid
    assert daemon.found("Traceback") == []
    assert daemon.found("", level="error") == []
    assert await daemon.stop() == 0


async def test_request_not_of_kubelet_is_refused(served: Daemon, standin: SimulatedKubelet) -> None:
    async with channels(served) as all_sockets:
        for case, (method, request, status) in REQUESTS.items():
            answers = [await ask(channel, method, request) for channel in all_sockets]
            assert answers == [status, status], case
        metadata = [(f"x-{number}", "y" * 60_000) for number in range(20)]
        answers = await asyncio.gather(
            *(ask(channel, _OPTIONS, b"", metadata=metadata) for channel in all_sockets * 50)
        )
        assert "OK" not in answers
    await still_serves(standin, served)


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def test_connections_are_limited(served: Daemon, standin: SimulatedKubelet) -> None:
    before = served.figures().descriptors
    held = []
    for name in served.sockets():
        for number in range(2000):
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            while connection.connect_ex(str(served.plugins / name)) != 0:
                await asyncio.sleep(0.001)
            with contextlib.suppress(OSError):
                if number % 4 == 1:
                    connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
                elif number % 4 == 2:
                    connection.send(os.urandom(2000))
            if number % 4 == 3:
                connection.close()
            held.append(connection)
    most = before + 2 * limits.CONNECTIONS_MAX + 10
    await until(lambda: served.figures().descriptors <= most, "the others are closed")
    await standin.admit("pod", {"app": {A: 2, B: 2}})
    await standin.free("pod")
    for connection in held:
        connection.close()
    await until(lambda: served.figures().descriptors <= before, "all are closed")
    await still_serves(standin, served)

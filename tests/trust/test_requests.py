"""Who can reach a plugin's socket neither ends the process nor holds up other resources."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from devhost import limits
from devhost.api.v1beta1 import deviceplugin_pb2 as pb
from devhost.standin.kubelet import SimulatedKubelet
from tests.support.cgroup import chart_memory
from tests.support.daemon import Daemon, at_rest, numbers, tokens, until

A, B = "example.com/a", "example.com/b"
MIB = 1 << 20
FULL = 4 * MIB - 64  # of what gRPC receives

_ALLOCATE, _PREFER = "Allocate", "GetPreferredAllocation"
_PRE_START, _OPTIONS = "PreStartContainer", "GetDevicePluginOptions"


def many_ids(count: int, one: str = "") -> bytes:
    return pb.ContainerAllocateRequest(devices_ids=[one] * count).SerializeToString()


def nested(inner: bytes) -> bytes:
    """Return a request for one container."""
    return b"\n" + _varint(len(inner)) + inner


def _varint(number: int) -> bytes:
    text = b""
    while number > 127:
        text += bytes([number & 127 | 128])
        number >>= 7
    return text + bytes([number])


# What a client may send; none of it is of kubelet.
REQUESTS = {
    "many container requests": (_ALLOCATE, b"\n\0" * (FULL // 2)),
    "many container requests for choice": (_PREFER, b"\n\0" * (FULL // 2)),
    "as many as are small": (_ALLOCATE, b"\n\0" * 32_000),
    "17 container requests": (_ALLOCATE, nested(many_ids(1, "0")) * 17),
    "many empty IDs": (_ALLOCATE, nested(many_ids(FULL // 2))),
    "many empty IDs at a start": (_PRE_START, many_ids(FULL // 2)),
    "many free IDs": (_PREFER, nested(many_ids(700_000, "abcd"))),
    "an ID of 1 MiB": (_ALLOCATE, nested(many_ids(1, "x" * MIB))),
    "an ID of 60 KiB": (_ALLOCATE, nested(many_ids(1, "\0" * 60_000))),
    "an ID of 60 KiB at a start": (_PRE_START, many_ids(1, "\u202e" * 20_000)),
    "20,000 IDs": (_ALLOCATE, nested(many_ids(20_000, "0"))),
    "16 MiB": (_ALLOCATE, b"\n\0" * (8 * MIB)),
    "no UTF-8": (_ALLOCATE, nested(b"\n\2\xff\xfe")),
    "no protobuf": (_ALLOCATE, b"\xff" * 1000),
    "unknown fields": (_OPTIONS, b"\x1a\0" * (FULL // 2)),
    "nothing": (_ALLOCATE, b""),
}  # fmt: skip


@pytest.fixture
def memory(daemon: Daemon) -> Iterator[None]:
    with chart_memory() as daemon.wrapper:
        yield


@pytest.fixture
async def served(memory: None, daemon: Daemon, standin: SimulatedKubelet) -> AsyncIterator[Daemon]:
    await daemon.start(tokens(a=3, b=3))
    await at_rest(standin, daemon, {A: numbers(3), B: numbers(3)})
    yield daemon
    await daemon.kill()


@contextlib.asynccontextmanager
async def channels(daemon: Daemon, *more: tuple[str, Any]) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Connect to all sockets."""
    options = [
        ("grpc.default_authority", "localhost"),
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_retries", 0),
        *more,
    ]
    async with contextlib.AsyncExitStack() as stack:
        yield [
            await stack.enter_async_context(
                grpc.aio.insecure_channel(f"unix:{daemon.plugins / name}", options)
            )
            for name in sorted(daemon.sockets())
        ]


async def ask(channel: grpc.aio.Channel, method: str, request: bytes, **more: Any) -> str:
    """Send bytes; return the status of the answer."""
    call: Any = channel.unary_unary(f"/v1beta1.DevicePlugin/{method}")
    try:
        await call(request, timeout=60.0, **more)
    except grpc.aio.AioRpcError as error:
        assert len(error.details() or "") < 5000
        return error.code().name
    return "OK"


async def still_serves(standin: SimulatedKubelet, daemon: Daemon) -> None:
    """Kubelet is served as before, with the same process, which ends when it should."""
    pid = daemon.pid
    await standin.admit("pod", {"app": {A: 2, B: 2}})
    await standin.free("pod")
    await at_rest(standin, daemon, {A: numbers(3), B: numbers(3)})
    assert daemon.pid == pid
    assert daemon.found("Traceback") == []
    assert daemon.found("", level="error") == []
    assert await daemon.stop() == 0


async def test_requests_that_are_none_of_kubelets(
    served: Daemon, standin: SimulatedKubelet
) -> None:
    """Whatever is asked, sixteen times concurrently on each socket."""
    async with channels(served) as all_sockets:
        for what, (method, request) in REQUESTS.items():
            answers = await asyncio.gather(
                *(ask(channel, method, request) for channel in all_sockets for _ in range(16))
            )
            good = what == "nothing" or method == _OPTIONS  # which has no request that is read
            known = {"OK"} if good else {"RESOURCE_EXHAUSTED", "FAILED_PRECONDITION"}
            assert set(answers) <= known, what
            assert await ask(all_sockets[0], _OPTIONS, b"") == "OK"
    await still_serves(standin, served)


async def test_kubelets_answers_during_a_flood(served: Daemon, standin: SimulatedKubelet) -> None:
    """Pods are admitted while others send all that they can."""
    over = asyncio.Event()

    async def flood(channel: grpc.aio.Channel, number: int) -> None:
        kinds = list(REQUESTS.values())
        while not over.is_set():
            number += 1
            await ask(channel, *kinds[number % len(kinds)])

    async with channels(served) as all_sockets, asyncio.TaskGroup() as floods:
        for number in range(8):
            floods.create_task(flood(all_sockets[number % 2], number))
        for number in range(10):
            await standin.admit(f"pod-{number}", {"app": {A: 2, B: 2}})
            await standin.free(f"pod-{number}")
        over.set()
    await still_serves(standin, served)


async def test_calls_that_never_send_their_request(
    served: Daemon, standin: SimulatedKubelet
) -> None:
    """They make room for others."""
    async with channels(served) as all_sockets:
        calls = []
        for channel in all_sockets:
            call: Any = channel.stream_unary("/v1beta1.DevicePlugin/Allocate")
            calls += [call(timeout=60.0) for _ in range(100)]
        await asyncio.gather(*(call.wait_for_connection() for call in calls))
        await standin.admit("pod", {"app": {A: 2, B: 2}})
        await standin.free("pod")
        assert {await call.code() for call in calls} == {grpc.StatusCode.RESOURCE_EXHAUSTED}
        assert served.found("request on a plugin socket refused")
    await still_serves(standin, served)


async def test_requests_that_stop_before_their_end(
    served: Daemon, standin: SimulatedKubelet
) -> None:
    """Each holds nearly all of the largest request; those who wait get their place."""
    held = [stalled(served.plugins / name, FULL) for name in served.sockets() for _ in range(20)]
    for number in range(10):
        await standin.admit(f"pod-{number}", {"app": {A: 2, B: 2}})
        await standin.free(f"pod-{number}")
    for connection in held:
        connection.close()
    await still_serves(standin, served)


def stalled(path: Path, size: int) -> socket.socket:
    """Call Allocate with a message of `size` bytes, as much of it as is taken."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(path))
    with contextlib.suppress(OSError):
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
        headers = {
            ":method": "POST", ":scheme": "http", ":path": "/v1beta1.DevicePlugin/Allocate",
            ":authority": "localhost", "te": "trailers", "content-type": "application/grpc",
        }  # fmt: skip
        block = b"".join(
            b"\0" + b"".join(bytes([len(text)]) + text.encode() for text in pair)
            for pair in headers.items()
        )
        connection.sendall(_frame(1, 4, 1, block))
        connection.settimeout(0.2)
        message = b"\0" + size.to_bytes(4) + b"\n\0" * (size // 2)
        for at in range(0, size - 16_000, 16_000):
            connection.sendall(_frame(0, 0, 1, message[at : at + 16_000]))
    return connection


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + payload


async def test_many_streams(served: Daemon, standin: SimulatedKubelet) -> None:
    """Of a thousand ListAndWatch on a socket a few are open; kubelet's stays."""
    async with channels(served) as all_sockets:
        listen: Any = all_sockets[0].unary_stream("/v1beta1.DevicePlugin/ListAndWatch")
        calls = [listen(b"", timeout=60.0) for _ in range(1000)]

        async def first(call: Any) -> str:
            try:
                return "list" if await call.read() is not grpc.aio.EOF else "end"
            except grpc.aio.AioRpcError as error:
                return str(error.code().name)

        seen = [asyncio.ensure_future(first(call)) for call in calls]
        await until(lambda: sum(one.done() for one in seen) >= limits.STREAMS_MAX - 1, "answers")
        refused = [one for one in seen if one.done() and one.result() == "RESOURCE_EXHAUSTED"]
        open_ones = [one for one in seen if one.done() and one.result() == "list"]
        assert len(open_ones) <= limits.STREAMS_MAX
        assert len(refused) + len(open_ones) > 0
        for call in calls:
            call.cancel()
        for one in seen:
            one.cancel()
    await still_serves(standin, served)


async def test_many_connections(served: Daemon, standin: SimulatedKubelet) -> None:
    """They are closed, but for a few; kubelet's stays."""
    before = served.figures().descriptors
    held = []
    for name in served.sockets():
        for number in range(2000):
            connection = socket.socket(socket.AF_UNIX)
            connection.setblocking(False)
            while connection.connect_ex(str(served.plugins / name)) != 0:
                await asyncio.sleep(0.001)
            with contextlib.suppress(OSError):
                if number % 2:
                    connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4, 0, 0, b""))
            held.append(connection)
    most = before + 2 * limits.CONNECTIONS_MAX + 10
    await until(lambda: served.figures().descriptors <= most, "the others are closed")
    await standin.admit("pod", {"app": {A: 2, B: 2}})
    await standin.free("pod")
    for connection in held:
        connection.close()
    await still_serves(standin, served)


async def test_large_metadata(served: Daemon, standin: SimulatedKubelet) -> None:
    async with channels(served) as all_sockets:
        metadata = [(f"x-{number}", "y" * 60_000) for number in range(20)]
        answers = await asyncio.gather(
            *(ask(channel, _OPTIONS, b"", metadata=metadata) for channel in all_sockets * 50)
        )
        assert "OK" not in answers
    await still_serves(standin, served)

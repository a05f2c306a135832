"""The HTTP server, and clients that wish it ill."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from http import HTTPStatus
from typing import Final

import pytest

from devhost.observe import http
from devhost.observe.http import Response, serve_http, throttle
from tests.support.asking import get, send

LARGE = 50_000_000
MEDIUM = 60_000  # more than small buffers of the kernel take, less than the loop waits for


def broken() -> Response:
    raise LookupError("a mistake")


ROUTES: Final = {
    "/": lambda: Response(b"hello"),
    "/no": lambda: Response(b"no", status=HTTPStatus.SERVICE_UNAVAILABLE),
    "/medium": lambda: Response(b"x" * MEDIUM),
    "/large": lambda: Response(b"x" * LARGE),
    "/broken": broken,
}


@pytest.fixture
async def port() -> AsyncIterator[int]:
    bound = socket.create_server(("127.0.0.1", 0))
    async with serve_http(bound, ROUTES):
        yield bound.getsockname()[1]


async def test_response_has_its_body_and_headers(port: int) -> None:
    response = await get(port, "/?query=is&ignored#so")
    assert (response.status, response.body) == (200, b"hello")
    assert response.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert response.headers["Cache-Control"] == "no-store"
    assert (await get(port, "/no")).status == 503
    assert len((await get(port, "/large")).body) == LARGE
    response = await send(port, b"HEAD / HTTP/1.0\r\n\r\n")
    assert (response.status, response.body, response.headers["Content-Length"]) == (200, b"", "5")


@pytest.mark.parametrize(
    ("line", "status"),
    [
        (b"GET /other HTTP/1.1", 404),
        (b"GET /../ HTTP/1.1", 404),
        (b"POST / HTTP/1.1", 405),
        (b"POST /other HTTP/1.1", 404),
        (b"GET /broken HTTP/1.1", 500),
        (b"GET  / HTTP/1.1", 400),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400),
    ],
)
async def test_request_that_is_wrong_has_its_status(port: int, line: bytes, status: int) -> None:
    response = await send(port, line + b"\r\nHost: localhost\r\n\r\n")
    assert response.status == status
    if status == 405:
        assert response.headers["Allow"] == "GET, HEAD"


@pytest.mark.parametrize(
    ("line", "status"),
    [(b"Host: localhost:9111", 200), (b"host:LOCALHOST", 200), (b"Host: 127.0.0.1:9111", 200),
     (b"Host: [::1]:9111", 200), (b"Host: Node-1.example.com:9111", 200),
     (b"Host: localhost\r\nX-Host: evil.com", 200), (b"Host: evil.com", 421),
     (b"HOST:\tevil.com:9111 ", 421), (b"Host: localhost.evil.com", 421),
     (b"Host: 127.0.0.1.evil.com", 421), (b"Host: localhost@evil.com", 421),
     (b"Host: localhost\r\nHost: evil.com", 400), (b"Host: [", 421)],
)  # fmt: skip
async def test_request_for_another_host_name_is_refused(line: bytes, status: int) -> None:
    bound = socket.create_server(("127.0.0.1", 0))
    async with serve_http(bound, {"/": lambda: Response(b"hello")}, "node-1.example.com"):
        port = bound.getsockname()[1]
        response = await send(port, b"GET / HTTP/1.1\r\nA: b\r\n%s\r\n\r\n" % line)
        assert response.status == status


async def test_request_with_an_endless_head_is_cut_off(port: int) -> None:
    """The answer may be lost with the bytes that were not read."""
    response = await send(port, b"GET / HTTP/1.1\r\nX: " + b"x" * 10 * http.HEAD_BYTES_MAX)
    assert response.status in (400, 0)
    assert (await get(port, "/")).status == 200


async def test_connections_beyond_the_limit_end_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A new connection gets through, though the others say nothing or do not read."""
    monkeypatch.setattr(http, "PATIENCE_S", 3600.0)
    bound = socket.create_server(("127.0.0.1", 0))
    async with contextlib.AsyncExitStack() as stack, asyncio.timeout(60):
        await stack.enter_async_context(serve_http(bound, ROUTES))
        readers = []
        for number in range(2 * http.CONNECTIONS_MAX):
            reader, writer = await asyncio.open_connection(*bound.getsockname(), limit=1024)
            stack.callback(writer.close)
            writer.write((b"GET / HT", b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n")[number % 2])
            readers.append(reader)
        assert (await get(bound.getsockname()[1], "/")).body == b"hello"
        for reader in readers[: http.CONNECTIONS_MAX]:
            with contextlib.suppress(ConnectionError):
                assert len(await reader.read()) < LARGE


@pytest.mark.parametrize("raw", [b"", b"GET / HT", b"GET /large HTTP/1.1\r\nHost: a\r\n\r\n"])
async def test_connection_slow_is_cut_off(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http, "PATIENCE_S", 0.1)
    bound = socket.create_server(("127.0.0.1", 0))
    async with serve_http(bound, ROUTES), asyncio.timeout(60):
        reader, writer = await asyncio.open_connection(*bound.getsockname(), limit=1024)
        writer.write(raw)
        await asyncio.sleep(0.2)  # it does not read either
        with contextlib.suppress(ConnectionError):
            assert len(await reader.read()) < LARGE
        writer.close()


@pytest.mark.parametrize("raw", [b"", b"GET", b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 9000])
async def test_connection_reset_is_no_error(
    port: int, caplog: pytest.LogCaptureFixture, raw: bytes
) -> None:
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.sendall(raw)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    assert (await get(port, "/")).status == 200
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


def test_throttled_response_is_made_a_tenth_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A response that took 1 s serves for the next 10 s; one that took no time is made again."""
    clock = [0.0]
    made: list[float] = []
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    def route(cost: float) -> Response:
        made.append(clock[0])
        clock[0] += cost
        return Response(b"")

    for cost, times in ((1.0, (100.0, 105.0, 110.9, 111.0)), (0.0, (200.0, 200.0))):
        spared = throttle(lambda cost=cost: route(cost))  # type: ignore[misc]
        for clock[0] in times:
            spared()
    assert made == [100.0, 111.0, 200.0, 200.0]

"""A minimal HTTP/1.1 server on the event loop: an answer shows that the loop is running.

Clients are not trusted: the size and duration of requests and the number of connections are
limited. A new connection beyond the limit closes the oldest one, so that a probe gets through. A
page of another site that makes its own name lead here (DNS rebinding) can be refused.
"""

import asyncio
import contextlib
import ipaddress
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import field
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from devhost.immutable import immutable

CONNECTIONS_MAX: Final = 16
PATIENCE_S: Final = 10.0  # for a request and its response
HEAD_BYTES_MAX: Final = 8192
_CHUNK_BYTES: Final = 64 * 1024
_PAUSE_FACTOR: Final = 10
_REQUEST: Final = re.compile(rb"([A-Z]{1,20}) (\S+) HTTP/1\.[01]")
_HOST: Final = re.compile(rb"\r\nhost:[ \t]*(.*?)[ \t]*(?=\r\n)", re.IGNORECASE)
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_LOG: Final = logging.getLogger(__name__)


@immutable
class Response:
    """A response."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)

    def head(self) -> bytes:
        """Return the status line and the headers."""
        headers = {
            "Content-Type": self.content_type,
            "Content-Length": str(len(self.body)),
            **_HEADERS,
            **self.headers,
        }
        lines = [f"HTTP/1.1 {self.status} {self.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode("ascii")


Route = Callable[[], Response]


def throttled(route: Route) -> Route:
    """Return the last response again for ten times as long as it took to make.

    So the requests take at most a tenth of the event loop's time, however many there are.
    """
    last: Response | None = None
    until = 0.0

    def cached() -> Response:
        nonlocal last, until
        began = time.monotonic()
        if last is None or began >= until:
            last = route()
            ended = time.monotonic()
            until = ended + _PAUSE_FACTOR * (ended - began)
        return last

    return cached


class HttpServer:
    """Serves GET and HEAD requests for a few paths.

    Args:
        routes: By path.
        name: Refuse requests for other names than this one, ``localhost`` and IP addresses;
            ``None`` accepts all.
    """

    def __init__(self, routes: Mapping[str, Route], name: str | None = None) -> None:
        self._routes = routes
        self._name = name
        self._open: dict[asyncio.Task[None], None] = {}  # oldest first

    @contextlib.asynccontextmanager
    async def serving(self, sock: socket.socket) -> AsyncIterator[None]:
        """Serve on a listening socket, and close it at the end."""
        server = await asyncio.start_server(self._connected, sock=sock, limit=HEAD_BYTES_MAX)
        try:
            yield
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # noqa: S101 (the coroutine runs in a task)
        self._open[task] = None
        if len(self._open) > CONNECTIONS_MAX:
            oldest = next(iter(self._open))
            del self._open[oldest]
            oldest.cancel()
        try:
            # Connection errors concern only the client.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                async with asyncio.timeout(PATIENCE_S):
                    await self._exchange(reader, writer)
                    writer.close()
                    await writer.wait_closed()
        finally:
            transport = writer.transport
            # In Python 3.11 abort() fails after close() has flushed the buffer.
            if not transport.is_closing() or transport.get_write_buffer_size():
                transport.abort()
            self._open.pop(task, None)

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with_body = True
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            response = _error(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        except asyncio.IncompleteReadError as error:
            if not error.partial:
                return
            response = _error(HTTPStatus.BAD_REQUEST)
        else:
            with_body = not head.startswith(b"HEAD ")
            response = self._answer(head)
        writer.write(response.head())
        body = memoryview(response.body if with_body else b"")
        for start in range(0, len(body), _CHUNK_BYTES):
            writer.write(body[start : start + _CHUNK_BYTES])
            await writer.drain()

    def _answer(self, head: bytes) -> Response:
        request = _REQUEST.fullmatch(head.partition(b"\r\n")[0])
        if request is None:
            return _error(HTTPStatus.BAD_REQUEST)
        try:
            target = urlsplit(request[2].decode("ascii"))
            hosts = [host.decode("ascii") for host in _HOST.findall(head)]
            names = {urlsplit(f"//{host}").hostname for host in [*hosts, target.netloc] if host}
        except ValueError:
            return _error(HTTPStatus.BAD_REQUEST)
        if not all(self._is_ours(name or "") for name in names):
            return _error(HTTPStatus.MISDIRECTED_REQUEST)
        route = self._routes.get(target.path)
        if route is None:
            return _error(HTTPStatus.NOT_FOUND)
        if request[1] not in (b"GET", b"HEAD"):
            return _error(HTTPStatus.METHOD_NOT_ALLOWED, {"Allow": "GET, HEAD"})
        try:
            return route()
        except Exception:  # noqa: BLE001 (logged; the client gets a response)
            _LOG.exception("HTTP request failed", extra={"fields": {"path": target.path}})
            return _error(HTTPStatus.INTERNAL_SERVER_ERROR)

    def _is_ours(self, name: str) -> bool:
        if self._name is None or name in ("localhost", self._name.lower()):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


def _error(status: HTTPStatus, headers: Mapping[str, str] | None = None) -> Response:
    return Response(f"{status} {status.phrase}\n".encode(), status=status, headers=headers or {})

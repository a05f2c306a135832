"""HTTP for probes, metrics and the status page: an answer shows that the event loop is running.

Clients are not trusted: uvicorn bounds the size of a request's head; connections are limited in
number and time. A new connection beyond the limit closes the oldest one, so that a probe gets
through. A page of another site that makes its own name lead here (DNS rebinding) can be refused.
"""

import asyncio
import base64
import contextlib
import hashlib
import ipaddress
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

CONNECTIONS_MAX: Final = 16
PATIENCE_S: Final = 10.0  # for a request and its response
HEAD_BYTES_MAX: Final = 8192
_PAUSE_FACTOR: Final = 10
_HEADERS: Final = {
    "Cache-Control": "no-store",
    "Connection": "close",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_PAGE: Final = Path(__file__).with_name("page.html")


@dataclass(frozen=True, slots=True)
class Response:
    """A response."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = field(default_factory=dict)


Route = Callable[[], Response]


def throttle(route: Route) -> Route:
    """Return a route that repeats its last response for ten times as long as that took to make.

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


def read_page() -> Response:
    """Return the status page, with a policy that it loads only its own style and script."""
    html, policy = _PAGE.read_text(encoding="utf-8"), "default-src 'none'; "
    for element in ("style", "script"):
        (content,) = re.findall(rf"<{element}>(.*?)</{element}>", html, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        policy += f"{element}-src 'sha256-{digest}'; "
    policy += "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    headers = {"Content-Security-Policy": policy}
    return Response(html.encode(), "text/html; charset=utf-8", headers=headers)


@contextlib.asynccontextmanager
async def serve_http(
    sock: socket.socket, routes: Mapping[str, Route], name: str | None = None
) -> AsyncIterator[None]:
    """Serve GET and HEAD requests on a listening socket, and close it at the end.

    With a `name`, requests for another name are refused, but for ``localhost`` and IP addresses.
    """

    async def app(scope: Any, _receive: Any, send: Any) -> None:
        response = _answer(scope, routes, name)
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            **_HEADERS,
            **response.headers,
        }
        raw = [(key.lower().encode(), value.encode()) for key, value in headers.items()]
        await send({"type": "http.response.start", "status": response.status.value, "headers": raw})
        await send({"type": "http.response.body", "body": response.body})

    config = uvicorn.Config(
        app,
        http=_bounded(),
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[assignment] # they are the process's
    serve = asyncio.create_task(server.serve(sockets=[sock]), name="http")
    try:
        yield
    finally:
        server.should_exit = True
        await serve


def _bounded() -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with bounds for the connections of one server.

    uvicorn itself waits without limit for the first request of a connection.
    """
    connections: dict[asyncio.Transport, None] = {}  # oldest first

    class Bounded(H11Protocol):
        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(transport)
            self._end = self.loop.call_later(PATIENCE_S, transport.abort)
            connections[transport] = None
            if len(connections) > CONNECTIONS_MAX:
                next(iter(connections)).abort()

        def connection_lost(self, exc: Exception | None) -> None:
            self._end.cancel()
            connections.pop(self.transport, None)
            super().connection_lost(exc)

    return Bounded


def _answer(scope: Mapping[str, Any], routes: Mapping[str, Route], name: str | None) -> Response:
    hosts = [value.decode("latin-1") for key, value in scope["headers"] if key == b"host"]
    if name is not None and not all(_is_own_host(host, name) for host in hosts if host):
        status = HTTPStatus.MISDIRECTED_REQUEST
    elif (route := routes.get(scope["path"])) is None:
        status = HTTPStatus.NOT_FOUND
    elif scope["method"] not in ("GET", "HEAD"):
        status = HTTPStatus.METHOD_NOT_ALLOWED
    else:
        return route()
    allow = {"Allow": "GET, HEAD"} if status is HTTPStatus.METHOD_NOT_ALLOWED else {}
    return Response(f"{status} {status.phrase}\n".encode(), status=status, headers=allow)


def _is_own_host(host: str, name: str) -> bool:
    """Whether a ``Host`` header has this name, ``localhost`` or an address."""
    try:
        hostname = urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return False
    with contextlib.suppress(ValueError):
        return bool(ipaddress.ip_address(hostname))
    return hostname in ("localhost", name.lower())

"""A host's HTTP side: metrics and probes at one address, its status and a page at another.

The status names devices, paths and pods, so it is not served to everybody who may scrape metrics.
"""

import contextlib
import json
import logging
import socket
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Final

from devhost.daemon.collector import HostCollector
from devhost.daemon.status import Json, readiness, status
from devhost.errors import describe_os_error
from devhost.node.node import Host
from devhost.observe.address import Address
from devhost.observe.http import Response, read_page, serve_http, throttle
from devhost.observe.metrics import CONTENT_TYPE

_LOG: Final = logging.getLogger(__name__)


class ListenError(Exception):
    """An address cannot be bound; the text names the flag."""


class Endpoint:
    """Binds its addresses when it is created, or raises `ListenError`; answers while a host runs.

    With `devices` the metrics include which pod holds which device.
    """

    def __init__(
        self, listen: Address | None, status_listen: Address | None, *, devices: bool
    ) -> None:
        self._listen = _bind("--listen", listen)
        self._status_listen = _bind("--status-listen", status_listen)
        self._name = status_listen.host if status_listen else ""
        self._devices = devices

    @property
    def urls(self) -> dict[str, str]:
        """The URLs, for a browser on this machine, of the metrics and of the status page."""
        sockets = {"metrics": (self._listen, "/metrics"), "status page": (self._status_listen, "/")}
        return {
            title: f"http://{_address(sock).local}{path}"
            for title, (sock, path) in sockets.items()
            if sock is not None
        }

    async def serve_while(self, host: Host, work: Coroutine[Any, Any, None]) -> None:
        """Answer for a host while ``work`` runs."""
        metrics, page = host.parts.metrics, read_page()
        metrics.registry.register(HostCollector(host, devices=self._devices))
        routes = {
            "/healthz": lambda: Response(b"ok\n"),
            "/readyz": lambda: _readyz(host),
            "/metrics": throttle(lambda: Response(metrics.text(), CONTENT_TYPE)),
        }
        status_routes = {"/": lambda: page, "/status": throttle(lambda: _json(status(host)))}
        with contextlib.closing(work):  # it never starts if a server is cancelled first
            async with contextlib.AsyncExitStack() as stack:
                if sock := self._listen:
                    await stack.enter_async_context(serve_http(sock, routes))
                    _log_address("listening", sock)
                if sock := self._status_listen:
                    await stack.enter_async_context(serve_http(sock, status_routes, self._name))
                    _log_address("listening for status", sock)
                await work


def _readyz(host: Host) -> Response:
    report = readiness(host)
    return _json(report, HTTPStatus.OK if report["ready"] else HTTPStatus.SERVICE_UNAVAILABLE)


def _bind(flag: str, address: Address | None) -> socket.socket | None:
    try:
        return address.bind() if address else None
    except OSError as error:
        reason = describe_os_error(error).partition(" (")[0]  # Python appends the address
        raise ListenError(f"{flag}: {address}: {reason}") from None


def _log_address(message: str, sock: socket.socket) -> None:
    _LOG.info(message, extra={"fields": {"address": str(_address(sock))}})


def _address(sock: socket.socket) -> Address:
    return Address(*sock.getsockname()[:2])


def _json(value: Json, code: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(json.dumps(value).encode() + b"\n", "application/json", code)

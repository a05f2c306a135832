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

from devhost.host.metrics import families
from devhost.host.status import readiness, status
from devhost.host.supervisor import Host
from devhost.observe import page
from devhost.observe.address import Address
from devhost.observe.http import Response, Route, serving, throttled
from devhost.observe.metrics import CONTENT_TYPE

_JSON: Final = "application/json"
_LOG: Final = logging.getLogger(__name__)


class ListenError(Exception):
    """An address cannot be bound; the text names the flag."""


class Endpoint:
    """Binds its addresses when it is created, and answers while its host runs.

    Args:
        listen: The address of metrics and probes; ``None`` for neither.
        status_listen: The address of the status; ``None`` for no status.
        devices: Whether the metrics include which pod holds which device.

    Raises:
        ListenError: An address cannot be bound.
    """

    def __init__(
        self,
        listen: Address | None = None,
        status_listen: Address | None = None,
        *,
        devices: bool = False,
    ) -> None:
        self._listen = _bound("--listen", listen)
        self._status_listen = _bound("--status-listen", status_listen)
        self._name = status_listen.host if status_listen else ""
        self._devices = devices

    @property
    def urls(self) -> dict[str, str]:
        """What is served, and where a browser on this machine finds it."""
        sockets = {"metrics": (self._listen, "/metrics"), "status page": (self._status_listen, "/")}
        return {
            what: f"http://{_address(sock).near}{path}"
            for what, (sock, path) in sockets.items()
            if sock is not None
        }

    async def serve_during(self, host: Host, work: Coroutine[Any, Any, None]) -> None:
        """Answer for a host while ``work`` runs."""
        with contextlib.closing(work):  # it never starts if a server is cancelled first
            async with contextlib.AsyncExitStack() as stack:
                if sock := self._listen:
                    await stack.enter_async_context(serving(sock, self.routes(host)))
                    _log_address("listening", sock)
                if sock := self._status_listen:
                    await stack.enter_async_context(serving(sock, status_routes(host), self._name))
                    _log_address("listening for status", sock)
                await work

    def routes(self, host: Host) -> dict[str, Route]:
        """Return the routes of metrics and probes, by path."""
        host.shared.metrics.expose(lambda: families(host, devices=self._devices))
        return {
            "/healthz": lambda: Response(b"ok\n"),
            "/readyz": lambda: _readyz(host),
            "/metrics": throttled(lambda: self._metrics(host)),
        }

    def _metrics(self, host: Host) -> Response:
        metrics = host.shared.metrics
        metrics.keep([runner.name for runner in host.runners])
        return Response(metrics.text(), CONTENT_TYPE)


def status_routes(host: Host) -> dict[str, Route]:
    """Return the routes of the status and its page, by path."""
    content = page.load()
    return {"/": lambda: content, "/status": throttled(lambda: _status(host))}


def _bound(flag: str, address: Address | None) -> socket.socket | None:
    try:
        return address.bind() if address else None
    except OSError as error:
        reason = (error.strerror or str(error)).partition(" (")[0]  # Python appends the address
        raise ListenError(f"{flag}: {address}: {reason}") from None


def _log_address(message: str, sock: socket.socket) -> None:
    _LOG.info(message, extra={"fields": {"address": str(_address(sock))}})


def _address(sock: socket.socket) -> Address:
    return Address(*sock.getsockname()[:2])


def _status(host: Host) -> Response:
    return _json(status(host))


def _readyz(host: Host) -> Response:
    shown = readiness(host)
    code = HTTPStatus.OK if shown["ready"] else HTTPStatus.SERVICE_UNAVAILABLE
    return _json(shown, code)


def _json(value: object, code: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(json.dumps(value).encode() + b"\n", _JSON, code)

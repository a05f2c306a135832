"""A host's HTTP side: metrics, probes, its status, and a page for people."""

import contextlib
import json
import logging
from collections.abc import Coroutine
from http import HTTPStatus
from typing import Any, Final

from devhost.host.status import facts, readiness, status
from devhost.host.supervisor import Host
from devhost.kubelet.servicer import RESULTS
from devhost.observe import page
from devhost.observe.address import Address
from devhost.observe.counters import Counters
from devhost.observe.http import HttpServer, Response, Route, throttled

_JSON: Final = "application/json"
_LOG: Final = logging.getLogger(__name__)


class Endpoint:
    """Binds its address when it is created, and answers while its host runs.

    Args:
        address: The address.
        devices: Whether the metrics include which pod holds which device.

    Attributes:
        recorder: Counts what the metrics show.

    Raises:
        OSError: The address cannot be bound.
    """

    def __init__(self, address: Address, *, devices: bool = False) -> None:
        self._socket = address.bind()
        self._devices = devices
        self.recorder = Counters(RESULTS)

    async def serve_during(self, host: Host, work: Coroutine[Any, Any, None]) -> None:
        """Answer for a host while ``work`` runs."""
        with contextlib.closing(work):  # it never starts if the server is cancelled first
            async with HttpServer(self.routes(host)).serving(self._socket):
                where, port = self._socket.getsockname()[:2]
                _LOG.info("listening", extra={"fields": {"address": str(Address(where, port))}})
                await work

    def routes(self, host: Host) -> dict[str, Route]:
        """Return the routes, by path."""
        content = page.load()
        return {
            "/": lambda: content,
            "/healthz": lambda: Response(b"ok\n"),
            "/readyz": lambda: _readyz(host),
            "/status": throttled(lambda: _json(status(host))),
            "/metrics": throttled(lambda: self._metrics(host)),
        }

    def _metrics(self, host: Host) -> Response:
        from devhost.observe import metrics  # noqa: PLC0415 (imports prometheus_client, which not every host needs)

        text = metrics.text(self.recorder, facts(host, devices=self._devices))
        return Response(text, metrics.CONTENT_TYPE)


def _readyz(host: Host) -> Response:
    shown = readiness(host)
    code = HTTPStatus.OK if shown["ready"] else HTTPStatus.SERVICE_UNAVAILABLE
    return _json(shown, code)


def _json(value: object, code: HTTPStatus = HTTPStatus.OK) -> Response:
    return Response(json.dumps(value).encode() + b"\n", _JSON, code)

"""A client of the API server: plain JSON over HTTPS, with a token and a CA that may be replaced."""

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, Final

import httpx2
from prometheus_client import Counter

from devhost.errors import DevhostError
from devhost.model.names import printable
from devhost.watch.threads import run_in_thread

_Json = dict[str, Any]
NO_ANSWER: Final = 0  # in the place of an HTTP status
_TIMEOUT: Final = httpx2.Timeout(10.0, connect=5.0)
_CALL_S: Final = 60.0  # for all of an answer
_BYTES_MAX: Final = 16 << 20  # of an answer, and of a line of a watch
_RETRY_AFTER_MAX_S: Final = 30.0  # less than kubelet waits for a claim
_WATCH_S: Final = 300  # then the API server ends a watch
_WATCH_TIMEOUT: Final = httpx2.Timeout(_WATCH_S + 30.0, connect=5.0)
_KEEPALIVE: Final = (  # a connection that a firewall has forgotten, or of a dead host, ends in 30 s
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 15),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 5),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
)
_TEXT_MAX: Final = 1000

logging.getLogger("httpx2").setLevel(logging.WARNING)  # else it logs each request


class ApiError(DevhostError):
    """The API server refused a request or did not answer; the text is its own."""

    def __init__(self, status: int, reason: str) -> None:
        shown = f"{status} {reason}" if status else reason
        super().__init__(printable(f"API server: {shown[:_TEXT_MAX]}"))
        self.status = status


@contextlib.contextmanager
def reading_answer() -> Iterator[None]:
    """Raise `ApiError` where an answer lacks what is read of it, as that of a proxy may."""
    try:
        yield
    except (AttributeError, LookupError, RecursionError, TypeError, ValueError) as error:
        raise ApiError(NO_ANSWER, f"an answer that cannot be read ({error!r})") from None


class ApiClient:
    """Sends requests.

    The file of the token is read for each, that of the CA when it has changed; plain HTTP has none.

    Attributes:
        writes: Counts the writes.
    """

    def __init__(self, url: str, ca: Path | None = None, token: Path | None = None) -> None:
        self._url, self._ca_file, self._token_file = url, ca, token
        text = "Writes of ResourceSlices, by HTTP status."
        self.writes = Counter("devhost_dra_writes", text, ("verb", "code"), registry=None)
        self._http: httpx2.AsyncClient | None = None
        self._ca: str | None = None  # by which its connections are
        self._retry_at = 0.0  # before that, the API server wants no request

    async def call(self, verb: str, path: str, body: _Json | None = None, **query: str) -> _Json:
        """Return the answer to a request, or raise `ApiError`."""
        http, status = await self._connect(), NO_ANSWER
        request = http.stream(verb, path, json=body, params=query)
        try:
            async with asyncio.timeout(_CALL_S), request as answer:
                status = answer.status_code
                content = await self._read(answer)
        except (httpx2.HTTPError, TimeoutError) as error:
            raise ApiError(NO_ANSWER, _describe(error)) from None
        finally:
            if verb != "GET":
                self.writes.labels(verb, status).inc()
        return _json(content)

    async def watch(self, path: str, version: str, **query: str) -> AsyncIterator[_Json]:
        """Yield the events since a version until the API server ends that; may raise `ApiError`."""
        http = await self._connect()
        query |= {"watch": "1", "resourceVersion": version, "timeoutSeconds": str(_WATCH_S)}
        query["allowWatchBookmarks"] = "true"  # else the version may be too old to go on from
        request = http.stream("GET", path, params=query, timeout=_WATCH_TIMEOUT)
        try:
            async with request as answer:
                if answer.is_error:
                    await self._read(answer)
                async for line in _parts(answer, b"\n"):
                    if line:
                        yield _event(line)
        except httpx2.HTTPError as error:
            raise ApiError(NO_ANSWER, _describe(error)) from None

    async def _read(self, answer: httpx2.Response) -> bytes:
        """Return the body of an answer, or raise it with the API server's sentence."""
        if answer.status_code in (429, 503):
            seconds = answer.headers.get("Retry-After", "")  # proxies may send a date
            pause = min(float(seconds), _RETRY_AFTER_MAX_S) if seconds.isdecimal() else 0.0
            self._retry_at = asyncio.get_running_loop().time() + pause
        content = b"".join([part async for part in _parts(answer)])
        if not answer.is_error:
            return content
        text = content.decode(errors="replace")
        with contextlib.suppress(ValueError, TypeError, KeyError, RecursionError):
            text = str(json.loads(content)["message"])
        raise ApiError(answer.status_code, text or answer.reason_phrase)

    async def close(self) -> None:
        """Close the connections."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def _connect(self) -> httpx2.AsyncClient:
        """Return the connections, by the present CA and with the present token."""
        await asyncio.sleep(self._retry_at - asyncio.get_running_loop().time())
        try:
            ca, token = await run_in_thread("API token", self._read_files)
            former = http = self._http
            if http is None or ca != self._ca:
                self._http = http = self._open(ca)
                self._ca = ca
        except (OSError, ssl.SSLError) as error:
            raise ApiError(NO_ANSWER, f"no token or CA: {error}") from None
        if former is not None and former is not http:
            await former.aclose()
        if token is not None:
            http.headers["Authorization"] = f"Bearer {token}"
        return http

    def _open(self, ca: str | None) -> httpx2.AsyncClient:
        tls: ssl.SSLContext | bool = True  # by the CAs of the machine
        if ca is not None:
            # Not `create_default_context`, which refuses CAs without key identifier (Python 3.13).
            tls = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            tls.load_verify_locations(cadata=ca)
        transport = httpx2.AsyncHTTPTransport(
            verify=tls, trust_env=False, socket_options=_KEEPALIVE
        )
        return httpx2.AsyncClient(
            base_url=self._url,
            transport=transport,
            trust_env=False,
            timeout=_TIMEOUT,
            headers={"Accept-Encoding": "identity"},
        )

    def _read_files(self) -> tuple[str | None, str | None]:
        """Return the CA and the token, where they have files. Blocks."""
        token = None
        if self._token_file is not None:
            token = self._token_file.read_bytes().strip().decode("ascii", "replace")
            if not (token and token.isascii() and token.isprintable()):  # an error would show it
                raise ApiError(NO_ANSWER, f"{self._token_file} has no token that can be sent")
        ca = self._ca_file
        return None if ca is None else ca.read_bytes().decode("ascii", "ignore"), token


async def _parts(answer: httpx2.Response, end: bytes = b"") -> AsyncIterator[bytes]:
    """Yield the lines of an answer, by their end, or without one the whole; or raise `ApiError`."""
    if (encoding := answer.headers.get("Content-Encoding", "identity")) != "identity":
        raise ApiError(NO_ANSWER, f"an answer in {encoding}, which was not asked for")
    part = bytearray()
    async for chunk in answer.aiter_raw():
        *ended, rest = chunk.split(end) if end else (chunk,)
        for piece in ended:
            yield bytes(part + piece)
            part.clear()
        part += rest
        if len(part) > _BYTES_MAX:
            raise ApiError(NO_ANSWER, f"an answer of more than {_BYTES_MAX >> 20} MiB")
    yield bytes(part)


def _json(content: bytes) -> _Json:
    with reading_answer():
        return dict(json.loads(content))


def _event(line: bytes) -> _Json:
    event = _json(line)
    if event.get("type") == "ERROR":
        with reading_answer():
            problem = event["object"]
            code, message = int(problem.get("code", 410)), str(problem.get("message"))
        raise ApiError(code, message)
    return event


def _describe(error: Exception) -> str:
    return f"no answer ({str(error) or type(error).__name__})"

"""A stand-in for the API server, as far as a DRA driver and kubelet use it: in memory, over HTTP.

It has nodes, ResourceSlices and ResourceClaims, with versions, field selectors, watches and the
conflicts of a real one, and faults that a test sets.
"""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl

import uvicorn

ApiObject = dict[str, Any]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_Message = MutableMapping[str, Any]
_KINDS: Final = {
    "nodes": "Node",
    "resourceslices": "ResourceSlice",
    "resourceclaims": "ResourceClaim",
}
_STOP_S: Final = 1
_ENDS: Final = ("ERROR", "BOOKMARK")  # after these the stand-in ends a watch


class StatusError(Exception):
    """An answer that is an error, with its HTTP status and text."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class StandInApiServer:
    """Serves objects on a port of this machine while `running`.

    Attributes:
        version: What it says that it is.
        objects: By path, such as ``/api/v1/nodes/node-1``.
        tokens: The headers by which clients have proved who they are.
        lists: How often a collection was read.
        requests: The writes that were asked for: verb, path and HTTP status.
        on_change: Called after each change.
        fault: Called with the verb (of a watch ``WATCH``) and the path of each request; raises
            `StatusError`, or returns.
        admit: Returns the object that is kept of a written one, or raises `StatusError`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, ApiObject] = {}
        self.tokens: list[str] = []
        self.lists = 0
        self.requests: list[tuple[str, str, int]] = []
        self.on_change: Callable[[], None] = lambda: None
        self.fault: Callable[[str, str], None] = lambda _verb, _path: None
        self.admit: Callable[[ApiObject], ApiObject] = lambda written: written
        self._version = 1
        self._events: list[tuple[int, str, ApiObject]] = []  # version, type and object
        self._changed = asyncio.Event()  # another one after each change
        self._socket: socket.socket | None = None
        self._scheme = "http"

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._socket is not None  # noqa: S101 (while it runs)
        return "{}://{}:{}".format(self._scheme, *self._socket.getsockname())

    def listen(self) -> socket.socket:
        """Return the socket of its port, where requests wait until it serves."""
        self._socket = self._socket or socket.create_server(("127.0.0.1", 0))
        return self._socket

    def put(self, path: str, content: ApiObject) -> ApiObject:
        """Set an object, as somebody else would, and tell those who watch."""
        self._version += 1
        kind = "MODIFIED" if path in self.objects else "ADDED"
        metadata = {"name": path.rpartition("/")[2], **content.get("metadata", {})}
        kept = {**content, "metadata": {**metadata, "resourceVersion": str(self._version)}}
        self.objects[path] = kept
        self._tell(kind, kept)
        return kept

    def remove(self, path: str) -> ApiObject:
        """Remove an object, as somebody else would."""
        self._version += 1
        content = self.objects.pop(path)
        metadata = {**content["metadata"], "resourceVersion": str(self._version)}
        self._tell("DELETED", {**content, "metadata": metadata})
        return content

    def listed(self, path: str, selector: str = "") -> list[ApiObject]:
        """Return the objects below a path that a field selector chooses."""
        below = (content for place, content in self.objects.items() if place.startswith(f"{path}/"))
        return [content for content in below if _matches(content, selector)]

    def break_watches(self) -> None:
        """End all watches with the error of a version that is too old."""
        self._version += 1  # of the next list
        self._events = [(self._version, "ERROR", {"code": 410, "message": "too old"})]
        self._wake()

    def end_watches(self) -> None:
        """Send all watches the present version, and end them, which a real one does in time."""
        self._version += 1
        bookmark = {"metadata": {"resourceVersion": str(self._version)}}
        self._events = [(self._version, "BOOKMARK", bookmark)]
        self._wake()

    @contextlib.asynccontextmanager
    async def running(
        self, tls: tuple[Path, Path] | None = None
    ) -> AsyncIterator["StandInApiServer"]:
        """Serve until the block ends; with TLS if there are a certificate and its key."""
        listener = self.listen()
        self._scheme = "https" if tls else "http"
        config = uvicorn.Config(
            self._app,
            interface="asgi3",
            lifespan="off",
            log_config=None,
            access_log=False,
            timeout_graceful_shutdown=_STOP_S,
            ssl_certfile=tls and tls[0],
            ssl_keyfile=tls and tls[1],
        )
        server = _Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]), name="API server")
        try:
            yield self
        finally:
            self._socket = None  # which ends the watches
            self._wake()
            server.should_exit = True
            await serving

    def _tell(self, kind: str, content: ApiObject) -> None:
        self._events.append((self._version, kind, content))
        self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()
        self.on_change()

    async def _app(
        self, scope: Mapping[str, Any], receive: Callable[[], Awaitable[_Message]], send: _Send
    ) -> None:
        body, more = b"", True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return
            body, more = body + message.get("body", b""), message.get("more_body", False)
        verb, path = scope["method"], scope["path"]
        self.tokens += [
            value.decode() for key, value in scope["headers"] if key == b"authorization"
        ]
        query = dict(parse_qsl(scope["query_string"].decode()))
        code = 200
        try:
            is_watch = query.get("watch") in ("1", "true")
            self.fault("WATCH" if is_watch else verb, path)
            if is_watch:
                await self._watch(path, query, receive, send)
                return
            code, answer = self._answer(verb, path, query, json.loads(body) if body else {})
        except StatusError as error:
            code = error.code
            answer = {"kind": "Status", "apiVersion": "v1", "status": "Failure"}
            answer |= {"message": str(error), "code": code}
        if verb != "GET":
            self.requests.append((verb, path, code))
        await _start(send, code)
        await _send_body(send, json.dumps(answer).encode(), more=False)

    def _answer(
        self, verb: str, path: str, query: Mapping[str, str], body: ApiObject
    ) -> tuple[int, ApiObject]:
        if path.rpartition("/")[2] in _KINDS:
            return self._answer_all(verb, path, query, body)
        if path not in self.objects:
            raise StatusError(404, f'"{path.rpartition("/")[2]}" not found')
        if verb == "DELETE":
            return 200, self.remove(path)
        former = self.objects[path]
        if verb == "GET":
            return 200, former
        expected = body["metadata"].get("resourceVersion")
        if expected not in (None, former["metadata"]["resourceVersion"]):
            raise StatusError(409, "the object has been modified")
        return 200, self.put(path, self.admit(body))

    def _answer_all(
        self, verb: str, path: str, query: Mapping[str, str], body: ApiObject
    ) -> tuple[int, ApiObject]:
        kind = _KINDS[path.rpartition("/")[2]]
        listed = self.listed(path, query.get("fieldSelector", ""))
        if verb == "POST":
            place = f"{path}/{body['metadata']['name']}"
            if place in self.objects:
                raise StatusError(409, f'"{body["metadata"]["name"]}" already exists')
            return 201, self.put(place, self.admit(body))
        if verb == "DELETE":
            for content in listed:
                self.remove(f"{path}/{content['metadata']['name']}")
        self.lists += verb == "GET"
        metadata = {"resourceVersion": str(self._version)}
        group = path.removeprefix("/apis/").partition("/v1")[0]
        version = "v1" if path.startswith("/api/") else f"{group}/v1"
        return 200, {
            "kind": f"{kind}List",
            "apiVersion": version,
            "metadata": metadata,
            "items": listed,
        }

    async def _watch(
        self,
        path: str,
        query: Mapping[str, str],
        receive: Callable[[], Awaitable[_Message]],
        send: _Send,
    ) -> None:
        since = int(query.get("resourceVersion") or 0)
        await _start(send, 200)
        ended = asyncio.ensure_future(_disconnected(receive))
        try:
            while self._socket is not None and not ended.done():
                changed = asyncio.ensure_future(self._changed.wait())
                for version, kind, content in tuple(self._events):
                    if version <= since:
                        continue
                    since, is_kind = version, content.get("kind") == _KINDS[path.rpartition("/")[2]]
                    is_chosen = is_kind and _matches(content, query.get("fieldSelector", ""))
                    if kind in _ENDS or is_chosen:
                        line = json.dumps({"type": kind, "object": content}).encode() + b"\n"
                        await _send_body(send, line, more=True)
                    if kind in _ENDS:
                        return
                await asyncio.wait({changed, ended}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            ended.cancel()
            with contextlib.suppress(OSError, RuntimeError):
                await _send_body(send, b"", more=False)


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        """Leave the signals to the process."""
        yield


def _matches(content: ApiObject, selector: str) -> bool:
    """Whether an object has the values of a field selector, such as ``spec.driver=a``."""
    for part in filter(None, selector.split(",")):
        path, _, wanted = part.partition("=")
        value: Any = content
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value != wanted.removeprefix("="):
            return False
    return True


async def _disconnected(receive: Callable[[], Awaitable[_Message]]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: _Send, code: int) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": code, "headers": headers})


async def _send_body(send: _Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})

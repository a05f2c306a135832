"""The stand-in for the API server over HTTP, with the faults that a test sets."""

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
_Message = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[_Message]]
_Send = Callable[[_Message], Awaitable[None]]
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
    """Serves a node, ResourceSlices and ResourceClaims on a port of this machine while `running`, as a real one does.

    That has versions, field selectors, watches that end, and conflicts.

    Attributes:
        objects: By path, such as ``/api/v1/nodes/node-1``.
        tokens: The headers by which clients have proved who they are.
        lists: How often a collection was read.
        requests: The writes that were asked for: verb, path and HTTP status.
        fault: Called with the verb (of a watch ``WATCH``) and the path of each request; raises
            `StatusError`, or returns.
        admit: Returns the object that is kept of a written one, or raises `StatusError`.
    """

    def __init__(self) -> None:
        self.objects: dict[str, ApiObject] = {}
        self._version = 1
        self._events: list[tuple[int, str, str, ApiObject]] = []  # version, type, path and object
        self._changed = asyncio.Event()  # another one after each change
        self.tokens: list[str] = []
        self.lists = 0
        self.requests: list[tuple[str, str, int]] = []
        self.fault: Callable[[str, str], None] = lambda _verb, _path: None
        self.admit: Callable[[ApiObject], ApiObject] = lambda written: written
        self._socket: socket.socket | None = None
        self._scheme = "http"

    @property
    def url(self) -> str:
        """Where it listens."""
        assert self._socket is not None
        return "{}://{}:{}".format(self._scheme, *self._socket.getsockname())

    def put(self, path: str, content: ApiObject) -> ApiObject:
        """Set an object, and tell those who watch; return it as it is kept."""
        metadata = {"name": path.rpartition("/")[2], **content.get("metadata", {})}
        event = "MODIFIED" if path in self.objects else "ADDED"
        self.objects[path] = self._tell(event, path, {**content, "metadata": metadata})
        return self.objects[path]

    def remove(self, path: str) -> ApiObject:
        """Remove an object, and tell those who watch; return it."""
        return self._tell("DELETED", path, self.objects.pop(path))

    def listed(self, path: str) -> list[ApiObject]:
        """Return the objects below a path."""
        return [content for place, content in self.objects.items() if place.startswith(f"{path}/")]

    def break_watches(self) -> None:
        """End all watches with the error of a version that is too old."""
        self._end_watches("ERROR", {"code": 410, "message": "too old"})

    def end_watches(self) -> None:
        """Send all watches the present version, and end them, which a real one does in time."""
        self._end_watches("BOOKMARK", {"metadata": {"resourceVersion": str(self._version + 1)}})

    def _end_watches(self, event: str, content: ApiObject) -> None:
        self._version += 1  # of the next list
        self._events = [(self._version, event, "", content)]
        self._wake()

    def _tell(self, event: str, path: str, content: ApiObject) -> ApiObject:
        """Return an object with the version of its change, and wake those who watch."""
        self._version += 1
        metadata = {**content["metadata"], "resourceVersion": str(self._version)}
        content = {**content, "metadata": metadata}
        self._events.append((self._version, event, path, content))
        self._wake()
        return content

    def _wake(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    @contextlib.asynccontextmanager
    async def running(
        self, tls: tuple[Path, Path] | None = None
    ) -> AsyncIterator["StandInApiServer"]:
        """Serve until the block ends; with TLS if there are a certificate and its key."""
        self._socket = socket.create_server(("127.0.0.1", 0))
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
        server = uvicorn.Server(config)
        server.capture_signals = contextlib.nullcontext  # type: ignore[assignment]
        serving = asyncio.create_task(server.serve(sockets=[self._socket]), name="API server")
        try:
            yield self
        finally:
            self._socket = None  # which ends the watches
            self._wake()
            server.should_exit = True
            await serving

    async def _app(self, scope: Mapping[str, Any], receive: _Receive, send: _Send) -> None:
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
                await self._send_events(path, query, receive, send)
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
        selector = query.get("fieldSelector", "")
        listed = [content for content in self.listed(path) if _matches(content, selector)]
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

    async def _send_events(
        self, path: str, query: Mapping[str, str], receive: _Receive, send: _Send
    ) -> None:
        since = int(query.get("resourceVersion") or 0)
        selector = query.get("fieldSelector", "")
        await _start(send, 200)
        ended = asyncio.ensure_future(_disconnected(receive))
        try:
            while self._socket is not None and not ended.done():
                changed = asyncio.ensure_future(self._changed.wait())
                for version, event, place, content in tuple(self._events):
                    if version <= since:
                        continue
                    since, is_below = version, place.startswith(f"{path}/")
                    if event in _ENDS or (is_below and _matches(content, selector)):
                        line = json.dumps({"type": event, "object": content}).encode() + b"\n"
                        await _send_body(send, line, more=True)
                    if event in _ENDS:
                        return
                await asyncio.wait({changed, ended}, return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
        finally:
            ended.cancel()
            with contextlib.suppress(OSError, RuntimeError):
                await _send_body(send, b"", more=False)


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


async def _disconnected(receive: _Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _start(send: _Send, code: int) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": code, "headers": headers})


async def _send_body(send: _Send, body: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": body, "more_body": more})

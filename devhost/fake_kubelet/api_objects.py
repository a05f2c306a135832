"""A stand-in for the API server, as far as one driver and a trial use it: in memory."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

from devhost.backends.dra.api_client import ApiClient, ApiError
from devhost.backends.dra.slices import PATH

ApiObject = dict[str, Any]


class StandInApi(ApiClient):
    """Answers from a node, ResourceSlices and ResourceClaims in memory, instead of by HTTP.

    Attributes:
        objects: By path, such as ``/api/v1/nodes/node-1``.
        on_change: Called after each change.
    """

    def __init__(self) -> None:
        super().__init__("")
        self.objects: dict[str, ApiObject] = {}
        self.on_change: Callable[[], None] = lambda: None
        self._version = 1
        self._events: list[tuple[int, str, str, ApiObject]] = []  # version, type, path and object
        self._changed = asyncio.Event()  # another one after each change

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

    async def call(
        self, verb: str, path: str, body: ApiObject | None = None, **_query: str
    ) -> ApiObject:
        """Return the answer to a request, or raise `ApiError`."""
        if path == PATH and body is None:
            metadata = {"resourceVersion": str(self._version)}
            return {"metadata": metadata, "items": self.listed(path)}
        if path == PATH and body is not None:
            return self.put(f"{path}/{body['metadata']['name']}", body)
        if path not in self.objects:
            raise ApiError(404, "not found")
        if body is not None:
            return self.put(path, body)
        return self.remove(path) if verb == "DELETE" else self.objects[path]

    async def watch(self, path: str, version: str, **_query: str) -> AsyncIterator[ApiObject]:
        """Yield the changes of objects below a path since a version, without end."""
        since = int(version)
        while True:
            changed = self._changed
            for number, event, place, content in [*self._events]:
                if number > since and place.startswith(f"{path}/"):
                    yield {"type": event, "object": content}
                since = max(since, number)
            await changed.wait()

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
        self.on_change()

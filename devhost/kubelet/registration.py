"""Keeps one resource registered: exactly one live stream, through restarts and doubt."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from devhost.errors import KubeletError
from devhost.kubelet.directory import Identity, PluginDirectory
from devhost.kubelet.server import PluginServer
from devhost.kubelet.servicer import Backend

STREAM_TIMEOUT_S: Final = 5.0
END_TIMEOUT_S: Final = 2.0
RETRY_S: Final = 1.0
RETRY_MAX_S: Final = 30.0

Tell = Callable[[str, str | None], None]  # state, reason


class Registration:
    """Serves and registers a resource, for ever."""

    def __init__(self, backend: Backend, directory: PluginDirectory, tell: Tell) -> None:
        self._backend, self._directory, self._tell = backend, directory, tell
        self._server: PluginServer | None = None

    def notify(self) -> None:
        """Have the streams send the list if it changed."""
        if self._server:
            self._server.servicer.notify()

    async def run(self) -> None:
        """Serve a fresh socket, register it, keep it until the stream ends; again and again."""
        pause = RETRY_S
        while True:
            if self._directory.identity() is None:
                self._tell("Waiting", "no kubelet: kubelet.sock is not there")
            identity = await self._directory.kubelet()
            try:
                async with self._serving() as server:
                    await self._directory.register(self._backend.name, server.endpoint)
                    await self._first_stream(server)
                    self._tell("Registered", None)
                    pause = RETRY_S
                    await self._doubt(server, identity)
                self._tell("Serving", "the kubelet ended the stream")
            except (KubeletError, OSError) as error:
                self._tell("BackingOff", str(error))
                await asyncio.sleep(pause)
                pause = min(pause * 2, RETRY_MAX_S)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[PluginServer]:
        server = PluginServer(self._backend, self._directory.path)
        await server.start()
        self._server = server
        self._tell("Serving", None)
        try:
            yield server
        finally:
            self._server = None
            await server.stop()

    async def _first_stream(self, server: PluginServer) -> None:
        try:
            async with asyncio.timeout(STREAM_TIMEOUT_S):
                await server.servicer.until_streams(present=True)
        except TimeoutError:
            raise KubeletError("registered, but the kubelet opened no stream") from None

    async def _doubt(self, server: PluginServer, identity: Identity) -> None:
        """Return when the stream has ended, or another kubelet took the old one's place."""
        changed = server.servicer.streams_changed
        self._directory.subscribe(changed)
        try:
            while server.servicer.streams:
                changed.clear()
                if self._directory.identity() not in (identity, None):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(END_TIMEOUT_S):
                            await server.servicer.until_streams(present=False)
                    return
                await changed.wait()
        finally:
            self._directory.unsubscribe(changed)

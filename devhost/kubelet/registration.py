"""Keeps one resource registered: exactly one live stream, through restarts and doubt."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from devhost.errors import KubeletError
from devhost.kubelet import marks
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.kubelet_socket import Identity
from devhost.kubelet.server import PluginServer
from devhost.kubelet.servicer import Backend
from devhost.model.state import State

STREAM_TIMEOUT_S: Final = 5.0
QUICK_STREAM_TIMEOUT_S: Final = 1.0
END_TIMEOUT_S: Final = 2.0
HANDOVER_TIMEOUT_S: Final = 20.0
_HANDOVER_POLL_S: Final = 0.05
STEADY_S: Final = 10.0  # a stream that lived so long was no failure
# After the first ended stream at once, then with growing pauses. An old kubelet may complete
# a registration that failed for us, so after a failure there is always a pause.
_PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_FAILURE_PAUSE_S: Final = 1.0
_NEWER: Final = "a newer instance of devhost serves it"
_SILENCED: Final = "another instance of devhost took over, because this one did not answer"
_REPLACED: Final = "kubelet.sock was replaced"

Tell = Callable[[State, str | None], None]


class Registration:
    """Serves and registers a resource, for ever."""

    def __init__(self, backend: Backend, directory: PluginDirectory, tell: Tell) -> None:
        self._backend, self._directory, self._tell = backend, directory, tell
        self._server: PluginServer | None = None
        self._ends = 0  # of streams and attempts, since the last steady one

    def notify(self) -> None:
        """Have the streams send the list if it changed, and look whether the options did."""
        if self._server:
            self._server.servicer.notify()
            if self._server.servicer.options_changed:
                self._server.servicer.streams.changed.set()

    async def run(self) -> None:
        """Serve a fresh socket, register it, keep it until the stream ends; again and again."""
        while True:
            await self._until_newest()
            if absence := self._directory.absence():
                self._tell(State.WAITING, absence)
            identity = await self._directory.kubelet()
            try:
                async with self._serving() as server:
                    older = await self._register(server, identity)
                    reason = _NEWER
                    if older is not None:
                        reason = await self._registered(server, identity, older)
                if reason != _NEWER:
                    self._tell(State.SERVING, reason)
                    await self._pause(identity)
            except (KubeletError, OSError) as error:
                self._tell(State.BACKING_OFF, str(error))
                await self._pause(identity, at_least=_FAILURE_PAUSE_S)

    async def _until_newest(self) -> None:
        """Wait while a newer instance lives: the kubelet hands Allocate to who came last."""
        instances, name = self._directory.instances, self._backend.name
        if instances.newer(name):
            self._tell(State.WAITING, _NEWER)
            await self._until(lambda: not instances.newer(name))

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[PluginServer]:
        async with self._directory.limit:
            endpoint = self._directory.instances.fresh_name(self._backend.name)
            server = PluginServer(self._backend, self._directory.path, endpoint)
            await server.start()
        self._server = server
        self._tell(State.SERVING, None)
        try:
            yield server
        finally:
            self._server = None
            await server.stop()

    async def _register(self, server: PluginServer, identity: Identity) -> frozenset[str] | None:
        """Register; return the older instances that live, or ``None`` if a newer one does."""
        instances, name = self._directory.instances, self._backend.name
        await self._handover()
        if instances.newer(name):
            return None
        if server.servicer.silenced:
            raise KubeletError(_SILENCED)
        instances.silence(name)
        older = instances.older(name)
        await self._unless_replaced(identity, self._begin(server))
        marks.set_registered(server.path)
        self._directory.registered_with(identity)
        self._tell(State.REGISTERED, None)
        return older

    async def _handover(self) -> None:
        """Wait until no older instance that answers sends lists or hands out devices any more.

        Two may register at the same moment (they do whenever the kubelet restarts under both),
        and one may be gone before the other has seen it. So each makes its socket, then looks:
        an older one that sees a newer goes; a newer one waits until the older has seen it.

        Raises:
            KubeletError: An older one answers, but goes on.
        """
        instances, name = self._directory.instances, self._backend.name
        await self._directory.surveyed(name)
        try:
            async with asyncio.timeout(HANDOVER_TIMEOUT_S):
                while instances.speaking(name) and not instances.newer(name):  # noqa: ASYNC110 (processes)
                    await asyncio.sleep(_HANDOVER_POLL_S)
        except TimeoutError:
            raise KubeletError("an older instance of devhost does not give way") from None

    async def _unless_replaced(self, identity: Identity, work: Awaitable[None]) -> None:
        """Do what needs a kubelet, but not longer than that kubelet is there."""
        try:
            async with asyncio.timeout(None) as limit:

                def look() -> None:
                    if self._directory.replaced(identity) and not limit.expired():
                        limit.reschedule(0.0)

                with self._noticing(look):
                    look()
                    await work
        except TimeoutError:
            raise KubeletError("another kubelet took the place of the one that was asked") from None

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for what the kubelet or the other instances do."""
        changed = asyncio.Event()
        with self._noticing(changed.set):
            while not condition():
                await changed.wait()
                changed.clear()

    async def _begin(self, server: PluginServer) -> None:
        servicer = server.servicer
        async with self._directory.limit:
            servicer.streams.expect()
            await self._directory.register(
                self._backend.name, server.endpoint, pre_start=servicer.pre_start_required
            )
            await self._first_stream(server)

    async def _first_stream(self, server: PluginServer) -> None:
        try:
            # A kubelet up to 1.36 that ends an old connection may end the next one with it.
            limit = QUICK_STREAM_TIMEOUT_S if self._ends == 1 else STREAM_TIMEOUT_S
            async with asyncio.timeout(limit):
                await server.servicer.streams.accepted()
        except TimeoutError:
            raise KubeletError("registered, but the kubelet opened no stream") from None

    async def _registered(
        self, server: PluginServer, identity: Identity, older: frozenset[str]
    ) -> str:
        """Return, with the reason, when it has to be done anew; `older` lived just before."""
        servicer, instances, name = server.servicer, self._directory.instances, self._backend.name
        clock = asyncio.get_running_loop().time
        since = clock()
        changed = servicer.streams.changed
        with self._noticing(changed.set):
            while servicer.streams.kept:
                changed.clear()
                if self._directory.replaced(identity):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(END_TIMEOUT_S):
                            await servicer.streams.ended()
                    break
                if servicer.options_changed:
                    return "its options changed"
                if reason := await self._given_way(server):
                    return reason
                if older - instances.older(name):
                    if instances.older(name) and not servicer.quiet:
                        return "an older instance has gone, and the kubelet may prefer another"
                    self._backend.listing.resend()  # the last list may have been the other's
                    servicer.notify()
                older = instances.older(name)
                await changed.wait()
        self._directory.doubt()
        if clock() - since >= STEADY_S:
            self._ends = 0
        return _REPLACED if servicer.streams.kept else "the kubelet ended the stream"

    async def _given_way(self, server: PluginServer) -> str | None:
        """Give way to a newer instance, if there is one; return a reason to register anew."""
        instances, name = self._directory.instances, self._backend.name
        silenced = not server.servicer.quiet and server.servicer.silenced
        if silenced:  # perhaps this process was stopped, and does not know the others
            await self._directory.surveyed(name)
        if instances.newer(name):
            await self._fall_silent(server)
            return None
        if server.servicer.quiet:
            return "the newer instance of devhost has gone, or does not answer"
        return _SILENCED if silenced else None

    async def _fall_silent(self, server: PluginServer) -> None:
        """Send no more lists and hand out nothing; when that is so, let the newer one know."""
        if not server.servicer.quiet:
            server.servicer.quiet = True
            self._tell(State.WAITING, _NEWER)
            await server.servicer.until_idle()
            marks.set_silent(server.path)

    @contextlib.contextmanager
    def _noticing(self, notice: Callable[[], None]) -> Iterator[None]:
        """Be told when the kubelet or the other instances change."""
        self._directory.subscribe(self._backend.name, notice)
        try:
            yield
        finally:
            self._directory.unsubscribe(self._backend.name, notice)

    async def _pause(self, identity: Identity, at_least: float = 0.0) -> None:
        """Wait before the next attempt, longer each time, but not when another kubelet came."""
        pause = max(at_least, _PAUSES_S[min(self._ends, len(_PAUSES_S) - 1)])
        self._ends += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause * random.uniform(0.8, 1.2)):  # noqa: S311 (no herd)
                await self._until(lambda: self._directory.replaced(identity))
        if self._directory.replaced(identity):
            self._ends = 0

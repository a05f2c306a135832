"""Keeps one resource registered: exactly one live stream, through restarts and doubt."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from devhost.errors import KubeletError
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.instances import mark_registered, mark_standby
from devhost.kubelet.kubelet_socket import SocketIdentity
from devhost.kubelet.served_names import ServedNames
from devhost.kubelet.server import PluginServer
from devhost.kubelet.servicer import AllocationBackend
from devhost.model.state import State

STREAM_TIMEOUT_S: Final = 5.0
QUICK_STREAM_TIMEOUT_S: Final = 1.0
END_TIMEOUT_S: Final = 2.0
HANDOVER_TIMEOUT_S: Final = 20.0
_HANDOVER_POLL_S: Final = 0.05
STEADY_S: Final = 10.0  # a stream that lived so long was no failure
# After the first ended stream immediately, then with growing pauses. An old kubelet may complete
# a registration that failed for us, so after a failure there is always a pause.
_PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_FAILURE_PAUSE_S: Final = 1.0
_NEWER: Final = "a newer instance of devhost serves it"
_SUPERSEDED: Final = "another instance of devhost took over, because this one did not answer"
_TAKEN: Final = (
    "another device plugin on this node serves {0}: remove it, or allow both with "
    "--allow-resource {0}"
)
_TAKEN_POLL_S: Final = 0.05  # it may be this process, whose stream has just ended
_TAKEN_POLL_MAX_S: Final = 5.0
_REPLACED: Final = "kubelet.sock was replaced"

Report = Callable[[State, str | None], None]


class Registration:
    """Serves and registers a resource until it is cancelled.

    Args:
        backend: What answers kubelet.
        directory: The plugin directory.
        report: Receives the state.
        served: Tells whether another device plugin serves the resource, so that this one waits;
            ``None`` to register in any case.
    """

    def __init__(
        self,
        backend: AllocationBackend,
        directory: PluginDirectory,
        report: Report,
        served: ServedNames | None = None,
    ) -> None:
        self._backend, self._directory, self._report = backend, directory, report
        self._served = served
        self._server: PluginServer | None = None
        self._ends = 0  # of streams and attempts, since the last steady stream

    def notify(self) -> None:
        """Make the streams send the list if it changed."""
        if self._server:
            self._server.servicer.notify()

    def check_options(self) -> None:
        """Register again if the options in force are not those that kubelet got."""
        if self._server and self._server.servicer.options_changed:
            self._server.servicer.streams.changed.set()

    async def run(self) -> None:
        """Serve a fresh socket, register it, keep it until the stream ends; again and again."""
        while True:
            await self._until_newest()
            if problem := self._directory.kubelet_problem():
                self._report(State.WAITING, problem)
            identity = await self._directory.until_kubelet()
            await self._until_free()
            try:
                async with self._serving() as server:
                    older = await self._register(server, identity)
                    reason = _NEWER
                    if older is not None:
                        reason = await self._until_to_be_renewed(server, identity, older)
                if reason != _NEWER:
                    self._report(State.SERVING, reason)
                    await self._pause(identity)
            except (KubeletError, OSError) as error:
                self._report(State.BACKING_OFF, str(error))
                await self._pause(identity, at_least=_FAILURE_PAUSE_S)

    async def _until_newest(self) -> None:
        """Wait while a newer instance lives: kubelet sends Allocate to the last to register."""
        instances, name = self._directory.instances, self._backend.name
        if instances.newer(name):
            self._report(State.WAITING, _NEWER)
            await self._until(lambda: not instances.newer(name))

    async def _until_free(self) -> None:
        """Wait while another device plugin than devhost serves the resource."""
        if self._served is None:
            return
        name, instances, pause = self._backend.name, self._directory.instances, _TAKEN_POLL_S
        await self._directory.until_others_known(name)
        while not instances.older(name) and not instances.newer(name):
            if not await self._served.has(name):
                return
            if pause > _TAKEN_POLL_S:
                self._report(State.WAITING, _TAKEN.format(name))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _TAKEN_POLL_MAX_S)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[PluginServer]:
        async with self._directory.concurrency:
            endpoint = self._directory.instances.fresh_name(self._backend.name)
            directory = self._directory
            server = PluginServer(self._backend, directory.path, endpoint, directory.requests)
            await server.start()
        self._server = server
        self._report(State.SERVING, None)
        try:
            yield server
        finally:
            self._server = None
            await server.stop()

    async def _register(
        self, server: PluginServer, identity: SocketIdentity
    ) -> frozenset[str] | None:
        """Register; return the older instances that live, or ``None`` if a newer one does."""
        instances, name = self._directory.instances, self._backend.name
        await self._until_older_on_standby()
        if instances.newer(name):
            return None
        if server.servicer.superseded:
            raise KubeletError(_SUPERSEDED)
        instances.supersede(name)
        older = instances.older(name)
        await self._unless_replaced(identity, self._register_and_connect(server))
        mark_registered(server.path)
        self._directory.record_registered(identity)
        self._report(State.REGISTERED, None)
        return older

    async def _until_older_on_standby(self) -> None:
        """Wait until no older instance that answers sends lists or allocates devices.

        Two may register at the same moment (they do whenever kubelet restarts under both), and one
        may be gone before the other has seen it. So each makes its socket, then reads the
        directory: an older instance that sees a newer one goes on standby; a newer one waits
        until the older one has seen it.

        Raises:
            KubeletError: An older instance answers, but does not go on standby.
        """
        instances, name = self._directory.instances, self._backend.name
        await self._directory.until_others_known(name)
        try:
            async with asyncio.timeout(HANDOVER_TIMEOUT_S):
                while instances.active_older(name) and not instances.newer(name):  # noqa: ASYNC110 (processes)
                    await asyncio.sleep(_HANDOVER_POLL_S)
        except TimeoutError:
            raise KubeletError("an older instance of devhost does not give way") from None

    async def _unless_replaced(self, identity: SocketIdentity, work: Awaitable[None]) -> None:
        """Do what needs a kubelet, but not longer than that kubelet is there."""
        try:
            async with asyncio.timeout(None) as limit:

                def check() -> None:
                    if self._directory.replaced(identity) and not limit.expired():
                        limit.reschedule(0.0)

                with self._subscribed(check):
                    check()
                    await work
        except TimeoutError:
            raise KubeletError("another kubelet took the place of the one that was asked") from None

    async def _until(self, condition: Callable[[], bool]) -> None:
        """Wait for what kubelet or the other instances do."""
        changed = asyncio.Event()
        with self._subscribed(changed.set):
            while not condition():
                await changed.wait()
                changed.clear()

    async def _register_and_connect(self, server: PluginServer) -> None:
        """Register, and wait until kubelet has opened its stream."""
        servicer = server.servicer
        async with self._directory.concurrency:
            servicer.streams.expect()
            await self._directory.register(
                self._backend.name, server.endpoint, pre_start=servicer.pre_start_required
            )
            try:
                # Up to 1.36 the end of an old connection may end the next one with it, because
                # they differ only by resource only (k8s.io/kubernetes v1.36.3
                # pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, deregisterClient).
                limit = QUICK_STREAM_TIMEOUT_S if self._ends == 1 else STREAM_TIMEOUT_S
                async with asyncio.timeout(limit):
                    await servicer.streams.accepted()
            except TimeoutError:
                raise KubeletError("registered, but the kubelet opened no stream") from None

    async def _until_to_be_renewed(
        self, server: PluginServer, identity: SocketIdentity, older: frozenset[str]
    ) -> str:
        """Return, with the reason, when the resource has to be registered again.

        Args:
            server: What is registered.
            identity: The kubelet it is registered with.
            older: The older instances that lived just before.
        """
        servicer, instances, name = server.servicer, self._directory.instances, self._backend.name
        clock = asyncio.get_running_loop().time
        since = clock()
        changed = servicer.streams.changed
        with self._subscribed(changed.set):
            while servicer.streams.kubelets_is_open:
                changed.clear()
                if self._directory.replaced(identity):
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(END_TIMEOUT_S):
                            await servicer.streams.ended()
                    break
                if servicer.options_changed:
                    return "its options changed"
                if reason := await self._follow_newest(server):
                    return reason
                if older - instances.older(name):
                    if instances.older(name) and not servicer.standby:
                        return "an older instance has gone, and the kubelet may prefer another"
                    self._backend.device_list.resend()  # the last list may have been the other's
                    servicer.notify()
                older = instances.older(name)
                await changed.wait()
        self._directory.recheck_kubelet()
        if clock() - since >= STEADY_S:
            self._ends = 0
        return _REPLACED if servicer.streams.kubelets_is_open else "the kubelet ended the stream"

    async def _follow_newest(self, server: PluginServer) -> str | None:
        """Go on standby if there is a newer instance; return a reason to register again."""
        instances, name = self._directory.instances, self._backend.name
        superseded = not server.servicer.standby and server.servicer.superseded
        if superseded:  # perhaps this process was stopped, and does not know the others
            await self._directory.until_others_known(name)
        if instances.newer(name):
            await self._go_on_standby(server)
            return None
        if server.servicer.standby:
            return "the newer instance of devhost has gone, or does not answer"
        return _SUPERSEDED if superseded else None

    async def _go_on_standby(self, server: PluginServer) -> None:
        """Stop sending lists and allocating; then mark the socket."""
        if not server.servicer.standby:
            server.servicer.standby = True
            self._report(State.WAITING, _NEWER)
            await server.servicer.until_idle()
            mark_standby(server.path)

    @contextlib.contextmanager
    def _subscribed(self, notice: Callable[[], None]) -> Iterator[None]:
        """Call `notice` when kubelet or the other instances change."""
        self._directory.subscribe(self._backend.name, notice)
        try:
            yield
        finally:
            self._directory.unsubscribe(self._backend.name, notice)

    async def _pause(self, identity: SocketIdentity, at_least: float = 0.0) -> None:
        """Wait before the next attempt, longer each time, but not when another kubelet came."""
        pause = max(at_least, _PAUSES_S[min(self._ends, len(_PAUSES_S) - 1)])
        self._ends += 1
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause * random.uniform(0.8, 1.2)):  # noqa: S311 (no herd)
                await self._until(lambda: self._directory.replaced(identity))
        if self._directory.replaced(identity):
            self._ends = 0

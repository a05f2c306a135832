"""Keeps one resource registered: exactly one live stream, through restarts and doubt."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import Final

from devhost.errors import KubeletError
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.kubelet_socket import SocketIdentity
from devhost.kubelet.resource_lock import fresh_name
from devhost.kubelet.served_names import ServedNames
from devhost.kubelet.server import PluginServer
from devhost.kubelet.servicer import AllocationBackend
from devhost.model.state import State

STREAM_TIMEOUT_S: Final = 5.0
QUICK_STREAM_TIMEOUT_S: Final = 1.0
END_TIMEOUT_S: Final = 2.0
_AFTER_CALL_S: Final = 0.1  # in which kubelet has processed an answer
_LOCK_POLL_S: Final = 0.05  # while another instance has the lock
STEADY_S: Final = 10.0  # a stream that lived so long was no failure
# After the first ended stream immediately, then with growing pauses. An old kubelet may complete
# a registration that failed for us, so after a failure there is always a pause.
_PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_FAILURE_PAUSE_S: Final = 1.0
_ELSEWHERE: Final = "another instance of devhost serves it"
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
        self._lock = directory.lock(backend.name)
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
        try:
            while True:
                try:
                    await self._until_locked()
                    if problem := self._directory.kubelet_problem():
                        self._report(State.WAITING, problem)
                    identity = await self._directory.until_kubelet()
                    await self._until_free()
                    async with self._serving() as server:
                        await self._register(server, identity)
                        reason = await self._until_to_be_renewed(server, identity)
                    self._report(State.SERVING, reason)
                    await self._pause(identity)
                except (KubeletError, OSError) as error:
                    self._report(State.BACKING_OFF, str(error))
                    await self._pause(self._directory.identity(), at_least=_FAILURE_PAUSE_S)
        finally:
            # When kubelet has the answer to an Allocate it looks up its IDs in the list once more,
            # and dies if the list of another instance lacks one (`devhost.kubelet.device_list`).
            ended = self._backend.device_list.last_call_ended
            try:
                await asyncio.sleep(ended + _AFTER_CALL_S - asyncio.get_running_loop().time())
            finally:
                self._lock.release()

    async def _until_locked(self) -> None:
        """Wait while another instance serves the resource: kubelet gets one list at a time."""
        while not self._lock.acquire():
            self._report(State.WAITING, _ELSEWHERE)
            await asyncio.sleep(_LOCK_POLL_S)

    async def _until_free(self) -> None:
        """Wait while another device plugin than devhost serves the resource."""
        if self._served is None:
            return
        name, pause = self._backend.name, _TAKEN_POLL_S
        while await self._served.has(name):
            if pause > _TAKEN_POLL_S:
                self._report(State.WAITING, _TAKEN.format(name))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _TAKEN_POLL_MAX_S)

    @contextlib.asynccontextmanager
    async def _serving(self) -> AsyncIterator[PluginServer]:
        async with self._directory.concurrency:
            endpoint = fresh_name(self._backend.name)
            server = PluginServer(self._backend, self._directory.path, endpoint)
            await server.start()
        self._server = server
        self._report(State.SERVING, None)
        try:
            yield server
        finally:
            self._server = None
            await server.stop()

    async def _register(self, server: PluginServer, identity: SocketIdentity) -> None:
        await self._unless_replaced(identity, self._register_and_connect(server))
        self._directory.record_registered(identity)
        self._report(State.REGISTERED, None)

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

    async def _until_to_be_renewed(self, server: PluginServer, identity: SocketIdentity) -> str:
        """Return, with the reason, when the resource has to be registered again.

        Args:
            server: What is registered.
            identity: The kubelet it is registered with.
        """
        servicer, clock = server.servicer, asyncio.get_running_loop().time
        since, changed = clock(), servicer.streams.changed
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
                await changed.wait()
        self._directory.recheck_kubelet()
        if clock() - since >= STEADY_S:
            self._ends = 0
        return _REPLACED if servicer.streams.kubelets_is_open else "the kubelet ended the stream"

    @contextlib.contextmanager
    def _subscribed(self, notice: Callable[[], None]) -> Iterator[None]:
        """Call `notice` when kubelet changes."""
        self._directory.subscribe(notice)
        try:
            yield
        finally:
            self._directory.unsubscribe(notice)

    async def _pause(self, identity: SocketIdentity | None, at_least: float = 0.0) -> None:
        """Wait before the next attempt, longer each time, but not when another kubelet came."""
        pause = max(at_least, _PAUSES_S[min(self._ends, len(_PAUSES_S) - 1)])
        self._ends += 1
        another = asyncio.Event()

        def check() -> None:
            if self._directory.replaced(identity):
                another.set()

        with self._subscribed(check), contextlib.suppress(TimeoutError):
            check()
            async with asyncio.timeout(pause * random.uniform(0.8, 1.2)):  # noqa: S311 (no herd)
                await another.wait()
        if another.is_set():
            self._ends = 0

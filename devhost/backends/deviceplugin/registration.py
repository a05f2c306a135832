"""Keeps resources registered as device plugins: exactly one live stream, also in doubt.

Each registration has a fresh socket. A server is kept while kubelet ends its streams itself.
"""

import asyncio
import contextlib
import functools
import os
import random
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.backends.backend import ResourceHandler, ResourceHooks, run_together
from devhost.backends.deviceplugin.device_list import LEAVE_AFTER_S, DeviceList
from devhost.backends.deviceplugin.kubelet_socket import KubeletSocket
from devhost.backends.deviceplugin.plugin_sockets import (
    link_socket,
    remove_dead_sockets,
    server_socket,
)
from devhost.backends.deviceplugin.servicer import Servicer
from devhost.backends.podresources import PodResources
from devhost.backends.resource_lock import ResourceLocks
from devhost.backends.sockets import SERVER_OPTIONS, SocketIdentity, start_server
from devhost.errors import KubeletError
from devhost.model import limits
from devhost.model.config import Resource
from devhost.model.resource_state import PublicationStatus, State
from devhost.watch.threads import run_in_thread, wait_at_most
from devhost.watch.watcher import Watcher, follow_directory

_POLL_S: Final = 5.0  # for sockets whose lock nobody waits for
_CONCURRENT_MAX: Final = 32
STREAM_TIMEOUT_S: Final = 5.0
QUICK_STREAM_TIMEOUT_S: Final = 1.0
END_TIMEOUT_S: Final = 2.0
_AFTER_CALL_S: Final = 0.1  # in which kubelet has processed an answer
STABLE_AFTER_S: Final = 10.0  # a stream that lived so long was no failure
# After the first ended stream immediately, then with growing pauses. An old kubelet may complete
# a registration that failed for us, so after a failure there is always a pause.
_PAUSES_S: Final = (0.0, 0.2, 0.5, 1.0, 2.0, 5.0)
_FAILURE_PAUSE_S: Final = 1.0
_TAKEN: Final = (
    "another device plugin on this node serves {0}: remove it, or allow both with "
    "--allow-resource {0}"
)
_TAKEN_POLL_S: Final = 0.05  # it may be this process, whose stream has just ended
_TAKEN_POLL_MAX_S: Final = 5.0
_LEAVE_POLL_S: Final = 0.2  # while IDs are leaving
_STOP_GRACE_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 2.0
_OPTIONS: Final = (
    *SERVER_OPTIONS,
    ("grpc.max_connection_idle_ms", int(limits.IDLE_CONNECTION_S * 1000)),
)


@contextlib.asynccontextmanager
async def run_server(
    handler: ResourceHandler, device_list: DeviceList, backend: "DevicePluginBackend", name: str
) -> AsyncIterator[Servicer]:
    """Serve a resource on a socket, or raise `OSError`; in the end its streams end, too."""
    servicer, server = Servicer(handler, device_list), grpc.aio.server(options=_OPTIONS)
    pb_grpc.add_DevicePluginServicer_to_server(servicer, server)
    path = backend.directory / name
    async with backend.concurrency:
        await start_server(server, path)
    try:
        yield servicer
    finally:
        servicer.close()
        try:
            # gRPC waits for a client that does not read, perhaps without end.
            await wait_at_most(_STOP_TIMEOUT_S, lambda: server.stop(_STOP_GRACE_S))
            # gRPC loses a cancellation that comes in the moment in which the server has stopped: it
            # uses `asyncio.wait_for`, which does so before Python 3.12.
            if (task := asyncio.current_task()) is not None and task.cancelling():
                raise asyncio.CancelledError
        finally:
            with contextlib.suppress(OSError):  # it is gone, or the directory became read-only
                os.unlink(path)  # noqa: PTH108 (quick)


class Registration:
    """One resource: its device list, and the socket that is kept registered.

    It waits while another device plugin serves the resource, where that can be told.
    """

    def __init__(self, backend: "DevicePluginBackend", hooks: ResourceHooks) -> None:
        self._backend, self._hooks, self._name = backend, hooks, hooks.handler.name
        self._leaving = asyncio.Event()
        self.offered_ids = DeviceList(backend.leave_after, backend.pods.inflight_since)
        self.offered_ids.ids_held_by_pods = hooks.held
        self.offered_ids.on_leaving = self._leaving.set
        self._set_waiting = functools.partial(hooks.set_state, State.WAITING)
        self._servicer: Servicer | None = None  # of the last server, which listens there:
        self._socket = ""
        self._lock = backend.locks.get(self._name)
        self._ends = 0  # of streams and attempts, since the last stable stream

    def spec_changed(self) -> None:
        """Register again if kubelet has other options than those of the spec."""
        if self._servicer and self._servicer.options_changed:
            self._servicer.changed.set()

    @property
    def up_to_date(self) -> bool:
        """Whether kubelet has the options in force, if it has any."""
        servicer = self._servicer
        return servicer is None or (servicer.has_stream and not servicer.options_changed)

    @property
    def status(self) -> PublicationStatus:
        """How many IDs are listed, on how many streams, and what is wrong with the list."""
        device_list = self.offered_ids
        truncated = f"{device_list.omitted} IDs left out: the kubelet takes 4 MiB"
        return PublicationStatus(
            listed=len(device_list),
            healthy=sum(entry.healthy for entry in device_list.entries.values()),
            streams=len(device_list.streams),
            lists_sent=device_list.streams.lists_sent,
            warnings=(truncated,) if device_list.omitted else (),
        )

    async def run(self) -> None:
        """Serve and register until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._keep_registered(), name=f"register {self._name}")
            await self._remove_unlisted()

    async def _keep_registered(self) -> None:
        """Register, again each time that the stream has ended, until cancelled."""
        if self._hooks.refusal is not None:
            self._set_waiting(self._hooks.refusal)
            return
        try:
            async with contextlib.AsyncExitStack() as server:
                while True:
                    await self._register_once(server)
        finally:
            # When kubelet has the answer to an Allocate it looks up its IDs in the list once more,
            # and dies if the list of another instance lacks one
            # (`devhost.backends.deviceplugin.device_list`).
            ended = self.offered_ids.streams.last_answer_at
            try:
                await asyncio.sleep(ended + _AFTER_CALL_S - asyncio.get_running_loop().time())
                await self._hooks.save()
            finally:
                self._lock.release(remove=self.offered_ids.drained)

    async def _register_once(self, server: contextlib.AsyncExitStack) -> None:
        """Register until that has to be done again, with another `server` if that is in doubt."""
        backend, pause = self._backend, 0.0
        identity = backend.kubelet.identity()
        try:
            if not self._lock.held:
                await server.aclose()  # its socket is gone, too
            await backend.locks.wait_until_locked(self._lock, "", self._set_waiting)
            self._hooks.on_locked()
            # Claims may have devices of it, also by who had the lock before.
            await self._hooks.wait_until_free(self._set_waiting)
            self._lock.set_served(True)
            identity = await backend.kubelet.wait_until_reachable(self._set_waiting)
            await self._wait_until_unserved()
            if self._servicer is None or self._servicer.is_stale:
                await server.aclose()
                self._socket = server_socket(self._name)
                running = run_server(self._hooks.handler, self.offered_ids, backend, self._socket)
                self._servicer = await server.enter_async_context(running)
            servicer = self._servicer
            with link_socket(backend.directory, self._socket, self._name) as endpoint:
                self._hooks.set_state(State.SERVING, None)
                identity = await self._register(servicer, endpoint)
                self._hooks.set_state(State.REGISTERED, None)
                reason = await self._wait_until_outdated(servicer, identity)
            if servicer.is_stale:
                await server.aclose()
            self._hooks.set_state(State.SERVING, reason)
        except (KubeletError, OSError) as error:
            await server.aclose()
            pause = _FAILURE_PAUSE_S
            self._hooks.set_state(State.BACKING_OFF, str(error))
        await self._pause(identity, at_least=pause)

    async def _wait_until_unserved(self) -> None:
        """Wait while another device plugin than devhost serves the resource."""
        if not self._hooks.exclusive:
            return
        pause = _TAKEN_POLL_S
        while await self._backend.pods.is_served(self._name):
            if pause > _TAKEN_POLL_S:
                self._set_waiting(_TAKEN.format(self._name))
            await asyncio.sleep(pause)
            pause = min(2 * pause, _TAKEN_POLL_MAX_S)

    async def _register(self, servicer: Servicer, endpoint: str) -> SocketIdentity | None:
        """Register, and wait until kubelet has opened its stream; return which kubelet."""
        async with self._backend.concurrency:
            identity = await self._backend.kubelet.register(self._name, endpoint)
            try:
                # Up to 1.36 the end of an old connection may end the next one with it, because
                # they differ by resource only (k8s.io/kubernetes v1.36.3
                # pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go, deregisterClient).
                limit = QUICK_STREAM_TIMEOUT_S if self._ends == 1 else STREAM_TIMEOUT_S
                async with asyncio.timeout(limit):
                    await servicer.wait_for_stream(is_open=True)
            except TimeoutError:
                raise KubeletError("registered, but the kubelet opened no stream") from None
        return identity

    async def _wait_until_outdated(
        self, servicer: Servicer, identity: SocketIdentity | None
    ) -> str:
        """Return, with the reason, when the resource has to be registered again."""
        clock = asyncio.get_running_loop().time
        since, reason = clock(), "the kubelet ended the stream"
        replaced = asyncio.create_task(self._backend.kubelet.wait_until_replaced(identity))
        replaced.add_done_callback(lambda _: servicer.changed.set())
        try:
            while servicer.has_stream:
                servicer.changed.clear()
                if replaced.done():
                    try:
                        async with asyncio.timeout(END_TIMEOUT_S):
                            await servicer.wait_for_stream(is_open=False)
                    except TimeoutError:
                        reason = "kubelet.sock was replaced"
                    break
                if servicer.options_changed:
                    return "its options changed"
                await servicer.changed.wait()
        finally:
            replaced.cancel()
        if clock() - since >= STABLE_AFTER_S:
            self._ends = 0
        return reason

    async def _pause(self, identity: SocketIdentity | None, at_least: float) -> None:
        """Wait before the next attempt, longer each time, but not when another kubelet came."""
        pause = max(at_least, _PAUSES_S[min(self._ends, len(_PAUSES_S) - 1)])
        self._ends += 1
        pause *= random.uniform(0.8, 1.2)  # noqa: S311 (no herd)
        await wait_at_most(pause, lambda: self._backend.kubelet.wait_until_replaced(identity))

    async def _remove_unlisted(self) -> None:
        """Remove leaving IDs from the list as soon as they may go, until cancelled."""
        device_list, clock = self.offered_ids, asyncio.get_running_loop().time
        while True:
            await self._leaving.wait()
            self._leaving.clear()
            while device_list.leaving - device_list.ids_held_by_pods():
                await asyncio.sleep(_LEAVE_POLL_S)
                if device_list.removable_at(clock()):
                    await self._hooks.refresh()
                    if device_list.remove_unlisted(clock()):
                        self._hooks.on_left()


class DevicePluginBackend:
    """The device plugins of a process (a `devhost.backends.backend.Backend`).

    `directory` is kubelet's plugin directory, and `pod_resources` the socket of that API.
    `concurrency` limits how many start a server or register at a time: if a thousand did, memory
    would grow for good, and kubelet's calls would have to wait.
    """

    def __init__(
        self, directory: Path, pod_resources: Path, leave_after: float = LEAVE_AFTER_S
    ) -> None:
        self.directory, self.leave_after = directory, leave_after
        self.pods, self.locks = PodResources(pod_resources, directory), ResourceLocks(directory)
        self.kubelet = KubeletSocket(directory)
        self.concurrency = asyncio.Semaphore(_CONCURRENT_MAX)

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""
        return self.kubelet.restarts

    def publisher(self, _resource: Resource) -> str:
        """Return the driver: there is none."""
        return ""

    def open(self, _resource: Resource, hooks: ResourceHooks) -> Registration:
        """Return the publication of a resource, to be run."""
        return Registration(self, hooks)

    async def run(self, watcher: Watcher, _records: object = None) -> None:
        """Follow the directory; raise `BackendGoneError` if that was removed, and is a mount."""
        await run_together(
            self._follow(watcher), self._remove_dead_sockets(), self.locks.run(watcher)
        )

    async def _follow(self, watcher: Watcher) -> None:
        async for _ in follow_directory(watcher, self.directory):
            self.kubelet.check()

    async def _remove_dead_sockets(self) -> None:
        """Remove what instances that were killed have left, now, regularly, and with a lock."""
        while True:
            freed = self.locks.freed
            with contextlib.suppress(OSError):  # it is gone, or became read-only
                await run_in_thread("dead sockets", lambda: remove_dead_sockets(self.locks))
            await wait_at_most(_POLL_S, freed.wait)

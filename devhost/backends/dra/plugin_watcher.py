"""Registers the driver with kubelet's plugin watcher, and serves it on the same socket.

Kubelet finds a socket below plugins_registry, also after its own restart, asks it for the driver
and says whether it has registered that (k8s.io/kubernetes v1.37.1 pkg/kubelet/pluginmanager). It
takes a socket's name for what was there before, so each server has a name of its own. Of two
instances of a driver it calls the newer. Where the socket is removed, it unregisters the driver; of
a directory that is made again it learns when it starts.
"""

import asyncio
import contextlib
import errno
import logging
import os
import re
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Final

import grpc

from devhost.api.dra.v1 import dra_pb2_grpc
from devhost.api.pluginregistration.v1 import pluginregistration_pb2 as pb
from devhost.api.pluginregistration.v1 import pluginregistration_pb2_grpc as pb_grpc
from devhost.backends.backend import run_together
from devhost.backends.dra.claim_servicer import DraServicer
from devhost.backends.dra.health import SERVICES, HealthStreams
from devhost.backends.resource_lock import ResourceLocks
from devhost.backends.sockets import SERVER_OPTIONS, SOCKET_PATH_MAX, connect_error, start_server
from devhost.watch.threads import run_in_thread, wait_at_most
from devhost.watch.watcher import Watcher, follow_directory

_SERVICES: Final = ("v1.DRAPlugin", *SERVICES)
_STOP_GRACE_S: Final = 5.0
_PAUSE_S: Final = 1.0
_LOG: Final = logging.getLogger(__name__)


class DriverSockets:
    """The places of a driver's sockets in kubelet's directory."""

    def __init__(self, kubelet_dir: Path, driver: str) -> None:
        self.registry, self.driver = kubelet_dir / "plugins_registry", driver

    def fresh_path(self) -> Path:
        """Return where a server listens, hidden from kubelet by the dot until it is renamed."""
        return self.registry / f".{self.driver}-{secrets.token_hex(4)}-reg.sock"

    @property
    def length_problem(self) -> str | None:
        """Why the path of a socket is too long, or ``None``."""
        length = len(os.fsencode(self.fresh_path()))
        if length <= SOCKET_PATH_MAX:
            return None
        return f"a socket's path has {length} bytes, more than {SOCKET_PATH_MAX}"

    def remove_dead(self) -> None:
        """Remove the sockets that instances which were killed have left; may raise `OSError`.

        Blocks. Those that are hidden may not listen yet.
        """
        name = re.compile(rf"{re.escape(self.driver)}-[0-9a-f]{{8}}-reg\.sock")
        for path in self.registry.iterdir():
            if name.fullmatch(path.name) and connect_error(path) == errno.ECONNREFUSED:
                path.unlink(missing_ok=True)


class Registrar(pb_grpc.RegistrationServicer):
    """Keeps a driver registered; `on_change` is called when kubelet has registered it, or not.

    Attributes:
        problem: Why kubelet has not registered it; ``None`` once it has.
        registrations: How often it has.
    """

    def __init__(
        self,
        sockets: DriverSockets,
        locks: ResourceLocks,
        servicer: DraServicer,
        health: HealthStreams,
        on_change: Callable[[], None],
    ) -> None:
        self.sockets, self._locks, self._on_change = sockets, locks, on_change
        self.servicer, self.health = servicer, health
        self._refused = asyncio.Event()
        self._endpoint: Path | None = None  # while it is to be there
        self._waiting = f"waiting for kubelet to register the driver {sockets.driver}"
        self.problem: str | None = self._waiting
        self.registrations = 0

    async def run(self, watcher: Watcher) -> None:
        """Serve until cancelled, with a fresh socket each time that one is refused or removed."""
        await run_together(self._serve(), self._follow(watcher), self._remove_dead_sockets())

    async def _serve(self) -> None:
        while True:
            self._refused.clear()
            try:
                await self._serve_until_refused(self.sockets.fresh_path())
            except OSError as error:
                self._set_problem(str(error))
            await asyncio.sleep(_PAUSE_S)

    async def _follow(self, watcher: Watcher) -> None:
        async for _ in follow_directory(watcher, self.sockets.registry):
            if self._endpoint is not None and not self._endpoint.exists():
                self._set_problem(f"its socket was removed: {self._waiting}")
                self._refused.set()

    async def _remove_dead_sockets(self) -> None:
        """Remove what instances that were killed have left, now and when one has freed a lock."""
        while True:
            freed = self._locks.freed
            with contextlib.suppress(OSError):  # no registry: kubelet has not started yet
                await run_in_thread("dead sockets", self.sockets.remove_dead)
            await freed.wait()

    async def _serve_until_refused(self, hidden: Path) -> None:
        visible = hidden.with_name(hidden.name.removeprefix("."))
        server = grpc.aio.server(options=SERVER_OPTIONS)
        dra_pb2_grpc.add_DRAPluginServicer_to_server(self.servicer, server)
        pb_grpc.add_RegistrationServicer_to_server(self, server)
        self.health.add_to(server)
        try:
            await start_server(server, hidden)
            # Kubelet asks immediately what it sees, and gives it a second to answer.
            self._endpoint = hidden.rename(visible)  # noqa: ASYNC240 (the directory is local)
            await self._refused.wait()
        finally:
            self._endpoint = None
            for path in (visible, hidden):
                path.unlink(missing_ok=True)
            self.health.end()
            await wait_at_most(_STOP_GRACE_S + 1.0, lambda: server.stop(_STOP_GRACE_S))

    async def GetInfo(  # noqa: N802 (the protocol's name)
        self, _request: pb.InfoRequest, _context: object
    ) -> pb.PluginInfo:
        """Return what is to be registered."""
        return pb.PluginInfo(
            type="DRAPlugin",
            name=self.sockets.driver,
            endpoint=str(self._endpoint),
            supported_versions=_SERVICES,
        )

    async def NotifyRegistrationStatus(  # noqa: N802
        self, status: pb.RegistrationStatus, _context: object
    ) -> pb.RegistrationStatusResponse:
        """Take kubelet's verdict; after a refusal it does not ask again."""
        if status.plugin_registered:
            self.registrations += 1
            _LOG.info("driver registered", extra={"fields": {"driver": self.sockets.driver}})
            self._set_problem(None)
        else:
            self._set_problem(f"kubelet refused the driver {self.sockets.driver}: {status.error}")
            self._refused.set()
        return pb.RegistrationStatusResponse()

    def _set_problem(self, problem: str | None) -> None:
        if problem is not None:
            if problem == self.problem:
                return
            _LOG.warning("driver not registered", extra={"fields": {"reason": problem}})
        self.problem = problem
        self._on_change()

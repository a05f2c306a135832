"""One gRPC server on one socket, for one resource; a fresh name of it for each registration."""

import asyncio
import contextlib
import socket
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from devhost.kubelet import marks
from devhost.kubelet.methods import Methods
from devhost.kubelet.servicer import Backend, Servicer
from devhost.kubelet.shelter import Shelter

_STOP_GRACE_S: Final = 1.0
_STOP_TIMEOUT_S: Final = 2.0
_RECEIVE_BYTES_MAX: Final = 16 * 1024 * 1024  # GetPreferredAllocation carries every free ID

_STOPPING: Final[set["asyncio.Future[None]"]] = set()


class PluginServer:
    """A server with its socket; start it once, stop it once, and meanwhile let it rest."""

    def __init__(self, backend: Backend, directory: Path, endpoint: str) -> None:
        self.endpoint = endpoint
        self.servicer = Servicer(backend, lambda: marks.silent(self.path))
        self._directory = directory
        self.path = directory / self.endpoint
        self._kept: Path | None = None
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ]
        )
        self._server.add_generic_rpc_handlers((Methods(self.servicer),))

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            OSError: The directory is not there or not writable.
        """
        try:
            self._server.add_insecure_port(f"unix:{quote(str(self.path))}")
        except RuntimeError:
            # Each attempt has a name of its own; the same reason is to be the same text.
            reason = f"cannot listen in {self._directory}: {self._bind_problem()}"
            raise OSError(reason) from None
        starting = asyncio.ensure_future(self._server.start())
        try:
            await asyncio.shield(starting)
        except asyncio.CancelledError:
            await starting  # or it could not be stopped any more
            await self.stop()
            raise

    def _bind_problem(self) -> str:
        """Try what gRPC has tried, for the reason that it does not tell."""
        try:
            with socket.socket(socket.AF_UNIX) as probe:
                probe.bind(str(self.path))
        except OSError as error:
            return error.strerror or str(error)
        self.path.unlink(missing_ok=True)
        return "gRPC failed to"

    def keep(self, shelter: Shelter) -> None:
        """Have the socket outlive the kubelet, if that is possible."""
        self._kept = shelter.keep(self.path)

    def rest(self) -> bool:
        """Be reached by nobody until `offer`; return whether that may be done.

        It may not if anything is left of the registration that ended.
        """
        if self._kept is None or self.servicer.streams or self.servicer.quiet:
            return False
        self._unlink()
        marks.reset(self._kept)
        return True

    def offer(self, endpoint: str) -> bool:
        """Serve on a fresh name after a rest; return whether that is possible."""
        if self._kept is None or self.servicer.options_changed:
            return False
        self.endpoint, self.path = endpoint, self._directory / endpoint
        try:
            self.path.hardlink_to(self._kept)
        except OSError:
            return False
        return True

    async def stop(self) -> None:
        """End the streams, stop serving and unlink the socket."""
        self.servicer.close()
        # It waits for a client that does not read, and that may be for ever.
        stopping = asyncio.ensure_future(self._server.stop(_STOP_GRACE_S))
        _STOPPING.add(stopping)
        stopping.add_done_callback(_STOPPING.discard)
        try:
            await asyncio.wait({stopping}, timeout=_STOP_TIMEOUT_S)
        finally:  # gRPC knows the first name only
            self._unlink()
            if self._kept is not None:
                with contextlib.suppress(OSError):
                    self._kept.unlink()

    def _unlink(self) -> None:
        with contextlib.suppress(OSError):  # a directory that became read-only
            self.path.unlink(missing_ok=True)

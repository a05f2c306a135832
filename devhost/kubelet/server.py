"""One gRPC server on one fresh socket, for one resource and one registration."""

import hashlib
import itertools
import os
import secrets
import socket
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from devhost.api.v1beta1 import deviceplugin_pb2_grpc as pb_grpc
from devhost.kubelet.servicer import Backend, Servicer

PREFIX: Final = "devhost-"
_INSTANCE: Final = f"{os.getpid():x}{secrets.token_hex(4)}"
_serial: Final = itertools.count(1)
_STOP_GRACE_S: Final = 1.0
_SOCKET_PATH_MAX: Final = 107  # sun_path, less its end
_RECEIVE_BYTES_MAX: Final = 16 * 1024 * 1024  # GetPreferredAllocation carries every free ID


def fresh_name(resource: str) -> str:
    """Return a socket name that no server had before.

    The kubelet's directory leaves 75 bytes of a socket path's 107, so the resource is hashed.
    A path that was registered once must not be used again: kubelet 1.37 would refuse it for
    good (k8s.io/kubernetes v1.37.1 pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go).
    """
    digest = hashlib.sha256(resource.encode()).hexdigest()[:12]
    return f"{PREFIX}{digest}-{_INSTANCE}-{next(_serial)}.sock"


def path_length_problem(directory: Path) -> str | None:
    """Say that a directory's path leaves no room for a socket's name, or return ``None``."""
    longest = len(os.fsencode(directory)) + 1 + len(fresh_name("")) + len("00000")
    if longest <= _SOCKET_PATH_MAX:
        return None
    return f"{directory} is too long: with a socket's name, {longest} bytes of {_SOCKET_PATH_MAX}"


def sweep(directory: Path) -> list[str]:
    """Unlink the dead sockets that earlier instances left; return their names."""
    swept = []
    for path in directory.glob(f"{PREFIX}*.sock"):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
                swept.append(path.name)
            except OSError:
                continue
    return swept


class PluginServer:
    """A server with its socket; start it once, stop it once."""

    def __init__(self, backend: Backend, directory: Path) -> None:
        self.endpoint = fresh_name(backend.name)
        self.servicer = Servicer(backend)
        self._path = directory / self.endpoint
        self._server = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", _RECEIVE_BYTES_MAX),
                ("grpc.so_reuseport", 0),
            ]
        )
        pb_grpc.add_DevicePluginServicer_to_server(self.servicer, self._server)

    async def start(self) -> None:
        """Bind and serve.

        Raises:
            OSError: The directory is not there or not writable.
        """
        try:
            self._server.add_insecure_port(f"unix:{quote(str(self._path))}")
        except RuntimeError as error:
            raise OSError(f"cannot listen on {self._path}: {error}") from None
        await self._server.start()

    async def stop(self) -> None:
        """End the streams, stop serving and unlink the socket."""
        self.servicer.close()
        await self._server.stop(_STOP_GRACE_S)
        self._path.unlink(missing_ok=True)

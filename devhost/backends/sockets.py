"""gRPC on Unix sockets: channels, servers, and whether somebody listens."""

import asyncio
import errno
import os
import socket
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

from devhost.model import limits

SOCKET_PATH_MAX: Final = 107  # sun_path, less its terminating zero
# Of a server, whose only client is kubelet.
SERVER_OPTIONS: Final = (
    ("grpc.max_receive_message_length", limits.REQUEST_BYTES_MAX),
    ("grpc.max_concurrent_streams", limits.CONNECTION_CALLS_MAX),
    ("grpc.max_allowed_incoming_connections", limits.CONNECTIONS_MAX),
    ("grpc.so_reuseport", 0),
)
_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),  # kubelet's gRPC server refuses a socket's path as one
    # Otherwise channels to one path share a connection, and the pause after one that failed.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC repeats a call that did not reach the peer, without pause or limit: a peer that says
    # GOAWAY to each would take gigabytes of memory in seconds.
    ("grpc.enable_retries", 0),
)

SocketIdentity = tuple[int, int, int]
"""Device, inode and time of creation of a socket.

A socket's time of modification is that of its creation. Its time of change would not do: a chmod,
a relabel or a backup's hard link set it too.
"""


def socket_identity(path: str | Path) -> SocketIdentity | None:
    """Return what differs from one server's socket to the next; ``None`` if there is none."""
    try:
        status = os.stat(path)  # asked often; Path.stat costs more
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns


def open_channel(path: str | Path) -> grpc.aio.Channel:
    """Return a channel to a socket, which connects with its first call.

    It takes messages of up to 4 MiB. Kubelet sets no limit to what it sends: of the pods of a node
    with some 10,000 devices that is 1 MiB.
    """
    return grpc.aio.insecure_channel(f"unix:{quote(str(path))}", options=_OPTIONS)


def connect_error(path: str | Path) -> int:
    """Return 0 if somebody listens on a socket, else the number of the error of a connection."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            error = probe.connect_ex(str(path))
    except OSError as unusable:
        return unusable.errno or errno.EIO
    return 0 if error == errno.EAGAIN else error  # EAGAIN: its queue is full


async def start_server(server: grpc.aio.Server, path: Path) -> None:
    """Start a server on a socket, or raise `OSError`.

    If that is cancelled or fails, it is stopped: not half-way.
    """
    try:
        server.add_insecure_port(f"unix:{quote(str(path))}")
    except RuntimeError:
        # Without the socket's name, which differs each time: the same reason is the same text.
        raise OSError(f"cannot listen in {path.parent}") from None
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        await asyncio.wait({starting})
        await server.stop(None)
        raise

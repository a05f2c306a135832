"""gRPC on Unix sockets: channels, servers, and whether somebody listens."""

import asyncio
import errno
import socket
from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),  # kubelet's gRPC server refuses a socket's path as one
    # Otherwise channels to one path share a connection, and the pause after one that failed.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC repeats a call that did not reach the peer, without pause or limit: a peer that says
    # GOAWAY to each would take gigabytes of memory in seconds.
    ("grpc.enable_retries", 0),
)


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


async def start_server(server: grpc.aio.Server) -> None:
    """Start a server. If that is cancelled or fails, it is stopped: not half-way."""
    starting = asyncio.ensure_future(server.start())
    try:
        await asyncio.shield(starting)
    except BaseException:
        await asyncio.wait({starting})
        await server.stop(None)
        raise

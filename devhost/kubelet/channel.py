"""How devhost connects to Unix sockets: with gRPC, and to learn whether somebody listens."""

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


def open_channel(path: str | Path, *, receive_bytes_max: int | None = None) -> grpc.aio.Channel:
    """Return a channel to a socket, which connects with its first call.

    Args:
        path: The socket's path.
        receive_bytes_max: The largest message; 4 MiB by default.
    """
    options: list[tuple[str, str | int]] = list(_OPTIONS)
    if receive_bytes_max is not None:
        options.append(("grpc.max_receive_message_length", receive_bytes_max))
    return grpc.aio.insecure_channel(f"unix:{quote(str(path))}", options=options)


def connect_error(path: str | Path) -> int:
    """Try to connect to a socket, without waiting.

    Returns:
        0 if somebody listens, else the error's number: `errno.ECONNREFUSED` for a dead socket.
    """
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK) as probe:
            error = probe.connect_ex(str(path))
    except OSError as unusable:
        return unusable.errno or errno.EIO
    return 0 if error == errno.EAGAIN else error  # EAGAIN: its queue is full

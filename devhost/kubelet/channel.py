"""How devhost connects to a Unix socket that speaks gRPC."""

from pathlib import Path
from typing import Final
from urllib.parse import quote

import grpc

_OPTIONS: Final = (
    ("grpc.default_authority", "localhost"),  # the kubelet refuses a socket's path as one
    # Else channels to one path share a connection, and the pause after one that failed.
    ("grpc.use_local_subchannel_pool", 1),
    # gRPC repeats a call that did not reach the peer, without pause or limit: a peer that says
    # GOAWAY to each would take gigabytes of memory in seconds.
    ("grpc.enable_retries", 0),
)


def open_channel(socket: str | Path, *, receive_bytes_max: int | None = None) -> grpc.aio.Channel:
    """Return a channel to a socket, which connects with its first call.

    Args:
        socket: The socket's path.
        receive_bytes_max: The largest message; 4 MiB unless given.
    """
    options: list[tuple[str, str | int]] = list(_OPTIONS)
    if receive_bytes_max is not None:
        options.append(("grpc.max_receive_message_length", receive_bytes_max))
    return grpc.aio.insecure_channel(f"unix:{quote(str(socket))}", options=options)

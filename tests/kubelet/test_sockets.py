"""The sockets of the stand-in kubelet."""

import asyncio
from pathlib import Path

import grpc
import pytest

from devhost.fake_kubelet.connections import serve


@pytest.mark.parametrize("turns", range(4))
async def test_start_cancelled_ends_stopped(directory: Path, turns: int) -> None:
    """Ctrl-C does so: gRPC cannot stop a server whose start was interrupted."""
    server = grpc.aio.server()
    starting = asyncio.create_task(serve(server, directory / "kubelet.sock"))
    for _ in range(turns):
        await asyncio.sleep(0)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting

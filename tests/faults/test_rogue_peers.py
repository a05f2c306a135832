"""Peers that say rubbish, or just enough HTTP/2 to do harm."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from devhost.standin.kubelet import SimulatedKubelet
from tests.support.asking import get, port_of
from tests.support.daemon import Daemon, tokens, until

SETTINGS = bytes.fromhex("000000 04 00 00000000")
GOAWAY = bytes.fromhex("000008 07 00 00000000 00000000 00000000")
ATTEMPTS = 60
RSS_MAX = 400_000_000  # a devhost has some 60 MB


@contextlib.asynccontextmanager
async def rogue(socket: Path, says: bytes) -> AsyncIterator[Sequence[object]]:
    """Say the same to all that connect, and end the connection; yields those up to now."""
    writers: list[asyncio.StreamWriter] = []

    def serve(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        writer.write(says)
        writer.close()

    async with await asyncio.start_unix_server(serve, socket):
        yield writers
    for writer in writers:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


@pytest.mark.parametrize("place", ["plugins/kubelet.sock", "pr.sock"])
async def test_kubelet_that_says_goaway_is_asked_in_bounded_memory(
    daemon: Daemon, directory: Path, place: str
) -> None:
    """Where it takes registrations, and where it says what pods hold."""
    daemon.constants = {"host.holders.POLL_S": 0.1}
    daemon.flags = ["--pod-resources", str(directory / "pr.sock")]
    async with rogue(directory / place, SETTINGS + GOAWAY) as connections:

        def enough() -> bool:
            assert daemon.figures().rss < RSS_MAX
            return len(connections) >= ATTEMPTS

        await daemon.start(tokens(**{f"r{number}": 1 for number in range(20)}))
        await until(enough, f"{ATTEMPTS} connections")
        assert await daemon.stop() == 0
    unknown = daemon.found("pod-resources unavailable")
    assert unknown if place == "pr.sock" else daemon.found("", state="BackingOff")


# ── rubbish: an error with its reason at most, and never a traceback ──

RUBBISH = bytes(range(255, 200, -1))


def is_clean(daemon: Daemon) -> bool:
    return not [it for it in daemon.lines if "traceback" in it or it["level"] in ("raw", "error")]


async def test_http_clients_that_misbehave_leave_no_traceback(
    daemon: Daemon, standin: SimulatedKubelet
) -> None:
    daemon.flags = ["--listen", "127.0.0.1:0"]
    await daemon.start(tokens(**{f"r{number}": 1 for number in range(50)}))
    port = await port_of(daemon)
    requests = (b"", RUBBISH, b"GET", b"GET /status HTTP/1.1\r\n\r\n", b"\x16\x03\x01" * 9000)
    for request in requests:
        for reset in (False, True):
            client = socket.create_connection(("127.0.0.1", port))
            client.sendall(request)
            if reset:
                linger = struct.pack("ii", 1, 0)
                client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            client.close()
    assert (await get(port, "/healthz")).status == 200
    assert await daemon.stop() == 0
    assert is_clean(daemon)

"""Peers in kubelet's place that speak just enough HTTP/2 to do harm."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from devhost.kubelet.simulator import SimulatedKubelet
from tests.support.daemon import Daemon, tokens, until

SETTINGS = bytes.fromhex("000000 04 00 00000000")
GOAWAY = bytes.fromhex("000008 07 00 00000000 00000000 00000000")
ATTEMPTS = 60
RSS_MAX = 400_000_000  # a devhost has some 60 MB


@contextlib.asynccontextmanager
async def says_goaway(socket: Path) -> AsyncIterator[list[None]]:
    """Serve a socket that ends each connection in an orderly way, before any call."""
    connections: list[None] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(None)
        writer.write(SETTINGS + GOAWAY)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(serve, socket):
        yield connections


async def bounded(daemon: Daemon, connections: list[None]) -> None:
    """Watch the memory of a process until there were so many connections."""

    def enough() -> bool:
        assert daemon.figures().rss < RSS_MAX
        return len(connections) >= ATTEMPTS

    await until(enough, f"{ATTEMPTS} connections")
    assert await daemon.stop() == 0


async def test_a_kubelet_that_says_goaway(daemon: Daemon) -> None:
    """Registrations fail and are tried again, with pauses, in bounded memory."""
    async with says_goaway(daemon.plugins / "kubelet.sock") as connections:
        await daemon.start(tokens(**{f"r{number}": 1 for number in range(20)}))
        await bounded(daemon, connections)
    assert daemon.found("", state="BackingOff")


async def test_pod_resources_that_say_goaway(
    daemon: Daemon, standin: SimulatedKubelet, directory: Path
) -> None:
    """Who holds what is not known, and that is all."""
    daemon.prelude = "import devhost.host.holders as holders; holders.POLL_S = 0.1"
    daemon.flags = ["--pod-resources", str(directory / "pr.sock")]
    async with says_goaway(directory / "pr.sock") as connections:
        await daemon.start(tokens(a=1))
        await bounded(daemon, connections)
    assert daemon.found("who holds what is not known")

"""Peers that say rubbish, or just enough HTTP/2 to do harm."""

import socket
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import grpc

from devhost.standin.kubelet import SimulatedKubelet
from tests.faults.rogue import rogue
from tests.support.asking import get, port_of
from tests.support.daemon import Daemon, tokens, until

SETTINGS = bytes.fromhex("000000 04 00 00000000")
GOAWAY = bytes.fromhex("000008 07 00 00000000 00000000 00000000")
ATTEMPTS = 60
RSS_MAX = 400_000_000  # a devhost has some 60 MB


async def bounded(daemon: Daemon, connections: Sequence[object]) -> None:
    """Watch the memory of a process until there were so many connections."""

    def enough() -> bool:
        assert daemon.figures().rss < RSS_MAX
        return len(connections) >= ATTEMPTS

    await until(enough, f"{ATTEMPTS} connections")
    assert await daemon.stop() == 0


async def test_kubelet_that_says_goaway_is_asked_in_bounded_memory(daemon: Daemon) -> None:
    """Registrations fail and are tried again, with pauses, in bounded memory."""
    async with rogue(daemon.plugins / "kubelet.sock", SETTINGS + GOAWAY) as connections:
        await daemon.start(tokens(**{f"r{number}": 1 for number in range(20)}))
        await bounded(daemon, connections)
    assert daemon.found("", state="BackingOff")


async def test_pod_resources_that_say_goaway_are_asked_in_bounded_memory(
    daemon: Daemon, standin: SimulatedKubelet, directory: Path
) -> None:
    """Who holds what is not known, and that is all."""
    daemon.constants = {"host.holders.POLL_S": 0.1}
    daemon.flags = ["--pod-resources", str(directory / "pr.sock")]
    async with rogue(directory / "pr.sock", SETTINGS + GOAWAY) as connections:
        await daemon.start(tokens(a=1))
        await bounded(daemon, connections)
    assert daemon.found("pod-resources unavailable")


# ── rubbish: an error with its reason at most, and never a traceback ──

RUBBISH = bytes(range(255, 200, -1))


def is_clean(daemon: Daemon) -> bool:
    return not [it for it in daemon.lines if "traceback" in it or it["level"] in ("raw", "error")]


async def test_pod_resources_that_answer_rubbish_are_a_reason_and_no_traceback(
    daemon: Daemon, standin: SimulatedKubelet, directory: Path
) -> None:
    async def rubbish(_request: bytes, _context: Any) -> bytes:
        return RUBBISH

    handlers: dict[str, Any] = {"List": grpc.unary_unary_rpc_method_handler(rubbish)}
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(
        [grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers)]
    )
    server.add_insecure_port(f"unix:{directory / 'pr.sock'}")
    await server.start()
    daemon.flags = ["--pod-resources", str(directory / "pr.sock")]
    await daemon.start(tokens(a=1))
    line = await daemon.logged("pod-resources unavailable")
    assert line["reason"] == f"{directory / 'pr.sock'}: the answer cannot be read"
    assert await daemon.stop() == 0
    await server.stop(None)
    assert is_clean(daemon)


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

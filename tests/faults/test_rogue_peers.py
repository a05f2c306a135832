"""Peers that say rubbish: an error with its reason at most, and never a traceback."""

import socket
import struct

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.asking import get, port_of
from tests.support.daemon import Daemon, tokens

RUBBISH = bytes(range(255, 200, -1))


def is_clean(daemon: Daemon) -> bool:
    return not [
        line for line in daemon.lines if "traceback" in line or line["level"] in ("raw", "error")
    ]


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

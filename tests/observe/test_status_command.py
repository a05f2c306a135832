"""`devhost status`: as a person calls it, and as `kubectl exec` does."""

import asyncio
import json
import socket
from pathlib import Path

import pytest

from tests.support.asking import A, asked, status, status_port_of
from tests.support.daemon import PATIENCE, Daemon, tokens
from tests.support.hosting import Kubelet


async def test_well_and_not(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    place = directory / "colas"
    for name in ("one", "odd\x1b[31m"):
        (place / name).touch()
    (place / "two").symlink_to("/nowhere")
    config = f"version: v1\nresources: [{{name: {A}, sources: [directory: {place}]}}]\n"
    await daemon.start(config)
    await started.wait(A, 1, 1)
    await daemon.logged("state", state="Registered")
    port = await status_port_of(daemon)
    code, out, err = await asked("--status-listen", f":{port}")
    assert (code, err) == (0, "")
    assert f"{A}: Registered since" in out
    assert "1 of 1 allocatable" in out
    assert f"one      Healthy   {place / 'one'}" in out
    assert "two: dangling link" in out
    assert "\x1b" not in out
    async with asyncio.timeout(60):
        while (await status(port))["resources"][0]["expected"] == 0:  # counted soon
            await asyncio.sleep(0.01)
    code, out, err = await asked("-o", "json", listen=f"127.0.0.1:{port}")
    assert (code, err) == (0, "")
    assert json.loads(out) == await status(port)

    daemon.write("version: v1\nresource: []\n")
    await daemon.logged("configuration file invalid")
    code, out, err = await asked("--status-listen", f"localhost:{port}")
    assert (code, err) == (1, "")
    assert f"{daemon.config}:2:1: error: " in out
    assert "\nproblems:\n  configuration file invalid; still serving the version of 2" in out
    code, out, _ = await asked("-o", "json", "--status-listen", f":{port}")
    assert code == 1
    assert json.loads(out)["troubles"]


async def test_who_holds_what(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    daemon.flags += ["--pod-resources", str(directory / "pr.sock")]
    await daemon.start(
        f"version: v1\nresources: [{{name: {A}, sources: [static: 1], replicas: 2}}]\n"
    )
    await started.wait(A, 2, 2)
    port = await status_port_of(daemon)
    await started.admit("pod", {"app": {A: 2}})
    async with asyncio.timeout(PATIENCE):
        while len((await status(port))["resources"][0]["holders"]) < 2:
            await asyncio.sleep(0.02)
    _, out, _ = await asked("--status-listen", f":{port}")
    assert [line.split() for line in out.splitlines()][-1] == ["0", "Healthy", "default/pod"]


async def test_none_is_running() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    code, out, err = await asked("--status-listen", f":{port}")
    assert (code, out) == (3, "")
    assert f"cannot reach devhost at 127.0.0.1:{port}: Connection refused" in err
    assert "--status-listen" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "said",
    [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 200 OK\r\n\r\n<html>", b"HTTP/1.1 404 No\r\n\r\n{}",
     b"HTTP/1.1 200 OK\r\n\r\n7"],
)  # fmt: skip
async def test_somebody_else_answers(said: bytes) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(said)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        code, out, err = await asked("--status-listen", f":{port}")
    assert (code, out) == (3, "")
    assert err.count("\n") == 1


async def test_no_address() -> None:
    code, _, err = await asked("--status-listen", "nowhere")
    assert code == 2
    assert "HOST:PORT" in err


@pytest.mark.parametrize(("index", "flag"), [(1, "--listen"), (3, "--status-listen")])
async def test_a_port_that_is_taken_ends_the_start(
    daemon: Daemon, started: Kubelet, index: int, flag: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        daemon.flags[index] = f"127.0.0.1:{port}"
        await daemon.start(tokens(a=1))
        assert await daemon.ended() == 1
    assert (line := daemon.lines[-1])["level"] == "error"
    assert line["msg"] == f"{flag}: 127.0.0.1:{port}: Address already in use"
    assert not daemon.sockets()


async def test_off_by_default(daemon: Daemon, started: Kubelet) -> None:
    daemon.flags = daemon.flags[4:]
    await daemon.start(tokens(a=1))
    await started.wait(A, 1, 1)
    assert await daemon.stop() == 0
    assert not daemon.found("listening")
    assert not daemon.found("listening for status")

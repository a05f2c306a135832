"""`devhost status`: what it prints of a devhost that runs, and what where none does."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml

from devhost.observe.address import Address
from devhost.observe.http import Response, serve_http
from tests.observe.page_examples import Json, many, wrong
from tests.support.asking import A, asked, colas, resource, status_port_of, until_status
from tests.support.daemon import Daemon, tokens
from tests.support.hosting import Kubelet

WITHHELD = "example.com/scratch-disk-3"


class Answering:
    """A devhost with a status that can be changed."""

    def __init__(self, status: Json, port: int) -> None:
        self.status, self.port = status, port

    async def asked(self, *arguments: str) -> tuple[int, str, str]:
        return await asked("--status-listen", f":{self.port}", *arguments)


@pytest.fixture
async def answering() -> AsyncIterator[Answering]:
    bound = socket.create_server(("127.0.0.1", 0))
    server = Answering(wrong(), bound.getsockname()[1])
    async with serve_http(bound, {"/status": lambda: Response(json.dumps(server.status).encode())}):
        yield server


async def test_status_well_and_not(daemon: Daemon, started: Kubelet, directory: Path) -> None:
    for name in ("one", "odd\x1b[31m"):
        (directory / "colas" / name).touch()
    (directory / "colas" / "two").symlink_to("/nowhere")
    await daemon.start(colas(directory))
    port = await status_port_of(daemon)
    report = await until_status(
        port, lambda doc: resource(doc).get("registered") and resource(doc)["expected"]
    )
    code, text, err = await asked("--status-listen", f":{port}")
    assert (code, err) == (0, "")
    assert f"{A}: Registered since" in text
    assert "1 of 1 allocatable" in text
    assert f"one      Healthy   {directory / 'colas' / 'one'}" in text
    assert "two: dangling link" in text
    assert "\x1b" not in text
    code, text, err = await asked("-o", "json", DEVHOST_STATUS_LISTEN=f"127.0.0.1:{port}")
    assert (code, json.loads(text), err) == (0, report, "")
    daemon.write("version: v1\nresource: []\n")
    await until_status(port, lambda doc: doc["config"]["problems"])  # the last answer is cached
    code, text, err = await asked("--status-listen", f"localhost:{port}")
    assert (code, err) == (1, "")
    assert f"{daemon.config}:2:1: error: " in text
    assert "\nproblems:\n  configuration file invalid; still serving the last good one" in text


async def test_status_of_some_resources_has_their_problems(answering: Answering) -> None:
    holders = {"scratch-disk0::0": ["x/one", "x/two"], "scratch-disk0::1": ["x/one"]}
    answering.status["resources"][3]["holders"] = holders
    code, text, _ = await answering.asked(WITHHELD, "-o", "json")
    assert code == 1
    _, as_yaml, _ = await answering.asked(WITHHELD, "-o", "yaml")
    assert yaml.safe_load(as_yaml) == json.loads(text)
    _, wide, _ = await answering.asked(WITHHELD, "-o", "wide")
    assert re.search("^DEVICE +HEALTH +HELD BY +NUMA +PATHS +CHECKED +REASON$", wide, re.MULTILINE)
    assert re.search("^scratch-disk0 +Unhealthy +x/one, x/two  ", wide, re.MULTILINE)
    assert json.loads(text) == answering.status | {
        "resources": [answering.status["resources"][3]],
        "troubles": [answering.status["troubles"][0], answering.status["troubles"][-1]],
    }
    none = (1, "", "devhost: no resource example.com/none\n")
    assert await answering.asked("example.com/none") == none
    _, _, err = await answering.asked(WITHHELD.partition("/")[2])
    assert err.endswith(f"; did you mean '{WITHHELD}'?\n")
    answering.status = many()
    code, text, _ = await answering.asked("example.com/serial-0")
    assert code == 0
    assert "problems:" not in text
    assert len(text.splitlines()) == 35  # two lines on the whole, an empty one, two headings


async def test_status_without_a_devhost_exits_with_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
    code, text, err = await asked("--status-listen", f":{port}")
    assert (code, text, err.count("\n")) == (3, "", 1)
    assert f"cannot reach devhost at 127.0.0.1:{port}: Connection refused" in err
    assert "--status-listen" in err


@pytest.mark.parametrize(
    "reply", [b"", b"SSH-2.0-x\r\n", b"HTTP/1.1 404 No\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n7"]
)
async def test_status_of_another_program_exits_with_3(reply: bytes) -> None:
    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)
        writer.close()
        await writer.wait_closed()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        code, text, err = await asked("--status-listen", f":{port}")
    assert (code, text, err.count("\n")) == (3, "", 1)


@pytest.mark.parametrize(("index", "flag"), [(1, "--listen"), (3, "--status-listen")])
async def test_port_that_is_taken_ends_the_start(daemon: Daemon, index: int, flag: str) -> None:
    with Address("127.0.0.1", 0).bind() as bound:
        port = bound.getsockname()[1]
        daemon.flags[index] = f"127.0.0.1:{port}"
        await daemon.start(tokens(a=1))
        assert await daemon.ended() == 1
    assert (line := daemon.lines[-1])["level"] == "error"
    assert line["msg"] == f"{flag}: 127.0.0.1:{port}: Address already in use"
    assert not daemon.sockets()


async def test_http_is_off_by_default(daemon: Daemon, started: Kubelet) -> None:
    daemon.flags = daemon.flags[4:]
    await daemon.start(tokens(a=1))
    await started.wait(A, 1, 1)
    assert await daemon.stop() == 0
    assert not daemon.found("listening")

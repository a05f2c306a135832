"""`devhost status` of some resources, in its other forms, and while it changes."""

import asyncio
import json
import os
import pty
import signal
import socket
import sys
from collections.abc import AsyncIterator

import pytest
import yaml

from devhost.cli import status_output
from devhost.observe.http import Response, serving
from tests.observe.page_examples import Json, many, wrong
from tests.support.daemon import PATIENCE

WITHHELD = "example.com/scratch-disk-3"


class Answering:
    """A devhost that says something, which can be changed."""

    def __init__(self, said: Json, port: int) -> None:
        self.said = said
        self.port = port

    async def run(self, *arguments: str) -> tuple[int, str, str]:
        """Run `devhost status` to its end."""
        process = await self.start(*arguments)
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()

    async def start(
        self, *arguments: str, stdout: int = asyncio.subprocess.PIPE, **environment: str
    ) -> asyncio.subprocess.Process:
        flags = ["--status-listen", f":{self.port}"]
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "devhost", "status", *flags, *arguments),
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", **environment},
        )


@pytest.fixture
async def answering() -> AsyncIterator[Answering]:
    bound = socket.create_server(("127.0.0.1", 0))
    found = Answering(wrong(), bound.getsockname()[1])
    route = lambda: Response(json.dumps(found.said).encode())  # noqa: E731
    async with serving(bound, {"/status": route}):
        yield found


async def test_some_resources(answering: Answering) -> None:
    """With their problems, and those that are nobody's."""
    code, out, _ = await answering.run(WITHHELD, "-o", "json")
    assert code == 1
    assert json.loads(out) == answering.said | {
        "resources": [answering.said["resources"][3]],
        "troubles": [answering.said["troubles"][0], answering.said["troubles"][-1]],
    }
    code, out, err = await answering.run("example.com/none")
    assert (code, out) == (1, "")
    assert err == ("devhost: no resource example.com/none; `devhost status` lists what there is\n")
    _, _, err = await answering.run(WITHHELD.partition("/")[2])
    assert err.endswith(f"; did you mean '{WITHHELD}'?\n")
    code, out, err = await answering.run("127.0.0.1:9112")
    assert (code, out) == (2, "")
    assert "127.0.0.1:9112 is not a resource; write --status-listen 127.0.0.1:9112" in err
    answering.said = many()
    code, out, _ = await answering.run("example.com/serial-0")
    assert code == 0
    assert "problems:" not in out
    assert len(out.splitlines()) == 35  # two lines on the whole, an empty one, two headings


async def test_in_other_forms(answering: Answering) -> None:
    _, as_json, _ = await answering.run("-o", "json")
    _, as_yaml, _ = await answering.run("-o", "yaml")
    assert yaml.safe_load(as_yaml) == json.loads(as_json)
    _, wide, _ = await answering.run("example.com/serial-0", "-o", "wide")
    assert [line.split() for line in wide.splitlines() if line.startswith("DEVICE")] == [
        ["DEVICE", "HEALTH", "HELD", "BY", "PATHS", "NUMA", "CHECKED", "REASON"]
    ]


async def test_changes_for_programs(answering: Answering) -> None:
    """A line each, as they come; Ctrl-C ends it as a shell expects."""
    process = await answering.start("-w")
    out = process.stdout
    assert out

    async def line(part: str) -> str:
        async with asyncio.timeout(PATIENCE):
            while part not in (text := (await out.readline()).decode()):
                assert text
        return text

    assert "Unhealthy, withheld: " in await line(f" {WITHHELD} scratch-disk3: ")
    changed = wrong()
    changed["resources"][3]["devices"][0] |= {"health": "Healthy", "reason": None}
    changed["troubles"] = []
    del changed["resources"][0]
    answering.said = changed
    assert (await line(f"{WITHHELD} scratch-disk0: ")).endswith(
        " scratch-disk0: Healthy, held by default/web-0\n"
    )
    await line(": gone")
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130


async def test_documents(answering: Answering) -> None:
    process = await answering.start("-w", "-o", "json")
    assert process.stdout
    async with asyncio.timeout(PATIENCE):
        assert json.loads(await process.stdout.readline()) == answering.said
        answering.said = answering.said | {"ready": True}
        assert json.loads(await process.stdout.readline())["ready"]
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130


@pytest.mark.parametrize("columns", [40, 60, 80])
async def test_on_a_terminal(answering: Answering, columns: int) -> None:
    """It fits the screen, whatever there is, and follows."""
    answering.said = many()
    ours, theirs = pty.openpty()
    process = await answering.start("-w", stdout=theirs, COLUMNS=str(columns), LINES="24")
    os.close(theirs)
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours, "rb", buffering=0)
    )

    async def screen() -> list[str]:
        async with asyncio.timeout(PATIENCE):
            shown = await reader.readuntil(b" NAME)\r\n")
        return shown.decode().rpartition("\x1b[2J")[2].splitlines()

    first = await screen()
    assert sum(-(-len(line) // columns) or 1 for line in first) < 24
    assert "  example.com/sound-17: 1 of 9 devices missing" in first
    answering.said = answering.said | {"nodeName": "node-2"}
    assert "node-2" in (await screen())[0]
    process.send_signal(signal.SIGINT)
    assert await reader.readline() == b"\r\n"  # the shell's prompt is not behind the ^C
    assert await process.wait() == 130
    transport.close()


async def test_none_is_running_at_first(answering: Answering) -> None:
    answering.said = {}
    code, out, err = await answering.run("-w")
    assert (code, out) == (3, "")
    assert "not from devhost" in err


async def test_a_restart(answering: Answering) -> None:
    """Is waited for, and said."""
    said = answering.said
    process = await answering.start("-w")
    assert process.stdout
    async with asyncio.timeout(PATIENCE):
        for part, then in (
            (b"devhost: not ready", {}),
            (b"cannot reach", said),
            (b"not ready", {}),
        ):
            while part not in (line := await process.stdout.readline()):
                assert line
            answering.said = then
    process.send_signal(signal.SIGINT)
    assert await process.wait() == 130


def test_which_pods_have_a_device_or_its_shares() -> None:
    holders = {"a::0": ["x/one", "x/two"], "a::1": ["x/one"], "b": ["y/b"]}
    assert status_output.pods(holders) == {"a": "x/one, x/two", "b": "y/b"}

"""`devhost status` of some resources, and in its other forms."""

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator

import pytest
import yaml

from devhost.cli import output
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
        """Run `devhost status`."""
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "devhost", "status", "--status-listen", f":{self.port}"),
            *arguments,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            out, err = await process.communicate()
        assert process.returncode is not None
        return process.returncode, out.decode(), err.decode()


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
    assert err == "devhost: no resource example.com/none\n"
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
        ["DEVICE", "HEALTH", "HELD", "BY", "NUMA", "PATHS", "CHECKED", "REASON"]
    ]


def test_which_pods_have_a_device_or_its_shares() -> None:
    holders = {"a::0": ["x/one", "x/two"], "a::1": ["x/one"], "b": ["y/b"]}
    assert output.pods(holders) == {"a": "x/one, x/two", "b": "y/b"}

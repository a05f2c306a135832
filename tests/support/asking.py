"""An HTTP client that can be as strange as a test wants."""

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tests.support.command import called
from tests.support.daemon import PATIENCE, Daemon
from tests.support.waiting import until_said

A = "example.com/a"
Json = dict[str, Any]


@dataclass(frozen=True)
class Answer:
    """A response; all empty where the connection was cut."""

    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Json:
        value: Json = json.loads(self.body)
        return value


async def send(port: int, raw: bytes, host: str = "127.0.0.1") -> Answer:
    """Send bytes and read until the end."""
    async with asyncio.timeout(PATIENCE):
        reader, writer = await asyncio.open_connection(host, port)
        try:
            writer.write(raw)
            received = await reader.read()
        except ConnectionError:
            received = b""
        finally:
            writer.close()
    return answer(received)


def answer(received: bytes) -> Answer:
    """Take an answer apart, strictly."""
    if not received:
        return Answer(0, {}, b"")
    head, _, body = received.partition(b"\r\n\r\n")
    first, *lines = head.decode("ascii").split("\r\n")
    version, status, _ = first.split(" ", 2)
    assert version == "HTTP/1.1"
    headers = {name.title(): value for name, value in (line.split(": ", 1) for line in lines)}
    assert headers["Connection"] == "close"
    return Answer(int(status), headers, body)


async def get(port: int, path: str) -> Answer:
    """Ask as a browser does."""
    response = await send(port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    assert int(response.headers["Content-Length"]) == len(response.body)
    return response


async def status(port: int) -> Json:
    return (await get(port, "/status")).json()


async def asked(*arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run `devhost status`; return its exit status and what it printed."""
    async with asyncio.timeout(PATIENCE):
        done = await asyncio.to_thread(called, "status", *arguments, **variables)
    return done.returncode, done.stdout, done.stderr


async def until_status(port: int, true: Callable[[Json], object], path: str = "/status") -> Json:
    async def ask() -> Json:
        return (await get(port, path)).json()

    return await until_said(ask, true)


async def until_value(port: int, value: float, name: str, **labels: str) -> "Samples":
    """Scrape until a sample has a value."""
    return await until_said(
        lambda: scrape(port), lambda samples: samples.value(name, **labels) == value
    )


def resource(status: Json, name: str = A) -> Json:
    """Return a resource; an empty one where it is not there."""
    entries: dict[str, Json] = {entry["name"]: entry for entry in status["resources"]}
    return entries.get(name, {})


def colas(directory: Path, options: str = "") -> str:
    place = directory / "colas"
    return f"version: v1\nresources:\n  - {{name: {A}, sources: [directory: {place}]{options}}}\n"


class Samples:
    def __init__(self, text: str) -> None:
        self.all: list[Sample] = [
            sample for family in text_string_to_metric_families(text) for sample in family.samples
        ]

    def __str__(self) -> str:
        return "\n".join(f"{s.name}{s.labels} {s.value}" for s in self.all if "le" not in s.labels)

    def value(self, name: str, **labels: str) -> float | None:
        values = [s.value for s in self.all if s.name == name and s.labels == labels]
        assert len(values) <= 1
        return values[0] if values else None

    def names_of(self, resource: str) -> set[str]:
        """Return the metrics that have a series of a resource."""
        return {s.name for s in self.all if s.labels.get("resource_name") == resource}


async def scrape(port: int) -> Samples:
    response = await get(port, "/metrics")
    assert response.status == 200
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    return Samples(response.body.decode())


async def port_of(daemon: Daemon, message: str = "listening") -> int:
    line = await daemon.logged(message)
    return int(line["address"].rpartition(":")[2])


async def status_port_of(daemon: Daemon) -> int:
    return await port_of(daemon, "listening for status")

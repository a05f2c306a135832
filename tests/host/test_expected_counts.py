"""When the numbers of devices are counted, and written to the state directory."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from devhost.host import expectations as module
from devhost.host.expectations import Expectations
from devhost.host.resource.publisher import Publisher
from devhost.loading.shapes import shaped
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot

NAME = "example.com/a"


class Restless:
    """What is published of a resource that changes again whenever its devices are counted."""

    def __init__(self, numbers: Expectations) -> None:
        self._numbers = numbers
        resource = shaped(Resource, {"name": NAME, "sources": ["/dev/x*"]})
        self.scanner = SimpleNamespace(resource=resource)
        self.skipped: list[Any] = []
        self._found = Snapshot({"d": HostDevice("d", ())})

    @property
    def found(self) -> Snapshot:
        self._numbers.changed(NAME, cast("Publisher", self))
        return self._found


@pytest.fixture(autouse=True)
def at_once() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BURST_S", 0.0)
        yield


async def test_a_resource_that_never_rests_is_saved(tmp_path: Path) -> None:
    numbers = Expectations(tmp_path)
    running = asyncio.create_task(numbers.run())
    while not numbers._loaded:  # from then on, only what has been counted is a reason to save
        await asyncio.sleep(0)
    numbers.changed(NAME, cast("Publisher", Restless(numbers)))
    path = tmp_path / "expected" / "devices.json"
    while not path.exists() or NAME not in json.loads(path.read_text()):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)

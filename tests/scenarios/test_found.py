"""What the model-based test (tests/model) has found, each in the fewest steps."""

import asyncio
import threading
from pathlib import Path

import pytest

from devhost.discovery.host_files import HostFiles
from devhost.discovery.survey import Survey, survey
from devhost.host import surveyor
from devhost.model.config import Resource
from tests.scenarios.test_reload import A, B, reloading
from tests.support.hosting import Kubelet


async def test_a_device_that_comes_back_takes_nobodys_seat(
    started: Kubelet, directory: Path
) -> None:
    """The limit fell while a device was missing: the one that is there keeps its seat."""
    text = f"""
version: v1
resources:
  - name: {A}
    sources: [static: [t], directory: {directory}/colas]
    maxDevices: 2
    removeMissingAfter: never
"""
    (directory / "colas" / "a").touch()
    async with reloading(directory, text) as running:
        await started.wait(A, 2, 2)
        (directory / "colas" / "a").unlink()
        await started.wait(A, 2, 1)
        running.config.write_text(text.replace("maxDevices: 2", "maxDevices: 1"))
        await running.until(reloads=1)
        (directory / "colas" / "a").touch()
        await started.wait(A, 1, 1)
        assert list(running.runner(A).listing.entries) == ["t"]


async def test_who_waits_learns_that_the_other_shares_now(
    started: Kubelet, directory: Path
) -> None:
    """A node's former resource comes back while it drains, and shares: nobody waits for it."""
    sources = f"sources: [directory: {directory}/colas]"
    text = f"""
version: v1
resources:
  - {{name: {A}, {sources}}}
"""
    more = f"  - {{name: {B}, {sources}, overlap: allow}}\n"
    (directory / "colas" / "x").touch()
    async with reloading(directory, text.replace(A, B)) as running:
        await started.wait(B, 1, 1)
        running.config.write_text(text)
        await started.wait(A, 1, 0)
        running.config.write_text(text + more)
        await started.wait(A, 1, 1)
        await started.wait(B, 1, 1)


async def test_a_look_that_is_out_of_date_takes_nothing_over(
    started: Kubelet, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node vanished while the second resource looked: it was never the second's."""
    looked, go_on = threading.Event(), threading.Event()

    def slow(resource: Resource, files: HostFiles) -> Survey:
        found = survey(resource, files)
        if resource.name == B:
            looked.set()
            go_on.wait(10)
        return found

    sources = f"sources: [directory: {directory}/colas]"
    text = f"""
version: v1
resources:
  - {{name: {A}, {sources}}}
  - {{name: {B}, {sources}}}
"""
    (directory / "colas" / "x").touch()
    async with reloading(directory, text) as running:
        await started.wait(A, 1, 1)
        await started.wait(B, 0, 0)
        monkeypatch.setattr(surveyor, "survey", slow)
        running.runner(B).look_again()
        await asyncio.to_thread(looked.wait, 10)
        (directory / "colas" / "x").unlink()
        await started.wait(A, 1, 0)
        go_on.set()
        looked.clear()
        await asyncio.to_thread(looked.wait, 10)  # it looks again
        assert running.runner(B).listing.entries == {}

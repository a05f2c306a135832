"""Races between scans, lists and edits that the model (tests/model) has found, each held at its moment."""

import asyncio
import gc
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.roots import Readings
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import Selection
from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.registration import PluginServer
from devhost.model.device import Snapshot
from tests.host.reloading import A, B, reloading
from tests.support.answers import Nobody
from tests.support.hosting import Hosting, Kubelet
from tests.support.root import needs_root


async def test_withheld_node_is_offered_when_its_draining_resource_shares(
    started: Kubelet, directory: Path, may_leave: asyncio.Event
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


async def test_scan_that_is_out_of_date_takes_no_node_over(
    started: Kubelet, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node vanished while the second resource looked: it was never the second's."""
    looked, go_on = threading.Event(), threading.Event()

    select = Scanner.select

    def slow(self: Scanner, readings: Readings) -> Selection:
        found = select(self, readings)
        if self.resource.name == B:
            looked.set()
            go_on.wait(60)
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
        monkeypatch.setattr(Scanner, "select", slow)
        running.runner(B).trigger_scan()
        await asyncio.to_thread(looked.wait, 60)
        (directory / "colas" / "x").unlink()
        await started.wait(A, 1, 0)
        go_on.set()
        looked.clear()
        await asyncio.to_thread(looked.wait, 60)  # it looks again
        assert running.runner(B).published.may_hand_out() == set()


async def test_server_that_is_cancelled_while_it_starts_leaves_nothing(directory: Path) -> None:
    """It leaves no socket, no task and no complaint of gRPC."""
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    before = asyncio.all_tasks()
    server = PluginServer(Nobody(), DeviceList(), directory / "plugins", "a.sock")
    starting = asyncio.create_task(server.start())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled()
    assert not list((directory / "plugins").iterdir())
    del server, starting
    gc.collect()
    while asyncio.all_tasks() != before:
        await asyncio.sleep(0.005)
    assert complaints == []


async def test_node_that_an_earlier_resource_shares_meanwhile_stays(
    started: Kubelet, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was the second resource's alone when that judged: it stays there."""
    judged, go_on = threading.Event(), threading.Event()
    conclude = Scanner.conclude

    def slow(self: Scanner, *arguments: Any, **options: Any) -> Snapshot:
        found = conclude(self, *arguments, **options)
        if self.resource.name == B:
            judged.set()
            go_on.wait(60)
        return found

    other, sources = directory / "other", f"sources: [directory: {directory}/colas]"
    text = f"""
version: v1
resources:
  - {{name: {A}, sources: [directory: {other}], overlap: allow}}
  - {{name: {B}, {sources}}}
"""
    other.mkdir()
    (directory / "colas" / "x").touch()
    async with reloading(directory, text) as running:
        await started.wait(A, 0, 0)
        await started.wait(B, 1, 1)
        monkeypatch.setattr(Scanner, "conclude", slow)
        running.runner(B).trigger_scan()
        assert await asyncio.to_thread(judged.wait, 60)
        (other / "y").symlink_to(directory / "colas" / "x")
        await started.wait(A, 1, 1)
        go_on.set()
        running.runner(B).trigger_scan()
        judged.clear()
        assert await asyncio.to_thread(judged.wait, 60)
        await started.wait(B, 1, 1)


@needs_root
@pytest.mark.parametrize("seen", [True, False])
async def test_device_replaced_by_another_is_unhealthy_for_a_time(
    started: Kubelet,
    hosting: Hosting,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    seen: bool,
) -> None:
    """The kubelet has it as unhealthy until the time is over, whether its absence was seen."""
    monkeypatch.setattr("devhost.discovery.identity.SWAP_S", 3600.0)
    dev = directory / "root" / "dev"
    dev.mkdir(parents=True)
    os.mknod(dev / "tty0", 0o020660, os.makedev(1, 3))
    policy = Policy(("/dev/*",), enforced=True)
    config = f"version: v1\nresources: [{{name: {A}, sources: [dev: tty0]}}]"
    host = hosting.start(config, root=directory / "root", policy=policy)
    await started.wait(A, 1, 1)
    os.mknod(dev / "other", 0o020660, os.makedev(1, 5))
    if seen:
        (dev / "tty0").unlink()
        await started.wait(A, 1, 0)
    (dev / "other").rename(dev / "tty0")
    await started.wait(A, 1, 0)
    while hosting.reason(A, "tty0") != "another device was found in its place":
        assert hosting.reason(A, "tty0") is not None
        await asyncio.sleep(0.01)
    monkeypatch.setattr("devhost.discovery.identity.SWAP_S", 0.0)
    host.resources[0].trigger_scan()
    await started.wait(A, 1, 1)

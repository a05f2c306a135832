"""Races between scans, lists and edits that the model (tests/model) has found, each held at its moment."""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from devhost.devices.scan import Scanner
from devhost.model.device import Snapshot
from devhost.sources.base import Listings
from devhost.sources.selection import Selection
from tests.support.hosting import Hosting, Kubelet

A, B = "example.com/a", "example.com/b"


async def test_withheld_node_is_offered_when_its_draining_resource_shares(
    started: Kubelet, hosting: Hosting, directory: Path, may_leave: asyncio.Event
) -> None:
    """A node's former resource comes back while it drains, and shares: nobody waits for it."""
    sources = f"sources: [directory: {directory}/colas]"
    text = f"version: v1\nresources:\n  - {{name: {A}, {sources}}}\n"
    (directory / "colas" / "x").touch()
    hosting.start(text.replace(A, B))
    await started.wait(B, 1, 1)
    hosting.reload(text)
    await started.wait(A, 1, 0)
    hosting.reload(text + f"  - {{name: {B}, {sources}, overlap: allow}}\n")
    await started.wait(A, 1, 1)
    await started.wait(B, 1, 1)


async def test_scan_that_is_out_of_date_takes_no_node_over(
    started: Kubelet, hosting: Hosting, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node vanished while the second resource looked: it was never the second's."""
    looked, go_on = threading.Event(), threading.Event()
    select = Scanner.select

    def slow(self: Scanner, listings: Listings) -> Selection:
        selection = select(self, listings)
        if self.resource.name == B:
            looked.set()
            go_on.wait(60)
        return selection

    sources = f"sources: [directory: {directory}/colas]"
    (directory / "colas" / "x").touch()
    hosting.start(f"""
version: v1
resources:
  - {{name: {A}, {sources}}}
  - {{name: {B}, {sources}}}
""")
    await started.wait(A, 1, 1)
    await started.wait(B, 0, 0)
    monkeypatch.setattr(Scanner, "select", slow)
    second = hosting.hosts[-1].resources[1]
    second.scan.request()
    await asyncio.to_thread(looked.wait, 60)
    (directory / "colas" / "x").unlink()
    await started.wait(A, 1, 0)
    go_on.set()
    looked.clear()
    await asyncio.to_thread(looked.wait, 60)  # it looks again
    assert second.publication.offered_ids.device_ids == set()


async def test_node_that_an_earlier_resource_shares_meanwhile_stays(
    started: Kubelet, hosting: Hosting, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The node was the second resource's alone at the judgement: it stays there."""
    judged, go_on = threading.Event(), threading.Event()
    verify = Scanner.verify

    def slow(self: Scanner, *arguments: Any, **options: Any) -> Snapshot:
        snapshot = verify(self, *arguments, **options)
        if self.resource.name == B:
            judged.set()
            go_on.wait(60)
        return snapshot

    links = directory / "links"
    links.mkdir()
    (directory / "colas" / "x").touch()
    hosting.start(f"""
version: v1
resources:
  - {{name: {A}, sources: [directory: {links}], overlap: allow}}
  - {{name: {B}, sources: [directory: {directory}/colas]}}
""")
    await started.wait(A, 0, 0)
    await started.wait(B, 1, 1)
    monkeypatch.setattr(Scanner, "verify", slow)
    second = hosting.hosts[-1].resources[1]
    second.scan.request()
    assert await asyncio.to_thread(judged.wait, 60)
    (links / "y").symlink_to(directory / "colas" / "x")
    await started.wait(A, 1, 1)
    go_on.set()
    second.scan.request()
    judged.clear()
    assert await asyncio.to_thread(judged.wait, 60)
    await started.wait(B, 1, 1)

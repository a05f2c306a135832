"""The watches of one resource's sources, where the filesystem takes its time to answer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.discovery.scan import Scanner
from devhost.host.resource import source_watch
from devhost.host.resource.source_watch import SourceWatch
from devhost.hostfs.files import HostFiles
from devhost.loading.loader import loads
from devhost.watch.watcher import Watcher
from tests.support.watching import Listener, watches


def scanner_of(directory: Path, root: Path = Path("/"), env: str = "x") -> Scanner:
    resource = f"name: a.b/c, sources: [directory: {directory}], allocate: {{env: {{A: {env}}}}}"
    config = loads(f"version: v1\nresources: [{{{resource}}}]").require()
    return Scanner.of(config.resources[0], HostFiles(str(root)), Policy(), "node", hold_s=0.0)


class Slow:
    """Where a directory `slow` is, is told only after `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = 0
        self._resolve = HostFiles.resolve

    def resolve(self, files: HostFiles, path: str) -> str:
        if path.endswith("/slow"):
            self.asked += 1
            self.release.wait(60)
        return self._resolve(files, path)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    (tmp_path / "slow").mkdir()
    (tmp_path / "quick").mkdir()
    one = Slow()

    def resolve(files: HostFiles, path: str) -> str:
        return one.resolve(files, path)

    monkeypatch.setattr(HostFiles, "resolve", resolve)
    monkeypatch.setattr(source_watch, "_WAIT_S", 0.05)
    yield one
    one.release.set()


@asynccontextmanager
async def watching() -> AsyncIterator[tuple[SourceWatch, Listener]]:
    """The watches of a resource, and what it is told."""
    async with Watcher() as watcher:
        told = Listener()
        watch = SourceWatch(watcher, told.callback)
        yield watch, told
        watch.end()


async def test_another_declaration_does_not_wait_for_the_former(tmp_path: Path, slow: Slow) -> None:
    """The operator points the resource away from a directory that hangs."""
    async with watching() as (watch, told):
        await watch.arrange(scanner_of(tmp_path / "slow"))
        await watch.arrange(scanner_of(tmp_path / "quick"))
        (tmp_path / "quick" / "a").touch()
        await told.until(tmp_path / "quick" / "a")
        slow.release.set()
        await watch.arrange(scanner_of(tmp_path / "quick"))
        (tmp_path / "slow" / "a").touch()
        (tmp_path / "quick" / "b").touch()
        assert await told.until(tmp_path / "quick" / "b") == []


async def test_the_same_directories_are_not_asked_for_twice(tmp_path: Path, slow: Slow) -> None:
    """However often the declaration changes otherwise, one thread waits."""
    async with watching() as (watch, told):
        for number in range(3):
            await watch.arrange(scanner_of(tmp_path / "slow", env=f"x{number}"))
        assert slow.asked == 1
        slow.release.set()
        await told.until(None)
        (tmp_path / "slow" / "a").touch()
        await told.until(tmp_path / "slow" / "a")


async def test_what_came_before_a_late_watch_is_looked_at(tmp_path: Path, slow: Slow) -> None:
    """The look had not waited for it; where it had, none follows."""
    async with watching() as (watch, told):
        await watch.arrange(scanner_of(tmp_path / "slow"))
        slow.release.set()
        await told.until(None)
        await watch.arrange(scanner_of(tmp_path / "quick"))
        (tmp_path / "quick" / "a").touch()
        assert await told.until(tmp_path / "quick" / "a") == []


async def test_what_ends_is_not_looked_at(tmp_path: Path, slow: Slow) -> None:
    async with watching() as (watch, told):
        await watch.arrange(scanner_of(tmp_path / "slow"))
        watch.end()
        await asyncio.sleep(0)
        slow.release.set()
        await watch.arrange(scanner_of(tmp_path / "quick"))
        (tmp_path / "quick" / "a").touch()
        assert await told.until(tmp_path / "quick" / "a") == []


async def test_names_that_begin_like_those_of_the_kernel(tmp_path: Path) -> None:
    """/sysroot is watched; /sys, of which there are no events, is not."""
    for name in ("sysroot", "sys"):
        (tmp_path / name).mkdir()
    async with Watcher() as watcher:
        told = Listener()
        watch = SourceWatch(watcher, told.callback)
        await watch.arrange(scanner_of(Path("/sysroot"), tmp_path))
        (tmp_path / "sysroot" / "a").touch()
        await told.until(tmp_path / "sysroot" / "a")
        await watch.arrange(scanner_of(Path("/sys"), tmp_path))
        assert watches() == 0
        watch.end()

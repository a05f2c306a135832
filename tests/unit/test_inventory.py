"""The host is read once, also where a filesystem takes its time to answer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from devhost.hostfs.files import HostFiles, Tally
from devhost.node import locations as inventory
from devhost.node.locations import LocationReader, Locations
from devhost.sources.base import Listing, Location, list_location
from devhost.sources.file_sources import DirectoryLocation, FileListing
from devhost.watch.threads import run_in_thread
from devhost.watch.watcher import Watcher


class Slow:
    """Where a directory `slow` is, is known only after `release`."""

    def __init__(self) -> None:
        self.release = threading.Event()
        self.asked = 0
        self._resolve = HostFiles.resolve

    def resolve(self, files: HostFiles, path: str) -> str:
        if path.endswith("/slow") and threading.current_thread().name.startswith("watch"):
            self.asked += 1
            self.release.wait(30)
        return self._resolve(files, path)


@pytest.fixture
def slow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Slow]:
    (tmp_path / "slow").mkdir()
    (tmp_path / "quick").mkdir()
    filesystem = Slow()

    def resolve(files: HostFiles, path: str) -> str:
        return filesystem.resolve(files, path)

    monkeypatch.setattr(HostFiles, "resolve", resolve)
    monkeypatch.setattr(inventory, "_WATCH_S", 0.05)
    yield filesystem
    filesystem.release.set()


class Listener:
    """Collects what a resource learns."""

    def __init__(self) -> None:
        self._paths: asyncio.Queue[str | None] = asyncio.Queue()
        self.callback = self._paths.put_nowait

    async def until(self, path: str | Path | None) -> list[str | None]:
        """Wait for a path; return what came before it."""
        before: list[str | None] = []
        expected = None if path is None else str(path)
        while (came := await self._paths.get()) != expected:
            before.append(came)
        return before


@asynccontextmanager
async def watching(root: Path = Path("/")) -> AsyncIterator[tuple[Locations, Listener]]:
    """Yield what is on the host, and what a resource learns of it."""
    async with Watcher() as watcher:
        yield Locations(HostFiles(str(root)), watcher), Listener()


async def use(locations: Locations, listener: Listener, *directories: Path) -> Sequence[Listing]:
    """Go over to other directories, and read them."""
    where = str(directories[0])
    roots = [DirectoryLocation(str(directory)) for directory in directories]
    locations.subscribe("user", roots, lambda: listener.callback(where), readers(locations))
    return await again(locations)


def readers(locations: Locations, user: str = "user") -> list[LocationReader]:
    return [reader for reader in locations._readers.values() if user in reader.subscribers]


async def again(locations: Locations, user: str = "user") -> Sequence[Listing]:
    since, roots = asyncio.get_running_loop().time(), readers(locations, user)
    for root in roots:
        await root.watch()
    return await run_in_thread("read", lambda: [root.read(since) for root in roots])


async def test_inventory_reads_a_directory_once_for_all(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    async with watching() as (locations, _):
        roots = [
            reader
            for user in range(100)
            for reader in locations.subscribe(
                user, [DirectoryLocation(str(tmp_path))], lambda: None
            )
        ]
        since = asyncio.get_running_loop().time()
        readings = await asyncio.gather(
            *(run_in_thread("read", partial(root.read, since)) for root in roots)
        )
        assert len({id(reading) for reading in readings}) == 1
        later = roots[0].read(asyncio.get_running_loop().time())
        assert later is not readings[0]


async def test_inventory_hanging_root_is_asked_once(tmp_path: Path, slow: Slow) -> None:
    async with watching() as (locations, listener):
        for _ in range(3):
            await use(locations, listener, tmp_path / "slow")
        assert slow.asked == 1
        slow.release.set()
        await listener.until(tmp_path / "slow")
        await again(locations)
        (tmp_path / "slow" / "a").touch()
        await listener.until(tmp_path / "slow")


async def test_inventory_watches_sysroot_but_not_sys(tmp_path: Path) -> None:
    for name in ("sysroot", "sys"):
        (tmp_path / name).mkdir()
    async with watching(tmp_path) as (locations, listener):
        await use(locations, listener, Path("/sysroot"))
        (tmp_path / "sysroot" / "a").touch()
        await listener.until("/sysroot")
        await use(locations, listener, Path("/sys"))
        (tmp_path / "sys" / "a").touch()
        await use(locations, listener, Path("/sysroot"))
        (tmp_path / "sysroot" / "b").touch()
        assert await listener.until("/sysroot") == []


async def test_hanging_root_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    begun, release, readings = threading.Event(), threading.Event(), [0]
    (tmp_path / "a").touch()

    def slowly(root: Location, files: HostFiles, tally: Tally) -> Listing:
        readings[0] += 1
        begun.set()
        release.wait(30)
        return list_location(root, files, tally)

    monkeypatch.setattr(inventory, "list_location", slowly)
    async with watching() as (locations, listener):
        first = asyncio.create_task(use(locations, listener, tmp_path))
        await asyncio.to_thread(begun.wait, 30)
        monkeypatch.setattr(inventory, "READ_TIMEOUT_S", 0.05)
        for _ in range(3):
            (reading,) = await again(locations)
            assert reading.failure == inventory.timeout_text()
        assert readings == [1]
        release.set()
        (reading,) = await first
        assert isinstance(reading, FileListing)
        assert reading.names == ["a"]
        (reading,) = await again(locations)
        assert reading.failure is None

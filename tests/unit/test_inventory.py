"""What is on the host is read once, also where a filesystem takes its time to answer."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from devhost.discovery.roots import DirectoryRoot, Reading, Root, read
from devhost.host import inventory as host_inventory
from devhost.host.inventory import Inventory
from devhost.hostfs.files import HostFiles
from devhost.hostfs.tally import Tally
from devhost.watch.watcher import Watcher
from tests.support.watching import Listener


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
    one = Slow()

    def resolve(files: HostFiles, path: str) -> str:
        return one.resolve(files, path)

    monkeypatch.setattr(HostFiles, "resolve", resolve)
    monkeypatch.setattr(host_inventory, "_WATCH_S", 0.05)
    yield one
    one.release.set()


@asynccontextmanager
async def watching(root: Path = Path("/")) -> AsyncIterator[tuple[Inventory, Listener]]:
    """What is on the host, and what a resource learns of it."""
    async with Watcher() as watcher:
        yield Inventory(HostFiles(str(root)), watcher), Listener()


async def use(inventory: Inventory, told: Listener, *directories: Path) -> Sequence[Reading]:
    """Go over to other directories, and read them."""
    where = str(directories[0])
    roots = [DirectoryRoot(str(one)) for one in directories]
    inventory.use("user", roots, lambda: told.callback(where))
    return await again(inventory)


async def again(inventory: Inventory) -> Sequence[Reading]:
    found = await inventory.read("user", asyncio.get_running_loop().time())
    return list(found.values())


async def test_a_directory_is_read_once_for_all(tmp_path: Path) -> None:
    """All whose reasons came before the reading began share it, and what is looked at in it."""
    (tmp_path / "a").touch()
    async with watching() as (inventory, _):
        users = range(100)
        for user in users:
            inventory.use(user, [DirectoryRoot(str(tmp_path))], lambda: None)
        since = asyncio.get_running_loop().time()
        readings = await asyncio.gather(*(inventory.read(user, since) for user in users))
        root = DirectoryRoot(str(tmp_path))
        assert len({id(one[root]) for one in readings}) == 1
        assert readings[0][root].state("a") is readings[1][root].state("a")
        (later,) = (await inventory.read(0, asyncio.get_running_loop().time())).values()
        assert later is not readings[0][root]


async def test_another_declaration_does_not_wait_for_the_former(tmp_path: Path, slow: Slow) -> None:
    """The operator points the resource away from a directory that hangs."""
    async with watching() as (inventory, told):
        await use(inventory, told, tmp_path / "slow")
        await use(inventory, told, tmp_path / "quick")
        (tmp_path / "quick" / "a").touch()
        await told.until(tmp_path / "quick")
        slow.release.set()
        await again(inventory)
        (tmp_path / "slow" / "a").touch()
        (tmp_path / "quick" / "b").touch()
        assert await told.until(tmp_path / "quick") == []


async def test_the_same_directories_are_not_asked_for_twice(tmp_path: Path, slow: Slow) -> None:
    """However often it is read, one thread waits."""
    async with watching() as (inventory, told):
        for _ in range(3):
            await use(inventory, told, tmp_path / "slow")
        assert slow.asked == 1
        slow.release.set()
        await told.until(tmp_path / "slow")
        (tmp_path / "slow" / "a").touch()
        await told.until(tmp_path / "slow")


async def test_what_came_before_a_late_watch_is_looked_at(
    tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The reading had not waited for it; where it had, none follows."""
    async with watching() as (inventory, told):
        await use(inventory, told, tmp_path / "slow")
        monkeypatch.setattr(host_inventory, "_WATCH_S", 60)
        slow.release.set()
        await told.until(tmp_path / "slow")
        await use(inventory, told, tmp_path / "quick")
        (tmp_path / "quick" / "a").touch()
        assert await told.until(tmp_path / "quick") == []


async def test_what_ends_is_not_looked_at(
    tmp_path: Path, slow: Slow, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with watching() as (inventory, told):
        await use(inventory, told, tmp_path / "slow")
        monkeypatch.setattr(host_inventory, "_WATCH_S", 60)
        inventory.leave("user")
        await asyncio.sleep(0)
        slow.release.set()
        await use(inventory, told, tmp_path / "quick")
        (tmp_path / "quick" / "a").touch()
        assert await told.until(tmp_path / "quick") == []


async def test_names_that_begin_like_those_of_the_kernel(tmp_path: Path) -> None:
    """/sysroot is watched; /sys, of which there are no events, is not."""
    for name in ("sysroot", "sys"):
        (tmp_path / name).mkdir()
    async with watching(tmp_path) as (inventory, told):
        await use(inventory, told, Path("/sysroot"))
        (tmp_path / "sysroot" / "a").touch()
        await told.until("/sysroot")
        await use(inventory, told, Path("/sys"))
        (tmp_path / "sys" / "a").touch()
        await use(inventory, told, Path("/sysroot"))
        (tmp_path / "sysroot" / "b").touch()
        assert await told.until("/sysroot") == []


async def test_a_reading_has_its_time_also_after_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A slow filesystem is being read for others; what has changed since takes a second reading."""
    loop, passed = asyncio.get_running_loop(), [0.0]
    begun, go_on = threading.Semaphore(0), threading.Semaphore(0)
    clock = loop.time

    def slowly(root: Root, files: HostFiles, tally: Tally) -> Reading:
        begun.release()
        go_on.acquire(timeout=30)
        return read(root, files, tally)

    monkeypatch.setattr(loop, "time", lambda: clock() + passed[0])
    monkeypatch.setattr(host_inventory, "read", slowly)
    async with watching() as (inventory, told):
        first = asyncio.create_task(use(inventory, told, tmp_path))
        await asyncio.to_thread(begun.acquire, timeout=30)
        second = asyncio.create_task(again(inventory))
        await asyncio.sleep(0)
        passed[0] += 0.8 * host_inventory.ANSWER_S
        go_on.release()
        await asyncio.to_thread(begun.acquire, timeout=30)
        passed[0] += 0.8 * host_inventory.ANSWER_S
        for _ in range(10):
            await asyncio.sleep(0)
        go_on.release()
        assert [one.failure for one in (*await first, *await second)] == [None, None]


async def test_a_root_that_hangs_fails_and_is_read_again_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no second reading meanwhile; what is slow and not dead is given more time."""
    release, readings = threading.Event(), [0]
    (tmp_path / "a").touch()

    def slowly(root: Root, files: HostFiles, tally: Tally) -> Reading:
        readings[0] += 1
        release.wait(30)
        return read(root, files, tally)

    monkeypatch.setattr(host_inventory, "read", slowly)
    monkeypatch.setattr(host_inventory, "ANSWER_S", 0.05)
    async with watching() as (inventory, told):
        for _ in range(3):
            (reading,) = await use(inventory, told, tmp_path)
            assert reading.failure == host_inventory.unanswered()
        assert readings == [1]
        release.set()
        await told.until(tmp_path)
        (reading,) = await again(inventory)
        assert reading.names == ["a"]
        assert readings == [2]
        (one,) = inventory.of("user")
        assert one._patience > 2 * 0.05

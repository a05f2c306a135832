"""Watches are added in threads: what happens until the event loop has them."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import devhost.watch.inotify
from devhost.watch.directories import Directories, Look
from devhost.watch.inotify import Inotify
from devhost.watch.spots import Spot
from devhost.watch.watcher import Watcher
from tests.support.watching import Told, settled, told, watches


class Held:
    """The answer of the first look at a spot, with its watches, comes only after `release`."""

    def __init__(self, path: Path) -> None:
        self.added, self.release = threading.Event(), threading.Event()
        self._path = str(path)
        self._look = Directories.look

    def look(self, directories: Directories, spot: Spot) -> Look:
        look = self._look(directories, spot)
        if spot.path == self._path and not self.added.is_set():
            self.added.set()
            self.release.wait(30)
        return look

    async def until_added(self) -> None:
        await asyncio.to_thread(self.added.wait, 10)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    one = Held(tmp_path / "top" / "d")
    (tmp_path / "top" / "d").mkdir(parents=True)

    def look(directories: Directories, spot: Spot) -> Look:
        return one.look(directories, spot)

    monkeypatch.setattr(Directories, "look", look)
    yield one
    one.release.set()


def rename(d: Path) -> None:
    d.rename(d.with_name("away"))
    d.mkdir()


def remove(d: Path) -> None:
    d.rmdir()
    d.mkdir()


def remove_for_good(d: Path) -> None:
    d.rmdir()


def move_out(d: Path) -> None:
    d.rename(d.parent.parent / "away")


async def all_read(watcher: Watcher, place: Path) -> None:
    """Wait until the events so far are read. ``place`` is a directory that is not there yet."""
    place.mkdir()  # noqa: ASYNC240
    one = await told(watcher, place, "read")
    (place / "x").touch()
    await one.until(place / "x")


@pytest.mark.parametrize("change", [rename, remove, remove_for_good, move_out])
@pytest.mark.parametrize("recursive", [False, True])
async def test_the_directory_is_another_one_meanwhile(
    tmp_path: Path, held: Held, change: Callable[[Path], None], *, recursive: bool
) -> None:
    """Its events came while nobody knew the watch; the one that is there in the end is watched."""
    d = tmp_path / "top" / "d"
    async with Watcher() as watcher:
        one = Told()
        spots = frozenset({Spot(str(d), recursive)})
        watching = asyncio.create_task(watcher.watch("k", spots, one.look_again))
        await held.until_added()
        change(d)
        await all_read(watcher, tmp_path / "read")
        held.release.set()
        await watching
        d.mkdir(exist_ok=True)
        await settled(watcher, tmp_path / "settle")
        (d / "f").touch()
        await one.until(d / "f")
        watcher.unwatch("read")
        assert watches() == 2


async def test_what_a_recursive_spot_gets_meanwhile(tmp_path: Path, held: Held) -> None:
    """A directory that came after the look and before its watch was known is watched too."""
    d = tmp_path / "top" / "d"
    async with Watcher() as watcher:
        one = Told()
        spots = frozenset({Spot(str(d), recursive=True)})
        watching = asyncio.create_task(watcher.watch("k", spots, one.look_again))
        await held.until_added()
        (d / "x" / "y").mkdir(parents=True)
        await all_read(watcher, tmp_path / "read")
        held.release.set()
        await watching
        await settled(watcher, tmp_path / "settle")
        (d / "x" / "y" / "f").touch()
        await one.until(d / "x" / "y" / "f")


async def test_a_missing_directory_comes_meanwhile(tmp_path: Path, held: Held) -> None:
    """What would have told of it was watched, but nobody knew it yet."""
    d = tmp_path / "top" / "d"
    d.rmdir()
    async with Watcher() as watcher:
        one = Told()
        spots = frozenset({Spot(str(d))})
        watching = asyncio.create_task(watcher.watch("k", spots, one.look_again))
        await held.until_added()
        d.mkdir()
        await all_read(watcher, tmp_path / "read")
        held.release.set()
        await watching
        (d / "f").touch()
        await one.until(d / "f")


async def test_another_spot_drops_the_same_watch_meanwhile(tmp_path: Path, held: Held) -> None:
    """A directory has one watch by whatever path; it is added again."""
    d, link = tmp_path / "top" / "d", tmp_path / "link"
    link.symlink_to(d)
    async with Watcher() as watcher:
        await told(watcher, link, "other")
        one = Told()
        spots = frozenset({Spot(str(d))})
        watching = asyncio.create_task(watcher.watch("k", spots, one.look_again))
        await held.until_added()
        watcher.unwatch("other")
        held.release.set()
        await watching
        (d / "f").touch()
        await one.until(d / "f")
        await settled(watcher, tmp_path / "settle")
        assert watches() == 2


async def test_a_spot_given_up_meanwhile_leaves_no_watch(tmp_path: Path, held: Held) -> None:
    """Nobody needs what was added for it, but what another has of it stays."""
    d, top = tmp_path / "top" / "d", tmp_path / "top"
    async with Watcher() as watcher:
        other = await told(watcher, top, "other")
        before = watches()
        spots = frozenset({Spot(str(d))})
        watching = asyncio.create_task(watcher.watch("k", spots, Told().look_again))
        await held.until_added()
        assert watches() == before + 1
        watcher.unwatch("k")
        await watching
        held.release.set()
        async with asyncio.timeout(5):
            while watches() != before:
                await asyncio.sleep(0.001)
        (top / "f").touch()
        await other.until(top / "f")


async def test_busy_directories_are_watched_after_a_few_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something happens in it at each look; whoever has its events need not look again for them."""
    d, looks = tmp_path / "d", [0]
    d.mkdir()
    look = Directories.look

    def busy(self: Directories, spot: Spot) -> Look:
        looks[0] += 1
        found = look(self, spot)
        (d / f"f{looks[0]}").touch()
        return found

    monkeypatch.setattr(Directories, "look", busy)
    async with Watcher() as watcher:
        other = await told(watcher, d, "other")
        assert looks[0] <= 3
        await other.until(d / f"f{looks[0]}")
        before = looks[0]
        await told(watcher, d, "k")
        assert looks[0] <= before + 2


async def test_an_add_that_hangs_holds_up_only_its_spot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The filesystem answered the look, and no more: the event loop goes on."""
    hangs, release, add = threading.Event(), threading.Event(), Inotify.add

    def slow(self: Inotify, path: str, *, writes: bool) -> int:
        if path.endswith("/slow"):
            hangs.set()
            release.wait(30)
        return add(self, path, writes=writes)

    monkeypatch.setattr(Inotify, "add", slow)
    for name in ("slow", "a"):
        (tmp_path / name).mkdir()
    async with Watcher() as watcher:
        stuck = Told()
        spots = frozenset({Spot(str(tmp_path / "slow"))})
        task = asyncio.create_task(watcher.watch("slow", spots, stuck.look_again))
        await asyncio.to_thread(hangs.wait)
        one = await told(watcher, tmp_path / "a", "a")
        (tmp_path / "a" / "f").touch()
        await one.until(tmp_path / "a" / "f")
        assert not task.done()
        release.set()
        await task
        (tmp_path / "slow" / "f").touch()
        await stuck.until(tmp_path / "slow" / "f")


async def test_closed_while_one_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The descriptor's number is nobody else's until the thread is done with it."""
    hangs, release = threading.Event(), threading.Event()

    def slow(*_: object) -> int:
        hangs.set()
        release.wait(30)
        return 1

    inotify = Inotify()
    monkeypatch.setattr(devhost.watch.inotify, "inotify_add_watch", slow)
    adding = asyncio.create_task(asyncio.to_thread(inotify.add, str(tmp_path), writes=False))
    await asyncio.to_thread(hangs.wait)
    inotify.close()
    os.fstat(inotify.fileno())
    release.set()
    await adding
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(inotify.fileno())
    with pytest.raises(OSError, match="Bad file descriptor"):
        inotify.add(str(tmp_path), writes=False)

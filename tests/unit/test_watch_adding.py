"""Watches are added in threads: what happens until the event loop uses them."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

import devhost.watch.inotify
import devhost.watch.watcher
from devhost.budget import Share
from devhost.watch.inotify import Inotify
from devhost.watch.targets import Resolved, WatchTarget, resolve
from devhost.watch.watcher import Watcher
from tests.support.watching import Listener, listen, settled, watches


class Held:
    """The first answer of a thread for a target, with its watches, comes only after `release`."""

    def __init__(self, path: Path) -> None:
        self.added, self.release = threading.Event(), threading.Event()
        self._path = str(path)

    def resolve(self, inotify: Inotify, targets: Iterable[WatchTarget], watches: Share) -> Resolved:
        found = resolve(inotify, targets, watches)
        if self._path in {one.path for one in targets} and not self.added.is_set():
            self.added.set()
            self.release.wait(60)
        return found

    async def until_added(self) -> None:
        await asyncio.to_thread(self.added.wait, 60)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    one = Held(tmp_path / "top" / "d")
    (tmp_path / "top" / "d").mkdir(parents=True)
    monkeypatch.setattr(devhost.watch.watcher, "resolve", one.resolve)
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
    """Wait until the events so far are read. ``place`` is a directory that does not exist yet."""
    place.mkdir()  # noqa: ASYNC240
    listener = await listen(watcher, place)
    (place / "x").touch()
    await listener.until(place / "x")
    listener.subscription.close()


@pytest.mark.parametrize("change", [rename, remove, remove_for_good, move_out])
@pytest.mark.parametrize("recursive", [False, True])
async def test_the_directory_is_another_one_meanwhile(
    tmp_path: Path, held: Held, change: Callable[[Path], None], *, recursive: bool
) -> None:
    """Its events came before its watch was in use; the one that exists in the end is watched."""
    d = tmp_path / "top" / "d"
    async with Watcher() as watcher:
        one = Listener(watcher)
        watching = asyncio.create_task(one.watch(d, recursive=recursive))
        await held.until_added()
        change(d)
        await all_read(watcher, tmp_path / "read")
        held.release.set()
        await watching
        d.mkdir(exist_ok=True)
        await settled(watcher, tmp_path / "settle")
        (d / "f").touch()
        await one.until(d / "f")
        assert watches() == 2


async def test_what_a_recursive_target_gets_meanwhile(tmp_path: Path, held: Held) -> None:
    """A directory that came before the watch of the one above was in use is watched too."""
    d = tmp_path / "top" / "d"
    async with Watcher() as watcher:
        one = Listener(watcher)
        watching = asyncio.create_task(one.watch(d, recursive=True))
        await held.until_added()
        (d / "x" / "y").mkdir(parents=True)
        await all_read(watcher, tmp_path / "read")
        held.release.set()
        await watching
        await settled(watcher, tmp_path / "settle")
        (d / "x" / "y" / "f").touch()
        await one.until(d / "x" / "y" / "f")


async def test_a_missing_directory_comes_meanwhile(tmp_path: Path, held: Held) -> None:
    """The directory above it was watched, but that watch was not in use yet."""
    d = tmp_path / "top" / "d"
    d.rmdir()
    async with Watcher() as watcher:
        one = Listener(watcher)
        watching = asyncio.create_task(one.watch(d))
        await held.until_added()
        d.mkdir()
        await all_read(watcher, tmp_path / "read")
        held.release.set()
        await watching
        (d / "f").touch()
        await one.until(d / "f")


async def test_the_directory_above_comes_before_the_one_above_that_is_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no event of it then; it is watched all the same, so that its entries are seen."""
    top = tmp_path / "top"
    d = top / "d"
    real = Inotify.add

    def add(inotify: Inotify, path: str, *, writes: bool) -> int:
        try:
            return real(inotify, path, writes=writes)
        except FileNotFoundError:
            top.mkdir(exist_ok=True)
            raise

    monkeypatch.setattr(Inotify, "add", add)
    async with Watcher() as watcher:
        one = await listen(watcher, d)
        d.mkdir()
        await one.until(None)
        await settled(watcher, tmp_path / "settle")
        (d / "f").touch()
        await one.until(d / "f")


async def test_a_directory_where_nothing_happens_is_resolved_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    resolved = []

    def counting(inotify: Inotify, targets: Iterable[WatchTarget], watches: Share) -> Resolved:
        resolved.append(targets)
        return resolve(inotify, targets, watches)

    monkeypatch.setattr(devhost.watch.watcher, "resolve", counting)
    async with Watcher() as watcher:
        await listen(watcher, tmp_path)
        assert len(resolved) == 1


async def test_another_subscription_drops_the_same_watch_meanwhile(
    tmp_path: Path, held: Held
) -> None:
    """A directory has one watch by whatever path; it is added again."""
    d, link = tmp_path / "top" / "d", tmp_path / "link"
    link.symlink_to(d)
    async with Watcher() as watcher:
        other = await listen(watcher, link)
        one = Listener(watcher)
        watching = asyncio.create_task(one.watch(d))
        await held.until_added()
        other.subscription.close()
        held.release.set()
        await watching
        (d / "f").touch()
        await one.until(d / "f")
        await settled(watcher, tmp_path / "settle")
        assert watches() == 2


async def test_closed_meanwhile_leaves_no_watch(tmp_path: Path, held: Held) -> None:
    """What was added for it is removed, but what another one has of it stays."""
    d, top = tmp_path / "top" / "d", tmp_path / "top"
    async with Watcher() as watcher:
        other = await listen(watcher, top)
        before = watches()
        one = Listener(watcher)
        watching = asyncio.create_task(one.watch(d))
        await held.until_added()
        assert watches() == before + 1
        one.subscription.close()
        await watching
        held.release.set()
        async with asyncio.timeout(60):
            while watches() != before:
                await asyncio.sleep(0.001)
        (top / "f").touch()
        await other.until(top / "f")


async def test_other_targets_do_not_wait_for_the_former(tmp_path: Path, held: Held) -> None:
    """The new ones are watched; what comes late for the former ones is removed."""
    d, top = tmp_path / "top" / "d", tmp_path / "top"
    async with Watcher() as watcher:
        one = Listener(watcher)
        watching = asyncio.create_task(one.watch(d))
        await held.until_added()
        await one.watch(top)
        await watching
        (top / "f").touch()
        await one.until(top / "f")
        held.release.set()
        async with asyncio.timeout(60):
            while watches() != 2:
                await asyncio.sleep(0.001)
        (top / "g").touch()
        await one.until(top / "g")


async def test_a_busy_directory_is_watched_soon(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Something happens in it each time it is resolved; that is no reason to do so again."""
    d, rounds = tmp_path / "d", [0]
    d.mkdir()

    def busy(inotify: Inotify, targets: Iterable[WatchTarget], watches: Share) -> Resolved:
        rounds[0] += 1
        found = resolve(inotify, targets, watches)
        (d / f"f{rounds[0]}").touch()
        return found

    monkeypatch.setattr(devhost.watch.watcher, "resolve", busy)
    async with Watcher() as watcher:
        other = await listen(watcher, d)
        first = rounds[0]
        assert first <= 2
        await other.until(d / f"f{first}")
        await listen(watcher, d)
        assert rounds[0] <= first + 2


async def test_a_tree_that_always_changes_is_watched_in_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that comes each time it is resolved does not make it wait without end."""
    rounds = [0]

    def growing(inotify: Inotify, targets: Iterable[WatchTarget], watches: Share) -> Resolved:
        rounds[0] += 1
        (tmp_path / f"d{rounds[0]}").mkdir()
        return resolve(inotify, targets, watches)

    monkeypatch.setattr(devhost.watch.watcher, "resolve", growing)
    monkeypatch.setattr(devhost.watch.watcher.Watcher, "_read", lambda *_: None)
    async with Watcher() as watcher:
        await listen(watcher, tmp_path, recursive=True)


async def test_an_add_that_hangs_holds_up_only_its_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are watched, and the event loop goes on; the one when the filesystem answers."""
    hangs, release, add = threading.Event(), threading.Event(), Inotify.add

    def slow(self: Inotify, path: str, *, writes: bool) -> int:
        if path.endswith("/slow"):
            hangs.set()
            release.wait(60)
        return add(self, path, writes=writes)

    monkeypatch.setattr(Inotify, "add", slow)
    for name in ("slow", "a"):
        (tmp_path / name).mkdir()
    async with Watcher() as watcher:
        stuck = Listener(watcher)
        task = asyncio.create_task(stuck.watch(tmp_path / "slow"))
        await asyncio.to_thread(hangs.wait)
        one = await listen(watcher, tmp_path / "a")
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
        release.wait(60)
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

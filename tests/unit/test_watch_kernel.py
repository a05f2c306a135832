"""Watching by the kernel: what it takes, its limits, and filesystems that hang."""

import asyncio
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import devhost.watch.watcher
from devhost.watch.inotify import Inotify
from devhost.watch.watcher import ResolvedTargets, Watcher, WatchTarget
from tests.unit.watching import Listener, descriptors, hears, instances, listen, target, watches


async def test_watch_of_a_thousand_directories_takes_one_inotify_instance(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(1000)]
    for path in paths:
        path.mkdir()
    async with Watcher() as watcher:
        before = threading.active_count()
        listeners = [Listener(watcher) for _ in paths]
        await asyncio.gather(*(at.watch(path) for at, path in zip(listeners, paths, strict=True)))
        while threading.active_count() > before:  # those for short work have ended, or end now
            await asyncio.sleep(0.001)
        assert instances() == 1
        assert watches() == 1001  # with the one above
        assert await hears(watcher, listeners[-1], paths[-1])
        for listener in listeners:
            listener.subscription.close()
        assert watches() == 0
    assert instances() == 0


@pytest.mark.slow
async def test_watch_after_inotify_overflow_watches_all_again(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())  # noqa: ASYNC240
    if most > 100_000:
        pytest.skip("takes too many events")
    d, missing = tmp_path / "d", tmp_path / "missing"
    (d / "x").mkdir(parents=True)
    async with Watcher() as watcher:
        listener = await listen(watcher, d, recursive=True)
        second = await listen(watcher, missing)
        for _ in range(most // 2 + 1):
            os.close(os.open(d / "x/f", os.O_CREAT))
            os.unlink(d / "x/f")  # noqa: PTH108
        (d / "x").rmdir()
        (d / "x/y").mkdir(parents=True)
        missing.mkdir()
        await listener.call()
        await second.call()
        assert await hears(watcher, listener, d / "x/y")
        assert await hears(watcher, second, missing)
        assert watcher._inotify
        assert len(watcher._inotify.watches) == watches(), "or they would count against the limit"


@pytest.mark.parametrize("limit", ["instance", "watch", "thread"])
async def test_watch_refused_by_the_kernel_is_logged_once_and_tried_when_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, limit: str
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(errno.ENOSPC, "no space")

    targets = target(tmp_path / "a") | target(tmp_path / "b")
    async with Watcher() as watcher:
        listener, second = Listener(watcher), Listener(watcher)
        with monkeypatch.context() as limited:
            if limit == "thread":
                limited.setattr(devhost.watch.watcher, "run_in_thread", refuse)
            else:
                limited.setattr(Inotify, "__init__" if limit == "instance" else "add", refuse)
            await listener.subscription.watch(targets)
            await listener.subscription.watch(targets)
            await second.watch(tmp_path)
            assert listener.subscription.polling_reason
            second.subscription.close()
            assert not second.subscription.polling_reason
        await listener.subscription.watch(targets)
        assert not listener.subscription.polling_reason
        (tmp_path / "a").mkdir()
        await listener.call()
    assert [record.getMessage() for record in caplog.records] == [
        "inotify unavailable, polling instead"
    ]


async def test_degraded_watch_calls_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    add = Inotify.add

    def refuse(self: Inotify, path: str, **kinds: bool) -> int:
        if path.endswith("sub"):
            raise OSError(errno.ENOSPC, "no space")
        return add(self, path, **kinds)

    async with Watcher() as watcher:
        listener = await listen(watcher, tmp_path, recursive=True)
        monkeypatch.setattr(Inotify, "add", refuse)
        (tmp_path / "sub").mkdir()
        while listener.subscription.polling_reason != "no space":
            await listener.call()


async def test_watches_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devhost.watch.watcher, "WATCHES_TOTAL_MAX", 10)
    monkeypatch.setattr(devhost.watch.watcher, "WATCHES_FEW", 3)
    for name in ("a", "b"):
        for number in range(20):
            (tmp_path / name / str(number)).mkdir(parents=True)
    async with Watcher() as watcher:
        listener = await listen(watcher, tmp_path / "a", recursive=True)
        assert listener.subscription.polling_reason == "more than 10 watched directories"
        assert watches() == 10
        second = await listen(watcher, tmp_path / "b", recursive=True)
        assert second.subscription.polling_reason
        assert watches() == 10 + 2  # and the one above, which both have
        assert await hears(watcher, second, tmp_path / "b")


class Held:
    """The first answer of a thread for a target, with its watches, comes only after `release`."""

    def __init__(self, path: Path) -> None:
        self.added, self.release = threading.Event(), threading.Event()
        self._path = str(path)

    def resolve(self, inotify: Inotify, targets: frozenset[WatchTarget]) -> ResolvedTargets:
        resolved = ResolvedTargets(inotify, targets)
        if self._path in {target.path for target in targets} and not self.added.is_set():
            self.added.set()
            self.release.wait(60)
        return resolved

    async def until_added(self) -> None:
        await asyncio.to_thread(self.added.wait, 60)


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Held]:
    held_thread = Held(tmp_path / "top" / "d")
    (tmp_path / "top" / "d").mkdir(parents=True)
    monkeypatch.setattr(devhost.watch.watcher, "ResolvedTargets", held_thread.resolve)
    yield held_thread
    held_thread.release.set()


async def all_read(watcher: Watcher, place: Path) -> None:
    """Wait until the events so far are read. ``place`` is a directory that does not exist yet."""
    place.mkdir()  # noqa: ASYNC240
    listener = await listen(watcher, place)
    (place / "x").touch()
    await listener.call()
    listener.subscription.close()


@pytest.mark.parametrize("change", ["made", "replaced", "moved out", "extended"])
async def test_watch_of_a_changing_directory(tmp_path: Path, held: Held, change: str) -> None:
    d, recursive = tmp_path / "top" / "d", change == "extended"
    if change == "made":
        d.rmdir()
    async with Watcher() as watcher:
        listener = Listener(watcher)
        watching = asyncio.create_task(listener.watch(d, recursive=recursive))
        await held.until_added()
        if change == "moved out":
            d.rename(tmp_path / "away")
        elif change == "replaced":
            d.rmdir()
        (d / "x" if change == "extended" else d).mkdir()
        await all_read(watcher, tmp_path / "read")
        held.release.set()
        await watching
        assert await hears(watcher, listener, d)
        if recursive:
            assert await hears(watcher, listener, d / "x")
            assert watches() == 3
        else:
            assert watches() == 2


async def test_watch_closed_meanwhile_leaves_none(tmp_path: Path, held: Held) -> None:
    d, top = tmp_path / "top" / "d", tmp_path / "top"
    async with Watcher() as watcher:
        second = await listen(watcher, top)
        before = watches()
        listener = Listener(watcher)
        watching = asyncio.create_task(listener.watch(d))
        await held.until_added()
        assert watches() == before + 1
        listener.subscription.close()
        await watching
        held.release.set()
        while watches() != before:
            await asyncio.sleep(0.001)
        assert await hears(watcher, second, top)


async def test_watch_that_hangs_holds_up_no_other(tmp_path: Path, held: Held) -> None:
    d, top = tmp_path / "top" / "d", tmp_path / "top"
    before = descriptors()
    async with Watcher() as watcher:
        listener = Listener(watcher)
        watching = asyncio.create_task(listener.watch(d))
        await held.until_added()
        second = await listen(watcher, tmp_path)
        (tmp_path / "f").touch()
        await second.call()
        await listener.watch(top)
        await watching
        (top / "f").touch()
        await listener.call()
    assert descriptors() == before
    held.release.set()
    await asyncio.sleep(0.01)
    assert descriptors() == before

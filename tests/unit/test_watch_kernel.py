"""What watching takes from the kernel: descriptors, watches, threads; and what it cannot give."""

import asyncio
import errno
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterable
from pathlib import Path

import pytest

import devhost.watch.watcher
from devhost.budget import Share
from devhost.watch.inotify import OVERFLOW, Event, Inotify, parsed
from devhost.watch.targets import Resolved, WatchTarget, resolve
from devhost.watch.watcher import Watcher
from tests.support.watching import (
    Listener,
    descriptors,
    instances,
    listen,
    settled,
    target,
    watches,
)

LIMIT = Path("/proc/sys/fs/inotify/max_queued_events")


async def test_a_thousand_directories_take_one_instance_and_no_thread(tmp_path: Path) -> None:
    """However many directories are watched, no thread waits for events, and one instance does."""
    paths = [tmp_path / str(number) for number in range(1000)]
    for path in paths:
        path.mkdir()
    async with Watcher() as watcher:
        first = await listen(watcher, tmp_path)
        before = threading.active_count()
        subscriptions = [watcher.subscribe(first.callback) for _ in paths]
        await asyncio.gather(
            *(one.watch(target(path)) for one, path in zip(subscriptions, paths, strict=True))
        )
        assert threading.active_count() <= before + 4  # those for short work, which stay
        assert instances() == 1
        assert watches() == 1002  # with the two above
        (tmp_path / "999/f").touch()
        await first.until(tmp_path / "999/f")
        for one in subscriptions:
            one.close()
        assert watches() == 2
    assert instances() == 0


async def test_a_thousand_subscribers_of_a_directory_share_its_watch(tmp_path: Path) -> None:
    """It is watched as long as there is one."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        listeners = [Listener(watcher) for _ in range(1000)]
        await asyncio.gather(*(one.watch(d) for one in listeners))
        assert watches() == 2
        for one in listeners[1:]:
            one.subscription.close()
        (d / "f").touch()
        await listeners[0].until(d / "f")
        listeners[0].subscription.close()
        assert watches() == 0


async def test_more_events_than_the_kernel_keeps(tmp_path: Path) -> None:
    """Every subscriber is called back with None, and what came meanwhile is watched."""
    most = int(LIMIT.read_text())  # noqa: ASYNC240
    if most > 100_000:
        pytest.skip("takes too many events")
    d, missing = tmp_path / "d", tmp_path / "missing"
    (d / "x").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, d, recursive=True)
        other = await listen(watcher, missing)
        for _ in range(most // 2 + 1):
            os.close(os.open(d / "x/f", os.O_CREAT))
            os.unlink(d / "x/f")  # noqa: PTH108
        (d / "x/y").mkdir()
        missing.mkdir()
        await other.until(None)
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (d / "x/y/g").touch()
        await one.until(d / "x/y/g")
        (missing / "h").touch()
        await other.until(missing / "h")


async def test_a_subscriber_that_fails_holds_up_no_other(tmp_path: Path) -> None:
    """The one's mistake is logged."""

    def fails(_: str | None) -> None:
        raise ValueError("mistake")

    async with Watcher() as watcher:
        await watcher.subscribe(fails).watch(target(tmp_path))
        one = await listen(watcher, tmp_path)
        (tmp_path / "f").touch()
        await one.until(tmp_path / "f")


@pytest.mark.parametrize("which", ["instance", "watch", "forbidden", "thread"])
async def test_what_the_kernel_does_not_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    """One warning; it is watched when asked again, as soon as that is possible."""

    def refuse(*_: object, **__: object) -> int:
        if which == "thread":
            raise RuntimeError("no more")
        number = errno.EACCES if which == "forbidden" else errno.ENOSPC
        raise OSError(number, "no more")

    targets = target(tmp_path / "a") | target(tmp_path / "b")
    async with Watcher() as watcher:
        one, other = Listener(watcher), Listener(watcher)
        with monkeypatch.context() as limited:
            if which == "thread":
                limited.setattr(devhost.watch.watcher, "in_thread", refuse)
            else:
                limited.setattr(Inotify, "__init__" if which == "instance" else "add", refuse)
            await one.subscription.watch(targets)
            await one.subscription.watch(targets)
            await other.watch(tmp_path)
            assert one.subscription.degraded
            other.subscription.close()
            assert not other.subscription.degraded
        await one.subscription.watch(targets)
        assert not one.subscription.degraded
        (tmp_path / "a").mkdir()
        await one.until(None)
    assert [record.getMessage() for record in caplog.records] == [
        "inotify unavailable, polling instead"
    ]


async def test_what_can_no_longer_be_watched_has_to_be_polled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The subscriber waits for events that do not come, unless it is called back for that."""
    degraded = asyncio.Event()

    def callback(_: str | None) -> None:
        if subscription.degraded:
            degraded.set()

    async with Watcher() as watcher:
        subscription = watcher.subscribe(callback)
        await subscription.watch(target(tmp_path, recursive=True))

        add = Inotify.add

        def refuse(self: Inotify, path: str, *, writes: bool) -> int:
            if path.endswith("sub"):
                raise OSError(errno.ENOSPC, "no more")
            return add(self, path, writes=writes)

        monkeypatch.setattr(Inotify, "add", refuse)
        (tmp_path / "sub").mkdir()
        async with asyncio.timeout(60):
            await degraded.wait()


async def test_a_filesystem_that_hangs_holds_up_only_its_subscription(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are watched; who no longer waits for the one is called back when it is."""
    release, hangs = threading.Event(), threading.Event()

    def slow(inotify: Inotify, targets: Iterable[WatchTarget], watches: Share) -> Resolved:
        if any(one.path.endswith("slow") for one in targets):
            hangs.set()
            release.wait(60)
        return resolve(inotify, targets, watches)

    monkeypatch.setattr(devhost.watch.watcher, "resolve", slow)
    for name in ("slow", "a", "b"):
        (tmp_path / name).mkdir()
    async with Watcher() as watcher:
        stuck = Listener(watcher)
        task = asyncio.create_task(stuck.watch(tmp_path / "slow"))
        await asyncio.to_thread(hangs.wait)
        task.cancel()
        await asyncio.wait([task])
        for name in ("a", "b"):
            one = await listen(watcher, tmp_path / name)
            (tmp_path / name / "f").touch()
            await one.until(tmp_path / name / "f")
        release.set()
        await stuck.until(None)
        (tmp_path / "slow/f").touch()
        await stuck.until(tmp_path / "slow/f")


async def test_left_while_targets_are_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call of `watch` returns; the answer that comes late makes no watch, and nothing is left."""
    release, hangs = threading.Event(), threading.Event()
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(inotify: Inotify, targets: Iterable[WatchTarget], watches: Share) -> Resolved:
        hangs.set()
        release.wait(60)
        loop.call_soon_threadsafe(loop.call_soon, answered.set)
        return resolve(inotify, targets, watches)

    before = descriptors()
    async with Watcher() as watcher:
        await listen(watcher, tmp_path)
        monkeypatch.setattr(devhost.watch.watcher, "resolve", slow)
        late = Listener(watcher)
        task = asyncio.create_task(late.watch(tmp_path / "d"))
        await asyncio.to_thread(hangs.wait)
    await task
    release.set()
    await answered.wait()
    assert descriptors() == before
    await late.watch(tmp_path / "e")
    late.subscription.close()
    assert descriptors() == before


async def test_a_child_inherits_nothing(tmp_path: Path) -> None:
    """A command does not have the descriptor."""
    script = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')])"
    async with Watcher() as watcher:
        await listen(watcher, tmp_path)
        assert instances() == 1
        found = subprocess.run(  # noqa: ASYNC221
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            close_fds=False,
        )
    assert "inotify" not in found.stdout


def test_events_are_parsed() -> None:
    """Each has its name's length before it; an overflow has no watch and no name."""
    name = b"f\0\0\0"
    buffer = struct.pack("iIII", 1, 2, 0, 4) + name + struct.pack("iIII", -1, OVERFLOW, 0, 0)
    assert list(parsed(buffer)) == [Event(1, 2, "f"), Event(-1, OVERFLOW, "")]

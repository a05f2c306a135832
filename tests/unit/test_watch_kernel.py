"""What watching takes from the kernel: descriptors, watches, threads; and what it cannot give."""

import asyncio
import errno
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import devhost.watch.directories
import devhost.watch.watcher
from devhost.watch.inotify import OVERFLOW, Event, Inotify, parsed
from devhost.watch.spots import Places, Spot, places
from devhost.watch.watcher import Watcher
from tests.support.watching import Told, descriptors, instances, settled, told, watches

LIMIT = Path("/proc/sys/fs/inotify/max_queued_events")


async def test_a_thousand_directories_take_one_instance_and_no_thread(tmp_path: Path) -> None:
    """However many directories are watched, no thread waits for events, and one instance does."""
    spots = [Spot(str(tmp_path / str(number))) for number in range(1000)]
    for spot in spots:
        os.mkdir(spot.path)  # noqa: PTH102
    async with Watcher() as watcher:
        last = Told()
        await watcher.watch("first", frozenset({Spot(str(tmp_path))}), last.look_again)
        before = threading.active_count()
        await asyncio.gather(
            *(watcher.watch(spot.path, frozenset({spot}), last.look_again) for spot in spots)
        )
        assert threading.active_count() <= before + 4  # those for short work, which stay
        assert instances() == 1
        assert watches() == 1002  # with the two above
        (tmp_path / "999/f").touch()
        await last.until(tmp_path / "999/f")
        for spot in spots:
            watcher.unwatch(spot.path)
        assert watches() == 2
    assert instances() == 0


async def test_more_events_than_the_kernel_keeps(tmp_path: Path) -> None:
    """All are told to look again, and what came meanwhile is watched."""
    most = int(LIMIT.read_text())  # noqa: ASYNC240
    if most > 100_000:
        pytest.skip("takes too many events")
    d, missing = tmp_path / "d", tmp_path / "missing"
    (d / "x").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await told(watcher, d, "one", recursive=True)
        other = await told(watcher, missing, "other")
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
        await watcher.watch("fails", frozenset({Spot(str(tmp_path))}), fails)
        one = await told(watcher, tmp_path)
        (tmp_path / "f").touch()
        await one.until(tmp_path / "f")


@pytest.mark.parametrize("which", ["instance", "watch", "forbidden", "thread"])
async def test_what_the_kernel_does_not_give(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, which: str
) -> None:
    """One warning; watched as soon as it can be, when asked again."""

    def refuse(*_: object, **__: object) -> int:
        if which == "thread":
            raise RuntimeError("no more")
        number = errno.EACCES if which == "forbidden" else errno.ENOSPC
        raise OSError(number, "no more")

    spots = frozenset({Spot(str(tmp_path / "a")), Spot(str(tmp_path / "b"))})
    async with Watcher() as watcher:
        one = Told()
        with monkeypatch.context() as limited:
            if which == "thread":
                limited.setattr(devhost.watch.watcher, "in_thread", refuse)
            else:
                limited.setattr(Inotify, "__init__" if which == "instance" else "add", refuse)
            await watcher.watch("k", spots, one.look_again)
            await watcher.watch("k", spots, one.look_again)
            assert watcher.degraded("k")
            assert not watcher.degraded("another")
        await watcher.watch("k", spots, one.look_again)
        assert not watcher.degraded("k")
        (tmp_path / "a").mkdir()
        await one.until(None)
    assert [record.getMessage() for record in caplog.records] == [
        "cannot watch for changes, so looking regularly"
    ]


async def test_who_cannot_be_told_any_more_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits for events that do not come, unless it learns that it has to look by itself."""
    warned = asyncio.Event()
    async with Watcher() as watcher:

        def look_again(_: str | None) -> None:
            if watcher.degraded("k"):
                warned.set()

        await watcher.watch("k", frozenset({Spot(str(tmp_path), recursive=True)}), look_again)

        add = Inotify.add

        def refuse(self: Inotify, path: str, *, writes: bool) -> int:
            if path.endswith("sub"):
                raise OSError(errno.ENOSPC, "no more")
            return add(self, path, writes=writes)

        monkeypatch.setattr(Inotify, "add", refuse)
        (tmp_path / "sub").mkdir()
        async with asyncio.timeout(10):
            await warned.wait()


async def test_a_filesystem_that_hangs_holds_up_only_its_spot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others are watched at once; the one when it answers, and then it is told."""
    release, hangs = threading.Event(), threading.Event()

    def slow(spot: Spot) -> Places:
        if spot.path.endswith("slow"):
            hangs.set()
            release.wait(30)
        return places(spot)

    monkeypatch.setattr(devhost.watch.directories, "places", slow)
    monkeypatch.setattr(devhost.watch.watcher, "_PROMPT_S", 0.0)
    for name in ("slow", "a", "b"):
        (tmp_path / name).mkdir()
    async with Watcher() as watcher:
        stuck = Told()
        spots = frozenset({Spot(str(tmp_path / "slow"))})
        task = asyncio.create_task(watcher.watch("slow", spots, stuck.look_again))
        await asyncio.to_thread(hangs.wait)
        for name in ("a", "b"):
            one = await told(watcher, tmp_path / name, name)
            (tmp_path / name / "f").touch()
            await one.until(tmp_path / name / "f")
        release.set()
        await task
        await stuck.until(None)
        (tmp_path / "slow/f").touch()
        await stuck.until(tmp_path / "slow/f")


async def test_left_while_it_looks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits goes on, the answer that comes late makes no watch, and nothing is left."""
    release, hangs = threading.Event(), threading.Event()
    answered = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slow(spot: Spot) -> Places:
        hangs.set()
        release.wait(30)
        loop.call_soon_threadsafe(loop.call_soon, answered.set)
        return places(spot)

    before = descriptors()
    async with Watcher() as watcher:
        await told(watcher, tmp_path)
        monkeypatch.setattr(devhost.watch.directories, "places", slow)
        spots = frozenset({Spot(str(tmp_path / "d"))})
        task = asyncio.create_task(watcher.watch("late", spots, Told().look_again))
        await asyncio.to_thread(hangs.wait)
    await task
    release.set()
    await answered.wait()
    assert descriptors() == before
    await watcher.watch("k", spots, Told().look_again)
    watcher.unwatch("k")
    assert descriptors() == before


async def test_a_child_inherits_nothing(tmp_path: Path) -> None:
    """A command that is run has no descriptor of ours."""
    script = "import os; print([os.readlink(f'/proc/self/fd/{n}') for n in os.listdir('/proc/self/fd') if os.path.exists(f'/proc/self/fd/{n}')])"
    async with Watcher() as watcher:
        await told(watcher, tmp_path)
        assert instances() == 1
        found = subprocess.run(  # noqa: ASYNC221
            [sys.executable, "-c", script],
            check=True,
            capture_output=True,
            text=True,
            close_fds=False,
        )
    assert "inotify" not in found.stdout


def test_events_are_taken_apart() -> None:
    """Each has its name's length before it; an overflow has no watch and no name."""
    name = b"f\0\0\0"
    buffer = struct.pack("iIII", 1, 2, 0, 4) + name + struct.pack("iIII", -1, OVERFLOW, 0, 0)
    assert list(parsed(buffer)) == [Event(1, 2, "f"), Event(-1, OVERFLOW, "")]

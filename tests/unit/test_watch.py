"""Watching directories with the kernel's own events."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from devhost.watch.watcher import Watcher
from tests.support.watching import Listener, hears, listen, settled, target, watches

# ── entries ──


async def test_an_entry_that_comes_goes_or_moves_is_an_event(tmp_path: Path) -> None:
    changes: list[Callable[[], object]] = [
        (tmp_path / "a").touch,
        lambda: (tmp_path / "a").rename(tmp_path / "b"),
        lambda: (tmp_path / "link").symlink_to("b"),
        (tmp_path / "b").unlink,
        (tmp_path / "sub").mkdir,
        (tmp_path / "sub").rmdir,
    ]
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path)
        for change in changes:
            change()
            await one.call()
            await settled(watcher)
            one.called.clear()


async def test_a_written_file_is_an_event_only_where_it_counts(tmp_path: Path) -> None:
    """A later subscriber for which it does not count does not end that."""
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "f").touch()
    async with Watcher() as watcher:
        plain = await listen(watcher, tmp_path / "a")
        writes = await listen(watcher, tmp_path / "b", writes=True)
        await listen(watcher, tmp_path / "b")
        for name in ("a", "b"):
            (tmp_path / name / "f").write_text("x")
        await writes.call()
        await settled(watcher)
        assert not plain.called.is_set()


async def test_what_happens_beside_a_directory_is_no_event(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path / "d")
        assert not await hears(watcher, one, tmp_path)


# ── trees ──


async def test_a_change_at_any_depth_is_an_event_where_all_below_counts(tmp_path: Path) -> None:
    """Also in a directory that comes later, and in one that then has another name."""
    d = tmp_path / "d"
    (d / "x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, d, recursive=True)
        assert await hears(watcher, one, d / "x/y")
        (d / "x/new/z").mkdir(parents=True)
        assert await hears(watcher, one, d / "x/new/z")
        (d / "x").rename(d / "w")
        assert await hears(watcher, one, d / "w/y")


async def test_files_of_a_new_tree_are_told_once_it_is_watched(tmp_path: Path) -> None:
    """They came before the watch of their directory: there is one more call."""
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path, recursive=True)
        (tmp_path / "x/y").mkdir(parents=True)
        await one.call()
        (tmp_path / "x/y/f").touch()
        await one.call()


async def test_a_directory_that_leaves_a_tree_is_no_longer_watched(tmp_path: Path) -> None:
    (tmp_path / "d/x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path / "d", recursive=True)
        assert watches() == 4
        (tmp_path / "d/x").rename(tmp_path / "out")
        await one.call()
        assert not await hears(watcher, one, tmp_path / "out/y")
        assert watches() == 2


async def test_links_below_a_tree_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "d/sub").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path / "d", recursive=True)
        (tmp_path / "d/sub/up").symlink_to("..")
        await one.call()
        await settled(watcher)
        assert watches() == 3


# ── directories that come, go and are replaced ──


@pytest.mark.parametrize("at_once", [False, True])
async def test_a_missing_directory_is_watched_when_it_appears(
    tmp_path: Path, *, at_once: bool
) -> None:
    """However many of those above it are missing."""
    d = tmp_path / "x/y/z"
    async with Watcher() as watcher:
        one = await listen(watcher, d)
        for part in () if at_once else (tmp_path / "x", tmp_path / "x/y"):
            part.mkdir()
            await one.call()
        d.mkdir(parents=True)
        await one.call()
        assert await hears(watcher, one, d)


def remove(d: Path) -> None:
    shutil.rmtree(d)


def rename(d: Path) -> None:
    d.rename(d.with_name(f"{d.name}-old"))


@pytest.mark.parametrize("change", [remove, rename])
@pytest.mark.parametrize("recursive", [False, True])
@pytest.mark.parametrize("wait", [False, True])
@pytest.mark.parametrize("which", ["d", "d/sub"])
async def test_a_replaced_directory_is_watched_again(
    tmp_path: Path, change: Callable[[Path], None], which: str, *, recursive: bool, wait: bool
) -> None:
    """Also if it is replaced before any event is read; and so is one in it."""
    d = tmp_path / "d"
    (d / "sub").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path / which, recursive=recursive)
        change(d)
        if wait:
            await one.call()
            await settled(watcher)
        (d / "sub").mkdir(parents=True)
        assert await hears(watcher, one, tmp_path / which)
        if change is rename:
            assert not await hears(watcher, one, tmp_path / which.replace("d", "d-old", 1))


async def test_what_is_far_above_is_seen_when_asked_again(tmp_path: Path) -> None:
    """A grandparent that is replaced is no event; the next call of `watch` sees to it."""
    d = tmp_path / "x/y/z"
    d.mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, d)
        (tmp_path / "x").rename(tmp_path / "old")
        d.mkdir(parents=True)
        await one.watch(d)
        assert await hears(watcher, one, d)


async def test_a_link_to_a_directory_is_followed_also_when_it_is_replaced(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "targets" / name).mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to("targets/a")
    async with Watcher() as watcher:
        one = await listen(watcher, link)
        assert await hears(watcher, one, tmp_path / "targets/a")
        (tmp_path / "other").symlink_to("targets/b")
        (tmp_path / "other").rename(link)
        await one.call()
        assert await hears(watcher, one, tmp_path / "targets/b")


# ── several subscribers ──


async def test_subscribers_of_one_directory_share_its_watch(tmp_path: Path) -> None:
    """By whatever path, and with or without all below it; it is watched while there is one."""
    d, link = tmp_path / "d", tmp_path / "link"
    d.mkdir()
    link.symlink_to(d)
    async with Watcher() as watcher:
        ones = [
            await listen(watcher, d),
            await listen(watcher, link),
            await listen(watcher, d, recursive=True),
        ]
        while ones:
            for one in ones:
                assert await hears(watcher, one, d)
            assert watches() == 2
            closed = ones.pop()
            closed.subscription.close()
            closed.subscription.close()
            assert not await hears(watcher, closed, d)
        assert watches() == 0


async def test_a_subscriber_that_is_closed_or_fails_in_its_call_holds_up_no_other(
    tmp_path: Path,
) -> None:
    d = tmp_path / "d"
    d.mkdir()

    def fails() -> None:
        raise ValueError("mistake")

    async with Watcher() as watcher:
        closing = watcher.subscribe(lambda: closing.close())  # noqa: PLW0108 (not there yet)
        failing = watcher.subscribe(fails)
        await closing.watch(target(d))
        await failing.watch(target(d))
        other = await listen(watcher, d)
        d.rmdir()
        d.mkdir()
        await other.call()
        assert await hears(watcher, other, d)
        assert watcher.subscriptions == {failing, other.subscription}


async def test_other_targets_replace_the_former_ones(tmp_path: Path) -> None:
    """What both have is watched all the time; what is left is not watched any longer."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    a, b, c = (target(tmp_path / name) for name in ("a", "b", "c"))
    async with Watcher() as watcher:
        one = Listener(watcher)
        await one.subscription.watch(a | b)
        watching = asyncio.create_task(one.subscription.watch(b | c))
        await asyncio.sleep(0)
        (tmp_path / "b/f").touch()
        await one.call()
        await watching
        assert watches() == 3
        assert [await hears(watcher, one, tmp_path / name) for name in "abc"] == [False, True, True]


async def test_a_watcher_that_was_left_watches_nothing(tmp_path: Path) -> None:
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path)
    (tmp_path / "a").touch()
    one.subscription.close()
    await one.watch(tmp_path)
    await asyncio.sleep(0.01)
    assert not one.called.is_set()

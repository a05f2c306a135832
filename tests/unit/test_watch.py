"""Watching directories with the kernel's own events."""

import asyncio
import shutil
from pathlib import Path

import pytest

from devhost.watch.spots import Spot
from devhost.watch.watcher import Watcher
from tests.support.watching import settled


async def seen(event: asyncio.Event) -> None:
    async with asyncio.timeout(5):
        await event.wait()
    event.clear()


async def until_seen(event: asyncio.Event, place: Path) -> None:
    """Make files in a directory until the watcher sees one: it may only just be set up."""
    async with asyncio.timeout(5):
        number = 0
        while not event.is_set():
            (place / f"probe{number}").touch()
            number += 1
            try:
                await asyncio.wait_for(event.wait(), 0.2)
            except TimeoutError:
                continue
    event.clear()


async def subscribe(watcher: Watcher, path: Path, key: str = "k", **kind: bool) -> asyncio.Event:
    event = asyncio.Event()
    await watcher.watch(key, frozenset({Spot(str(path), **kind)}), lambda _: event.set())
    return event


async def test_created_removed_and_renamed_files_are_seen(tmp_path: Path) -> None:
    """A file that comes, goes or changes its name is an event."""
    async with Watcher() as watcher:
        event = await subscribe(watcher, tmp_path)
        (tmp_path / "a").touch()
        await seen(event)
        (tmp_path / "a").rename(tmp_path / "b")
        await seen(event)
        await settled(watcher, tmp_path / "sub")
        event.clear()
        (tmp_path / "b").unlink()
        await seen(event)


async def test_a_change_far_below_is_seen_where_all_below_counts(tmp_path: Path) -> None:
    """A recursive spot sees what happens in its sub-directories, also in new ones."""
    d = tmp_path / "d"
    (d / "x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        event = await subscribe(watcher, d, recursive=True)
        (d / "x/y/f").touch()
        await seen(event)
        (d / "new").mkdir()
        await seen(event)
        await until_seen(event, d / "new")


async def test_a_missing_directory_is_seen_when_it_appears(tmp_path: Path) -> None:
    """A directory that is made later is an event, and then it is watched."""
    d = tmp_path / "d"
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        d.mkdir()
        await seen(event)
        await until_seen(event, d)


async def test_missing_ancestors_are_waited_for(tmp_path: Path) -> None:
    """Directories that appear one in the other lead to the watched one in the end."""
    d = tmp_path / "x/y/z"
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        for part in (tmp_path / "x", tmp_path / "x/y", d):
            part.mkdir()
            await seen(event)
        await until_seen(event, d)


async def test_missing_ancestors_made_at_once_are_seen(tmp_path: Path) -> None:
    """A whole tree that appears at once is an event, and the deepest directory is watched."""
    d = tmp_path / "x/y/z"
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        d.mkdir(parents=True)
        await seen(event)
        await until_seen(event, d)


@pytest.mark.parametrize("recursive", [False, True])
async def test_a_directory_made_again_is_watched_again(tmp_path: Path, *, recursive: bool) -> None:
    """A removed directory is an event; made again, it is watched again."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event = await subscribe(watcher, d, recursive=recursive)
        d.rmdir()
        await seen(event)
        d.mkdir()
        await seen(event)
        await until_seen(event, d)


@pytest.mark.parametrize("recursive", [False, True])
async def test_a_directory_replaced_in_one_go_is_watched_again(
    tmp_path: Path, *, recursive: bool
) -> None:
    """Removed and made again before any event is handled, a directory is watched all the same."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event = await subscribe(watcher, d, recursive=recursive)
        d.rmdir()
        d.mkdir()
        await seen(event)
        await settled(watcher, tmp_path / "other")
        await until_seen(event, d)


async def test_an_ancestor_of_another_spot_is_watched_again(tmp_path: Path) -> None:
    """A directory that two spots need is watched anew when it is replaced in one go."""
    d = tmp_path / "d"
    (d / "sub").mkdir(parents=True)
    async with Watcher() as watcher:
        event = await subscribe(watcher, d, "one")
        inner = await subscribe(watcher, d / "sub", "two")
        shutil.rmtree(d)
        (d / "sub").mkdir(parents=True)
        await seen(event)
        await settled(watcher, tmp_path / "other")
        event.clear()
        inner.clear()
        await until_seen(event, d)
        await until_seen(inner, d / "sub")


async def test_a_directory_renamed_away_is_an_event(tmp_path: Path) -> None:
    """A directory renamed away is an event; what takes its place is watched."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        d.rename(tmp_path / "old")
        await seen(event)
        d.mkdir()
        await seen(event)
        await until_seen(event, d)


async def test_a_directory_renamed_away_is_no_longer_watched(tmp_path: Path) -> None:
    """What happens in a directory that was renamed away is no event any more."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        d.rename(tmp_path / "old")
        await seen(event)
        await settled(watcher, tmp_path / "other")
        event.clear()
        (tmp_path / "old/f").touch()
        await settled(watcher, tmp_path / "another")
        assert not event.is_set()


async def test_a_grandparent_renamed_away_does_not_end_the_watch(tmp_path: Path) -> None:
    """A directory whose grandparent is replaced is watched at its new place, when asked again."""
    d = tmp_path / "x/y/z"
    d.mkdir(parents=True)
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        (tmp_path / "x").rename(tmp_path / "old")
        d.mkdir(parents=True)
        await watcher.watch("k", frozenset({Spot(str(d))}), lambda _: event.set())
        await until_seen(event, d)


async def test_two_subscribers_of_one_directory_both_hear(tmp_path: Path) -> None:
    """Each subscriber of a directory hears, and the end of one is not that of the other."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        one, two = await subscribe(watcher, d, "one"), await subscribe(watcher, d, "two")
        (d / "a").touch()
        await seen(one)
        await seen(two)
        await settled(watcher, tmp_path / "other")
        one.clear()
        watcher.unwatch("one")
        (d / "b").touch()
        await seen(two)
        assert not one.is_set()


async def test_a_recursive_and_a_plain_subscriber_both_hear(tmp_path: Path) -> None:
    """A directory watched with and without all below it serves both."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        one = await subscribe(watcher, d, "one")
        two = await subscribe(watcher, d, "two", recursive=True)
        (d / "a").touch()
        await seen(one)
        await seen(two)


async def test_unwatch_stops(tmp_path: Path) -> None:
    """After unwatch nothing is heard."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        watcher.unwatch("k")
        (d / "a").touch()
        await settled(watcher, tmp_path / "other")
        assert not event.is_set()


async def test_siblings_of_the_directory_are_no_events(tmp_path: Path) -> None:
    """What happens beside a watched directory is not told."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        (tmp_path / "beside").touch()
        await settled(watcher, tmp_path / "other")
        assert not event.is_set()


async def test_leaving_the_watcher_ends_it(tmp_path: Path) -> None:
    """A watcher that was left watches nothing and can be told to forget."""
    async with Watcher() as watcher:
        event = await subscribe(watcher, tmp_path)
    (tmp_path / "a").touch()
    watcher.unwatch("k")
    await asyncio.to_thread(lambda: None)
    assert not event.is_set()


async def test_a_spot_given_up_while_it_is_to_be_watched_anew(tmp_path: Path) -> None:
    """The others that the same event concerns are still watched anew, and told."""
    d = tmp_path / "d"
    for name in ("a", "b"):
        (d / name).mkdir(parents=True)
    async with Watcher() as watcher:
        event = await subscribe(watcher, d / "a", "a")
        await subscribe(watcher, d / "b", "b")
        watcher._renew([Spot(str(d / "a")), Spot(str(d / "b"))])
        watcher.unwatch("b")  # before the work has begun
        await settled(watcher, tmp_path / "other")
        assert event.is_set()
        await until_seen(event, d / "a")

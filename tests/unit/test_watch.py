"""Watching directories with the kernel's own events."""

import asyncio
import shutil
from pathlib import Path

import pytest

from devhost.watch.watcher import Subscription, Watcher
from tests.support.watching import Listener, settled, target, watches


async def seen(event: asyncio.Event) -> None:
    async with asyncio.timeout(60):
        await event.wait()
    event.clear()


async def until_seen(event: asyncio.Event, place: Path) -> None:
    """Make files in a directory until the watcher sees one: it may only just be set up."""
    async with asyncio.timeout(60):
        number = 0
        while not event.is_set():
            (place / f"probe{number}").touch()
            number += 1
            try:
                await asyncio.wait_for(event.wait(), 0.2)
            except TimeoutError:
                continue
    event.clear()


async def subscribe(watcher: Watcher, path: Path, **kind: bool) -> asyncio.Event:
    return (await subscribed(watcher, path, **kind))[0]


async def subscribed(
    watcher: Watcher, path: Path, **kind: bool
) -> tuple[asyncio.Event, Subscription]:
    event = asyncio.Event()
    subscription = watcher.subscribe(lambda _: event.set())
    await subscription.watch(target(path, **kind))
    return event, subscription


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
    """A recursive target sees what happens in its sub-directories, also in new ones."""
    d = tmp_path / "d"
    (d / "x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        event = await subscribe(watcher, d, recursive=True)
        (d / "x/y/f").touch()
        await seen(event)
        (d / "new").mkdir()
        await seen(event)
        await until_seen(event, d / "new")


async def test_what_is_watched_again_is_kept_once(tmp_path: Path) -> None:
    """The subscription and the watcher have the same objects, not equal ones."""
    d = tmp_path / "d"
    (d / "x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        _, subscription = await subscribed(watcher, d, recursive=True)
        await subscription.refresh()
        users = (used for entries in watcher._users.values() for used in entries.values())
        kept = {id(use) for used in users for _, use in used}
        assert {id(use) for use in subscription._uses} == kept


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
    """A whole tree that appears in one step is an event, and the deepest directory is watched."""
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


async def test_an_ancestor_of_another_target_is_watched_again(tmp_path: Path) -> None:
    """A directory that two targets need is watched again when it is replaced in one go."""
    d = tmp_path / "d"
    (d / "sub").mkdir(parents=True)
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        inner = await subscribe(watcher, d / "sub")
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
        event, subscription = await subscribed(watcher, d)
        (tmp_path / "x").rename(tmp_path / "old")
        d.mkdir(parents=True)
        await subscription.watch(target(d))
        await until_seen(event, d)


async def test_two_subscribers_of_one_directory(tmp_path: Path) -> None:
    """Each subscriber has the events of a directory, also after the other was closed."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        (one, first), two = await subscribed(watcher, d), await subscribe(watcher, d)
        (d / "a").touch()
        await seen(one)
        await seen(two)
        await settled(watcher, tmp_path / "other")
        one.clear()
        first.close()
        (d / "b").touch()
        await seen(two)
        assert not one.is_set()


async def test_a_recursive_and_a_plain_subscriber_both_hear(tmp_path: Path) -> None:
    """A directory watched with and without all below it serves both."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        one = await subscribe(watcher, d)
        two = await subscribe(watcher, d, recursive=True)
        (d / "a").touch()
        await seen(one)
        await seen(two)


async def test_a_closed_subscription_has_no_events(tmp_path: Path) -> None:
    """Closed twice, it stays closed."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event, subscription = await subscribed(watcher, d)
        subscription.close()
        subscription.close()
        (d / "a").touch()
        await settled(watcher, tmp_path / "other")
        assert not event.is_set()


async def test_siblings_of_the_directory_are_no_events(tmp_path: Path) -> None:
    """What happens beside a watched directory has no event."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        (tmp_path / "beside").touch()
        await settled(watcher, tmp_path / "other")
        assert not event.is_set()


async def test_leaving_the_watcher_ends_it(tmp_path: Path) -> None:
    """A watcher that was left watches nothing; its subscriptions can be closed."""
    async with Watcher() as watcher:
        event, subscription = await subscribed(watcher, tmp_path)
    (tmp_path / "a").touch()
    subscription.close()
    await asyncio.to_thread(lambda: None)
    assert not event.is_set()


async def test_closed_while_it_is_watched_again(tmp_path: Path) -> None:
    """The others with the same event are watched again, and called back."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        event = await subscribe(watcher, d)
        closing = watcher.subscribe(lambda _: closing.close())
        await closing.watch(target(d))
        other = await subscribe(watcher, d)
        d.rmdir()
        d.mkdir()
        await seen(event)
        await seen(other)
        await settled(watcher, tmp_path / "other")
        assert len(watcher.subscriptions) == 2
        await until_seen(event, d)
        await until_seen(other, d)


async def test_other_targets_instead_of_the_former(tmp_path: Path) -> None:
    """What both have is watched all the time; what is left is not watched any longer."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    a, b, c = (target(tmp_path / name) for name in ("a", "b", "c"))
    async with Watcher() as watcher:
        listener = Listener(watcher)
        await listener.subscription.watch(a | b)
        watching = asyncio.create_task(listener.subscription.watch(b | c))
        await asyncio.sleep(0)
        (tmp_path / "b/f").touch()
        await listener.until(tmp_path / "b/f")
        await watching
        assert watches() == 3
        for name in ("a", "b", "c"):
            (tmp_path / name / "g").touch()
        assert await listener.until(tmp_path / "c/g") == [str(tmp_path / "b/g")]

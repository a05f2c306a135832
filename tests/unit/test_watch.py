"""Watching directories with the kernel's own events."""

import asyncio
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from devhost.watch.watcher import Subscription, Watcher, WatchTarget
from tests.unit.watching import Listener, hears, listen, settled, target, watches


async def test_watch_entry_created_renamed_or_removed_is_an_event(tmp_path: Path) -> None:
    changes: list[Callable[[], object]] = [
        (tmp_path / "a").touch,
        lambda: (tmp_path / "a").rename(tmp_path / "b"),
        lambda: (tmp_path / "link").symlink_to("b"),
        (tmp_path / "b").unlink,
        (tmp_path / "sub").mkdir,
        (tmp_path / "sub").rmdir,
    ]
    async with Watcher() as watcher:
        listener = await listen(watcher, tmp_path)
        for change in changes:
            change()
            await listener.call()
            await settled(watcher)
            listener.called.clear()


async def test_watch_written_file_is_an_event_only_with_writes(tmp_path: Path) -> None:
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


async def test_watch_symlink_to_directory_is_followed_when_replaced(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / "targets" / name).mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to("targets/a")
    async with Watcher() as watcher:
        listener = await listen(watcher, link)
        assert await hears(watcher, listener, tmp_path / "targets/a")
        (tmp_path / "other").symlink_to("targets/b")
        (tmp_path / "other").rename(link)
        await listener.call()
        assert await hears(watcher, listener, tmp_path / "targets/b")


async def test_watch_subscribers_of_one_directory_share_its_watch(tmp_path: Path) -> None:
    d, link = tmp_path / "d", tmp_path / "link"
    d.mkdir()
    link.symlink_to(d)
    async with Watcher() as watcher:
        listeners = [
            await listen(watcher, d),
            await listen(watcher, link),
            await listen(watcher, d, recursive=True),
        ]
        while listeners:
            for listener in listeners:
                assert await hears(watcher, listener, d)
            assert watches() == 2
            closed = listeners.pop()
            closed.subscription.close()
            closed.subscription.close()
            assert not await hears(watcher, closed, d)
        assert watches() == 0


async def test_watch_failing_subscriber_holds_up_no_other(tmp_path: Path) -> None:
    d = tmp_path / "d"
    d.mkdir()

    def fails() -> None:
        raise ValueError("mistake")

    async with Watcher() as watcher:
        closing = Subscription(watcher, lambda: closing.close())  # noqa: PLW0108 (not there yet)
        failing = Subscription(watcher, fails)
        await closing.watch(target(d))
        await failing.watch(target(d))
        second = await listen(watcher, d)
        d.rmdir()
        d.mkdir()
        await second.call()
        assert await hears(watcher, second, d)
        assert watcher.subscriptions == {failing, second.subscription}


async def test_watch_new_targets_replace_the_former_ones(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    a, b, c = (target(tmp_path / name) for name in ("a", "b", "c"))
    async with Watcher() as watcher:
        listener = Listener(watcher)
        await listener.subscription.watch(a | b)
        watching = asyncio.create_task(listener.subscription.watch(b | c))
        await asyncio.sleep(0)
        (tmp_path / "b/f").touch()
        await listener.call()
        await watching
        assert watches() == 3
        heard = [await hears(watcher, listener, tmp_path / name) for name in "abc"]
        assert heard == [False, True, True]


DIRECTORIES = ["a", "b", "a/x", "b/x", "c", "c/x", "b/x/y"]
FILES = ["a", "c/x", "a/f", "b/f", "b/x/f"]
# Nothing is above the nearest ancestor of one of them: a change there has no event.
TARGETS = [("a", False), ("a/x", False), ("b", True), ("c/x", False), ("c/x", True)]
STEPS = st.one_of(
    st.tuples(st.just("mkdir"), st.sampled_from(DIRECTORIES)),
    st.tuples(st.just("rmtree"), st.sampled_from(DIRECTORIES)),
    st.tuples(st.just("rename"), st.sampled_from(DIRECTORIES), st.sampled_from(DIRECTORIES)),
    st.tuples(st.just("touch"), st.sampled_from(FILES)),
    st.tuples(st.just("unlink"), st.sampled_from(FILES)),
    st.just(("breathe",)),
    st.just(("settle",)),
)


def take(step: tuple[str, ...], top: Path) -> None:
    """Change something in a tree, if that is possible as it is now."""
    action, *names = step
    paths = [top / name for name in names]
    try:
        if action == "mkdir":
            paths[0].mkdir()
        elif action == "rmtree":
            shutil.rmtree(paths[0])
        elif action == "rename":
            paths[0].rename(paths[1])
        elif action == "touch":
            paths[0].touch()
        else:
            paths[0].unlink()
    except OSError:
        pass


async def watched_through(steps: list[tuple[str, ...]], top: Path) -> None:
    async with Watcher() as watcher:
        listeners: dict[WatchTarget, Listener] = {}
        for name, recursive in TARGETS:
            target = WatchTarget(str(top / name), recursive)
            listeners[target] = await listen(watcher, top / name, recursive=recursive)
        for step in steps:
            if step[0] == "breathe":
                await asyncio.sleep(0)
            elif step[0] == "settle":
                await settled(watcher)
            else:
                take(step, top)
        await settled(watcher)
        needed = set()
        for target, listener in listeners.items():
            for path in inside(target):
                assert await hears(watcher, listener, path)
            needed |= {os.stat(path).st_ino for path in (nearest_ancestor(target), *inside(target))}
        assert watches() == len(needed)  # and nothing else any longer


def inside(target: WatchTarget) -> list[str]:
    """Return the directories of a target that exist."""
    paths = [path for path, _, _ in os.walk(target.path)]
    return paths if target.recursive else paths[:1]


def nearest_ancestor(target: WatchTarget) -> str:
    return next(str(path) for path in Path(target.path).parents if path.is_dir())


@settings(max_examples=25)
@given(st.lists(STEPS, max_size=25))
@example([("mkdir", "a"), ("rmtree", "a"), ("mkdir", "a")])
@example([("mkdir", "a"), ("settle",), ("rename", "a", "c"), ("mkdir", "a")])
@example([("mkdir", "a"), ("mkdir", "a/x"), ("settle",), ("rename", "a", "c"), ("mkdir", "a")])
@example([("mkdir", "b"), ("mkdir", "b/x"), ("settle",), ("mkdir", "b/x/y"), ("rename", "b", "c")])
@example([("mkdir", "b"), ("mkdir", "c"), ("mkdir", "c/x"), ("settle",), ("rename", "c", "b/x")])
def test_watch_after_any_changes_is_of_the_targets_alone(steps: list[tuple[str, ...]]) -> None:
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(watched_through(steps, Path(place)))

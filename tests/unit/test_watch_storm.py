"""Whatever happened to a tree: when it is quiet, the directories of each target are watched."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.watch.watcher import Watcher, WatchTarget
from tests.support.watching import Listener, hears, listen, settled, watches

pytestmark = pytest.mark.slow

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
    what, *names = step
    paths = [top / name for name in names]
    try:
        if what == "mkdir":
            paths[0].mkdir()
        elif what == "rmtree":
            shutil.rmtree(paths[0])
        elif what == "rename":
            paths[0].rename(paths[1])
        elif what == "touch":
            paths[0].touch()
        else:
            paths[0].unlink()
    except OSError:
        pass


async def weathered(steps: list[tuple[str, ...]], top: Path) -> None:
    async with Watcher() as watcher:
        listeners: dict[WatchTarget, Listener] = {}
        for name, recursive in TARGETS:
            one = WatchTarget(str(top / name), recursive)
            listeners[one] = await listen(watcher, top / name, recursive=recursive)
        for step in steps:
            if step[0] == "breathe":
                await asyncio.sleep(0)
            elif step[0] == "settle":
                await settled(watcher)
            else:
                take(step, top)
        await settled(watcher)
        needed = set()
        for one, listener in listeners.items():
            for path in inside(one):
                assert await hears(watcher, listener, path)
            needed |= {os.stat(path).st_ino for path in (nearest_ancestor(one), *inside(one))}
        assert watches() == len(needed)  # and nothing else any longer


def inside(one: WatchTarget) -> list[str]:
    """Return the directories of a target that exist."""
    found = [path for path, _, _ in os.walk(one.path)]
    return found if one.recursive else found[:1]


def nearest_ancestor(one: WatchTarget) -> str:
    return next(str(path) for path in Path(one.path).parents if path.is_dir())


@settings(max_examples=75)
@given(st.lists(STEPS, max_size=25))
def test_after_a_storm_every_target_is_watched(steps: list[tuple[str, ...]]) -> None:
    """A fresh file in each directory that counts has an event, and no other directory is watched."""
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(weathered(steps, Path(place)))

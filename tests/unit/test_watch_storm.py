"""Whatever happened to a tree: once all is quiet, each spot's directories are watched."""

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from devhost.watch.spots import Spot, places
from devhost.watch.watcher import Watcher
from tests.support.watching import Told, settled, watches

DIRECTORIES = ["a", "b", "a/x", "b/x", "c", "c/x", "b/x/y"]
FILES = ["a", "c/x", "a/f", "b/f", "b/x/f"]
# Nothing is further up than the nearest ancestor of one of them: of that there is no event.
SPOTS = [("a", False), ("a/x", False), ("b", True), ("c/x", False), ("c/x", True)]
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


async def weathered(steps: list[tuple[str, ...]], top: Path, quiet: Path) -> None:
    async with Watcher() as watcher:
        heard: dict[Spot, Told] = {}
        for name, recursive in SPOTS:
            spot = Spot(str(top / name), recursive)
            heard[spot] = Told()
            await watcher.watch(spot, frozenset({spot}), heard[spot].look_again)
        for number, step in enumerate(steps):
            if step[0] == "breathe":
                await asyncio.sleep(0)
            elif step[0] == "settle":
                await settled(watcher, quiet / str(number))
            else:
                take(step, top)
        await settled(watcher, quiet / "last")
        needed = set()
        for spot, one in heard.items():
            there = places(spot)
            for path in there.inside:
                fresh = tempfile.NamedTemporaryFile(dir=path, delete=False)  # noqa: SIM115
                fresh.close()
                await one.until(fresh.name)
            all_of_it = [*there.inside, *([there.above] if there.above else [])]
            needed |= {os.stat(path).st_ino for path in all_of_it}
        assert watches() == len(needed)  # and nothing else any more


@settings(max_examples=150, deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_after_a_storm_every_spot_is_watched(steps: list[tuple[str, ...]]) -> None:
    """A fresh file in each directory that counts is told, and no other directory is watched."""
    with tempfile.TemporaryDirectory() as place:
        top, quiet = Path(place, "top"), Path(place, "quiet")
        top.mkdir()
        quiet.mkdir()
        asyncio.run(weathered(steps, top, quiet))

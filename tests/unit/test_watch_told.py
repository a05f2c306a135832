"""What is told of an event: the path of an entry, or that anything may have changed."""

from pathlib import Path

from devhost.watch.spots import Places, Spot, entry_towards, places
from devhost.watch.watcher import Watcher
from tests.support.watching import settled, told, watches


async def test_the_path_of_what_came_went_or_moved_is_told(tmp_path: Path) -> None:
    """Of an entry that is no directory its path is told, once for each event."""
    async with Watcher() as watcher:
        one = await told(watcher, tmp_path)
        (tmp_path / "a").touch()
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "link").symlink_to("b")
        (tmp_path / "b").unlink()
        (tmp_path / "b").touch()
        (tmp_path / "end").touch()
        names = ["a", "a", "b", "link", "b", "b"]
        assert await one.until(tmp_path / "end") == [str(tmp_path / name) for name in names]


async def test_of_a_directory_no_path_is_told(tmp_path: Path) -> None:
    """Of a directory that comes it is told that anything may have changed."""
    async with Watcher() as watcher:
        one = await told(watcher, tmp_path)
        (tmp_path / "sub").mkdir()
        (tmp_path / "end").touch()
        assert await one.until(tmp_path / "end") == [None]


async def test_the_path_below_a_recursive_spot_is_told(tmp_path: Path) -> None:
    """Also far below, and in a directory that came later, it is the path of the entry."""
    d = tmp_path / "d"
    (d / "x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await told(watcher, d, recursive=True)
        (d / "x/y/f").touch()
        assert await one.until(d / "x/y/f") == []
        (d / "x/new").mkdir()
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (d / "x/new/f").touch()
        await one.until(d / "x/new/f")


async def test_what_came_before_the_watch_of_a_new_directory_is_told(tmp_path: Path) -> None:
    """A tree that comes below a recursive spot with files in it: told again when it is watched."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        one = await told(watcher, d, recursive=True)
        (d / "x/y").mkdir(parents=True)
        (d / "x/y/f").touch()
        await one.until(None)
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (d / "x/y/g").touch()
        await one.until(d / "x/y/g")


async def test_a_directory_that_leaves_a_recursive_spot_is_dropped(tmp_path: Path) -> None:
    """Of what was moved out with all in it nothing is told, and no watch is left."""
    d = tmp_path / "d"
    (d / "x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await told(watcher, d, recursive=True)
        assert watches() == 4
        (d / "x").rename(tmp_path / "out")
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        assert watches() == 2
        (tmp_path / "out/y/f").touch()
        (d / "end").touch()
        assert str(d / "x/y/f") not in await one.until(d / "end")


async def test_a_directory_renamed_below_a_recursive_spot_is_told_by_its_new_path(
    tmp_path: Path,
) -> None:
    """It is the same directory with the same watch, at another path."""
    (tmp_path / "d/x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await told(watcher, tmp_path / "d", recursive=True)
        (tmp_path / "d/x").rename(tmp_path / "d/z")
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (tmp_path / "d/z/y/f").touch()
        await one.until(tmp_path / "d/z/y/f")


async def test_writes_are_told_only_where_they_count(tmp_path: Path) -> None:
    """In a directory that both need, a written file is told to the one that asked for it."""
    file = tmp_path / "f"
    file.touch()
    async with Watcher() as watcher:
        plain = await told(watcher, tmp_path, "plain")
        writes = await told(watcher, tmp_path, "writes", writes=True)
        again = await told(watcher, tmp_path, "again")  # does not take the writes away
        file.write_text("x")
        assert await writes.until(file) == []
        (tmp_path / "end").touch()
        assert await plain.until(tmp_path / "end") == []
        assert await again.until(tmp_path / "end") == []


async def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    """A spot may be a link: what is in its target is told by its path, also of another target."""
    for name in ("a", "b"):
        (tmp_path / "targets" / name).mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to("targets/a")
    async with Watcher() as watcher:
        one = await told(watcher, link)
        (link / "f").touch()
        assert await one.until(link / "f") == []
        (tmp_path / "other").symlink_to("targets/b")
        (tmp_path / "other").rename(link)
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (tmp_path / "targets/b/g").touch()
        await one.until(link / "g")


async def test_links_below_a_recursive_spot_are_not_followed(tmp_path: Path) -> None:
    """A link that leads up again ends the walk; it is an entry like a file."""
    (tmp_path / "d/sub").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await told(watcher, tmp_path / "d", recursive=True)
        (tmp_path / "d/sub/up").symlink_to("..")
        assert await one.until(tmp_path / "d/sub/up") == []
        assert watches() == 3


async def test_two_paths_to_one_directory_are_both_told(tmp_path: Path) -> None:
    """The kernel has one watch for both; the end of one is not that of the other."""
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    async with Watcher() as watcher:
        one = await told(watcher, tmp_path / "d", "one")
        two = await told(watcher, tmp_path / "link", "two")
        (tmp_path / "d/f").touch()
        await one.until(tmp_path / "d/f")
        await two.until(tmp_path / "link/f")
        watcher.unwatch("one")
        (tmp_path / "d/g").touch()
        await two.until(tmp_path / "link/g")


async def test_a_watched_ancestor_that_is_renamed_is_told(tmp_path: Path) -> None:
    """Also the directory above a spot's is watched for its own going."""
    (tmp_path / "x/d").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await told(watcher, tmp_path / "x/d")
        (tmp_path / "x").rename(tmp_path / "old")
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (tmp_path / "x/d").mkdir(parents=True)
        await one.until(None)
        await settled(watcher, tmp_path / "settle2")
        (tmp_path / "x/d/f").touch()
        await one.until(tmp_path / "x/d/f")


def test_the_places_of_a_spot(tmp_path: Path) -> None:
    """Its nearest ancestor that is there, and itself with what is below, if that counts."""
    (tmp_path / "d/x/y").mkdir(parents=True)
    top, d = str(tmp_path), str(tmp_path / "d")
    assert places(Spot(d)) == Places(top, (d,))
    assert places(Spot(d, recursive=True)) == Places(top, (d, f"{d}/x", f"{d}/x/y"))
    assert places(Spot(f"{top}/no/way/there")) == Places(top, ())
    assert places(Spot("/")) == Places(None, ("/",))
    assert places(Spot("/no\0way")) == Places("/", ())
    assert entry_towards(top, f"{top}/no/way") == "no"
    assert entry_towards("/", "/no") == "no"

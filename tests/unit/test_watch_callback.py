"""What a callback gets for an event: the path of an entry, or None."""

from pathlib import Path

from devhost.budget import Budget
from devhost.watch.inotify import Inotify
from devhost.watch.targets import WatchTarget, resolve
from devhost.watch.watcher import Watcher
from tests.support.watching import listen, settled, watches


async def test_an_entry_that_came_went_or_moved(tmp_path: Path) -> None:
    """The callback gets the path of an entry that is no directory, once for each event."""
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path)
        (tmp_path / "a").touch()
        (tmp_path / "a").rename(tmp_path / "b")
        (tmp_path / "link").symlink_to("b")
        (tmp_path / "b").unlink()
        (tmp_path / "b").touch()
        (tmp_path / "end").touch()
        names = ["a", "a", "b", "link", "b", "b"]
        assert await one.until(tmp_path / "end") == [str(tmp_path / name) for name in names]


async def test_a_directory_that_came(tmp_path: Path) -> None:
    """A directory is no entry with a path: anything may have changed."""
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path)
        (tmp_path / "sub").mkdir()
        (tmp_path / "end").touch()
        assert await one.until(tmp_path / "end") == [None]


async def test_an_entry_far_below_a_recursive_target(tmp_path: Path) -> None:
    """Also far below, and in a directory that came later, it is the path of the entry."""
    d = tmp_path / "d"
    (d / "x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, d, recursive=True)
        (d / "x/y/f").touch()
        assert await one.until(d / "x/y/f") == []
        (d / "x/new").mkdir()
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (d / "x/new/f").touch()
        await one.until(d / "x/new/f")


async def test_what_came_before_the_watch_of_a_new_directory(tmp_path: Path) -> None:
    """A tree with files comes below a recursive target: there is a second call when it is watched."""
    d = tmp_path / "d"
    d.mkdir()
    async with Watcher() as watcher:
        one = await listen(watcher, d, recursive=True)
        (d / "x/y").mkdir(parents=True)
        (d / "x/y/f").touch()
        await one.until(None)
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (d / "x/y/g").touch()
        await one.until(d / "x/y/g")


async def test_a_directory_that_leaves_a_recursive_target(tmp_path: Path) -> None:
    """A tree that was moved out has no events and no watches."""
    d = tmp_path / "d"
    (d / "x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, d, recursive=True)
        assert watches() == 4
        (d / "x").rename(tmp_path / "out")
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        assert watches() == 2
        (tmp_path / "out/y/f").touch()
        (d / "end").touch()
        assert str(d / "x/y/f") not in await one.until(d / "end")


async def test_a_directory_renamed_below_a_recursive_target(tmp_path: Path) -> None:
    """It is the same directory with the same watch; its entries have other paths."""
    (tmp_path / "d/x/y").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path / "d", recursive=True)
        (tmp_path / "d/x").rename(tmp_path / "d/z")
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (tmp_path / "d/z/y/f").touch()
        await one.until(tmp_path / "d/z/y/f")


async def test_writes_only_where_they_count(tmp_path: Path) -> None:
    """In a directory that several watch, only those that asked for it get a written file."""
    file = tmp_path / "f"
    file.touch()
    async with Watcher() as watcher:
        plain = await listen(watcher, tmp_path)
        writes = await listen(watcher, tmp_path, writes=True)
        again = await listen(watcher, tmp_path)  # does not end the events of writes
        file.write_text("x")
        assert await writes.until(file) == []
        (tmp_path / "end").touch()
        assert await plain.until(tmp_path / "end") == []
        assert await again.until(tmp_path / "end") == []


async def test_a_link_to_a_directory_is_followed(tmp_path: Path) -> None:
    """A target may be a link: entries have paths below the link, also after it is retargeted."""
    for name in ("a", "b"):
        (tmp_path / "targets" / name).mkdir(parents=True)
    link = tmp_path / "link"
    link.symlink_to("targets/a")
    async with Watcher() as watcher:
        one = await listen(watcher, link)
        (link / "f").touch()
        assert await one.until(link / "f") == []
        (tmp_path / "other").symlink_to("targets/b")
        (tmp_path / "other").rename(link)
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (tmp_path / "targets/b/g").touch()
        await one.until(link / "g")


async def test_links_below_a_recursive_target_are_not_followed(tmp_path: Path) -> None:
    """A link that leads up again ends the walk; it is an entry like a file."""
    (tmp_path / "d/sub").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path / "d", recursive=True)
        (tmp_path / "d/sub/up").symlink_to("..")
        assert await one.until(tmp_path / "d/sub/up") == []
        assert watches() == 3


async def test_two_paths_to_one_directory(tmp_path: Path) -> None:
    """The kernel has one watch for both; the end of one is not that of the other."""
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path / "d")
        two = await listen(watcher, tmp_path / "link")
        (tmp_path / "d/f").touch()
        await one.until(tmp_path / "d/f")
        await two.until(tmp_path / "link/f")
        one.subscription.close()
        (tmp_path / "d/g").touch()
        await two.until(tmp_path / "link/g")


async def test_an_ancestor_that_is_renamed(tmp_path: Path) -> None:
    """The directory above a target is watched for being moved itself, too."""
    (tmp_path / "x/d").mkdir(parents=True)
    async with Watcher() as watcher:
        one = await listen(watcher, tmp_path / "x/d")
        (tmp_path / "x").rename(tmp_path / "old")
        await one.until(None)
        await settled(watcher, tmp_path / "settle1")
        (tmp_path / "x/d").mkdir(parents=True)
        await one.until(None)
        await settled(watcher, tmp_path / "settle2")
        (tmp_path / "x/d/f").touch()
        await one.until(tmp_path / "x/d/f")


def test_the_directories_of_a_target(tmp_path: Path) -> None:
    """The nearest existing ancestor with the entry that leads on, and the target with its tree."""
    (tmp_path / "d/x/y").mkdir(parents=True)
    top, d = str(tmp_path), str(tmp_path / "d")
    inotify, watches = Inotify(), Budget("watches", each=100, total=100, few=0).share()

    def directories(path: str, *, recursive: bool = False) -> set[tuple[str, str]]:
        found = resolve(inotify, [WatchTarget(path, recursive)], watches)
        assert found.error is None
        return {(use.path, use.entry) for use in found.uses}

    assert directories(d) == {(top, "d"), (d, "")}
    tree = {(d, ""), (f"{d}/x", ""), (f"{d}/x/y", "")}
    assert directories(d, recursive=True) == {(top, "d"), *tree}
    assert directories(f"{top}/no/way//there") == {(top, "no")}
    assert directories(f"{d}/") == {(top, "d"), (f"{d}/", "")}
    assert directories("/") == {("/", "")}
    assert directories("/no\0path/x") == {("/", "no\0path")}
    inotify.close()

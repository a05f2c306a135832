"""What no event tells is found by the rescan."""

import contextlib
from pathlib import Path

from devhost.standin.kubelet import SimulatedKubelet
from tests.host.fuse import remote_directory
from tests.support.hosting import Hosting
from tests.support.mounts import bound, mount, unmount
from tests.support.root import needs_root

COUNT = 3


def named(number: int) -> str:
    return f"example.com/r{number}"


def config(place: Path) -> str:
    resources = (
        f"  - {{name: {named(number)}, sources: [directory: {place}/d{number}]}}"
        for number in range(COUNT)
    )
    return "\n".join(["version: v1", "resources:", *resources])


def rescan(hosting: Hosting) -> None:
    for runner in hosting.hosts[-1].resources:
        runner.rescan()


@needs_root
async def test_a_mount_over_a_watched_directory_is_found_by_the_rescan(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path
) -> None:
    """As udisks and CSI do: a directory is made, a moment later something is mounted on it."""
    hosting.start(config(directory))
    places = [directory / f"d{number}" for number in range(COUNT)]
    for number, place in enumerate(places):
        await standin.wait(named(number), 0, 0)
        place.mkdir()
        (place / "under").touch()
        await standin.wait(named(number), 1, 1)
    with contextlib.ExitStack() as stack:
        for place in places:
            mount("tmpfs", place, "tmpfs", "size=1m")
            stack.callback(unmount, place)
            (place / "a").touch()
            (place / "b").touch()
        rescan(hosting)
        for number in range(COUNT):
            await standin.wait(named(number), 3, 2)
        (places[0] / "c").touch()  # of which there is an event: it is watched
        await standin.wait(named(0), 4, 3)
    await hosting.close()


@needs_root
async def test_a_filesystem_without_events_is_read_by_each_rescan(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path
) -> None:
    """Each change is found in the round that follows, the first one after a start too."""
    with contextlib.ExitStack() as stack:
        remote = [
            stack.enter_context(remote_directory(directory / f"d{number}"))
            for number in range(COUNT)
        ]
        for one in remote:
            one.change("a")
        hosting.start(config(directory))
        for number in range(COUNT):
            await standin.wait(named(number), 1, 1)
        for names in (("a", "b"), ("a", "b", "c")):
            for one in remote:
                one.change(*names)
            rescan(hosting)
            for number in range(COUNT):
                await standin.wait(named(number), len(names), len(names))
        await hosting.close()


@needs_root
async def test_a_mount_over_a_file_is_found_by_the_rescan(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path
) -> None:
    """Its directory stays as it was."""
    for number in range(COUNT):
        (directory / f"d{number}").mkdir()
        (directory / f"d{number}" / "a").touch()
    hosting.start(config(directory))
    for number in range(COUNT):
        await standin.wait(named(number), 1, 1)
    with contextlib.ExitStack() as stack:
        for number in range(COUNT):
            stack.enter_context(bound(Path("/dev/null"), directory / f"d{number}" / "a"))
        rescan(hosting)
        for number in range(COUNT):
            await standin.wait(named(number), 1, 0)  # no regular file any more
        await hosting.close()

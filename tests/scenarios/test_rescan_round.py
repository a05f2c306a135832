"""What no event tells is found in one round of the rescan, however many resources there are."""

import contextlib
import os
from pathlib import Path

import pytest

from devhost.host.resource.runner import Runner
from devhost.standin.kubelet import SimulatedKubelet
from tests.support.fuse import remote_directory
from tests.support.hosting import Hosting
from tests.support.mounts import bound, mount, unmount

COUNT = 8
LONG_AGO = (1_000_000_000, 1_000_000_000)
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts need root")


@pytest.fixture(autouse=True)
def fine_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """No filesystem's clock counts as coarse."""
    monkeypatch.setattr("devhost.discovery.baseline._GRAIN_NS", 0)


def named(number: int) -> str:
    return f"example.com/r{number}"


def config(place: Path) -> str:
    resources = (
        f"  - {{name: {named(number)}, sources: [directory: {place}/d{number}]}}"
        for number in range(COUNT)
    )
    return "\n".join(["version: v1", "resources:", *resources])


async def one_round(hosting: Hosting) -> None:
    await hosting.hosts[-1]._rescan.round()


@as_root
async def test_a_mount_after_an_event(
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
        await one_round(hosting)
        for number in range(COUNT):
            await standin.wait(named(number), 3, 2)
        (places[0] / "c").touch()  # of which there is an event: it is watched
        await standin.wait(named(0), 4, 3)
    await hosting.close()


@as_root
async def test_a_filesystem_without_events(
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
            await one_round(hosting)
            for number in range(COUNT):
                await standin.wait(named(number), len(names), len(names))
        await hosting.close()


@as_root
async def test_a_filesystem_without_events_that_another_resource_has_read(
    standin: SimulatedKubelet, hosting: Hosting, directory: Path
) -> None:
    """What the other finds there is not forgotten for those that have not looked yet."""
    first, second = named(0), named(1)
    text = f"""
version: v1
resources:
  - {{name: {first}, sources: [directory: {{path: {directory}/d0, include: ["a*"]}}]}}
  - {{name: {second}, sources: [directory: {{path: {directory}/d0, include: ["b*"]}}]}}
"""
    with remote_directory(directory / "d0") as remote:
        remote.change("a1", "b1")
        hosting.start(text)
        await standin.wait(first, 1, 1)
        await standin.wait(second, 1, 1)
        remote.change("a1", "a2", "b1", "b2")
        next(one for one in hosting.hosts[-1].runners if one.name == first).trigger_scan()
        await standin.wait(first, 2, 2)
        await one_round(hosting)
        await standin.wait(second, 2, 2)
        await hosting.close()


@as_root
async def test_a_mount_on_a_file(
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
        await one_round(hosting)
        for number in range(COUNT):
            await standin.wait(named(number), 1, 0)  # no regular file any more
        await hosting.close()


async def test_nothing_is_scanned_where_nothing_has_changed(
    standin: SimulatedKubelet,
    hosting: Hosting,
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for number in range(COUNT):
        (directory / f"d{number}").mkdir()
        (directory / f"d{number}" / "a").touch()
    hosting.start(config(directory))
    for number in range(COUNT):
        await standin.wait(named(number), 1, 1)
    scanned: list[str] = []
    monkeypatch.setattr(Runner, "rescan", lambda self: scanned.append(self.name))
    await one_round(hosting)
    assert scanned == []
    os.utime(directory / "d3", LONG_AGO)  # of which there is no event
    await one_round(hosting)
    assert scanned == [named(3)]

"""Nothing that is put into a watched directory ends the process, or stops another resource.

Private entries are in tests/unit/test_entry_bounds.py.
"""

import asyncio
import os
import shutil
from pathlib import Path

import pytest

from devhost.model.limits import ENTRIES_MAX, ENTRIES_TOTAL_MAX
from devhost.standin.kubelet import SimulatedKubelet
from tests.security.cgroup import chart_memory
from tests.support.daemon import Daemon, until
from tests.support.root import needs_root

pytestmark = [pytest.mark.slow, needs_root]

BAD, WELL = "example.com/bad", "example.com/well"


def config(directory: Path, *sources: str, more: str = "") -> str:
    bad = "".join(
        f"  - {{name: {BAD}{number or ''}, sources: [{source}]{more}}}\n"
        for number, source in enumerate(sources)
    )
    well = f"  - {{name: {WELL}, sources: [directory: {directory}/well]}}\n"
    return f"version: v1\nresources:\n{well}{bad}"


@pytest.fixture
def place(directory: Path) -> Path:
    """A directory of each resource, with devices."""
    for name in ("bad", "well"):
        (directory / name).mkdir()
        for device in "abc":
            (directory / name / device).touch()
    return directory


def fill(directory: Path, count: int, length: int) -> None:
    """Make many files, each by one system call."""
    at = os.open(directory, os.O_RDONLY)
    for number in range(count):
        os.mknod(f"{number:x}".rjust(length, "x"), dir_fd=at)
    os.close(at)


async def serves_on(kubelet: SimulatedKubelet, place: Path) -> None:
    """See that the other resource takes a device on, and hands it out."""
    count = len(list((place / "well").iterdir())) + 1
    (place / "well" / f"new-{count}").touch()
    await kubelet.wait(WELL, count, count)
    await kubelet.admit("pod", {"app": {WELL: 1}})
    await kubelet.free("pod")


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("directories", "count", "length", "more"),
    [
        (1, 2 * ENTRIES_MAX, 200, ", maxDevices: 10"),
        (1, ENTRIES_MAX - 100, 255, ""),
        (4, ENTRIES_TOTAL_MAX // 4 + 500, 255, ""),
    ],
)
async def test_directory_with_very_many_files_ends_neither_the_process_nor_another_resource(
    standin: SimulatedKubelet,
    daemon: Daemon,
    place: Path,
    directories: int,
    count: int,
    length: int,
    more: str,
) -> None:
    """With the chart's memory: the source fails with the number, and the others go on."""
    names = [f"bad{number}" for number in range(directories)]
    for name in names:
        (place / name).mkdir()
        (place / name / "known").touch()
    sources = [f"directory: {place / name}" for name in names]
    with chart_memory() as daemon.wrapper:
        await daemon.start(config(place, *sources, more=more))
        await standin.wait(BAD, 1, 1)
        await standin.wait(WELL, 3, 3)
        await asyncio.gather(
            *(asyncio.to_thread(fill, place / name, count, length) for name in names)
        )
        await serves_on(standin, place)
        if count > ENTRIES_MAX or directories * count > ENTRIES_TOTAL_MAX:
            await daemon.logged("entries", msg="source failed")  # not in time, perhaps, before that
        await serves_on(standin, place)
        daemon.signal(1)
        await serves_on(standin, place)
        assert daemon.running
        for name in names:
            shutil.rmtree(place / name)
            (place / name).mkdir()
            (place / name / "known").touch()  # others that were found meanwhile keep their places
        await until(lambda: "Healthy" in standin.devices(BAD).values(), "the first works again")
        assert await daemon.stop() == 0


async def test_directories_below_dev_shm_are_not_watched(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """Anybody may make directories there."""
    for number in range(500):
        (place / "dev" / "shm" / str(number)).mkdir(parents=True)
    (place / "dev" / "usb").mkdir()
    daemon.flags += ["--root", str(place)]
    await daemon.start(
        config(place, "dev: usb/x", "'/dev/**/x'", "directory: {path: /dev, recursive: true}")
        .replace("sources: [dev: usb/x]", "sources: [{dev: usb/x}]")
        .replace(f"directory: {place}/well", "directory: /well")
    )
    await standin.wait(WELL, 3, 3)
    assert daemon.figures().watches < 50
    assert await daemon.stop() == 0


async def test_file_that_comes_and_goes_makes_no_flood_of_lists_and_log_lines(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """The last state is sent all the same, and the log says what it leaves out."""
    daemon.bound = True
    changes = 0

    def count() -> None:
        nonlocal changes
        changes += 1

    await daemon.start(config(place, f"directory: {place}/bad"))
    await standin.wait(BAD, 3, 3)
    standin.on_change = count
    clock = asyncio.get_running_loop().time
    began = clock()
    for number in range(1000):
        flapping = place / "bad" / f"n{number % 10}"
        flapping.touch()
        await asyncio.sleep(0.002)
        flapping.unlink()
    seconds = clock() - began
    (place / "bad" / "last").touch()
    await until(lambda: standin.devices(BAD).get("last") == "Healthy", "the last one is there")
    assert changes <= 2 * (10 + seconds + 10)
    await serves_on(standin, place)
    most = 100 + 5 * (clock() - began) + 50
    assert len(daemon.found("", logger="devhost.host.changes")) < most
    assert await daemon.stop() == 0

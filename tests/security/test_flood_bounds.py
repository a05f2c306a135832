"""Very many files in a watched directory end neither the process nor another resource.

What other floods do is in tests/unit/test_entry_bounds.py: private entries, watches, lists, log lines.
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

"""Filesystems that do not answer: one resource's trouble stays its own, and ends with its cause."""

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, directories, numbers, until
from tests.support.mounts import bound, hung, tmpfs

SICK, WELL = "example.com/sick", "example.com/well"
SHORT = {
    "kubelet.device_list.LEAVE_AFTER_S": 2.0,
    "host.scanning.RESCAN_S": 1.0,
    "host.inventory.ANSWER_S": 2.0,
    "kubelet.servicer.ALLOCATE_TIMEOUT_S": 1.0,
}
UNANSWERED = "the host did not answer"


@pytest.fixture
def place(directory: Path, daemon: Daemon) -> Path:
    """A directory with a device each for two resources."""
    daemon.constants = SHORT
    for name in ("sick", "well"):
        (directory / name).mkdir()
        (directory / name / "0").touch()
    return directory


async def offered(kubelet: SimulatedKubelet, *ids: str) -> None:
    """Wait until these devices of the sick resource are healthy, and no others."""

    def healthy() -> set[str]:
        return {key for key, health in kubelet.devices(SICK).items() if health == "Healthy"}

    await until(lambda: healthy() == set(ids), f"{ids} are offered")


async def is_well(kubelet: SimulatedKubelet, place: Path, pod: str) -> None:
    """See that the other resource takes devices on and hands them out."""
    (place / "well" / pod).touch()
    count = len(list((place / "well").iterdir()))
    await kubelet.wait(WELL, count, count)
    answer = await kubelet.admit(pod, {"app": {WELL: count}})
    assert len(answer["app"]["deviceIds"][WELL]) == count
    await kubelet.free(pod)


@contextlib.asynccontextmanager
async def ends_well(daemon: Daemon) -> AsyncIterator[None]:
    """SIGTERM ends the process with 0, whatever hangs."""
    yield
    assert await daemon.stop() == 0
    assert daemon.sockets() == set()


@pytest.mark.parametrize("options", ["", ",default_permissions"])
async def test_a_source_that_hangs_from_the_start(
    standin: SimulatedKubelet, daemon: Daemon, place: Path, options: str
) -> None:
    """It says so and is served without devices; the others work; it heals when the mount is gone."""
    config = directories(place, "sick", "well")
    with hung(place / "sick", options):
        await daemon.start(config)
        await is_well(standin, place, "one")
        await daemon.logged("source failed", resource=SICK)
        await standin.wait(SICK, 0, 0)
        await is_well(standin, place, "two")
        async with ends_well(daemon):
            daemon.signal(1)  # SIGHUP
        await daemon.start()
        await is_well(standin, place, "three")
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0", "one", "two", "three"}})
    assert UNANSWERED in daemon.found("source failed", resource=SICK)[0]["reason"]


async def test_a_hang_that_begins_later(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """Devices become unhealthy, Allocate is refused in time; all is as before when it is over."""
    inside = os.open(place / "sick", os.O_RDONLY)
    await daemon.start(directories(place, "sick", "well"))
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0"}})
    with hung(place / "sick"):
        with pytest.raises(AdmissionError, match=UNANSWERED):
            await standin.admit("pod", {"app": {SICK: 1}})
        await is_well(standin, place, "one")
        os.close(os.open("1", os.O_CREAT, dir_fd=inside))  # the watch is of what is below
        await daemon.logged("source failed", resource=SICK)
        await standin.wait(SICK, 1, 0)
        await is_well(standin, place, "two")
    os.close(inside)
    await at_rest(standin, daemon, {SICK: {"0", "1"}, WELL: {"0", "one", "two"}})
    assert await daemon.stop() == 0


async def test_a_mount_above_a_source_hangs(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """It is as if the source itself did: later, and from the start."""
    below = place / "sick" / "below"
    below.mkdir()
    (below / "0").touch()
    inside = os.open(below, os.O_RDONLY)
    await daemon.start(
        directories(place, "sick", "well").replace(
            f"directory: {place}/sick", f"directory: {below}"
        )
    )
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0"}})
    with hung(place / "sick"):
        os.close(os.open("1", os.O_CREAT, dir_fd=inside))
        await daemon.logged("source failed", resource=SICK)
        await standin.wait(SICK, 1, 0)
        await is_well(standin, place, "one")
        async with ends_well(daemon):
            pass
        await daemon.start()
        await is_well(standin, place, "two")
        await standin.wait(SICK, 0, 0)
    os.close(inside)
    await at_rest(standin, daemon, {SICK: {"0", "1"}, WELL: {"0", "one", "two"}})


async def test_many_looks_at_what_hangs(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """However often it is asked, a filesystem that hangs costs a bounded number of threads."""
    await daemon.start(directories(place, "sick", "well"))
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0"}})
    before = daemon.figures().threads
    with hung(place / "sick"):
        for number in range(12):
            with pytest.raises(AdmissionError):
                await standin.admit(f"pod-{number}", {"app": {SICK: 1}})
            daemon.write(directories(place, "sick", "well") + f"# {number}\n")
        await daemon.logged("source failed", resource=SICK)
        assert daemon.figures().threads < before + 20
        await is_well(standin, place, "one")
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0", "one"}})
    await until(lambda: daemon.figures().threads <= before + 1, "the threads have ended")


@pytest.mark.parametrize("options", ["", ",default_permissions"])
async def test_a_mount_below_a_recursive_source_hangs(
    standin: SimulatedKubelet, daemon: Daemon, place: Path, options: str
) -> None:
    """Watching all below a directory waits for nobody but its own resource."""
    (place / "sick" / "below").mkdir()
    config = directories(place, "well", "sick").replace(
        f"directory: {place}/sick", f"directory: {{path: {place}/sick, recursive: true}}"
    )
    with hung(place / "sick" / "below", options):
        await daemon.start(config)
        await is_well(standin, place, "one")
        await daemon.logged("source failed", resource=SICK)
        await is_well(standin, place, "two")
        async with ends_well(daemon):
            pass
        await daemon.start()
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0", "one", "two"}})


async def test_a_mount_appears_below_a_recursive_source_and_hangs(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """A sick mount that comes into a watched tree holds up no other resource."""
    config = directories(place, "well", "sick").replace(
        f"directory: {place}/sick", f"directory: {{path: {place}/sick, recursive: true}}"
    )
    (place / "new").mkdir()
    await daemon.start(config)
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0"}})
    with hung(place / "new"):
        (place / "outer" / "inner").mkdir(parents=True)
        with bound(place / "new", place / "outer" / "inner"):
            (place / "outer").rename(place / "sick" / "outer")
            await daemon.logged("source failed", resource=SICK)
            await is_well(standin, place, "one")
            await is_well(standin, place, "two")
            (place / "sick" / "outer").rename(place / "outer")
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0", "one", "two"}})
    assert await daemon.stop() == 0


async def test_a_path_of_an_answer_hangs(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """What a container would get lies on a mount that hangs: it is said, and it heals."""
    (place / "sick" / "file").touch()
    daemon.flags = ["--allow-path", f"{place}/**"]
    mount = f"hostPath: {place}/sick/file, containerPath: /file"
    sick = f"  - name: {SICK}\n    sources: [static: 2]\n    allocate: {{mounts: [{{{mount}}}]}}\n"
    with hung(place / "sick"):
        await daemon.start(directories(place, "well") + sick)
        await is_well(standin, place, "one")
        await daemon.logged(UNANSWERED, resource=SICK)
        await is_well(standin, place, "two")
    await at_rest(standin, daemon, {SICK: numbers(2), WELL: {"0", "one", "two"}})


async def test_the_configuration_hangs(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """While the configuration's filesystem hangs all goes on; afterwards it is followed again."""
    await daemon.start(directories(place, "well"))
    await at_rest(standin, daemon, {WELL: {"0"}})
    with hung(daemon.config.parent):
        daemon.signal(1)
        await is_well(standin, place, "one")
        await is_well(standin, place, "two")
    daemon.write(directories(place, "well", "sick"))
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0", "one", "two"}})


async def test_a_directory_is_exchanged(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """A source's directory that is replaced, or mounted over and back, shows what is there now."""
    (place / "other").mkdir()
    (place / "other" / "b").touch()
    await daemon.start(directories(place, "sick", "well"))
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0"}})
    with bound(place / "other", place / "sick"):
        await offered(standin, "b")
        await at_rest(standin, daemon, {SICK: {"b"}, WELL: {"0"}})
        (place / "other" / "c").touch()
        await offered(standin, "b", "c")
    await offered(standin, "0")
    (place / "sick").rename(place / "away")
    (place / "other").rename(place / "sick")
    await offered(standin, "b", "c")
    with tmpfs(place / "sick"):
        (place / "sick" / "c").touch()
        await offered(standin, "c")
    await at_rest(standin, daemon, {SICK: {"b", "c"}, WELL: {"0"}})

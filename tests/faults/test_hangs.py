"""Filesystems that do not answer: one resource's trouble stays its own, and ends with its cause."""

import os
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import AdmissionError, SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, directories, numbers, until
from tests.support.mounts import bound, hung, slow, tmpfs

SICK, WELL = "example.com/sick", "example.com/well"
SHORT = {
    "backends.deviceplugin.device_list.LEAVE_AFTER_S": 2.0,
    "node.reconciler.RESCAN_S": 1.0,
    "node.reconciler.READ_TIMEOUT_S": 4.0,
    "node.locations.READ_TIMEOUT_S": 4.0,
    "backends.deviceplugin.servicer.ALLOCATE_TIMEOUT_S": 2.5,
}
UNANSWERED = "no answer in"


@pytest.fixture
def place(directory: Path, daemon: Daemon) -> Path:
    """A directory with a device each for two resources."""
    daemon.constants = SHORT
    for name in ("sick", "well"):
        (directory / name).mkdir()
        (directory / name / "0").touch()
    return directory


async def is_well(kubelet: SimulatedKubelet, place: Path, pod: str) -> None:
    """See that the other resource takes devices on and hands them out."""
    (place / "well" / pod).touch()
    count = len(list((place / "well").iterdir()))
    await kubelet.wait(WELL, count, count)
    answer = await kubelet.admit(pod, {"app": {WELL: count}})
    assert len(answer["app"]["deviceIds"][WELL]) == count
    await kubelet.free(pod)


@pytest.mark.parametrize("options", ["", ",default_permissions"])
async def test_source_that_hangs_from_the_start_is_served_without_devices_and_heals(
    standin: SimulatedKubelet, daemon: Daemon, place: Path, options: str
) -> None:
    with hung(place / "sick", options):
        await daemon.start(directories(place, "sick", "well"))
        await is_well(standin, place, "one")
        await daemon.logged("source failed", resource=SICK)
        await standin.wait(SICK, 0, 0)
        daemon.signal(1)  # SIGHUP
        assert await daemon.stop() == 0
        assert daemon.sockets() == set()
        await daemon.start()
        await is_well(standin, place, "two")
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0", "one", "two"}})
    assert UNANSWERED in daemon.found("source failed", resource=SICK)[0]["reason"]


async def test_source_that_is_slow_does_not_hang(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """Reading takes longer than the host may take for an answer."""
    files = [str(number) for number in range(40)]
    with slow(place / "sick", files, 0.1):
        await daemon.start(directories(place, "sick", "well"))
        await is_well(standin, place, "one")
        await standin.wait(SICK, 40, 40)
        assert await daemon.stop() == 0


@pytest.mark.parametrize("below", ["", "below"])
async def test_source_that_hangs_later_is_unhealthy_and_heals(
    standin: SimulatedKubelet, daemon: Daemon, place: Path, below: str
) -> None:
    """Or a mount above it does: Allocate is refused in time."""
    source = place / "sick" / below
    source.mkdir(exist_ok=True)
    (source / "0").touch()
    inside = os.open(source, os.O_RDONLY)
    config = directories(place, "sick", "well")
    await daemon.start(config.replace(f"{place}/sick]", f"{source}]"))
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0"}})
    with hung(place / "sick"):
        with pytest.raises(AdmissionError, match="the host did not answer"):
            await standin.admit("pod", {"app": {SICK: 1}})
        os.close(os.open("1", os.O_CREAT, dir_fd=inside))  # the watch is of what is below
        await daemon.logged("source failed", resource=SICK)
        await standin.wait(SICK, 1, 0)
        await is_well(standin, place, "one")
    os.close(inside)
    await at_rest(standin, daemon, {SICK: {"0", "1"}, WELL: {"0", "one"}})
    assert await daemon.stop() == 0


async def test_source_that_hangs_costs_a_bounded_number_of_threads(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """However often it is asked."""
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


async def test_mount_that_hangs_and_comes_below_a_recursive_source_harms_no_other(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    """Watching all below a directory waits for nobody but its own resource."""
    (place / "new").mkdir()
    whole = f"directory: {{path: {place}/sick, recursive: true}}"
    config = directories(place, "well", "sick")
    await daemon.start(config.replace(f"directory: {place}/sick", whole))
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0"}})
    with hung(place / "new"):
        (place / "outer" / "inner").mkdir(parents=True)
        with bound(place / "new", place / "outer" / "inner"):
            (place / "outer").rename(place / "sick" / "outer")
            await daemon.logged("source failed", resource=SICK)
            await is_well(standin, place, "one")
            (place / "sick" / "outer").rename(place / "outer")
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0", "one"}})
    assert await daemon.stop() == 0


async def test_path_of_an_answer_that_hangs_is_told_and_heals(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    (place / "sick" / "file").touch()
    daemon.flags = ["--allow-path", f"{place}/**"]
    mount = f"hostPath: {place}/sick/file, containerPath: /file"
    sick = f"  - name: {SICK}\n    sources: [static: 2]\n    allocate: {{mounts: [{{{mount}}}]}}\n"
    with hung(place / "sick"):
        await daemon.start(directories(place, "well") + sick)
        await daemon.logged(UNANSWERED, resource=SICK)
        await is_well(standin, place, "one")
    await at_rest(standin, daemon, {SICK: numbers(2), WELL: {"0", "one"}})


async def test_directory_that_is_replaced_or_mounted_over_shows_what_is_there_now(
    standin: SimulatedKubelet, daemon: Daemon, place: Path
) -> None:
    (place / "other").mkdir()
    (place / "other" / "b").touch()
    await daemon.start(directories(place, "sick", "well"))
    await at_rest(standin, daemon, {SICK: {"0"}, WELL: {"0"}})

    async def offered(*ids: str) -> None:
        """Wait until these devices of the resource are healthy, and no others."""

        def healthy() -> set[str]:
            return {key for key, health in standin.devices(SICK).items() if health == "Healthy"}

        await until(lambda: healthy() == set(ids), f"{ids} are offered")

    with bound(place / "other", place / "sick"):
        await offered("b")
        (place / "other" / "c").touch()
        await offered("b", "c")
    await offered("0")
    with bound(Path("/dev/null"), place / "sick" / "0"):  # its directory stays as it was
        await offered()
    await offered("0")
    (place / "sick").rename(place / "away")
    (place / "other").rename(place / "sick")
    await offered("b", "c")
    with tmpfs(place / "sick"):
        (place / "sick" / "c").touch()
        await offered("c")
    await at_rest(standin, daemon, {SICK: {"b", "c"}, WELL: {"0"}})

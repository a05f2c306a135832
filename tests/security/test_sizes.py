"""No configuration and no directory is too large for the memory that the chart gives devhost.

Private entries are in tests/unit/test_entry_bounds.py.
"""

import asyncio
import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import yaml

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.model import limits
from devhost.model.limits import ENTRIES_MAX, ENTRIES_TOTAL_MAX
from tests.support.daemon import Daemon, at_rest, numbers, tokens, until
from tests.support.root import needs_root

pytestmark = pytest.mark.slow

A, BAD, WELL = "example.com/a", "example.com/bad", "example.com/well"
MOST = limits.DEVICE_IDS_MAX
PATIENT = {"backends.deviceplugin.registration.STREAM_TIMEOUT_S": 60.0}
_VALUES = Path(__file__).parents[2] / "deploy" / "helm" / "devhost" / "values.yaml"
_HIERARCHIES = Path("/sys/fs/cgroup")


@pytest.fixture
def memory(daemon: Daemon) -> Iterator[None]:
    """The process has the memory that the chart's limit gives it."""
    unified = (_HIERARCHIES / "cgroup.controllers").exists()
    place = _HIERARCHIES if unified else _HIERARCHIES / "memory"
    place /= f"devhost-test-{secrets.token_hex(8)}"
    name = "memory.max" if unified else "memory.limit_in_bytes"
    limit = yaml.safe_load(_VALUES.read_text())["resources"]["limits"]["memory"]
    try:
        place.mkdir()
        (place / name).write_text(limit.replace("Mi", "M"))  # in the kernel's words
    except OSError as error:
        with contextlib.suppress(OSError):
            place.rmdir()
        pytest.skip(f"no memory cgroup: {error}")
    try:
        daemon.wrapper = ("sh", "-c", 'echo $$ > "$0" && exec "$@"', str(place / "cgroup.procs"))
        yield
    finally:
        with contextlib.suppress(OSError):  # after a failure the processes may not have ended
            place.rmdir()


@pytest.fixture
async def bounded(memory: None, daemon: Daemon) -> AsyncIterator[Daemon]:
    daemon.constants = daemon.constants | PATIENT
    yield daemon
    await daemon.kill()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "declared",
    [
        {"a": MOST},
        {f"r{number}": MOST // limits.RESOURCES_MAX for number in range(limits.RESOURCES_MAX)},
    ],
    ids=["one resource", "many resources"],
)
async def test_configuration_with_the_most_devices_is_served_and_changed(
    bounded: Daemon, standin: SimulatedKubelet, declared: dict[str, int]
) -> None:
    text = tokens(**declared)
    await bounded.start(text)

    async def all_served() -> None:
        for name, count in declared.items():
            await standin.wait(f"example.com/{name}", count, count)

    await all_served()
    changed = text.replace("]}", "], allocate: {env: {A: '${id}', B: '${id}'}}}")
    bounded.write(changed)
    # Not the log, whose lines may be dropped: a thousand come together.
    copy = bounded.state / "last-good.yaml"
    await until(lambda: copy.read_text().endswith(changed), "the changed configuration is in force")
    await standin.restart()
    await all_served()
    assert await bounded.stop() == 0


@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("entries", "value"), [(100, "${id}"), (1, "x" * 20_000 + "${id}")], ids=["many", "long"]
)
async def test_text_of_many_devices_is_not_kept_in_memory(
    bounded: Daemon, standin: SimulatedKubelet, entries: int, value: str
) -> None:
    """A short file may ask for hundreds of MiB of it; that takes long, and is no host that hangs."""
    bounded.constants = bounded.constants | {"node.reconciler.READ_TIMEOUT_S": 2.0}
    env = ", ".join(f"V{number}: '{value}'" for number in range(entries))
    await bounded.start(tokens(a=MOST).replace("]}", f"], allocate: {{env: {{{env}}}}}}}"))
    await standin.wait(A, MOST, MOST, timeout=250.0)
    (answer,) = (await standin.admit("pod", {"c": {A: 1}})).values()
    assert len(answer["envs"]) == entries
    assert await bounded.stop() == 0


async def test_edit_beyond_bounds_is_refused(bounded: Daemon, standin: SimulatedKubelet) -> None:
    await bounded.start(tokens(a=3))
    await at_rest(standin, bounded, {A: numbers(3)})
    for beyond in (
        tokens(a=MOST + 1),
        tokens(a=MOST // 2, b=MOST // 2 + 1),
        tokens(a=1).replace("]}", f"], replicas: {MOST}}}")
        + "  - {name: example.com/b, sources: [dev: x]}\n",
        tokens(**{f"r{number}": 1 for number in range(19_000)}),
        tokens(**{f"r{number}": 100_000 for number in range(200)}),
    ):
        lines = len(bounded.lines)
        bounded.write(beyond)
        await bounded.logged("configuration file invalid", lines)
        await at_rest(standin, bounded, {A: numbers(3)})
    assert await bounded.stop() == 0


def config(directory: Path, *names: str, options: str = "") -> str:
    bad = "".join(
        f"  - {{name: {BAD}{number or ''}, sources: [directory: {directory / name}]{options}}}\n"
        for number, name in enumerate(names)
    )
    well = f"  - {{name: {WELL}, sources: [directory: {directory}/well]}}\n"
    return f"version: v1\nresources:\n{well}{bad}"


@pytest.fixture
def place(directory: Path) -> Path:
    """Return a directory with devices for the resource that is well."""
    (directory / "well").mkdir()
    for device in "abc":
        (directory / "well" / device).touch()
    return directory


def fill(directory: Path, count: int, length: int) -> None:
    at = os.open(directory, os.O_RDONLY)
    for number in range(count):
        os.mknod(f"{number:x}".rjust(length, "x"), dir_fd=at)
    os.close(at)


async def serves_on(kubelet: SimulatedKubelet, place: Path) -> None:
    count = len(list((place / "well").iterdir())) + 1
    (place / "well" / f"new-{count}").touch()
    await kubelet.wait(WELL, count, count)
    await kubelet.admit("pod", {"app": {WELL: 1}})
    await kubelet.free("pod")


@needs_root
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("memory")
@pytest.mark.parametrize(
    "flood",
    [
        (1, 2 * ENTRIES_MAX, 200, ", maxDevices: 10"),
        (1, ENTRIES_MAX - 100, 255, ""),
        (4, ENTRIES_TOTAL_MAX // 4 + 500, 255, ""),
    ],
)
async def test_directory_with_very_many_files_ends_neither_the_process_nor_another_resource(
    standin: SimulatedKubelet, daemon: Daemon, place: Path, flood: tuple[int, int, int, str]
) -> None:
    """The source fails with the number of files, and the others go on."""
    directories, count, length, options = flood
    names = [f"bad{number}" for number in range(directories)]
    for name in names:
        (place / name).mkdir()
        (place / name / "known").touch()
    await daemon.start(config(place, *names, options=options))
    await standin.wait(BAD, 1, 1)
    await standin.wait(WELL, 3, 3)
    await asyncio.gather(*(asyncio.to_thread(fill, place / name, count, length) for name in names))
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


@needs_root
async def test_dev_shm_is_unwatched(standin: SimulatedKubelet, daemon: Daemon, place: Path) -> None:
    """Anybody may make directories there."""
    for number in range(500):
        (place / "dev" / "shm" / str(number)).mkdir(parents=True)
    daemon.flags += ["--root", str(place)]
    sources = "['/dev/**/x', directory: {path: /dev, recursive: true}, directory: /well]"
    await daemon.start(f"version: v1\nresources: [{{name: {WELL}, sources: {sources}}}]\n")
    await standin.wait(WELL, 3, 3)
    assert daemon.figures().watches < 50
    assert await daemon.stop() == 0


async def test_flapping_is_bounded(standin: SimulatedKubelet, daemon: Daemon, place: Path) -> None:
    """The last state is sent all the same, and the log says what it leaves out."""
    daemon.bound = True
    changes = 0

    async def count() -> None:
        nonlocal changes
        while True:
            await standin.ledger.changed.wait()
            changes += 1

    (place / "bad").mkdir()
    await daemon.start(config(place, "bad"))
    await standin.wait(WELL, 3, 3)
    counting = asyncio.create_task(count())
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
    counting.cancel()
    assert changes <= 2 * (10 + seconds + 10)
    await serves_on(standin, place)
    most = 6 * (clock() - began + 7)  # five lines of a change, and how many more there are
    assert len(daemon.found("", logger="devhost.node.changes")) < most
    assert await daemon.stop() == 0

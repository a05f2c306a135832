"""No configuration and no directory is too large for the memory that the chart gives devhost."""

from collections.abc import AsyncIterator, Iterator

import pytest

from devhost.model import limits
from devhost.standin.kubelet import SimulatedKubelet
from tests.security.cgroup import chart_memory
from tests.support.daemon import Daemon, at_rest, numbers, tokens, until

pytestmark = pytest.mark.slow

A, B, CALM = "example.com/a", "example.com/b", "example.com/calm"
MOST = limits.DEVICE_IDS_MAX
PATIENT = {"kubelet.registration.STREAM_TIMEOUT_S": 60.0}


@pytest.fixture
def memory(daemon: Daemon) -> Iterator[None]:
    with chart_memory() as daemon.wrapper:
        yield


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
    """It is served, changed, and served again to another kubelet."""
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
    """A short file may ask for hundreds of MiB of it."""
    env = ", ".join(f"V{number}: '{value}'" for number in range(entries))
    await bounded.start(tokens(a=MOST).replace("]}", f"], allocate: {{env: {{{env}}}}}}}"))
    await standin.wait(A, MOST, MOST, timeout=500.0)
    (answer,) = (await standin.admit("pod", {"c": {A: 1}})).values()
    assert len(answer["envs"]) == entries
    assert await bounded.stop() == 0


async def test_edit_beyond_the_bounds_changes_nothing(
    bounded: Daemon, standin: SimulatedKubelet
) -> None:
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

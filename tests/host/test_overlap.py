"""Two instances on one plugin directory, as in a surge update, or beside a pod that does not end.

A resource is served by the instance that has its lock. The other one waits, and takes over when the
first ends, however that ends; no node is in two pods meanwhile, whatever the two call it.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from devhost.host.host import Host
from devhost.host.status import readiness
from devhost.model.state import State
from devhost.standin.kubelet import AdmissionError
from tests.host.overlap import Instance, Start, served_by, tokens
from tests.support.daemon import Daemon, until
from tests.support.hosting import Hosting, Kubelet, contract

T, U, V = "example.com/t", "example.com/u", "example.com/v"
MANY = 20


@pytest.fixture(autouse=True)
def no_socket_is_left(directory: Path) -> Iterator[None]:
    yield
    assert not sockets(directory)


@pytest.fixture
async def pair(start: Start, started: Kubelet) -> tuple[Instance, Instance]:
    """An instance with three tokens that serves, and a later one with five that waits."""
    first = start(tokens("old", t=3))
    await first.until(T, State.REGISTERED)
    second = start(tokens("new", t=5))
    await second.until(T, State.WAITING)
    await served_by(started, "old", T, 3)
    return first, second


def sockets(directory: Path) -> set[str]:
    return {path.name for path in (directory / "plugins").glob("devhost-*.sock")}


# ── two, and one of them ends ──


async def test_second_instance_waits_and_is_ready(pair: tuple[Instance, Instance]) -> None:
    """Else a surge update would never go on."""
    _, second = pair
    assert second.status(T).reason == "another instance of devhost serves it"
    assert readiness(second.host)["ready"]


@contract
async def test_second_instance_takes_over_when_the_first_stops(
    pair: tuple[Instance, Instance], started: Kubelet, directory: Path
) -> None:
    """What a surge update does."""
    first, second = pair
    await first.stop()
    await served_by(started, "new", T, 5)
    await second.until(T, State.REGISTERED)
    assert len(sockets(directory)) == 1


@contract
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_second_process_takes_over_from_one_that_ends(
    started: Kubelet, directory: Path, number: signal.Signals
) -> None:
    """Whether the first is stopped or killed: no socket of it is left."""
    names = [f"r{index}" for index in range(MANY)]
    processes: dict[str, Daemon] = {}
    async with contextlib.AsyncExitStack() as stack:
        for who, count, state in (("old", 3, State.REGISTERED), ("new", 4, State.WAITING)):
            daemon = processes[who] = Daemon(directory)
            daemon.config = directory / f"{who}.yaml"
            stack.push_async_callback(daemon.kill)
            await daemon.start(tokens(who, **dict.fromkeys(names, count)))
            await daemon.until(state, MANY)
        processes["old"].signal(number)
        assert await processes["old"].ended() == -(number % signal.SIGTERM)
        for name in names:
            await served_by(started, "new", f"example.com/{name}", 4)
        await processes["new"].until(State.REGISTERED, MANY)
        assert len(sockets(directory)) == MANY
        assert await processes["new"].stop() == 0


# ── what the two declare differs ──


async def test_second_instance_serves_what_an_edit_of_the_first_drops(
    started: Kubelet, start: Start
) -> None:
    first = start(tokens("old", t=2, u=2))
    await first.until(U, State.REGISTERED)
    second = start(tokens("new", u=3))
    await second.until(U, State.WAITING)
    config = first.host._config
    assert config is not None
    first.host.apply(config.model_copy(update={"resources": config.resources[:1]}))
    await second.until(U, State.REGISTERED)
    await served_by(started, "new", U, 3)
    await served_by(started, "old", T, 2)


# ── kubelet ──


@contract
async def test_second_instance_waits_on_after_a_kubelet_restart(
    pair: tuple[Instance, Instance], started: Kubelet
) -> None:
    """It removes all sockets and no lock: the same one serves again."""
    _, second = pair
    for _ in range(3):
        await started.restart()
        await served_by(started, "old", T, 3)
    assert second.status(T).state is State.WAITING


@contract
async def test_two_instances_that_wait_for_kubelet_agree_who_serves(
    kubelet: Kubelet, start: Start
) -> None:
    """They see it at the same moment, as after a reboot."""
    both = [start(tokens("old", t=3)), start(tokens("old", t=3))]
    for one in both:
        await one.until(T, State.WAITING)
    await kubelet.start()
    await served_by(kubelet, "old", T, 3)
    assert sorted(one.status(T).state for one in both) == [State.REGISTERED, State.WAITING]
    await kubelet.stop()


# ── no node is in two pods ──


@pytest.fixture
def run(
    hosting: Hosting, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str], Host]:
    """Starts an instance in which a resource of this name finds the one node that there is."""
    monkeypatch.setattr("devhost.host.holders.POLL_S", 0.1)
    (directory / "colas" / "cola").touch()
    options: dict[str, Any] = {
        "state_dir": directory / "state",
        "pod_resources": hosting.pod_resources,
    }
    return lambda name: hosting.start(declared(directory, name), **options)


def declared(directory: Path, name: str) -> str:
    return f"version: v1\nresources: [{{name: {name}, sources: [directory: {directory}/colas]}}]\n"


async def refused(kubelet: Kubelet, resource: str) -> None:
    with pytest.raises(AdmissionError):
        await kubelet.admit("second", {"app": {resource: 1}})


@contract
@pytest.mark.parametrize("renamed", ["before it starts", "while it waits"])
async def test_two_instances_with_a_rename_give_no_node_to_two_pods(
    started: Kubelet,
    hosting: Hosting,
    directory: Path,
    run: Callable[[str], Host],
    renamed: str,
) -> None:
    """The second pod is refused until the first has ended, also when the other instance has."""
    run(T)
    await started.wait(T, 1, 1)
    if renamed == "before it starts":
        run(U)
        await started.wait(U, 1, 1)
        await started.admit("first", {"app": {T: 1}})
    else:
        run(T)
        await until(lambda: _states(hosting) == [State.WAITING], "the second instance")
        await started.admit("first", {"app": {T: 1}})
        hosting.reload(declared(directory, U))
        await started.wait(U, 1, 0)
    await refused(started, U)
    await until(lambda: str(hosting.reason(U, "cola")).startswith("withheld"), "the refusal")
    await hosting.stop(0)
    await refused(started, U)
    held = f"withheld: held as {T} cola by default/first"
    await until(lambda: hosting.reason(U, "cola") == held, "the pod is known")
    await started.free("first")
    await started.wait(U, 1, 1)
    await started.admit("second", {"app": {U: 1}})


def _states(hosting: Hosting) -> list[State]:
    return [one.status.state for one in hosting.hosts[-1].resources]

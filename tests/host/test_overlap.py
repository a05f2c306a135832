"""Two instances on one plugin directory, as in a surge update, or beside a pod that does not end.

A resource is served by the instance that has its lock. The other one waits, and takes over when the
first ends, however that ends; no node is in two pods meanwhile, whatever the two call it.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devhost.backends.resource_lock import LockState
from devhost.config.loader import loads
from devhost.custody.record_files import RecordFiles
from devhost.custody.state_dir import directory_lock
from devhost.daemon.status import readiness
from devhost.fake_kubelet.kubelet import AdmissionError
from devhost.model.resource_state import State
from devhost.node.node import Host
from tests.support.daemon import BY_EVENTS, Daemon, until
from tests.support.hosting import Hosting, Kubelet, contract
from tests.support.realkubelet import REAL_KUBELETS
from tests.support.waiting import until_said

T, U, V = "example.com/t", "example.com/u", "example.com/v"
MANY = 20


@pytest.fixture(autouse=True)
def no_socket_is_left(directory: Path) -> Iterator[None]:
    yield
    assert not sockets(directory)


def tokens(owner: str, **counts: int) -> str:
    """Return a configuration with resources of so many tokens; its answers say whose it is."""
    resources = "".join(
        f'\n  - {{name: "example.com/{name}", sources: [static: {count}],'
        f" allocate: {{env: {{WHO: {owner}}}}}}}"
        for name, count in counts.items()
    )
    return f"version: v1\nresources:{resources}\n"


async def served_by(kubelet: Kubelet, owner: str, resource: str, count: int) -> None:
    """Wait until all is allocatable and a container is answered by the right instance."""

    async def probe() -> object:
        try:
            answer = await kubelet.admit("probe", {"app": {resource: 1}})
        except AdmissionError as error:
            return error
        await kubelet.free("probe")
        return answer["app"]["envs"], (await kubelet.capacity()).get(resource)

    await until_said(probe, lambda seen: seen == ({"WHO": owner}, (count, count)))


def sockets(directory: Path) -> set[str]:
    return {path.name for path in (directory / "plugins").glob("devhost-*.sock")}


@contract
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
async def test_second_takes_over(started: Kubelet, directory: Path, number: signal.Signals) -> None:
    names = [f"r{index}" for index in range(MANY)]
    processes: dict[str, Daemon] = {}
    async with contextlib.AsyncExitStack() as stack:
        for owner, count, state in (("old", 3, State.REGISTERED), ("new", 4, State.WAITING)):
            daemon = processes[owner] = Daemon(directory)
            daemon.config = directory / f"{owner}.yaml"
            stack.push_async_callback(daemon.kill)
            await daemon.start(tokens(owner, **dict.fromkeys(names, count)))
            await daemon.until(state, MANY)
        processes["old"].signal(number)
        assert await processes["old"].ended() == -(number % signal.SIGTERM)
        for name in names:
            await served_by(started, "new", f"example.com/{name}", 4)
        await processes["new"].until(State.REGISTERED, MANY)
        assert len(sockets(directory)) == MANY
        assert await processes["new"].stop() == 0


async def test_second_instance_serves_what_is_dropped(started: Kubelet, hosting: Hosting) -> None:
    first = hosting.start(tokens("old", t=2, u=2))
    await hosting.until(U, State.REGISTERED)
    hosting.start(tokens("new", u=3))
    await hosting.until(U, State.WAITING)
    first.apply(loads(tokens("old", t=2)).require())
    await hosting.until(U, State.REGISTERED)
    await served_by(started, "new", U, 3)
    await served_by(started, "old", T, 2)


@contract
async def test_second_instance_waits_on_at_a_restart(started: Kubelet, hosting: Hosting) -> None:
    """All sockets go and no lock: the same instance serves again. The second counts as ready."""
    hosting.start(tokens("old", t=3))
    await hosting.until(T, State.REGISTERED)
    hosting.start(tokens("new", t=5))
    await hosting.until(T, State.WAITING)
    for _ in range(3):
        await started.restart()
        await served_by(started, "old", T, 3)
    status = hosting.status(T)
    assert status.state is State.WAITING
    assert status.reason == "another instance of devhost serves it by a device plugin"
    assert readiness(hosting.hosts[-1])["ready"], "else a surge update would never go on"


@contract
async def test_two_instances_agree_who_serves(kubelet: Kubelet, hosting: Hosting) -> None:
    """They see it at the same moment, as after a reboot."""
    for _ in range(2):
        hosting.start(tokens("old", t=3))
        await hosting.until(T, State.WAITING)
    await kubelet.start()
    await served_by(kubelet, "old", T, 3)
    states = [hosting.status(T, index).state for index in (0, 1)]
    assert sorted(states) == [State.REGISTERED, State.WAITING]
    await kubelet.stop()


@pytest.fixture
def run(hosting: Hosting, directory: Path) -> Callable[[str], Host]:
    """Starts an instance in which a resource of this name finds the one node that there is."""
    (directory / "colas" / "cola").touch()
    state = directory / "state"
    return lambda name: hosting.start(declared(directory, name), state_dir=state)


def declared(directory: Path, name: str) -> str:
    return f"version: v1\nresources: [{{name: {name}, sources: [directory: {directory}/colas]}}]\n"


async def refused(kubelet: Kubelet, resource: str) -> None:
    with pytest.raises(AdmissionError):
        await kubelet.admit("second", {"app": {resource: 1}})


@contract
@pytest.mark.parametrize("renamed", ["before it starts", "while it waits"])
async def test_two_instances_with_a_rename_give_no_node_to_two_pods(
    started: Kubelet, hosting: Hosting, directory: Path, run: Callable[[str], Host], renamed: str
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
        await hosting.until(T, State.WAITING)
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


@pytest.mark.parametrize("kubelet", REAL_KUBELETS, indirect=True)
@pytest.mark.parametrize("source", [U, V], ids=["two instances", "two releases"])
async def test_renamed_resource_is_offered(started: Kubelet, directory: Path, source: str) -> None:
    """No process writes a record again that another one has ended before it does."""
    (directory / "colas" / "cola").touch()
    release = tokens("other", v=1) if source == V else ""
    processes = {number: Daemon(directory) for number in range(2)}
    async with contextlib.AsyncExitStack() as stack:
        for number, daemon in processes.items():
            daemon.config = directory / str(number) / "config.yaml"
            leave = {"backends.deviceplugin.device_list.LEAVE_AFTER_S": 0.3}
            # They see the end of a pod one after the other, and only when nobody serves its resource.
            daemon.constants = {**BY_EVENTS, **leave, "custody.holders.POLL_S": 0.5 + number}
            stack.push_async_callback(daemon.kill)
            await daemon.start((number and release) or declared(directory, T))
            await daemon.logged("state")
        await started.wait(T, 1, 1)
        await started.admit("first", {"app": {T: 1}})
        for number, daemon in processes.items():
            daemon.write((number and release) or declared(directory, U))
        await started.wait(U, 1, 0)
        await started.free("first")
        await started.wait(U, 1, 1)
        await started.admit("second", {"app": {U: 1, source: 1}})  # which both read and write
        await started.free("second")
        await started.wait(U, 1, 1)
        await until(lambda: not list((directory / "state").glob("records/*")), "no records")
        assert [await daemon.stop() for daemon in processes.values()] == [0, 0]
        assert not [line for daemon in processes.values() for line in daemon.found("written again")]


@contract
async def test_what_was_given_late_is_written_before_another_instance_serves_it(
    hosting: Hosting, started: Kubelet, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only who has the lock of a resource writes its records."""
    monkeypatch.setattr("devhost.custody.holders.POLL_S", 3600.0)  # kubelet's list would tell, too
    monkeypatch.setattr("devhost.custody.custody._WAIT_S", 0.0)
    saving, flush, locks = asyncio.Event(), RecordFiles.flush, list[LockState]()

    async def save(files: RecordFiles) -> None:
        locks.append(first.parts.backend.locks.lock_of(T))
        saving.set()
        await flush(files)

    monkeypatch.setattr(RecordFiles, "flush", save)
    (directory / "file").touch()
    text = f"version: v1\nresources: [{{name: {T}, sources: [{directory}/file]}}]\n"
    state = directory / "state"
    first = hosting.start(text, state_dir=state)
    await hosting.until(T, State.REGISTERED)
    hosting.start(text, state_dir=state)
    await hosting.until(T, State.WAITING)
    await started.wait(T, 1, 1)
    with directory_lock(state):
        await started.admit("pod", {"app": {T: 1}})
        assert not list(state.glob("records/*"))
        stopped = asyncio.create_task(hosting.stop(0))
        await saving.wait()
    await stopped
    assert locks[0] == "ours"
    await hosting.until(T, State.REGISTERED)
    assert [path.name for path in state.glob("records/*")] == ["example.com_t.json"]

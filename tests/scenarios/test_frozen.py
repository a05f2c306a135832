"""Two instances on one plugin directory, one of which lives and does not answer.

A process that is stopped or stuck is still connected to: the kernel sees to that. The other one
serves meanwhile, and when the first goes on they agree again, without a crash of the kubelet.
"""

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from devhost.kubelet.instances import Instances, is_standby
from devhost.model.state import State
from devhost.standin.kubelet import AdmissionError, SimulatedKubelet
from tests.support.daemon import Daemon, until
from tests.support.hosting import Kubelet, on_one_kubelet
from tests.support.overlap import Instance, Start, options_server, served_by, tokens

pytestmark = on_one_kubelet  # who serves is a matter of the instances
T = "example.com/t"
UNANSWERED = "another instance does not answer"
STOPS = """
import os, signal
from devhost.kubelet.{module} import {owner}
method = {owner}.{method}
async def stopping(self, *args, **kwargs):
    {owner}.{method} = method
    os.kill(os.getpid(), signal.SIGSTOP)
    return await method(self, *args, **kwargs)
{owner}.{method} = stopping
"""


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the hosts of this process wait half as long as usual for an answer."""
    monkeypatch.setattr("devhost.kubelet.liveness.ANSWER_TIMEOUT_S", 1.5)


def stopped(daemon: Daemon) -> bool:
    """Whether a process is stopped by a signal."""
    return daemon.running and " T " in Path(f"/proc/{daemon.pid}/stat").read_text()


def survived(kubelet: Kubelet) -> bool:
    return not kubelet.panics if isinstance(kubelet, SimulatedKubelet) else kubelet.alive


async def admits_until(kubelet: Kubelet, condition: Callable[[], bool]) -> None:
    """See one pod after the other admitted, until a condition is true."""
    async with asyncio.timeout(60):
        while not condition():
            await kubelet.admit("pod", {"app": {T: 1}})
            await kubelet.free("pod")
            await asyncio.sleep(0.02)


def newer_name(directory: Path) -> Path:
    """Return the name of a socket of an instance that starts now."""
    return directory / "plugins" / Instances(directory).fresh_name(T)


# ── the newer one ──


@pytest.mark.parametrize("method", ["read", "register"])
async def test_the_newer_is_stopped_before_it_has_registered(
    started: Kubelet,
    start: Start,
    daemon: Daemon,
    caplog: pytest.LogCaptureFixture,
    method: str,
) -> None:
    """Whether the older one has given way to it or not, that one serves until it goes on."""
    older = start(tokens("old", t=3))
    await older.until(T, State.REGISTERED)
    daemon.prelude = STOPS.format(module="directory", owner="PluginDirectory", method=method)
    await daemon.start(tokens("new", t=5))
    await until(lambda: stopped(daemon), "the newer is stopped")
    if method == "read":
        await admits_until(started, lambda: UNANSWERED in caplog.text)
    else:
        await older.until(T, State.WAITING)
        await older.until(T, State.REGISTERED)
    await served_by(started, "old", T, 3)
    daemon.signal(signal.SIGCONT)
    await daemon.logged("state", resource=T, state="Registered")
    await older.until(T, State.WAITING)
    await served_by(started, "new", T, 5)
    assert survived(started)
    await daemon.stop()
    await served_by(started, "old", T, 3)


async def test_the_newer_is_stopped_after_it_has_registered(
    started: Kubelet, start: Start, daemon: Daemon
) -> None:
    """Again and again: the older takes over each time, and gives way each time."""
    older = start(tokens("old", t=3))
    await older.until(T, State.REGISTERED)
    await daemon.start(tokens("new", t=5))
    for _ in range(3):
        await older.until(T, State.WAITING)
        await served_by(started, "new", T, 5)
        daemon.signal(signal.SIGSTOP)
        await older.until(T, State.REGISTERED)
        await served_by(started, "old", T, 3)
        daemon.signal(signal.SIGCONT)
    await older.until(T, State.WAITING)
    await served_by(started, "new", T, 5)
    assert survived(started)
    assert daemon.found("", level="error") == []


async def test_the_newer_is_killed_while_it_is_stopped(
    started: Kubelet, start: Start, daemon: Daemon
) -> None:
    """The older goes on, and removes its socket."""
    older = start(tokens("old", t=3))
    await older.until(T, State.REGISTERED)
    await daemon.start(tokens("new", t=5))
    await served_by(started, "new", T, 5)
    daemon.signal(signal.SIGSTOP)
    await older.until(T, State.REGISTERED)
    await daemon.kill()
    await until(lambda: len(daemon.sockets()) == 1, "the dead socket is removed")
    await served_by(started, "old", T, 3)


async def test_the_kubelet_restarts_while_the_newer_is_stopped(
    started: Kubelet, start: Start, daemon: Daemon
) -> None:
    """It removes the sockets of both; the older one is back immediately, the newer when it goes on."""
    older = start(tokens("old", t=3))
    await older.until(T, State.REGISTERED)
    await daemon.start(tokens("new", t=5))
    await served_by(started, "new", T, 5)
    daemon.signal(signal.SIGSTOP)
    await older.until(T, State.REGISTERED)
    await started.restart()
    await served_by(started, "old", T, 3)
    daemon.signal(signal.SIGCONT)
    await older.until(T, State.WAITING)
    await served_by(started, "new", T, 5)


@pytest.mark.parametrize("frozen", ["newer", "older"])
async def test_an_allocation_is_under_way_at_the_one_that_is_stopped(
    started: Kubelet, start: Start, daemon: Daemon, frozen: str
) -> None:
    """It is refused in the end: a kubelet since 1.34 dies if the ID is in no list by then."""
    daemon.prelude = STOPS.format(module="servicer", owner="Servicer", method="_allocate")
    theirs = f"version: v1\nresources: [{{name: {T}, sources: [static: {{ids: [x]}}]}}]\n"
    older: Instance | None = None
    if frozen == "newer":
        older = start(tokens("old", t=3))
        await older.until(T, State.REGISTERED)
    await daemon.start(theirs)
    await started.wait(T, 1, 1)
    if older:
        await older.until(T, State.WAITING)
    admission = asyncio.create_task(started.admit("pod", {"app": {T: 1}}))
    await until(lambda: stopped(daemon), "it has stopped in Allocate")
    other = older or start(tokens("new", t=3))
    await other.until(T, State.REGISTERED)
    await started.wait(T, 3, 3)
    daemon.signal(signal.SIGCONT)
    with pytest.raises(AdmissionError):
        async with asyncio.timeout(60):
            await admission
    await (served_by(started, "new", T, 3) if older is None else started.wait(T, 1, 1))
    assert survived(started)


async def test_a_newer_that_never_accepts(
    started: Kubelet, start: Start, directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is connected to and does not answer: no pod is refused beside it."""
    older = start(tokens("old", t=3))
    await older.until(T, State.REGISTERED)
    await served_by(started, "old", T, 3)
    with contextlib.closing(socket.socket(socket.AF_UNIX)) as sick:
        name = newer_name(directory)
        sick.bind(str(name))
        sick.listen(100)
        await admits_until(started, lambda: UNANSWERED in caplog.text)
        assert older.status(T).state is State.REGISTERED
        await started.restart()
        await served_by(started, "old", T, 3)
        name.unlink(missing_ok=True)


async def test_a_newer_that_never_registers(
    started: Kubelet, start: Start, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The older gives way, takes over again after a while, and marks its socket."""
    monkeypatch.setattr("devhost.kubelet.instances.REGISTER_WITHIN_S", 0.5)
    older = start(tokens("old", t=3))
    await older.until(T, State.REGISTERED)
    server, name = options_server(lambda: asyncio.sleep(0)), newer_name(directory)
    server.add_insecure_port(f"unix:{name}")
    await server.start()
    await older.until(T, State.WAITING)
    await older.until(T, State.REGISTERED)
    await served_by(started, "old", T, 3)
    assert is_standby(name)
    await server.stop(None)


# ── the older one ──


async def taken_over_while_stopped(started: Kubelet, start: Start, daemon: Daemon) -> Instance:
    """Stop a process that serves, and return the newer instance that serves instead."""
    await daemon.start(tokens("old", t=3))
    await served_by(started, "old", T, 3)
    daemon.signal(signal.SIGSTOP)
    newer = start(tokens("new", t=5))
    await newer.until(T, State.REGISTERED)
    await served_by(started, "new", T, 5)
    return newer


async def test_the_older_is_stopped_and_goes_on(
    started: Kubelet, start: Start, daemon: Daemon
) -> None:
    """The newer does not wait without end; the older finds itself replaced and keeps quiet."""
    newer = await taken_over_while_stopped(started, start, daemon)
    before = len(daemon.lines)
    daemon.signal(signal.SIGCONT)
    await daemon.logged("a newer instance of devhost serves it", before, state="Waiting")
    await served_by(started, "new", T, 5)
    await newer.stop()
    await served_by(started, "old", T, 3)
    assert survived(started)


async def test_the_older_is_killed_while_it_is_stopped(
    started: Kubelet, start: Start, daemon: Daemon
) -> None:
    """The newer takes over without it, and removes its socket."""
    await taken_over_while_stopped(started, start, daemon)
    await daemon.kill()
    await until(lambda: len(daemon.sockets()) == 1, "the dead socket is removed")
    await served_by(started, "new", T, 5)


async def test_an_older_one_that_does_not_give_way(
    started: Kubelet, start: Start, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it answers nobody registers beside it; that is said, and tried again."""
    monkeypatch.setattr("devhost.kubelet.registration.HANDOVER_TIMEOUT_S", 0.5)
    daemon.prelude = """
from devhost.kubelet.instances import Instances
Instances.newer = lambda *_: False
"""
    await daemon.start(tokens("old", t=3))
    await served_by(started, "old", T, 3)
    newer = start(tokens("new", t=5))
    status = await newer.until(T, State.BACKING_OFF)
    assert status.reason == "an older instance of devhost does not give way"
    await served_by(started, "old", T, 3)
    await daemon.stop()
    await served_by(started, "new", T, 5)

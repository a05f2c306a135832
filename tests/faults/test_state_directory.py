"""A state directory that hangs or is locked, and other directories that hang at the start."""

import contextlib
import fcntl
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.daemon import Daemon, at_rest, numbers, tokens, until
from tests.support.mounts import hung

A = "example.com/a"
Fault = Callable[[Path], contextlib.AbstractContextManager[None]]
SHORT = {"watch.threads.PATIENCE_S": 2.0, "node.config_file.PATIENCE_S": 2.0}


@contextlib.contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a state directory, as another devhost does that hangs in a write."""
    descriptor = os.open(directory / "lock", os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


async def follows_edits(standin: SimulatedKubelet, daemon: Daemon) -> None:
    """See that edits and SIGHUP are followed, one after the other."""
    for count in (2, 3, 4):
        daemon.write(tokens(a=count))
        await at_rest(standin, daemon, {A: numbers(count)})
    since = len(daemon.lines)
    daemon.config.write_text(tokens(a=5))
    daemon.signal(signal.SIGHUP)
    await daemon.logged("configuration in force", since)
    await at_rest(standin, daemon, {A: numbers(5)})


async def test_state_directory_that_hangs_from_the_start_keeps_nothing_from_being_served(
    standin: SimulatedKubelet, daemon: Daemon
) -> None:
    """Edits are followed, and it is said that nothing is saved."""
    daemon.constants = SHORT
    daemon.state.mkdir()
    with hung(daemon.state):
        await daemon.start(tokens(a=1))
        await at_rest(standin, daemon, {A: numbers(1)})
        await daemon.logged("last-good.yaml: no answer in 2 s")
        await follows_edits(standin, daemon)
        assert len(daemon.found("cannot save the last good configuration")) == 1
        assert await daemon.stop() == 0


@pytest.mark.parametrize("fault", [hung, locked])
async def test_state_directory_that_hangs_later_gets_the_last_configuration_when_it_answers(
    standin: SimulatedKubelet, daemon: Daemon, fault: Fault
) -> None:
    daemon.constants = SHORT
    await daemon.start(tokens(a=1))
    await at_rest(standin, daemon, {A: numbers(1)})
    copy = daemon.state / "last-good.yaml"
    await until(copy.exists, "the copy")
    with fault(daemon.state):
        await follows_edits(standin, daemon)
        await daemon.logged("no answer in 2 s")
    await daemon.logged("the last good configuration saved again")
    assert copy.read_text() == tokens(a=5)
    assert await daemon.stop() == 0


async def test_state_directory_that_hangs_when_its_copy_is_needed_ends_the_process(
    daemon: Daemon,
) -> None:
    """Without a valid file there is nothing to serve; the process says both."""
    daemon.constants = SHORT
    daemon.state.mkdir()
    daemon.plugins.mkdir(exist_ok=True)
    with hung(daemon.state):
        await daemon.start("version: v2\n")
        assert await daemon.ended() == 1
    assert daemon.found("config.yaml:1:10: error: version")
    assert daemon.found("last-good.yaml:1:1: error: cannot be read: no answer in 2 s")


@pytest.mark.parametrize("flag", ["--cdi-dir", "--pod-resources"])
async def test_cdi_or_pod_resources_directory_that_hangs_keeps_nothing_else_from_being_served(
    standin: SimulatedKubelet, daemon: Daemon, directory: Path, flag: str
) -> None:
    daemon.constants = SHORT
    place = directory / "hung"
    place.mkdir()
    path = place if flag == "--cdi-dir" else place / "kubelet.sock"
    daemon.flags += [flag, str(path)]
    with hung(place):
        await daemon.start(tokens(a=1))
        await at_rest(standin, daemon, {A: numbers(1)})
        await follows_edits(standin, daemon)
        assert await daemon.stop() == 0

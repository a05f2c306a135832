"""One set of scenarios, two kubelets: the stand-in, and the real device manager."""

import asyncio
import contextlib
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from devhost.discovery.host_files import HostFiles
from devhost.host.supervisor import Host, Settings
from devhost.kubelet.simulator import SimulatedKubelet
from devhost.loading.loader import loads
from devhost.trust import Policy
from tests.support.realkubelet import RealKubelet

Kubelet = SimulatedKubelet | RealKubelet


@pytest.fixture
def directory() -> Iterator[Path]:
    """A short path: a socket's is at most 107 bytes long."""
    path = Path(tempfile.mkdtemp(prefix="dh"))
    (path / "plugins").mkdir()
    (path / "colas").mkdir()
    yield path
    shutil.rmtree(path)


@pytest.fixture(params=["stand-in", "real"])
def kubelet(request: pytest.FixtureRequest, directory: Path) -> Kubelet:
    """A kubelet that is not started yet."""
    if request.param == "stand-in":
        return SimulatedKubelet(directory / "plugins")
    binary = os.environ.get("DEVHOST_TEST_KUBELET")
    if not binary:
        pytest.skip("DEVHOST_TEST_KUBELET is not set: run `make test`")
    return RealKubelet(Path(binary), directory / "plugins")


@pytest.fixture
async def started(kubelet: Kubelet) -> AsyncIterator[Kubelet]:
    """A running kubelet."""
    await kubelet.start()
    yield kubelet
    await kubelet.stop()


class Hosting:
    """Runs the host in this process, as many times as a scenario wants."""

    def __init__(self, directory: Path) -> None:
        self.plugins = directory / "plugins"
        self.leave_after = 0.3
        self.hold_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, config: str) -> Host:
        """Start a host with a configuration's text."""
        settings = Settings(
            self.plugins, "node-1", HostFiles(), Policy(), self.leave_after, self.hold_s
        )
        host = Host(loads(config).require(), settings)
        self._tasks.append(asyncio.create_task(host.run()))
        return host

    async def stop(self) -> None:
        """Stop the host that was started last."""
        task = self._tasks.pop()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def close(self) -> None:
        """Stop all."""
        while self._tasks:
            await self.stop()


@pytest.fixture
async def hosting(directory: Path) -> AsyncIterator[Hosting]:
    """Starts and stops hosts."""
    hosting = Hosting(directory)
    yield hosting
    await hosting.close()

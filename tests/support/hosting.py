"""What the tests of a host against a kubelet share; the fixtures are in tests/conftest.py."""

import asyncio
import contextlib
from pathlib import Path

from devhost.discovery.host_files import HostFiles
from devhost.host.supervisor import Host, Settings
from devhost.kubelet.simulator import SimulatedKubelet
from devhost.loading.loader import loads
from devhost.trust import Policy
from tests.support.realkubelet import RealKubelet

Kubelet = SimulatedKubelet | RealKubelet


class Hosting:
    """Runs the host in this process, as many times as a scenario wants."""

    def __init__(self, directory: Path) -> None:
        self.plugins = directory / "plugins"
        self.leave_after = 0.3
        self.hold_s = 0.0
        self.hosts: list[Host] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, config: str) -> Host:
        """Start a host with a configuration's text."""
        settings = Settings(
            self.plugins, "node-1", HostFiles(), Policy(), self.leave_after, self.hold_s
        )
        host = Host(loads(config).require(), settings)
        self.hosts.append(host)
        self._tasks.append(asyncio.create_task(host.run()))
        return host

    async def stop(self) -> None:
        """Stop the host that was started last."""
        self.hosts.pop()
        task = self._tasks.pop()
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def close(self) -> None:
        """Stop all."""
        while self._tasks:
            await self.stop()

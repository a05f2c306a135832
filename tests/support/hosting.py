"""A host against a kubelet, for tests; the fixtures are in tests/conftest.py."""

import asyncio
import contextlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.config.loader import loads
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.hostfs.files import HostFiles
from devhost.model.config import Config
from devhost.model.device import HostDevice
from devhost.model.resource_state import State, Status
from devhost.node.node import Host, Settings
from devhost.node.resource import ServedResource
from tests.support.devices import reason_of
from tests.support.realkubelet import REAL_KUBELETS, RealKubelet
from tests.support.waiting import until_said

Kubelet = SimulatedKubelet | RealKubelet

STAND_IN = pytest.param(None, id="stand-in")
KUBELETS = [STAND_IN, *REAL_KUBELETS]
# For what the stand-in has to do as a real kubelet does: such a test runs on both. All others trust it.
contract = pytest.mark.parametrize("kubelet", KUBELETS, indirect=True)


def kubelet_of(binary: Path | None, directory: Path, numa_nodes: int = 0) -> Kubelet:
    """Return a kubelet that is not started yet: a real one by its binary, or the stand-in."""
    plugins, socket = directory / "plugins", directory / "pr.sock"
    if binary is None:
        return SimulatedKubelet(plugins, socket)
    return RealKubelet(binary, plugins, socket, numa_nodes=numa_nodes)


class Hosting:
    """Runs the host in this process, as many times as a scenario wants."""

    def __init__(self, directory: Path) -> None:
        self.plugins, self.cdi = directory / "plugins", directory / "cdi"
        self.pod_resources = directory / "pr.sock"
        self.leave_after = 0.3
        self.settle_s = 0.0
        self.hosts: list[Host] = []
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, config: str, **options: Any) -> Host:
        """Start a host with a configuration's text, and with options as of `run`."""
        return self.run(loads(config).require(), **options)

    def run(
        self,
        config: Config,
        *,
        state_dir: Path | None = None,
        pod_resources: Path | None = None,
        cdi_dir: Path | None = None,
        policy: Policy | None = None,
        root: str | Path = "/",
        **code: Any,
    ) -> Host:
        socket = pod_resources or self.pod_resources
        backend = DevicePluginBackend(self.plugins, socket, self.leave_after)
        settings = Settings(
            "node-1",
            HostFiles(str(root)),
            policy or Policy(),
            self.settle_s,
            state_dir=state_dir,
            cdi_dir=cdi_dir or self.cdi,
        )
        host = Host(config, settings, backend, **code)
        self.hosts.append(host)
        self._tasks.append(asyncio.create_task(host.run()))
        return host

    def reload(self, config: str) -> None:
        """Apply another configuration to the host that was started last."""
        self.hosts[-1].apply(loads(config).require())

    def served(self, resource: str, index: int = -1) -> ServedResource | None:
        """Return a resource of the host that was started last, or of another one."""
        return {runner.name: runner for runner in self.hosts[index].resources}.get(resource)

    def status(self, resource: str, index: int = -1) -> Status:
        """Return the status of a resource; an empty one where it is not there."""
        served = self.served(resource, index)
        return served.status if served else Status()

    async def until(self, resource: str, state: State, index: int = -1) -> None:
        async def status() -> Status:
            return self.status(resource, index)

        await until_said(status, lambda status: status.state is state)

    def device(self, resource: str, device_id: str) -> HostDevice | None:
        served = self.served(resource)
        return served.devices.offered.devices.get(device_id) if served else None

    def reason(self, resource: str, device_id: str) -> str | None:
        """Return why a device is unhealthy, if it is there and is so."""
        device = self.device(resource, device_id)
        return reason_of(device) if device else None

    async def stop(self, index: int = -1) -> None:
        """Stop the host that was started last, or another one."""
        self.hosts.pop(index)
        task = self._tasks.pop(index)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

    async def close(self) -> None:
        while self._tasks:
            await self.stop()


async def pod_status(kubelet: Kubelet, pod: str, resource: str, wanted: Mapping[str, str]) -> None:
    await until_said(lambda: kubelet.health(pod), lambda health: health["app"][resource] == wanted)

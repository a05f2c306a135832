"""The real host against the stand-in kubelet: what ``devhost try`` does."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.backends.dra.dra_backend import DraBackend
from devhost.backends.dra.planned_pool import PlannedDriver
from devhost.backends.share_ids import offered_id
from devhost.daemon.status import resource_report
from devhost.fake_kubelet.dra_kubelet import DraCluster
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.fake_kubelet.state import HEALTHY
from devhost.model.config import Config
from devhost.node.answers import CodeResource
from devhost.node.config_file import ConfigFile
from devhost.node.node import Host, Settings
from devhost.node.resource import is_registered

_ONCE_TIMEOUT_S: Final = 30.0
_LOOK_S: Final = 0.02
_SHOWN_MAX: Final = 20  # devices of a resource on its line


@contextlib.asynccontextmanager
async def running(host: Host) -> AsyncIterator[None]:
    """Run a host until the block ends; raise what it raises."""
    task = asyncio.create_task(host.run(), name="host")
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


class Trial:
    """A host with its kubelet and API server, in a temporary directory."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        directory: Path,
        source: ConfigFile | None = None,
        plugins: Sequence[CodeResource] = (),
        dra_driver: str = "devhost",
    ) -> None:
        driver, node_name = dra_driver, settings.node_name
        self.kubelet, self.cluster = SimulatedKubelet(directory), DraCluster(directory, node_name)
        self.cluster.api.on_change = self.kubelet.notify
        self._driver = PlannedDriver(driver, node_name)
        plugin_backend = DevicePluginBackend(directory, self.kubelet.pod_resources)
        backend = DraBackend(driver, node_name, directory, self.cluster.api, plugin_backend)
        self.host = Host(config, settings, backend, source, plugins)
        self.names = [
            resource.name
            for resource in (*(plugin.resource for plugin in plugins), *config.resources)
            if resource.applies_to(node_name)
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all; stop all at the end."""
        await self.kubelet.start()
        try:
            async with self.cluster.running(), running(self.host):
                yield
        finally:
            await self.kubelet.stop()

    async def once(self) -> dict[str, Any]:
        """Return the shape of ``plan -o json`` with ``registered``, after all are registered."""
        async with self.running():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ONCE_TIMEOUT_S):
                    # States have no event.
                    while not set(self.names) <= self._registered():  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK_S)
            reports = []
            for served in self.host.resources:
                report = resource_report(served, served.devices.offered)
                shown = report.as_json() | self._driver.offer(report.resource, report.snapshot)
                reports.append(shown | {"registered": is_registered(served)})
            return {"resources": reports}

    def _registered(self) -> set[str]:
        return {served.name for served in self.host.resources if is_registered(served)}

    async def capacity(self) -> dict[str, tuple[int, int]]:
        """Return resource to (capacity, allocatable), in kubelet's lists and in slices."""
        listed = await self.kubelet.capacity()
        for name, devices in self.cluster.devices().items():
            count = sum(device.shares for device in devices)
            total, healthy = listed.get(name, (0, 0))
            listed[name] = total + count, healthy + count
        return listed

    async def admit(self, pod: str, resource: str, count: int) -> Mapping[str, Any]:
        """Return what the container of a new pod receives, with what its CDI names mean.

        An `AdmissionError` says why there is no such pod.
        """
        answer: Mapping[str, Any]
        if resource in self.cluster.devices():
            answer = await self.cluster.admit(pod, resource, count)
        else:
            answer = (await self.kubelet.admit(pod, {"app": {resource: count}}))["app"]
        return {**answer, "cdiSpec": {"devices": self._injected(answer["cdiDevices"])}}

    async def free(self, pod: str) -> None:
        """End a pod: its devices are free again."""
        if pod in self.cluster.pods:
            await self.cluster.free(pod)
        else:
            await self.kubelet.free(pod)

    async def restart(self) -> None:
        """Restart kubelet; pods keep what they hold."""
        await self.kubelet.restart()
        self.cluster.restart()

    def _injected(self, cdi_names: Collection[str]) -> list[Mapping[str, Any]]:
        """Return the entries of CDI specs that a container runtime would inject."""
        files = sorted(self.host.settings.cdi_dir.glob("*.json")) if cdi_names else ()
        specs = [json.loads(file.read_bytes()) for file in files]
        return [
            entry
            for content in specs
            for entry in content["devices"]
            if f"{content['kind']}={entry['name']}" in cdi_names
        ]

    async def live(self, show: Callable[[str], None]) -> None:
        """Show the devices that pods can get, whenever they change, until cancelled."""
        before: dict[str, tuple[int, int]] = {}
        async with self.running():
            while True:
                capacity = dict.fromkeys(before, (0, 0)) | await self.capacity()
                for name, (total, healthy) in sorted(capacity.items()):
                    if before.get(name) != (total, healthy):
                        show(f"{name}: {healthy} of {total} {self._devices(name, total)}")
                before = capacity
                await self.kubelet.changed.wait()

    def _devices(self, name: str, total: int) -> str:
        """Return the first devices of a resource, unhealthy ones in parentheses."""
        published = (device.id for device in self.cluster.devices().get(name, ()))
        shares = self.kubelet.devices(name) | dict.fromkeys(published, HEALTHY)
        healths = {offered_id(share).device: health for share, health in shares.items()}
        ids = [device if health == HEALTHY else f"({device})" for device, health in healths.items()]
        left = f" and {len(ids) - _SHOWN_MAX} more" if len(ids) > _SHOWN_MAX else ""
        unit = "shares allocatable" if total > len(ids) else "allocatable"
        return f"{unit}: {' '.join(ids[:_SHOWN_MAX])}{left}".rstrip(": ")

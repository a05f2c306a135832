"""The real host against the stand-in kubelet: what ``devhost try`` does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.backends.share_ids import offered_id
from devhost.daemon.status import resource_report
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.fake_kubelet.state import HEALTHY
from devhost.model.config import Config
from devhost.node.answers import CodeResource
from devhost.node.config_file import ConfigFile
from devhost.node.node import Host, Settings

_ONCE_TIMEOUT_S: Final = 30.0
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
    """A host and its kubelet, in a temporary directory."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        plugin_dir: Path,
        source: ConfigFile | None = None,
        plugins: Sequence[CodeResource] = (),
    ) -> None:
        pod_resources = plugin_dir / "pod-resources.sock"
        self.kubelet = SimulatedKubelet(plugin_dir, pod_resources)
        backend = DevicePluginBackend(plugin_dir, pod_resources)
        self.host = Host(config, settings, backend, source, plugins)
        self.names = [
            resource.name
            for resource in (*(plugin.resource for plugin in plugins), *config.resources)
            if resource.applies_to(settings.node_name)
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start both; stop both at the end."""
        await self.kubelet.start()
        try:
            async with running(self.host):
                yield
        finally:
            await self.kubelet.stop()

    async def once(self) -> dict[str, Any]:
        """Return the shape of ``plan -o json`` with ``registered``, after all are registered."""
        async with self.running():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ONCE_TIMEOUT_S):
                    while not set(self.names) <= (await self.kubelet.capacity()).keys():
                        await self.kubelet.changed.wait()
            capacity = await self.kubelet.capacity()
            reports = []
            for served in self.host.resources:
                report = resource_report(served, served.devices.offered).as_json()
                reports.append(report | {"registered": served.name in capacity})
            return {"resources": reports}

    async def live(self, show: Callable[[str], None]) -> None:
        """Show the devices that kubelet knows, whenever they change, until cancelled."""
        before: dict[str, tuple[int, int]] = {}
        async with self.running():
            while True:
                capacity = await self.kubelet.capacity()
                for name, (total, healthy) in sorted(capacity.items()):
                    if before.get(name) != (total, healthy):
                        show(f"{name}: {healthy} of {total} {self._devices(name, total)}")
                before = capacity
                await self.kubelet.changed.wait()

    def _devices(self, name: str, total: int) -> str:
        """Return the first devices of a resource, unhealthy ones in parentheses."""
        shares = self.kubelet.devices(name).items()
        healths = {offered_id(share).device: health for share, health in shares}
        ids = [device if health == HEALTHY else f"({device})" for device, health in healths.items()]
        left = f" and {len(ids) - _SHOWN_MAX} more" if len(ids) > _SHOWN_MAX else ""
        unit = "shares allocatable" if total > len(ids) else "allocatable"
        return f"{unit}: {' '.join(ids[:_SHOWN_MAX])}{left}".rstrip(": ")

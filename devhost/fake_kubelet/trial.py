"""The real host against the stand-in kubelet: what ``devhost try`` does."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from devhost.backends.backend import ResourceHooks
from devhost.backends.deviceplugin.registration import DevicePluginBackend, Registration
from devhost.backends.share_ids import offered_id
from devhost.daemon.status import resource_report
from devhost.fake_kubelet.kubelet import SimulatedKubelet
from devhost.fake_kubelet.state import HEALTHY
from devhost.model.config import Config, Resource
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


class _Backend(DevicePluginBackend):
    """Offers a resource of DRA, too, which has no other backend to wait for."""

    def open(self, resource: Resource, hooks: ResourceHooks) -> Registration:
        return super().open(resource, replace(hooks, refusal=None, other_holders=lambda: None))


class Trial:
    """A host with its kubelet, in a temporary directory."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        directory: Path,
        source: ConfigFile | None = None,
        plugins: Sequence[CodeResource] = (),
    ) -> None:
        self.kubelet = SimulatedKubelet(directory)
        backend = _Backend(directory, self.kubelet.pod_resources)
        self.host = Host(config, settings, backend, source, plugins)
        self.names = [
            resource.name
            for resource in (*(plugin.resource for plugin in plugins), *config.resources)
            if resource.applies_to(settings.node_name)
        ]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Start all; stop all at the end."""
        await self.kubelet.start()
        try:
            async with running(self.host):
                yield
        finally:
            await self.kubelet.stop()

    async def once(self) -> dict[str, Any]:
        """Return the reports of the resources, with ``registered``, after all are registered."""
        async with self.running():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_ONCE_TIMEOUT_S):
                    # States have no event.
                    while not set(self.names) <= self._registered():  # noqa: ASYNC110
                        await asyncio.sleep(_LOOK_S)
            reports = [
                resource_report(served, served.devices.offered).as_json()
                | {"registered": is_registered(served)}
                for served in self.host.resources
            ]
            return {"resources": reports}

    def _registered(self) -> set[str]:
        return {served.name for served in self.host.resources if is_registered(served)}

    async def live(self, show: Callable[[str], None]) -> None:
        """Show the devices that pods can get, whenever they change, until cancelled."""
        before: dict[str, tuple[int, int]] = {}
        async with self.running():
            while True:
                capacity = dict.fromkeys(before, (0, 0)) | await self.kubelet.capacity()
                for name, (total, healthy) in sorted(capacity.items()):
                    if before.get(name) != (total, healthy):
                        show(f"{name}: {healthy} of {total} {self._devices(name, total)}")
                before = capacity
                await self.kubelet.ledger.changed.wait()

    def _devices(self, name: str, total: int) -> str:
        """Return the first devices of a resource, unhealthy ones in parentheses."""
        shares = self.kubelet.devices(name).items()
        healths = {offered_id(share).device: health for share, health in shares}
        ids = [device if health == HEALTHY else f"({device})" for device, health in healths.items()]
        left = f" and {len(ids) - _SHOWN_MAX} more" if len(ids) > _SHOWN_MAX else ""
        unit = "shares allocatable" if total > len(ids) else "allocatable"
        return f"{unit}: {' '.join(ids[:_SHOWN_MAX])}{left}".rstrip(": ")

"""A host in this process that serves plugins in code."""

import asyncio
import contextlib
from pathlib import Path

from devhost import DevicePlugin
from devhost.allocation.policy import Policy
from devhost.backends.deviceplugin.registration import DevicePluginBackend
from devhost.config.loader import loads
from devhost.hostfs.files import HostFiles
from devhost.library.served import served
from devhost.model.config import Config
from devhost.model.device import Snapshot
from devhost.node.config_file import ConfigFile
from devhost.node.node import Host, Settings
from devhost.node.resource import ServedResource
from tests.support.daemon import until
from tests.support.devices import reasons, skip_reasons


class Serving:
    """Serves plugins, and a configuration beside them, in this process."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "config.yaml"
        self._plugins, self._pod_resources = directory / "plugins", directory / "pr.sock"
        self._host: Host | None = None
        self._task: asyncio.Task[None] | None = None

    def start(
        self, *plugins: DevicePlugin, config: str | None = None, root: Path = Path("/")
    ) -> None:
        policy = Policy(enforced=True)
        files = HostFiles(str(root))
        settings = Settings("node-1", files, policy=policy, settle_s=0.0)
        first, source = Config(version="v1", resources=()), None
        if config is not None:
            self.config.write_text(config)
            first = loads(config, policy=policy).require()
            source = ConfigFile(str(self.config), policy)
            source.load_first()
        backend = DevicePluginBackend(self._plugins, self._pod_resources, 0.3)
        self._host = Host(first, settings, backend, source, served(plugins))
        self._task = asyncio.create_task(self._host.run())

    async def stop(self) -> None:
        if self._task is not None:
            task, self._task = self._task, None
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def runner(self, name: str) -> ServedResource:
        assert self._host is not None
        return next(runner for runner in self._host.resources if runner.name == name)

    def snapshot(self, name: str) -> Snapshot:
        return self.runner(name).devices.offered

    async def reasons(self, name: str, expected: dict[str, str | None]) -> None:
        await until(lambda: reasons(self.snapshot(name)) == expected, f"{expected}")

    async def skips(self, name: str, expected: dict[str, str]) -> None:
        await until(lambda: skip_reasons(self.snapshot(name).skipped) == expected, f"{expected}")

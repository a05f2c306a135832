"""A host in this process that serves plugins in code."""

from pathlib import Path

from devhost import DevicePlugin
from devhost.allocation.policy import Policy
from devhost.config.loader import loads
from devhost.library.served import served
from devhost.model.config import Config
from devhost.model.device import Snapshot
from devhost.node.config_file import ConfigFile
from devhost.node.resource import ServedResource
from tests.support.daemon import until
from tests.support.devices import reasons, skip_reasons
from tests.support.hosting import Hosting


class Serving:
    """Serves plugins, and a configuration beside them, in this process."""

    def __init__(self, directory: Path) -> None:
        self.config = directory / "config.yaml"
        self._hosting = Hosting(directory)

    def start(
        self, *plugins: DevicePlugin, config: str | None = None, root: Path = Path("/")
    ) -> None:
        policy = Policy(enforced=True)
        first, source = Config(version="v1", resources=()), None
        if config is not None:
            self.config.write_text(config)
            first = loads(config, policy=policy).require()
            source = ConfigFile(str(self.config), policy)
            source.load_first()
        code = served(plugins)
        self._hosting.run(first, policy=policy, root=root, source=source, plugins=code)

    async def stop(self) -> None:
        await self._hosting.close()

    def runner(self, name: str) -> ServedResource:
        runner = self._hosting.served(name)
        assert runner is not None
        return runner

    def snapshot(self, name: str) -> Snapshot:
        return self.runner(name).devices.offered

    async def reasons(self, name: str, expected: dict[str, str | None]) -> None:
        await until(lambda: reasons(self.snapshot(name)) == expected, f"{expected}")

    async def skips(self, name: str, expected: dict[str, str]) -> None:
        await until(lambda: skip_reasons(self.snapshot(name).skipped) == expected, f"{expected}")

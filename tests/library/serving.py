"""A host in this process that serves plugins in code."""

from pathlib import Path

from devhost import DevicePlugin
from devhost.allocation.policy import Policy
from devhost.library.served import served
from devhost.model.config import Config
from devhost.model.device import Snapshot
from devhost.node.config_file import ConfigFile
from devhost.node.resource import ServedResource
from tests.support.daemon import until
from tests.support.devices import reasons
from tests.support.hosting import Hosting


class Serving(Hosting):
    """Serves plugins, and a configuration beside them, in this process."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.config = directory / "config.yaml"

    def serve(self, *plugins: DevicePlugin, config: str | None = None) -> None:
        policy = Policy(enforced=True)
        first, source = Config(version="v1", resources=()), None
        if config is not None:
            self.config.write_text(config)
            source = ConfigFile(str(self.config), policy)
            first = source.load_first()[0].require()
        self.run(first, policy=policy, source=source, plugins=served(plugins))

    def runner(self, name: str) -> ServedResource:
        runner = self.served(name)
        assert runner is not None
        return runner

    def snapshot(self, name: str) -> Snapshot:
        return self.runner(name).devices.offered

    async def reasons(self, name: str, expected: dict[str, str | None]) -> None:
        await until(lambda: reasons(self.snapshot(name)) == expected, f"{expected}")

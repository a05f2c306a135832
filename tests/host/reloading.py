"""A host in this process that follows a configuration file."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from devhost.allocation.policy import Policy
from devhost.host.config_source import ConfigSource
from devhost.host.host import Host, Settings
from devhost.host.resource import ServedResource
from devhost.host.state_files import LastGood
from devhost.hostfs.files import HostFiles

A, B, C = "example.com/a", "example.com/b", "example.com/c"


def tokens(**counts: int) -> str:
    """Return a configuration with resources of so many tokens."""
    resources = "".join(
        f'\n  - {{name: "example.com/{name}", sources: [static: {count}]}}'
        for name, count in counts.items()
    )
    return f"version: v1\nresources:{resources or ' []'}\n"


class Reloading:
    """A host in this process that follows a configuration file."""

    def __init__(self, directory: Path, config: Path) -> None:
        self.directory, self.config = directory, config
        self.last_good = LastGood(directory / "state")
        self.source = ConfigSource(str(config), Policy(), self.last_good)
        loaded, copy = self.source.first()
        used = loaded.config or (copy.config if copy else None)
        assert used is not None
        settings = Settings(
            directory / "plugins", "node-1", HostFiles(), Policy(), 0.3, 0.0, assume_free=True
        )
        self.host = Host(used, settings, self.source)

    def runner(self, name: str) -> ServedResource:
        return next(one for one in self.host.resources if one.name == name)

    def sockets(self) -> dict[str, int]:
        found = (self.directory / "plugins").glob("devhost-*.sock")
        return {path.name: path.stat().st_ino for path in found}

    async def until(self, **wanted: int) -> None:
        """Wait until the status counts so many reloads or failures."""
        while any(getattr(self.source.status, key) < n for key, n in wanted.items()):
            await asyncio.sleep(0.005)

    async def ended(self, name: str) -> None:
        """Wait until a drained resource is gone."""
        while any(one.name == name for one in self.host.resources):
            await asyncio.sleep(0.005)


@contextlib.asynccontextmanager
async def reloading(
    directory: Path, text: str, config: Path | None = None
) -> AsyncIterator[Reloading]:
    config = config or directory / "etc" / "config.yaml"
    config.parent.mkdir(exist_ok=True)
    if text:
        config.write_text(text)
    running = Reloading(directory, config)
    task = asyncio.create_task(running.host.run())
    try:
        yield running
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task

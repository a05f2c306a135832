"""All resources of a process: start, keep going, stop."""

import asyncio
import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from devhost.discovery.host_files import HostFiles
from devhost.discovery.identity import HOLD_S
from devhost.discovery.scan import Scanner
from devhost.host.claims import Claims
from devhost.host.runner import Runner
from devhost.kubelet import server
from devhost.kubelet.directory import DirectoryGoneError, PluginDirectory
from devhost.kubelet.listing import LEAVE_AFTER_S
from devhost.model.config import Config
from devhost.trust import Policy
from devhost.watch import Spot, Watcher

_CRASH_PAUSE_S: Final = 1.0
_CRASH_PAUSE_MAX_S: Final = 60.0
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """How a host is run.

    Attributes:
        plugin_dir: The kubelet's plugin directory, as this process sees it.
        node_name: The value of ``${nodeName}``.
        files: Where the host's files are seen.
        policy: What answers may name.
        leave_after: Seconds between an ID's Unhealthy and its leaving the list.
        hold_s: Seconds that a node waits for an earlier source to name it.
    """

    plugin_dir: Path
    node_name: str
    files: HostFiles = field(default_factory=HostFiles)
    policy: Policy = field(default_factory=Policy)
    leave_after: float = LEAVE_AFTER_S
    hold_s: float = HOLD_S


class Host:
    """Serves every resource of a configuration until it is cancelled."""

    def __init__(self, config: Config, settings: Settings) -> None:
        self._config, self._settings = config, settings
        self.runners: list[Runner] = []

    async def run(self) -> None:
        """Serve until cancelled; then nothing is left, neither tasks nor sockets.

        Raises:
            DirectoryGoneError: The plugin directory was removed for good.
        """
        settings = self._settings
        directory = PluginDirectory(settings.plugin_dir)
        if swept := server.sweep(settings.plugin_dir):
            _LOG.info("removed dead sockets", extra={"fields": {"count": len(swept)}})
        try:
            async with Watcher() as watcher:
                spot = Spot(str(settings.plugin_dir))
                watcher.watch(directory, frozenset({spot}), directory.look_again)
                await self._serve(directory, watcher)
        except* DirectoryGoneError as errors:
            raise errors.exceptions[0] from None
        finally:
            await directory.close()

    async def _serve(self, directory: PluginDirectory, watcher: Watcher) -> None:
        claims = Claims()
        settings = self._settings
        for resource in self._config.resources:
            if not resource.applies_to(settings.node_name):
                _LOG.info("not for this node", extra={"fields": {"resource": resource.name}})
                continue
            scanner = Scanner.of(
                resource,
                settings.files,
                settings.policy,
                settings.node_name,
                hold_s=settings.hold_s,
            )
            self.runners.append(
                Runner(
                    scanner,
                    directory=directory,
                    watcher=watcher,
                    claims=claims,
                    leave_after=settings.leave_after,
                )
            )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(directory.run(), name="plugin directory")
            for runner in self.runners:
                tasks.create_task(_kept_alive(runner), name=runner.name)


async def _kept_alive(runner: Runner) -> None:
    """Start a runner again when it fails: one resource's failure never touches another."""
    pause = _CRASH_PAUSE_S
    while True:
        try:
            await runner.run()
        except Exception:  # noqa: BLE001 (logged, and started again)
            _LOG.exception("resource failed", extra={"fields": {"resource": runner.name}})
        await asyncio.sleep(pause)
        pause = min(pause * 2, _CRASH_PAUSE_MAX_S)

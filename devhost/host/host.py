"""All resources of a process: start, keep going, stop."""

import asyncio
import functools
import logging
from collections.abc import Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from devhost.allocation.policy import Policy
from devhost.discovery.identity import HOLD_S
from devhost.discovery.scan import Scanner
from devhost.host.cdi import CdiFiles
from devhost.host.config_source import ConfigSource
from devhost.host.holders import Holders
from devhost.host.inventory import Inventory
from devhost.host.metrics import Metrics
from devhost.host.owners import Owners
from devhost.host.reconciler import CRASH_PAUSE_MAX_S, CRASH_PAUSE_S, Reconciler
from devhost.host.resource import ServedResource
from devhost.host.shared import CodeResource, Shared
from devhost.hostfs.files import HostFiles
from devhost.kubelet.backend import PublishedResource
from devhost.kubelet.device_list import LEAVE_AFTER_S
from devhost.kubelet.directory import DirectoryGoneError, PluginDirectory
from devhost.kubelet.podresources import PodResources
from devhost.kubelet.servicer import RESULTS
from devhost.model.changes import Action
from devhost.model.changes import changes as changes_between
from devhost.model.config import Config, Resource
from devhost.model.immutable import immutable
from devhost.watch.watcher import Watcher

CDI_DIR: Final = Path("/var/run/cdi")
_DONE: Final = {
    Action.START: "resource added",
    Action.UPDATE: "resource changed",
    Action.REREGISTER: "resource changed",
    Action.DRAIN: "resource removed",
}
_LOG: Final = logging.getLogger(__name__)


@immutable
class Settings:
    """How a host is run."""

    plugin_dir: Path  # kubelet's, as this process sees it
    node_name: str
    files: HostFiles = field(default_factory=HostFiles)
    policy: Policy = field(default_factory=Policy)
    leave_after: float = LEAVE_AFTER_S  # seconds between an ID's Unhealthy and its end
    hold_s: float = HOLD_S  # seconds that a node waits for an earlier source to name it
    state_dir: Path | None = None  # what outlives this process
    pod_resources: Path | None = None  # kubelet's socket, where it may be asked
    assume_free: bool = False  # without that: what has left the list counts as held by no pod
    cdi_dir: Path = CDI_DIR  # where container runtimes look for CDI specs


class Host:
    """Serves every resource of a configuration, and those in code, until it is cancelled."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        source: ConfigSource | None = None,
        plugins: Sequence[CodeResource] = (),
    ) -> None:
        self.settings, self.source = settings, source
        self.created = datetime.now(UTC)
        self._code = {one.resource.name: one for one in plugins}
        self._first = config
        self._config: Config | None = None
        self._served: dict[str, ServedResource] = {}
        socket = settings.pod_resources
        pod_resources = PodResources(socket) if socket else None
        holders = Holders(pod_resources)
        self._directory = PluginDirectory(settings.plugin_dir, pod_resources, settings.leave_after)
        metrics = Metrics(RESULTS)
        self._watcher = Watcher()
        self.shared = Shared(
            backend=self._directory,
            publish=functools.partial(PublishedResource, self._directory),
            reconciler=Reconciler(Inventory(settings.files, self._watcher), metrics),
            holders=holders,
            owners=Owners(
                holders,
                self._directory,
                settings.state_dir,
                assume_free=settings.assume_free,
                leave_after=settings.leave_after,
            ),
            cdi_files=CdiFiles(settings.cdi_dir),
            metrics=metrics,
        )
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def configured(self) -> bool:
        """Whether the file is in force, and not a last good copy, perhaps of a former release."""
        from_file = self.source is None or self.source.status.file == self.source.file
        return self._config is not None and from_file

    @property
    def resources(self) -> list[ServedResource]:
        """What is served, drained resources at the end."""
        names = [resource.name for resource in self._config.resources] if self._config else []
        places = {name: place for place, name in enumerate(names)}
        return sorted(self._served.values(), key=lambda one: places.get(one.name, len(places)))

    async def run(self) -> None:
        """Serve until cancelled; then nothing is left, neither tasks nor sockets.

        Raises:
            DirectoryGoneError: The plugin directory was removed for good.
        """
        shared = self.shared
        try:
            async with self._watcher as watcher, asyncio.TaskGroup() as self._tasks:
                start = self._tasks.create_task
                start(self._directory.run(watcher), name="plugin directory")
                start(shared.holders.run(), name="holders")
                start(shared.owners.run(), name="owners")
                start(shared.owners.records.follow(watcher), name="state file")
                shared.reconciler.reserve(await shared.owners.load())
                start(shared.reconciler.run(), name="scan")
                self.apply(self._first)
                if self.source:
                    start(self.source.run(watcher, self.apply), name="configuration")
        except* DirectoryGoneError as errors:
            raise errors.exceptions[0] from None
        finally:
            try:
                await shared.owners.records.close()
                await self._directory.close()
            finally:
                await asyncio.gather(*(one.ended() for one in self._code.values()))

    def apply(self, config: Config) -> None:
        """Go from the configuration in force to another one; what is the same is not touched."""
        first, node_name = self._config is None, self.settings.node_name
        for clash in (one.name for one in config.resources if one.name in self._code):
            extra = {"fields": {"resource": clash}}
            _LOG.warning("not served from the configuration: code serves it", extra=extra)
        config = self._with_code(config)
        changes = changes_between(self._config, config, node_name)
        self._config = config
        here = [one for one in config.resources if one.applies_to(node_name)]
        self.shared.owners.declare(here)
        for change in changes:
            if change.action is not Action.KEEP and not first:
                fields = {"resource": change.name, "reason": "; ".join(change.reasons)}
                _LOG.info(_DONE[change.action], extra={"fields": fields})
            served = self._served.get(change.name)
            if change.resource is None:
                if served is not None:
                    served.drain()
            elif served is None:
                self._start(change.resource)
            elif change.action is not Action.KEEP:
                served.change(self._scanner(change.resource))
        for served in self._served.values():
            served.count.accepted = True
        self.shared.reconciler.reconfigure(here)

    def _start(self, resource: Resource) -> None:
        code = self._code.get(resource.name)
        served = ServedResource(self._scanner(resource), self.shared, code)
        self._served[resource.name] = served
        assert self._tasks is not None  # noqa: S101 (only while running)
        self._tasks.create_task(self._kept_alive(served), name=served.name)

    def _with_code(self, config: Config) -> Config:
        """Put the resources in code before those of a configuration; of a name, theirs counts."""
        kept = (one for one in config.resources if one.name not in self._code)
        resources = (*(one.resource for one in self._code.values()), *kept)
        return Config(version="v1", resources=resources)

    def _scanner(self, resource: Resource) -> Scanner:
        settings = self.settings
        if code := self._code.get(resource.name):
            return code.scanner(settings.files, settings.node_name, settings.hold_s)
        return Scanner.of(
            resource, settings.files, settings.policy, settings.node_name, hold_s=settings.hold_s
        )

    async def _kept_alive(self, served: ServedResource) -> None:
        """Start a resource again when it fails: one resource's failure never touches another."""
        clock = asyncio.get_running_loop().time
        pause = CRASH_PAUSE_S
        while True:
            began = clock()
            try:
                await served.run()
            except Exception as error:  # noqa: BLE001 (logged, and tried again)
                _LOG.exception("resource failed", extra={"fields": {"resource": served.name}})
                if clock() - began > CRASH_PAUSE_MAX_S:
                    pause = CRASH_PAUSE_S
                served.failed(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, CRASH_PAUSE_MAX_S)
            else:
                if served.draining:
                    await served.clean_up()
                if served.draining:
                    break  # else it was added again meanwhile
        del self._served[served.name]
        served.close()
        _LOG.info("resource ended", extra={"fields": {"resource": served.name}})

"""All resources of a process: start, keep going, stop."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from devhost.allocation.policy import Policy
from devhost.discovery.identity import SETTLE_S
from devhost.discovery.scan import Scanner
from devhost.host.cdi_files import CdiFiles
from devhost.host.config_source import ConfigFile
from devhost.host.holders import Holders
from devhost.host.inventory import Locations
from devhost.host.metrics import Metrics
from devhost.host.owners import Owners
from devhost.host.reconciler import Reconciler
from devhost.host.resource import ServedResource
from devhost.host.shared import CodeResource, Shared
from devhost.host.tasks import keep_running
from devhost.hostfs.files import HostFiles
from devhost.kubelet.backend import PublishedResource
from devhost.kubelet.device_list import LEAVE_AFTER_S
from devhost.kubelet.directory import DirectoryGoneError, PluginDirectory
from devhost.kubelet.podresources import PodResources
from devhost.model.changes import Action, Change
from devhost.model.changes import changes as changes_between
from devhost.model.config import Config, Resource
from devhost.model.immutable import immutable
from devhost.model.plugin_handler import ALLOCATE_RESULTS
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
    settle_s: float = SETTLE_S  # seconds that a node waits for an earlier source to name it
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
        source: ConfigFile | None = None,
        plugins: Sequence[CodeResource] = (),
    ) -> None:
        self.settings, self.source = settings, source
        self.created = datetime.now(UTC)
        self._code = {one.resource.name: one for one in plugins}
        self._first = config
        self._config: Config | None = None
        self._newest = config  # in force, unless a resource of it has failed
        self._served: dict[str, ServedResource] = {}
        socket = settings.pod_resources
        pod_resources = PodResources(socket) if socket else None
        holders = Holders(pod_resources)
        self._directory = PluginDirectory(settings.plugin_dir, pod_resources, settings.leave_after)
        metrics = Metrics(ALLOCATE_RESULTS)
        self._watcher = Watcher()
        self.shared = Shared(
            backend=self._directory,
            publish=functools.partial(PublishedResource, self._directory),
            reconciler=Reconciler(Locations(settings.files, self._watcher), metrics),
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
                self._keep("plugin directory", lambda: self._directory.run(watcher))
                self._keep("holders", shared.holders.run)
                self._keep("owners", shared.owners.run)
                self._keep("state file", lambda: shared.owners.records.follow(watcher))
                await keep_running("task", "records", self._load)
                self._keep("scan", shared.reconciler.run)
                self._keep("first configuration", self._apply_first)
                if source := self.source:
                    self._keep("configuration", lambda: source.run(watcher, self.apply))
        except* DirectoryGoneError as errors:
            raise errors.exceptions[0] from None
        finally:
            try:
                await shared.owners.records.close()
                await self._directory.close()
            finally:
                await asyncio.gather(*(one.ended() for one in self._code.values()))

    def _keep(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Keep a task of the process running."""
        assert self._tasks is not None  # noqa: S101 (only while running)
        kept = keep_running("task", name, work, fatal=DirectoryGoneError)
        self._tasks.create_task(kept, name=name)

    async def _load(self) -> None:
        self.shared.reconciler.reserve(await self.shared.owners.load())

    async def _apply_first(self) -> None:
        """Apply the configuration of the start, unless there is a newer one."""
        try:
            if self._newest is self._first:
                self.apply(self._first)
        except Exception as error:
            if self.source:
                self.source.not_applied(error)
            raise

    def apply(self, config: Config) -> None:
        """Go from the configuration in force to another one; what is the same is not touched.

        If that fails for a resource, it is as it was, all others are applied, and it is raised.
        """
        self._newest = config
        first, node_name = self._config is None, self.settings.node_name
        for clash in (one.name for one in config.resources if one.name in self._code):
            extra = {"fields": {"resource": clash}}
            _LOG.warning("not served from the configuration: code serves it", extra=extra)
        config = self._with_code(config)
        changes = changes_between(self._config, config, node_name)
        here = [one for one in config.resources if one.applies_to(node_name)]
        self.shared.owners.declare(here)
        failures: dict[str, Exception] = {}
        for change in changes:
            try:
                self._change(change, quiet=first)
            except Exception as error:  # noqa: BLE001 (raised when the others are applied)
                failures[change.name] = error
        former = self._config.resources if self._config else ()
        applied = [one for one in config.resources if one.name not in failures]
        kept = [one for one in former if one.name in failures]
        self._config = Config(version="v1", resources=(*applied, *kept))
        for served in self._served.values():
            served.count.accepted = True
        self.shared.reconciler.reconfigure(here)
        if failures:
            raise ExceptionGroup(f"cannot apply {', '.join(failures)}", [*failures.values()])

    def _change(self, change: Change, *, quiet: bool) -> None:
        """Start, change or end a resource."""
        if change.action is not Action.KEEP and not quiet:
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

    def _start(self, resource: Resource) -> None:
        code = self._code.get(resource.name)
        served = ServedResource(self._scanner(resource), self.shared, code)
        self._served[resource.name] = served
        assert self._tasks is not None  # noqa: S101 (only while running)
        work = functools.partial(self._serve, served)
        kept = keep_running("resource", served.name, work, served.failed)
        self._tasks.create_task(kept, name=served.name)

    def _with_code(self, config: Config) -> Config:
        """Put the resources in code before those of a configuration; of a name, theirs counts."""
        kept = (one for one in config.resources if one.name not in self._code)
        resources = (*(one.resource for one in self._code.values()), *kept)
        return Config(version="v1", resources=resources)

    def _scanner(self, resource: Resource) -> Scanner:
        settings = self.settings
        if code := self._code.get(resource.name):
            return code.scanner(settings.files, settings.node_name, settings.settle_s)
        return Scanner.of(
            resource,
            settings.files,
            settings.policy,
            settings.node_name,
            settle_s=settings.settle_s,
        )

    async def _serve(self, served: ServedResource) -> None:
        """Serve a resource until it has ended, and its files and what it shares are gone."""
        while True:
            await served.run()
            if served.draining:
                await served.clean_up()
            if served.draining:
                break  # else it was added again meanwhile
        served.close()
        del self._served[served.name]
        _LOG.info("resource ended", extra={"fields": {"resource": served.name}})

"""All resources of a process: start, keep going, stop."""

import asyncio
import functools
import logging
from collections.abc import Sequence
from dataclasses import field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from devhost import plan
from devhost.allocation.policy import Policy
from devhost.discovery.candidates import HOLD_S
from devhost.discovery.scan import Scanner
from devhost.host.cdi.files import CdiFiles
from devhost.host.config.source import ConfigSource
from devhost.host.counts import DeviceCounts
from devhost.host.holders import Holders
from devhost.host.inventory import Inventory
from devhost.host.ownership.decisions import SerialOwnership
from devhost.host.ownership.owners import Owners
from devhost.host.quota import Quota
from devhost.host.rescan import rescan_regularly
from devhost.host.resource.runner import Runner
from devhost.host.shared import CodeResource, Shared
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.kubelet.device_list import LEAVE_AFTER_S
from devhost.kubelet.directory import DirectoryGoneError, PluginDirectory
from devhost.kubelet.podresources import PodResources
from devhost.kubelet.resource_lock import is_served
from devhost.kubelet.served_names import ServedNames
from devhost.kubelet.servicer import RESULTS
from devhost.model.config import Config, Resource
from devhost.observe.metrics import Metrics
from devhost.plan import Action
from devhost.watch.targets import WatchTarget
from devhost.watch.watcher import Subscription, Watcher

CDI_DIR: Final = Path("/var/run/cdi")
REWATCH_S: Final = 5.0
_CRASH_PAUSE_S: Final = 1.0
_CRASH_PAUSE_MAX_S: Final = 60.0
_DONE: Final = {
    Action.START: "resource added",
    Action.UPDATE: "resource changed",
    Action.REREGISTER: "resource changed",
    Action.DRAIN: "resource removed",
}
_UNACCOUNTED: Final = (
    "a change of `{0}` gives the nodes of {1} other names, and without --pod-resources devhost "
    "cannot tell whether pods still hold them: run it with --pod-resources, or drain the node "
    "and start it with --assume-free"
)
_LOG: Final = logging.getLogger(__name__)


@immutable
class Settings:
    """How a host is run.

    Attributes:
        plugin_dir: The kubelet's plugin directory, as this process sees it.
        node_name: The value of ``${nodeName}``.
        files: Where the host's files are seen.
        policy: What answers may name.
        state_dir: What outlives this process; ``None`` where nothing does.
        pod_resources: The socket of the kubelet's pod-resources API, where it may be asked.
        assume_free: Without that socket: what has left the list counts as held by no pod.
        cdi_dir: Where container runtimes look for CDI specs.
        leave_after: Seconds between an ID's Unhealthy and its leaving the list.
        hold_s: Seconds that a node waits for an earlier source to name it.
    """

    plugin_dir: Path
    node_name: str
    files: HostFiles = field(default_factory=HostFiles)
    policy: Policy = field(default_factory=Policy)
    leave_after: float = LEAVE_AFTER_S
    hold_s: float = HOLD_S
    state_dir: Path | None = None
    pod_resources: Path | None = None
    assume_free: bool = False
    cdi_dir: Path = CDI_DIR


class Host:
    """Serves every resource of a configuration, and those in code, until it is cancelled.

    Attributes:
        source: Where the configuration is read again; ``None`` for one that stays.
        created: When.
    """

    def __init__(
        self,
        config: Config,
        settings: Settings,
        source: ConfigSource | None = None,
        plugins: Sequence[CodeResource] = (),
    ) -> None:
        self._settings, self.source = settings, source
        if source is not None:
            source.refused = self.refused
        self.created = datetime.now(UTC)
        self._code = {one.resource.name: one for one in plugins}
        self._first = config
        self._config: Config | None = None
        self._runners: dict[str, Runner] = {}
        socket = settings.pod_resources
        directory = PluginDirectory(settings.plugin_dir)
        pod_resources = PodResources(socket) if socket else None
        holders = Holders(pod_resources)
        self._watcher = Watcher()
        self._shared = Shared(
            directory=directory,
            inventory=Inventory(settings.files, self._watcher),
            ownership=SerialOwnership(),
            quota=Quota(),
            holders=holders,
            served_names=ServedNames(pod_resources) if pod_resources else None,
            owners=Owners(
                holders,
                directory,
                settings.state_dir,
                assume_free=settings.assume_free,
                leave_after=settings.leave_after,
            ),
            cdi_files=CdiFiles(settings.cdi_dir),
            counts=DeviceCounts(),
            state_dir=settings.state_dir,
            leave_after=settings.leave_after,
            metrics=Metrics(RESULTS),
        )
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def settings(self) -> Settings:
        """How it is run."""
        return self._settings

    @property
    def shared(self) -> Shared:
        """What its resources share."""
        return self._shared

    @property
    def configured(self) -> bool:
        """Whether a configuration is in force."""
        return self._config is not None

    @property
    def runners(self) -> list[Runner]:
        """What is served, drained resources at the end."""
        names = [resource.name for resource in self._config.resources] if self._config else []
        places = {name: place for place, name in enumerate(names)}
        return sorted(self._runners.values(), key=lambda one: places.get(one.name, len(places)))

    async def run(self) -> None:
        """Serve until cancelled; then nothing is left, neither tasks nor sockets.

        Raises:
            DirectoryGoneError: The plugin directory was removed for good.
        """
        shared = self._shared
        directory = shared.directory
        try:
            async with self._watcher as watcher, asyncio.TaskGroup() as self._tasks:
                subscription = watcher.subscribe(directory.on_change)
                targets = frozenset({WatchTarget(str(directory.path))})
                await subscription.watch(targets)
                work = _watched_again(subscription, targets)
                self._tasks.create_task(work, name="watch the plugin directory")
                self._tasks.create_task(directory.run(), name="plugin directory")
                self._tasks.create_task(shared.holders.run(), name="holders")
                self._tasks.create_task(shared.owners.run(), name="owners")
                self._tasks.create_task(rescan_regularly(self._runners.values), name="rescan")
                offered = await shared.owners.load()
                self.apply(self._first)
                shared.ownership.expect(offered)
                self._tasks.create_task(self._clear_cdi(), name="stale CDI specs")
                if self.source:
                    work = self.source.run(watcher, self.apply)
                    self._tasks.create_task(work, name="configuration")
        except* DirectoryGoneError as errors:
            raise errors.exceptions[0] from None
        finally:
            shared.counts.close()
            if shared.served_names is not None:
                shared.served_names.close()
            try:
                await directory.close()
            finally:
                await asyncio.gather(*(one.ended() for one in self._code.values()))

    def apply(self, config: Config) -> None:
        """Go from the configuration in force to another one; what is the same is not touched."""
        first, node_name = self._config is None, self._settings.node_name
        for clash in (one.name for one in config.resources if one.name in self._code):
            extra = {"fields": {"resource": clash}}
            _LOG.warning("not served from the configuration: code serves it", extra=extra)
        config = self._with_code(config)
        changes = plan.changes(self._config, config, node_name)
        self._config = config
        here = [one for one in config.resources if one.applies_to(node_name)]
        self._shared.owners.declare(here)
        self._shared.quota.declare({one.name: one.declared_ids for one in here})
        for change in changes:
            if change.action is not Action.KEEP and not first:
                fields = {"resource": change.name, "reason": "; ".join(change.reasons)}
                _LOG.info(_DONE[change.action], extra={"fields": fields})
            runner = self._runners.get(change.name)
            if change.resource is None:
                if runner is not None:
                    runner.drain()
            elif runner is None:
                self._start(change.resource)
            elif change.action is not Action.KEEP:
                runner.change(self._scanner(change.resource))
        self._shared.counts.accept()
        self._shared.ownership.arrange([resource.name for resource in config.resources])

    def refused(self, config: Config) -> dict[str, tuple[str, str]]:
        """Return what of a new configuration could give nodes to a second pod.

        Returns:
            The names of resources with the key that is to blame and why; none where
            pod-resources tells, or ``assume_free`` says, that nodes are free.
        """
        if self._shared.holders.asked or self._settings.assume_free:
            return {}
        changes = plan.changes(self._config, self._with_code(config), self._settings.node_name)
        return {
            change.name: (change.moved_by[0], _UNACCOUNTED.format(*change.moved_by))
            for change in changes
            if change.moved_by is not None and self._shared.owners.has(change.moved_by[1])
        }

    def _start(self, resource: Resource) -> None:
        code = self._code.get(resource.name)
        runner = Runner(self._scanner(resource), self._shared, code)
        self._runners[resource.name] = runner
        assert self._tasks is not None  # noqa: S101 (only while running)
        self._tasks.create_task(self._kept_alive(runner), name=runner.name)

    def _with_code(self, config: Config) -> Config:
        """Put the resources in code before those of a configuration; of a name, theirs counts."""
        kept = (one for one in config.resources if one.name not in self._code)
        resources = (*(one.resource for one in self._code.values()), *kept)
        return Config(version="v1", resources=resources)

    def _scanner(self, resource: Resource) -> Scanner:
        settings = self._settings
        if code := self._code.get(resource.name):
            return code.scanner(settings.files, settings.node_name, settings.hold_s)
        return Scanner.of(
            resource,
            settings.files,
            settings.policy,
            settings.node_name,
            hold_s=settings.hold_s,
        )

    async def _clear_cdi(self) -> None:
        """Remove the CDI specs of resources that are no longer declared and that no pod holds."""
        directory, holders = self._shared.directory, self._shared.holders
        await holders.until_known()
        needed = self._runners.keys() | holders.resources()
        try:
            served = functools.partial(is_served, directory.path)
            removed = await self._shared.cdi_files.remove_stale(needed, served)
        except OSError as error:
            reason = {"fields": {"reason": str(error)}}
            _LOG.warning("stale CDI specs could not be looked for", extra=reason)
        else:
            if removed:
                _LOG.info("stale CDI specs removed", extra={"fields": {"files": removed}})

    async def _kept_alive(self, runner: Runner) -> None:
        """Start a runner again when it fails: one resource's failure never touches another."""
        clock = asyncio.get_running_loop().time
        pause = _CRASH_PAUSE_S
        while True:
            began = clock()
            try:
                await runner.run()
            except Exception as error:  # noqa: BLE001 (logged, and tried again)
                _LOG.exception("resource failed", extra={"fields": {"resource": runner.name}})
                if clock() - began > _CRASH_PAUSE_MAX_S:
                    pause = _CRASH_PAUSE_S
                runner.failed(error)
                await asyncio.sleep(pause)
                pause = min(pause * 2, _CRASH_PAUSE_MAX_S)
            else:
                if runner.draining:
                    await runner.clean_up()
                if runner.draining:
                    break  # else it was added again meanwhile
        del self._runners[runner.name]
        runner.close()
        _LOG.info("resource ended", extra={"fields": {"resource": runner.name}})


async def _watched_again(subscription: Subscription, targets: frozenset[WatchTarget]) -> None:
    """Watch again where that has failed, until cancelled; what is missed meanwhile is polled."""
    while True:
        await asyncio.sleep(REWATCH_S)
        if subscription.degraded:
            await subscription.watch(targets)

"""All resources of a process: start, keep going, stop."""

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from devhost.allocation.policy import Policy
from devhost.backends.backend import Backend
from devhost.config.diff import Action, Change
from devhost.config.diff import changes as changes_between
from devhost.custody.custody import Custody
from devhost.custody.holders import Holders
from devhost.custody.record_files import RecordFiles
from devhost.devices.identify import SETTLE_S
from devhost.devices.scan import Scanner
from devhost.errors import BackendGoneError
from devhost.hostfs.files import HostFiles
from devhost.model.config import Config, Resource
from devhost.node.answers import CodeResource
from devhost.node.cdi_files import CdiFiles
from devhost.node.claim_files import ClaimFiles
from devhost.node.config_file import ConfigFile
from devhost.node.locations import Locations
from devhost.node.reconciler import Reconciler
from devhost.node.resource import NodeParts, ServedResource
from devhost.node.tasks import keep_running
from devhost.observe.metrics import Metrics
from devhost.watch.watcher import Watcher

CDI_DIR: Final = Path("/var/run/cdi")
_DONE: Final = {Action.START: "resource added", Action.DRAIN: "resource removed"}
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a host, without those of its backend."""

    node_name: str
    files: HostFiles = field(default_factory=HostFiles)
    policy: Policy = field(default_factory=Policy)
    settle_s: float = SETTLE_S  # seconds that a node waits for an earlier source to name it
    state_dir: Path | None = None  # what outlives this process
    cdi_dir: Path = CDI_DIR  # where container runtimes look for CDI specs


class Host:
    """Serves every resource of a configuration, and those in code, until it is cancelled."""

    def __init__(
        self,
        config: Config,
        settings: Settings,
        backend: Backend,
        source: ConfigFile | None = None,
        plugins: Sequence[CodeResource] = (),
    ) -> None:
        self.settings, self.source = settings, source
        self.created = datetime.now(UTC)
        self._code = {plugin.resource.name: plugin for plugin in plugins}
        self._config: Config | None = None
        self._newest = config  # in force, unless a resource of it has failed
        self._served: dict[str, ServedResource] = {}
        self._successors: dict[str, Resource] = {}  # to be started when the other backend has ended
        holders, metrics = Holders(backend.pods, settings.node_name), Metrics()
        records = RecordFiles(settings.state_dir, backend.locks.lock_of)
        self.parts = NodeParts(
            backend=backend,
            reconciler=Reconciler(Locations(settings.files, Watcher()), metrics),
            holders=holders,
            records=records,
            custody=Custody(holders, backend, records),
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
        """The resources that are served, drained ones at the end."""
        in_order = [resource.name for resource in self._config.resources] if self._config else []
        names = dict.fromkeys([*in_order, *self._served])
        return [self._served[name] for name in names if name in self._served]

    async def run(self) -> None:
        """Serve until cancelled; then nothing is left, neither tasks nor sockets.

        Raises:
            BackendGoneError: A backend has lost what only a restart can bring back.
        """
        parts, first = self.parts, self._newest
        try:
            async with (
                parts.reconciler.locations.watcher as watcher,
                asyncio.TaskGroup() as self._tasks,
            ):
                self._keep("holders", parts.holders.run)
                self._keep("custody", parts.custody.run)
                self._keep("state file", lambda: parts.records.follow(watcher))
                await keep_running("task", "records", self._load)
                claim_files = ClaimFiles(parts.records, parts.holders, parts.cdi_files)
                self._keep("backend", lambda: parts.backend.run(watcher, claim_files))
                self._keep("scan", parts.reconciler.run)
                self._keep("CDI files", lambda: parts.cdi_files.follow(watcher))
                self._keep("first configuration", lambda: self._apply_first(first))
                if source := self.source:
                    self._keep("configuration", lambda: source.run(watcher, self.apply))
        except* BackendGoneError as errors:
            raise errors.exceptions[0] from None
        finally:
            try:
                await parts.records.close()
            finally:
                await asyncio.gather(*(plugin.ended() for plugin in self._code.values()))

    def _keep(self, name: str, work: Callable[[], Awaitable[object]]) -> None:
        """Keep a task of the process running."""
        assert self._tasks is not None  # noqa: S101 (only while running)
        kept = keep_running("task", name, work, fatal=BackendGoneError)
        self._tasks.create_task(kept, name=name)

    async def _load(self) -> None:
        self.parts.reconciler.reserve(await self.parts.custody.reserved())
        claims = self.parts.records.table.claims
        if claims and not self.settings.policy.dra:
            fields = {"claims": len(claims)}
            _LOG.warning(
                "claims hold devices, and do not end without --dra", extra={"fields": fields}
            )

    async def _apply_first(self, config: Config) -> None:
        """Apply the configuration of the start, unless there is a newer one."""
        try:
            if self._newest is config:
                self.apply(config)
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
        in_code = [resource for resource in config.resources if resource.name in self._code]
        for resource in in_code:
            extra = {"fields": {"resource": resource.name}}
            _LOG.warning("not served from the configuration: code serves it", extra=extra)
        config = self._with_code(config)
        changes = changes_between(self._config, config, node_name)
        here = [resource for resource in config.resources if resource.applies_to(node_name)]
        self.parts.custody.reconfigure(here)
        failures: dict[str, Exception] = {}
        for change in changes:
            try:
                self._change(change, quiet=first)
            except Exception as error:  # noqa: BLE001 (raised when the others are applied)
                failures[change.name] = error
        former = self._config.resources if self._config else ()
        applied = [resource for resource in config.resources if resource.name not in failures]
        kept = [resource for resource in former if resource.name in failures]
        self._config = Config(version="v1", resources=(*applied, *kept))
        for served in self._served.values():
            served.devices.count.accept_next = True
        self.parts.reconciler.reconfigure(here)
        if failures:
            raise ExceptionGroup(f"cannot apply {', '.join(failures)}", [*failures.values()])

    def _change(self, change: Change, *, quiet: bool) -> None:
        """Start, change or end a resource."""
        if change.action is not Action.KEEP and not quiet:
            fields = {"resource": change.name, "reason": "; ".join(change.reasons)}
            _LOG.info(_DONE.get(change.action, "resource changed"), extra={"fields": fields})
        served, resource = self._served.get(change.name), change.resource
        self._successors.pop(change.name, None)
        if resource is None:
            if served is not None:
                served.drain("removed from the configuration")
        elif served is None:
            self._start(resource)
        elif served.scanner.by_dra is not resource.uses_dra(self.settings.node_name):
            self._successors[change.name] = resource
            served.drain(f"switching to {'the device plugin' if served.scanner.by_dra else 'DRA'}")
        elif change.action is not Action.KEEP:
            served.apply_spec(self._scanner(resource))

    def _start(self, resource: Resource) -> None:
        code = self._code.get(resource.name)
        served = ServedResource(self._scanner(resource), self.parts, code)
        self._served[resource.name] = served
        assert self._tasks is not None  # noqa: S101 (only while running)
        work = functools.partial(self._serve, served)
        kept = keep_running("resource", served.name, work, served.report_failure)
        self._tasks.create_task(kept, name=served.name)

    def _with_code(self, config: Config) -> Config:
        """Put the resources in code before those of a configuration; of a name, theirs counts."""
        kept = (resource for resource in config.resources if resource.name not in self._code)
        resources = (*(plugin.resource for plugin in self._code.values()), *kept)
        return Config(version="v1", resources=resources)

    def _scanner(self, resource: Resource) -> Scanner:
        settings = self.settings
        if code := self._code.get(resource.name):
            return code.scanner(settings.files, settings.node_name, settings.settle_s)
        host = settings.files, settings.policy, settings.node_name
        return Scanner(resource, *host, settle_s=settings.settle_s)

    async def _serve(self, served: ServedResource) -> None:
        """Serve a resource until it has ended, and its files and what it shares are gone."""
        while True:
            await served.run()
            if served.draining:
                break  # else it was added again meanwhile
        served.close()
        del self._served[served.name]
        _LOG.info("resource ended", extra={"fields": {"resource": served.name}})
        if (successor := self._successors.pop(served.name, None)) is not None:
            self._start(successor)

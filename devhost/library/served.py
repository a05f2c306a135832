"""A plugin as a resource of the host: its devices come from code instead of sources."""

import asyncio
import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from devhost.devices.identify import Identified
from devhost.devices.scan import Scanner
from devhost.errors import AllocationError, PreStartError, describe_os_error
from devhost.hostfs.files import HostFiles, Tally
from devhost.library.methods import CallError, Devices, PluginMethods, defines
from devhost.library.plugin import ID_VARIABLE, TRUSTED, Device, DevicePlugin
from devhost.model import names
from devhost.model.advertised import OfferedId
from devhost.model.allocation import Allocation
from devhost.model.device import Cause, HostDevice, Skipped, Snapshot, Verdict
from devhost.model.device_node import Node
from devhost.sources.base import Listing, Listings, Location, NodeSource
from devhost.sources.selection import CompiledSource
from devhost.watch.threads import BlockingCalls, NoAnswerError

DESTROY_S: Final = 5.0
_LOG: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DeclaredNode(Node):
    """A node or token of a plugin's device, with that device, and the keys of all its nodes."""

    declared: Device | None = field(default=None, compare=False)
    device_keys: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[str, ...]:
        """The keys of its device, which is offered whole or not at all."""
        return self.device_keys


@dataclass(eq=False)
class CodeListing(Listing):
    """The devices that a plugin returned."""

    returned: Devices = ((), ())


class CodeSource(NodeSource, Location):
    """The code of a plugin: a source, and where it looks. It reports changes itself."""

    empty_text = "devices() returned no devices"

    def __init__(self, methods: PluginMethods, files: HostFiles) -> None:
        self._methods, self._files = methods, files
        self.locations = (self,)

    def list(self, _files: HostFiles, _tally: Tally) -> Listing:
        """Call ``devices`` of the plugin."""
        try:
            return CodeListing(returned=self._methods.devices())
        except CallError as error:
            return CodeListing(failure=str(error))

    def find(
        self, listings: Listings, _previous: Mapping[str, Node]
    ) -> Iterator[DeclaredNode | Skipped]:
        """Yield the nodes of each device, as they are on the host."""
        listing = listings[self]
        assert isinstance(listing, CodeListing), "of that location"  # noqa: S101
        devices, skipped = listing.returned
        yield from skipped
        ids, owners = set[str](), dict[str, str]()  # the device of each `Node.file_key`
        for device in devices:
            nodes = self._nodes(device)
            taken = next((node for node in nodes if node.file_key in owners), None)
            if device.id in ids:
                yield Skipped.because(Cause.BAD_ID, device.id, "duplicate ID")
            elif taken is not None:
                reason = f"node {taken.path} also belongs to device {owners[taken.file_key]}"
                yield Skipped.because(Cause.OWNED, device.id, reason)
            else:
                ids.add(device.id)
                owners |= dict.fromkeys((node.file_key for node in nodes), device.id)
                yield from nodes

    def _nodes(self, device: Device) -> tuple[DeclaredNode, ...]:
        token = DeclaredNode("", None, 0, device.id, {ID_VARIABLE: device.id}, declared=device)
        if not device.paths:
            return (token,)
        nodes = []
        for path in device.paths:
            below = "" if self._files.is_host else f" (below {self._files.root})"
            state, problem = None, f"{path} does not exist{below}"
            try:
                state = self._files.stat(path)
            except OSError as error:
                problem = f"{path}: {describe_os_error(error)}"
            if state is not None:
                nodes.append(replace(token, path=path, state=state))
            else:  # identified by its path
                nodes.append(replace(token, path=path, name=path, problem=problem))
        keys = tuple(node.key for node in nodes if node.state)
        return tuple(replace(node, device_keys=keys) for node in nodes)


@dataclass(frozen=True)  # no slots: they would break super()
class CodeScanner(Scanner):
    """A scanner that gets the devices from a plugin."""

    methods: PluginMethods = field(kw_only=True)
    reuses_devices = False  # the plugin's device may say something else, and is handed back to it

    @property
    def pre_start_required(self) -> bool:
        """Whether there are preStart steps, or ``pre_start`` is overridden."""
        return bool(self.resource.pre_start) or self.methods.prepares

    @functools.cached_property
    def sources(self) -> tuple[CompiledSource, ...]:
        """The code, in the place of the source that is declared."""
        source = CodeSource(self.methods, self.files)
        return (CompiledSource(0, self.resource.sources[0], source),)

    def verify(self, identified: Identified, *, full: bool = True) -> Snapshot:
        """Return the next snapshot. Blocks: looks at host paths."""
        snapshot = super().verify(identified, full=full)
        failure = identified.selection.failed_sources.get(0)
        devices = {key: _judged(device, failure) for key, device in snapshot.devices.items()}
        times = (identified.context.now + self.methods.interval, snapshot.again_at)
        again_at = min(time for time in times if time is not None)
        return replace(snapshot, devices=self._placed(devices), again_at=again_at)

    def _placed(self, devices: dict[str, HostDevice]) -> dict[str, HostDevice]:
        """Return the devices with the NUMA nodes that the code gives, if it gives any."""
        numa = {key: tuple(plugin_device(device).numa_nodes) for key, device in devices.items()}
        if self.resource.topology != "auto" or not any(numa.values()):
            return devices
        if not all(numa[key] for key, device in devices.items() if device.healthy):
            numa = dict.fromkeys(devices, ())
        return {key: replace(device, numa_nodes=numa[key]) for key, device in devices.items()}

    # ── kubelet's calls ──

    def allocate(self, snapshot: Snapshot, ids: Sequence[OfferedId]) -> Allocation:
        """Put together what a container receives, and check that it is there. Blocks."""
        declared = super().allocate(snapshot, ids)
        chosen = names.natural({offered.device for offered in ids})
        try:
            answer = self.methods.allocate(
                [plugin_device(snapshot.devices[device_id]) for device_id in chosen]
            )
        except CallError as error:
            raise AllocationError(f"{self.resource.name}: {error}") from None
        if answer is None:
            return declared
        return self.checked(replace(answer, device_ids=declared.device_ids))

    def preferred(
        self,
        snapshot: Snapshot,
        available: Sequence[OfferedId],
        must: Sequence[OfferedId],
        size: int,
    ) -> tuple[OfferedId, ...]:
        """Return which of the available IDs a container should get; none to leave it open."""
        by_id = {offered.id: offered for offered in (*available, *must)}
        ids, must_ids = ([offered.id for offered in group] for group in (available, must))
        try:
            chosen = self.methods.preferred(ids, must_ids, size)
        except CallError:
            return ()
        if chosen is None:
            return super().preferred(snapshot, available, must, size)
        return tuple(by_id[advertised_id] for advertised_id in chosen)


def plugin_device(device: HostDevice) -> Device:
    """Return the plugin's device for a device of a snapshot."""
    declared = (node.declared for node in device.nodes if isinstance(node, DeclaredNode))
    return next(filter(None, declared), Device(device.id))


def _judged(device: HostDevice, failure: str | None) -> HostDevice:
    """Return a device with its health by the code, or the failure of the code."""
    if not device.is_present:
        return device
    problem = next((node.problem for node in device.nodes if node.problem), None)
    text = failure or plugin_device(device).reason or problem
    return replace(device, verdict=Verdict(Cause.CODE, text)) if text else device


class ServedPlugin:
    """Serves a plugin like a resource of the configuration (a `CodeResource`)."""

    def __init__(self, plugin: DevicePlugin) -> None:
        self.resource = plugin.resource
        self._plugin, self._methods = plugin, PluginMethods(plugin)
        self._calls = BlockingCalls(f"plugin {plugin.name}")
        self._rescan: Callable[[], None] | None = None  # while it is served
        self._registered = False

    def scanner(self, files: HostFiles, node_name: str, settle_s: float) -> CodeScanner:
        """Return the scanner of the resource."""
        self._plugin.root = Path(files.root)
        return CodeScanner(
            self.resource, files, TRUSTED, node_name, settle_s, methods=self._methods
        )

    def started(self, look_again: Callable[[], None]) -> None:
        """Called when serving begins; ``look_again`` may only be called on this thread."""
        self._rescan, self._registered = look_again, False
        self._methods.refresh_due = True
        loop = asyncio.get_running_loop()

        def changed() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has closed: it is no longer served
                loop.call_soon_threadsafe(look_again)

        self._plugin.on_changed = changed
        for warning in self._plugin.warnings:
            _LOG.warning("%s", warning)

    def registered(self) -> None:
        """Called after each registration: after the first, ``refresh`` has to be called again."""
        if self._registered and self._rescan is not None:
            self._methods.refresh_due = True
            self._rescan()
        self._registered = True

    async def pre_start(self, devices: Iterable[HostDevice], within: float) -> None:
        """Call ``pre_start`` if it is overridden; raises `PreStartError` if it fails."""
        if not self._methods.prepares:
            return
        by_id = {device.id: plugin_device(device) for device in devices}
        chosen = [by_id[device_id] for device_id in names.natural(by_id)]
        name = self.resource.name
        try:
            await self._call("pre_start", lambda: self._plugin.pre_start(chosen), round(within, 1))
        except NoAnswerError as error:
            raise PreStartError(f"{name}: pre_start(): {error}") from None
        except CallError as error:
            raise PreStartError(f"{name}: {error}") from None

    async def ended(self) -> None:
        """Called when the server has stopped: calls ``destroy`` if it was started."""
        if self._rescan is None:
            return
        self._rescan = None
        with contextlib.suppress(CallError, NoAnswerError):  # what it raises is logged
            await self._call("destroy", self._plugin.destroy, DESTROY_S)

    async def _call(self, method: str, work: Callable[[], None], patience: float) -> None:
        await self._calls.run(lambda: self._methods.call(method, work), patience=patience)


def served(plugins: Iterable[DevicePlugin]) -> tuple[ServedPlugin, ...]:
    """Return plugins as resources of a host; raise `TypeError` or `ValueError` if that is none."""
    by_name: dict[str, ServedPlugin] = {}
    for plugin in plugins:
        if not isinstance(plugin, DevicePlugin):
            raise TypeError(f"{plugin!r} is not an instance of a subclass of DevicePlugin")
        if not defines(plugin, "devices"):
            raise TypeError(f"{type(plugin).__name__} must define devices()")
        for method in ("devices", "allocate", "preferred", "pre_start", "refresh", "destroy"):
            code = getattr(plugin, method)
            if inspect.iscoroutinefunction(code) or inspect.isasyncgenfunction(code):
                raise TypeError(
                    f"{plugin.name}: {method}() is async: methods are synchronous, and may block: "
                    "they are called in threads"
                )
        if plugin.name in by_name:
            raise ValueError(f"duplicate plugin {plugin.name}")
        by_name[plugin.name] = ServedPlugin(plugin)
    return tuple(by_name.values())

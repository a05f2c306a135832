"""The scanner of a plugin's resource: devices come from the plugin instead of sources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from devhost.discovery import topology
from devhost.discovery.candidates import OwnerOf
from devhost.discovery.identity import Identified
from devhost.discovery.match import Readings
from devhost.discovery.roots import BaseRoot, Reading, Root
from devhost.discovery.scan import Scanner
from devhost.discovery.selection import Selection
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles
from devhost.hostfs.tally import Tally
from devhost.immutable import immutable
from devhost.library.calls import CallError
from devhost.library.device import Device
from devhost.library.options import ID_VARIABLE
from devhost.library.plugin_methods import Item, PluginMethods
from devhost.library.result_checks import described
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.device import FileState, HostDevice, Node, Skipped, Snapshot
from devhost.model.names import distinct


@immutable
class DeclaredNode(Node):
    """A node or token of a plugin's device.

    Attributes:
        declared: The plugin's device.
    """

    declared: Device | None = field(default=None, compare=False)


@immutable
class PluginRoot(BaseRoot):
    """The devices of a plugin, in the place of a part of the host."""

    methods: PluginMethods

    @property
    def base(self) -> str:
        """They have no common path."""
        return ""

    def read(self, files: HostFiles, _tally: Tally) -> Reading:
        """Ask the plugin."""
        try:
            return PluginReading(self, files, self.methods.devices())
        except CallError as error:
            return Reading(self, files, failure=str(error))


class PluginReading(Reading):
    """What a plugin returned.

    Attributes:
        items: Its devices, each with what is wrong with it.
    """

    def __init__(self, root: Root, files: HostFiles, items: Sequence[Item]) -> None:
        super().__init__(root, files)
        self.items = items


@dataclass(frozen=True)  # no slots: they would break super()
class CodeScanner(Scanner):
    """A scanner that gets the devices from a plugin.

    Attributes:
        methods: The plugin's methods.
    """

    methods: PluginMethods = field(kw_only=True)

    @property
    def pre_start_required(self) -> bool:
        """Whether there are preStart steps, or ``pre_start`` is overridden."""
        return bool(self.resource.pre_start) or self.methods.prepares

    @property
    def roots(self) -> tuple[Root, ...]:
        """The plugin; it reports changes itself."""
        return (PluginRoot(self.methods),)

    @property
    def keeps(self) -> bool:
        """The plugin's device may say something else, and is handed back to it."""
        return False

    # ── scan ──

    def select(self, readings: Readings) -> Selection:
        """Check the nodes of the devices that the plugin returned. Blocks."""
        reading = readings[self.roots[0]]
        if not isinstance(reading, PluginReading):
            return self.failed(reading.failure or "")
        found: dict[str, tuple[DeclaredNode, ...]] = {}
        owners: dict[str, str] = {}  # by `Node.key`
        skipped = []
        for item, problem in reading.items:
            if not isinstance(item, Device) or problem is not None:
                what = item.id if isinstance(item, Device) else item
                label = what if isinstance(what, str) and what else described(item)
                skipped.append(Skipped(names.printable(label), problem or ""))
                continue
            if item.id in found:
                skipped.append(Skipped(item.id, "duplicate ID"))
                continue
            nodes = self._nodes(item)
            taken = next((node for node in nodes if node.key in owners), None)
            if taken is not None:
                reason = f"node {taken.path} also belongs to device {owners[taken.key]}"
                skipped.append(Skipped(item.id, reason))
                continue
            found[item.id] = nodes
            owners |= dict.fromkeys((node.key for node in nodes), item.id)
        empty = () if found or skipped else ("devices() returned no devices",)
        nodes = tuple(node for nodes in found.values() for node in nodes)
        return Selection(nodes, tuple(skipped), why_none=lambda: empty)

    def _nodes(self, device: Device) -> tuple[DeclaredNode, ...]:
        variables = {ID_VARIABLE: device.id}
        if not device.paths:
            return (DeclaredNode("", None, 0, device.id, variables, declared=device),)
        nodes = []
        for path in device.paths:
            state, problem = self._look(path)
            # A missing node is identified by its path.
            name = device.id if state else path
            nodes.append(
                DeclaredNode(path, state, 0, name, variables, declared=device, problem=problem)
            )
        return tuple(nodes)

    def _look(self, path: str) -> tuple[FileState | None, str | None]:
        try:
            state = self.files.stat(path)
        except OSError as error:
            return None, f"{path}: {error.strerror or error}"
        below = "" if self.files.is_host else f" (below {self.files.root})"
        return state, None if state else f"{path} does not exist{below}"

    def failed(self, reason: str) -> Selection:
        """Return what is found while the plugin does not say."""
        return Selection(failed={0: self.methods.waiting_for_devices or reason})

    def identify(
        self,
        found: Selection,
        previous: Snapshot,
        owner_of: OwnerOf,
        now: float,
        *,
        links_to_come: bool = False,  # noqa: ARG002 (code names its devices itself)
    ) -> Identified:
        """Find out which devices there are; pure."""
        return super().identify(found, previous, _taken(found, owner_of).get, now)

    def conclude(
        self,
        found: Selection,
        identified: Identified,
        previous: Snapshot,
        now: float,
        *,
        thorough: bool = True,
    ) -> Snapshot:
        """Return the next snapshot. Accesses host paths, so it blocks."""
        snapshot = super().conclude(found, identified, previous, now, thorough=thorough)
        failure = found.failed.get(0)
        devices = {key: _judged(device, failure) for key, device in snapshot.devices.items()}
        again_at = now + self.methods.interval
        if snapshot.again_at is not None:
            again_at = min(again_at, snapshot.again_at)
        return replace(snapshot, devices=self._placed(devices, previous), again_at=again_at)

    def _placed(
        self, devices: Mapping[str, HostDevice], previous: Snapshot
    ) -> dict[str, HostDevice]:
        """Return the devices with the NUMA nodes that the code gives, if it gives any.

        Nodes that are not there have none, which counts for the others only if they are there.
        """
        given = {key: tuple(plugin_device(device).numa_nodes) for key, device in devices.items()}
        if self.resource.topology == "auto" and any(given.values()):
            together = all(given[key] for key, device in devices.items() if device.healthy)
            return {
                key: replace(device, numa_nodes=given[key] if together else ())
                for key, device in devices.items()
            }
        there = {key: device for key, device in devices.items() if _problem(device) is None}
        placed, _ = topology.placed(self.resource.topology, there, previous, self.files)
        return {**devices, **placed}

    # ── kubelet's calls ──

    def allocate(self, snapshot: Snapshot, advertised_ids: Sequence[str]) -> Allocation:
        """Put together what a container receives, and check that it is there. Blocks.

        Raises:
            AllocationError: A device is unknown, unhealthy or gone, or the code refuses.
        """
        declared = super().allocate(snapshot, advertised_ids)
        chosen = names.natural(distinct(advertised_ids))
        try:
            answer = self.methods.allocate([plugin_device(snapshot.devices[one]) for one in chosen])
        except CallError as error:
            raise AllocationError(f"{self.resource.name}: {error}") from None
        if answer is None:
            return declared
        return self.checked(replace(answer, device_ids=declared.device_ids))

    def preferred(
        self, snapshot: Snapshot, available: Sequence[str], must: Sequence[str], size: int
    ) -> tuple[str, ...]:
        """Return which of the available IDs a container should get; none to leave it open."""
        try:
            chosen = self.methods.preferred(available, must, size)
        except CallError:
            return ()
        return super().preferred(snapshot, available, must, size) if chosen is None else chosen


def plugin_device(device: HostDevice) -> Device:
    """Return the plugin's device for a device of a snapshot."""
    declared = (node.declared for node in device.nodes if isinstance(node, DeclaredNode))
    return next((one for one in declared if one is not None), Device(device.id))


def _problem(device: HostDevice) -> str | None:
    nodes = (node for node in device.nodes if isinstance(node, DeclaredNode))
    return next((node.problem for node in nodes if node.problem), None)


def _judged(device: HostDevice, failure: str | None) -> HostDevice:
    """Return a device with what the code says of its health, or why nothing is known of it."""
    if device.missing_since is not None or device.replaced:
        return device
    reason = failure or plugin_device(device).reason or _problem(device) or device.reason
    return replace(device, reason=reason)


def _taken(found: Selection, owner_of: OwnerOf) -> dict[str, str]:
    """Return which resource owns a node, or another node of the same device, by `Node.key`."""
    devices: dict[str, list[str]] = {}
    for node in found.nodes:
        devices.setdefault(node.variables[ID_VARIABLE], []).append(node.key)
    taken: dict[str, str] = {}
    for keys in devices.values():
        other = next((other for key in keys if (other := owner_of(key)) is not None), None)
        if other is not None:
            taken |= dict.fromkeys(keys, other)
    return taken

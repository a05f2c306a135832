"""A scan of a resource in code: the plugin is asked instead of sources; the rest is the same."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from devhost.discovery import topology
from devhost.discovery.candidates import Claimed
from devhost.discovery.match import WatchRoot
from devhost.discovery.scan import Scanner
from devhost.discovery.survey import Survey
from devhost.errors import AllocationError
from devhost.immutable import immutable
from devhost.library.calls import CallError
from devhost.library.device import Device
from devhost.library.options import ID_VARIABLE
from devhost.library.plugin_methods import PluginMethods
from devhost.library.result_checks import described
from devhost.model import names
from devhost.model.allocation import Allocation
from devhost.model.device import FileState, HostDevice, Node, Skipped, Snapshot
from devhost.model.names import distinct


@immutable
class DeclaredNode(Node):
    """A node, or token, that code declares.

    Attributes:
        declared: The author's device.
        problem: Why the node cannot be used now.
    """

    declared: Device | None = field(default=None, compare=False)
    problem: str | None = None


@dataclass(frozen=True)  # no slots: they would break super()
class CodeScanner(Scanner):
    """A scanner that asks a plugin.

    Attributes:
        author: Whose methods are called.
    """

    author: PluginMethods = field(kw_only=True)

    @property
    def pre_start_required(self) -> bool:
        """Whether there are steps, or the method is overridden."""
        return bool(self.resource.pre_start) or self.author.prepares

    def watch_roots(self) -> frozenset[WatchRoot]:
        """Nothing is watched: the code says when to look again."""
        return frozenset()

    # ── what is there ──

    def survey(self) -> Survey:
        """Ask the plugin, and look at the nodes of its devices. Blocks."""
        try:
            items = self.author.devices()
        except CallError as error:
            return Survey(failed={0: str(error)})
        found: dict[str, tuple[DeclaredNode, ...]] = {}
        holders: dict[str, str] = {}  # by `Node.key`
        skipped = []
        for item, problem in items:
            if not isinstance(item, Device) or problem is not None:
                what = item.id if isinstance(item, Device) else item
                label = what if isinstance(what, str) and what else described(item)
                skipped.append(Skipped(names.printable(label), problem or ""))
                continue
            if item.id in found:
                skipped.append(Skipped(item.id, "its ID is that of a device before"))
                continue
            nodes = self._nodes(item)
            taken = next((node for node in nodes if node.key in holders), None)
            if taken is not None:
                reason = f"its node {taken.path} is that of device {holders[taken.key]} too"
                skipped.append(Skipped(item.id, reason))
                continue
            found[item.id] = nodes
            holders |= dict.fromkeys((node.key for node in nodes), item.id)
        unmatched = () if found or skipped else ("devices() returned none",)
        nodes = tuple(node for nodes in found.values() for node in nodes)
        return Survey(nodes, tuple(skipped), unmatched=unmatched)

    def _nodes(self, device: Device) -> tuple[DeclaredNode, ...]:
        variables = {ID_VARIABLE: device.id}
        if not device.paths:
            return (DeclaredNode("", None, 0, device.id, variables, declared=device),)
        nodes = []
        for path in device.paths:
            state, problem = self._look(path)
            # A node that is not there has its path for a name, which tells it from others.
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

    @property
    def by_path(self) -> bool:
        """The code names devices, not paths."""
        return False

    def snapshot(self, found: Survey, previous: Snapshot, claimed: Claimed, now: float) -> Snapshot:
        """Turn a survey into the next snapshot. Looks at host paths, so it blocks."""
        failure = self._failure(found)
        if failure is not None:
            found = Survey(failed={0: failure})
        snapshot = super().snapshot(found, previous, _taken(found, claimed).get, now)
        devices = {key: _judged(device, failure) for key, device in snapshot.devices.items()}
        again_at = now + self.author.interval
        if snapshot.again_at is not None:
            again_at = min(again_at, snapshot.again_at)
        return replace(snapshot, devices=self._placed(devices, previous), again_at=again_at)

    def _failure(self, found: Survey) -> str | None:
        if not found.failed:
            return None
        return self.author.waiting_for_devices or "; ".join(found.failed.values())

    def _placed(
        self, devices: Mapping[str, HostDevice], previous: Snapshot
    ) -> dict[str, HostDevice]:
        """Return the devices with the NUMA nodes that the code gives, if it gives any.

        Nodes that are not there have none, which counts for the others only if they are there.
        """
        given = {key: tuple(theirs(device).numa_nodes) for key, device in devices.items()}
        if self.resource.topology == "auto" and any(given.values()):
            together = all(given[key] for key, device in devices.items() if device.healthy)
            return {
                key: replace(device, numa_nodes=given[key] if together else ())
                for key, device in devices.items()
            }
        there = {key: device for key, device in devices.items() if _problem(device) is None}
        placed, _ = topology.placed(self.resource.topology, there, previous, self.files)
        return {**devices, **placed}

    # ── what is asked ──

    def allocate(self, snapshot: Snapshot, advertised_ids: Sequence[str]) -> Allocation:
        """Put together what a container receives, and check that it is there. Blocks.

        Raises:
            AllocationError: A device is unknown, unhealthy or gone, or the code refuses.
        """
        declared = super().allocate(snapshot, advertised_ids)
        chosen = names.natural(distinct(advertised_ids))
        try:
            answer = self.author.allocate([theirs(snapshot.devices[one]) for one in chosen])
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
            chosen = self.author.preferred(available, must, size)
        except CallError:
            return ()
        return super().preferred(snapshot, available, must, size) if chosen is None else chosen


def theirs(device: HostDevice) -> Device:
    """Return the author's device of one of ours."""
    declared = (node.declared for node in device.nodes if isinstance(node, DeclaredNode))
    return next((one for one in declared if one is not None), Device(device.id))


def _problem(device: HostDevice) -> str | None:
    nodes = (node for node in device.nodes if isinstance(node, DeclaredNode))
    return next((node.problem for node in nodes if node.problem), None)


def _judged(device: HostDevice, failure: str | None) -> HostDevice:
    """Return a device with what the code says of its health, or why nothing is known of it."""
    if device.missing_since is not None or device.replaced:
        return device
    reason = failure or theirs(device).reason or _problem(device) or device.reason
    return replace(device, reason=reason)


def _taken(found: Survey, claimed: Claimed) -> dict[str, str]:
    """Return who offers a node, or another node of the same device, by `Node.key`."""
    devices: dict[str, list[str]] = {}
    for node in found.nodes:
        devices.setdefault(node.variables[ID_VARIABLE], []).append(node.key)
    taken: dict[str, str] = {}
    for keys in devices.values():
        other = next((other for key in keys if (other := claimed(key)) is not None), None)
        if other is not None:
            taken |= dict.fromkeys(keys, other)
    return taken

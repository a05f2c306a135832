"""Whether what a container would receive exists on the host, and is allowed."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from devhost.allocation.policy import Policy
from devhost.allocation.variables import Seen
from devhost.errors import AllocationError, MissingRightError, describe_os_error
from devhost.hostfs.device_classes import BLOCK, DeviceClasses
from devhost.hostfs.files import CachedFiles, HostFiles
from devhost.hostfs.mounts import HostUse
from devhost.hostfs.sysfs import Number
from devhost.hostfs.walk import Walk
from devhost.model import names
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.device import HostDevice
from devhost.model.device_node import FileKind, FileState, Node

_PARTS_MAX: Final = 1000  # nodes of a directory that is handed out

Spec = DeviceSpec | MountSpec


@dataclass(frozen=True, slots=True)
class ResolvedPath:
    """The real path that a host path leads to, and the file there, or why it cannot be read."""

    realpath: str
    state: FileState | None = None
    problem: str | None = None


class HostPaths:
    """Host paths, each read and judged once; a new one for each scan, Allocate, check and step."""

    def __init__(self, files: HostFiles, policy: Policy) -> None:
        self._files, self._policy = files, policy
        self._cached = CachedFiles(files)
        self._classes = DeviceClasses(files)
        self._use: HostUse | None = None  # most resources need none
        self._resolved: dict[str, ResolvedPath] = {}

    def remember(self, path: str, state: FileState) -> None:
        """Set the state of a path that was just read."""
        self._resolved[path] = ResolvedPath(state.realpath, state)

    def resolve(self, path: str) -> ResolvedPath:
        """Return where a host path leads, and the state of the file there. Blocks."""
        if path not in self._resolved:
            try:
                state = self._cached.stat(path)
                realpath = state.realpath if state else self._files.realpath(path)
                self._resolved[path] = ResolvedPath(realpath, state)
            except OSError as error:
                problem = f"{path}: {describe_os_error(error)}"
                self._resolved[path] = ResolvedPath(path, problem=problem)
        return self._resolved[path]

    # ── what containers receive ──

    def resolve_checked(self, allocation: Allocation) -> Allocation:
        """Return an allocation as it is handed out. Blocks.

        Optional paths that do not exist are left out, directories stand for their nodes, and links
        for what they led to when that was checked: a runtime would resolve them again. Only below
        the host's own /dev are they handed out, to lead to a device that was plugged in again.
        """
        kept: list[Spec] = []
        for spec in allocation.specs:
            try:
                kept += self._resolve_spec(spec)
            except AllocationError as error:
                if not spec.optional or isinstance(error, MissingRightError):
                    owner = f"device {spec.device}: " if spec.device else ""
                    raise AllocationError(f"{owner}{error}") from None
        devices = tuple(spec for spec in kept if isinstance(spec, DeviceSpec))
        mounted = tuple(spec for spec in kept if isinstance(spec, MountSpec))
        numbers = {}
        for spec in devices:
            state = self.resolve(spec.host_path).state
            if state is not None and state.number is not None:
                letter = "b" if state.kind is FileKind.BLOCK else "c"
                numbers[spec.host_path] = "{} {}:{}".format(letter, *state.number)
        return replace(allocation, devices=devices, mounts=mounted, numbers=numbers)

    def problem(self, spec: Spec) -> AllocationError | None:
        """Return why a spec cannot be handed out, or ``None``. Blocks."""
        try:
            self._resolve_spec(spec)
        except AllocationError as error:
            return error if not spec.optional or isinstance(error, MissingRightError) else None
        return None

    def _resolve_spec(self, spec: Spec) -> Sequence[Spec]:
        path, mount = spec.host_path, isinstance(spec, MountSpec)
        resolved = self.resolve(path)
        state = resolved.state
        if resolved.problem is not None:
            raise AllocationError(resolved.problem)
        if problem := names.path_problem(resolved.realpath):
            raise AllocationError(f"{path} leads to a name that cannot be handed out: {problem}")
        if state is None:
            below = f" below {self._files.root}, or is not mounted there (the chart's hostPaths)"
            raise AllocationError(f"{path} does not exist{'' if self._files.is_host else below}")
        if isinstance(spec, DeviceSpec):
            if state.kind is FileKind.DIRECTORY:
                return self._nodes_below(spec, state)
            if state.number is None:
                raise AllocationError(f"{path} is a {state.kind.value}, not a device node")
        if self._policy.enforced and (refusal := self._refused(path, mount=mount)):
            raise MissingRightError(refusal)
        if resolved.realpath == path or self._files.stays_in_dev(path):
            return [spec]
        self.remember(resolved.realpath, state)
        return [replace(spec, host_path=resolved.realpath)]

    def _nodes_below(self, spec: DeviceSpec, directory: FileState) -> Sequence[Spec]:
        """Return a spec for each node in a directory, whose links are left out.

        Each runtime would expand it in its own way, and CDI not at all.
        """
        parts = []
        try:
            walk = Walk(self._files, directory.realpath.rstrip("/"))
        except OSError as error:
            raise AllocationError(f"{spec.host_path}: {describe_os_error(error)}") from None
        if walk.unreadable:
            raise AllocationError(f"{spec.host_path}: {next(iter(walk.unreadable.values()))}")
        for name in names.natural(walk.matches):
            path = f"{spec.host_path.rstrip('/')}/{name}"
            state = self.resolve(path).state
            if state is not None and state.number is not None and not walk.matches[name]:
                inside = f"{spec.container_path.rstrip('/')}/{name}"
                parts.append(replace(spec, host_path=path, container_path=inside))
        if not parts:
            raise AllocationError(f"{spec.host_path} is a directory without device nodes")
        if len(parts) > _PARTS_MAX:
            excess = f"has {len(parts)} device nodes below, more than {_PARTS_MAX}"
            raise AllocationError(f"{spec.host_path} {excess}")
        for part in parts:
            if problem := names.path_problem(part.host_path):
                raise AllocationError(problem)
        return [spec for part in parts for spec in self._resolve_spec(part)]

    # ── what the policy refuses ──

    def _refused(self, path: str, *, mount: bool = False) -> str | None:
        """Return why a path that could be read may not be given to others, or ``None``."""
        resolved = self.resolve(path)
        state = resolved.state
        if state is not None and state.number is not None and not mount:
            return self.policy_problem(resolved.realpath, state.kind, state.number)
        return self._policy.file_problem(resolved.realpath, mount=mount)

    def policy_problem(self, realpath: str, kind: FileKind, number: Number) -> str | None:
        """Return why a device node, by its real path, may not be used, or ``None``. Blocks."""
        device_class = BLOCK if kind is FileKind.BLOCK else self._classes.of(number)
        use = None
        if device_class.name.startswith("tty") or not device_class.safe:
            self._use = self._use or HostUse(self._files)
            use = self._use.problem(kind.value, number) or self._use.doubt(kind.value, number)
        rights = self._policy.identities
        ids = self._classes.ids(kind.value, number) if rights else ()
        targets = ((right, self.resolve(right).state) for right in rights if right[0] == "/")
        links = (link for link, at in targets if at and (at.kind, at.number) == (kind, number))
        return self._policy.node_problem(realpath, device_class, use, (*ids, *links))

    # ── the nodes of a device ──

    def node_problem(self, node: Node, *, same_number: bool) -> str | None:
        """Return why a device's node is not as the scan has found it, or ``None``. Blocks.

        Below the host's own /dev, udev makes another node for a device that was plugged in again:
        that is only a problem where it has to have the ``same_number``.
        """
        if node.state is None:
            return None
        resolved, kind = self.resolve(node.path), node.state.kind
        if resolved.state is None:
            return resolved.problem or f"{node.path} no longer exists"
        if resolved.state.kind is not kind:
            return f"{node.path} is no longer a {kind.value}{' device' if kind.is_node else ''}"
        same = resolved.state.number == node.state.number
        if same or (not same_number and self._files.stays_in_dev(node.path)):
            return None
        return f"{node.path} is another device than at the last scan; a scan is due"

    def current_nodes(self, device: HostDevice, *, files: bool) -> Seen:
        """Return a device's nodes and their states, right before they are touched. Blocks.

        Files that are no device nodes are included if ``files`` is set. Raises `AllocationError`
        for a node that the scan has not found there, or that may not be used.
        """
        states = []
        for node in device.nodes:
            if node.state is None or not (files or node.state.kind.is_node):
                continue
            problem = self.node_problem(node, same_number=True)
            if problem is None and self._policy.enforced and (refusal := self._refused(node.path)):
                raise MissingRightError(refusal)
            state = self.resolve(node.path).state
            if problem is not None or state is None:
                raise AllocationError(problem or f"{node.path} no longer exists")
            if not state.kind.is_node and state.inode != node.state.inode:
                reason = "is another file than at the last scan; a scan is due"
                raise AllocationError(f"{node.path} {reason}")
            states.append((node, state))
        return states

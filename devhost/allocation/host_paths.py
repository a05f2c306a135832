"""Whether what a container would receive exists on the host, and is allowed."""

import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Final, TypeVar

from devhost.allocation.policy import NodeRules, Policy
from devhost.allocation.variables import Seen
from devhost.errors import AllocationError
from devhost.hostfs.files import HostFiles, is_in_dev
from devhost.hostfs.mounts import mounts
from devhost.model import names
from devhost.model.allocation import Allocation, DeviceSpec, MountSpec
from devhost.model.device import FileKind, FileState, HostDevice, Node

_PARTS_MAX: Final = 1000

Spec = DeviceSpec | MountSpec
S = TypeVar("S", DeviceSpec, MountSpec)


class HostPaths:
    """Host paths, each read once; a new one for each scan and each Allocate."""

    def __init__(self, files: HostFiles, policy: Policy) -> None:
        self._files, self._policy = files, policy
        self._node_rules: NodeRules | None = None  # most scans of files and mounts need none
        self._cached = files.cached()
        self._seen: dict[str, FileState | str | None] = {}
        self._visible: tuple[str, ...] | None = None
        self._absent: dict[str, str] = {}  # the real paths of what does not exist
        self._parts: dict[DeviceSpec, tuple[DeviceSpec, ...]] = {}

    def known(self, path: str, state: FileState) -> None:
        """Set what is at a path: it was just read."""
        self._seen[path] = state

    def present(self, specs: Iterable[S]) -> tuple[S, ...]:
        """Return specs as they are handed out. Blocks.

        Optional ones that do not exist are left out, directories stand for their nodes, and links
        for what they led to when that was checked: a runtime would resolve them again at each
        start of a container. Only below the host's own /dev, where nobody else makes links, they
        are handed out, so that they lead to the device when it was plugged in again.

        Raises:
            AllocationError: A path does not exist, or is refused.
        """
        kept: list[S] = []
        for spec in specs:
            problem = self.problem(spec)
            if problem is None:
                kept += map(self._handed, self.parts(spec))
            elif not spec.optional:
                owner = f"device {spec.device}: " if spec.device else ""
                raise AllocationError(f"{owner}{problem}")
        return tuple(kept)

    def _handed(self, spec: S) -> S:
        state = self.state(spec.host_path)
        if state is None or state.realpath == spec.host_path or self._stays(spec.host_path):
            return spec
        self.known(state.realpath, state)
        return replace(spec, host_path=state.realpath)

    def _stays(self, path: str) -> bool:
        try:
            return is_in_dev(path) and self._files.stays_in_dev(path)
        except OSError:
            return False

    def problem(self, spec: Spec) -> str | None:
        """Return why a spec cannot be handed out, or ``None``. Blocks."""
        state = self.lookup(spec.host_path)
        if isinstance(state, str):
            return f"{spec.host_path}: {state}"
        if problem := names.text_problem(self.realpath(spec.host_path)):
            return f"{spec.host_path} leads to a name that cannot be handed out: {problem}"
        if state is None:
            if spec.optional or not self.is_unseen(spec):
                hint = "" if self._files.is_host else f" (below {self._files.root})"
                return f"{spec.host_path} does not exist{hint}"
        elif isinstance(spec, DeviceSpec):
            if state.kind is FileKind.DIRECTORY:
                return self._directory_problem(spec)
            if state.number is None:
                return f"{spec.host_path} is a {state.kind.value}, not a device node"
        return self._refusal(spec) if self._policy.enforced else None

    def is_unseen(self, spec: Spec) -> bool:
        """Whether a mount's host path is missing where the host's files are not visible. Blocks.

        Below a root that is not a mount point, only the mounts below it show the host's files, as
        in the chart's container: the runtime made the directories between them.
        """
        if not isinstance(spec, MountSpec) or self.lookup(spec.host_path) is not None:
            return False
        where = f"{self.realpath(spec.host_path)}/"
        visible = self._visible_below()
        return bool(visible) and not any(map(where.startswith, visible))

    def _visible_below(self) -> tuple[str, ...]:
        """Return the host paths, with a slash, below which files are visible; none: everywhere."""
        # Not cached_property: before Python 3.12 all instances share its lock, and this may hang.
        if self._visible is None:
            root = os.path.realpath(self._files.root)
            points = {mount.point for mount in mounts("/proc/self/mountinfo")}
            if self._files.is_host or root in points:
                self._visible = ()
            else:
                above = f"{root}/"
                below = (point for point in points if point.startswith(above))
                self._visible = tuple(f"{point.removeprefix(root)}/" for point in below)
        return self._visible

    def parts(self, spec: S) -> tuple[S, ...]:
        """Return a spec, or for a directory of device nodes one for each; links are left out.

        Each runtime would expand it in its own way, and CDI not at all. Blocks.

        Raises:
            OSError: A directory cannot be read.
        """
        state = self.lookup(spec.host_path)
        if isinstance(spec, MountSpec) or not isinstance(state, FileState):
            return (spec,)
        if state.kind is not FileKind.DIRECTORY:
            return (spec,)
        if spec not in self._parts:  # nodes that come later have not been checked
            self._parts[spec] = self._below(spec, state)
        return self._parts[spec]

    def _below(self, spec: DeviceSpec, state: FileState) -> tuple[DeviceSpec, ...]:
        found = []
        for name in names.natural(self._files.walk(state.realpath)):
            path = f"{spec.host_path.rstrip('/')}/{name}"
            part = self.lookup(path)
            if not isinstance(part, FileState) or part.number is None:
                continue
            if self._files.is_link(path):
                continue
            inside = f"{spec.container_path.rstrip('/')}/{name}"
            found.append(replace(spec, host_path=path, container_path=inside))
        return tuple(found)

    def state(self, path: str) -> FileState | None:
        """Return what is at a host path, if anything. Blocks."""
        state = self.lookup(path)
        return state if isinstance(state, FileState) else None

    def numbers(self, specs: Iterable[DeviceSpec]) -> dict[str, str]:
        """Return what device nodes are, by their host paths: ``c 1:3`` or ``b 8:0``. Blocks."""
        found = {}
        for spec in specs:
            state = self.state(spec.host_path)
            if state is not None and state.number is not None:
                letter = "b" if state.kind is FileKind.BLOCK else "c"
                found[spec.host_path] = f"{letter} {state.number[0]}:{state.number[1]}"
        return found

    def realpath(self, path: str) -> str:
        """Return the real path of a path that has no `problem`, as it was when that was checked."""
        state = self.lookup(path)
        return state.realpath if isinstance(state, FileState) else self._absent[path]

    def _directory_problem(self, spec: DeviceSpec) -> str | None:
        try:
            parts = self.parts(spec)
        except OSError as error:
            return f"{spec.host_path}: {error.strerror or error}"
        if not parts:
            return f"{spec.host_path} is a directory without device nodes"
        if len(parts) > _PARTS_MAX:
            return f"{spec.host_path} has {len(parts)} device nodes below, more than {_PARTS_MAX}"
        problems = (names.path_problem(part.host_path) or self.problem(part) for part in parts)
        return next(filter(None, problems), None)

    def needs(self, allocation: Allocation) -> dict[str, None]:
        """Return the reasons why parts of an allocation would be refused, in order."""
        specs: list[Spec] = [part for one in allocation.devices for part in self._nodes_of(one)]
        return {
            reason: None
            for spec in (*specs, *allocation.mounts)
            if not isinstance(state := self.lookup(spec.host_path), str)
            and not (state is None and spec.optional)  # it is left out
            and (reason := self._refusal(spec))
        }

    def _refusal(self, spec: Spec) -> str | None:
        return self.refusal(spec.host_path, mount=isinstance(spec, MountSpec))

    def refusal(self, path: str, *, mount: bool = False) -> str | None:
        """Return why a path that could be read may not be given to others, or ``None``. Blocks."""
        state, realpath = self.state(path), self.realpath(path)
        kind, number = (state.kind, state.number) if state else (None, None)
        if kind and number and not mount:
            if self._node_rules is None:
                self._node_rules = NodeRules(self._files, self._policy)
            refusal = self._node_rules.refusal(realpath, kind, number)
        else:
            refusal = self._policy.refusal(realpath, mount=mount)
        if refusal is not None:
            return refusal
        if state is None:
            return f"{path} is not visible below {self._files.root} (the chart's hostPaths)"
        return None

    def _nodes_of(self, spec: DeviceSpec) -> tuple[DeviceSpec, ...]:
        try:
            return self.parts(spec)
        except OSError:
            return ()

    def node_problem(self, node: Node, *, same_number: bool) -> str | None:
        """Return why a device's node is not what the scan has found, or ``None``. Blocks.

        Args:
            node: The node.
            same_number: Whether another device node in its place is a problem also below the host's
                own /dev, where udev makes one for a device that was plugged in again.
        """
        if node.state is None:
            return None
        state = self.lookup(node.path)
        if isinstance(state, str):
            return f"{node.path}: {state}"
        if state is None:
            return f"{node.path} no longer exists"
        kind = node.state.kind
        if state.kind is not kind:
            return f"{node.path} is no longer a {kind.value}{' device' if kind.is_node else ''}"
        if state.number == node.state.number or (not same_number and self._stays(node.path)):
            return None
        return f"{node.path} is another device than at the last scan; a scan is due"

    def seen(self, device: HostDevice, *, files: bool) -> Seen:
        """Return what is at the paths of a device's nodes, right before they are touched. Blocks.

        Args:
            device: The device.
            files: Also what is no device node.

        Raises:
            AllocationError: A node or file is not what the scan has found, or may not be used.
        """
        found = []
        for node in device.nodes:
            if node.state is None or not (files or node.state.kind.is_node):
                continue
            if problem := self.node_problem(node, same_number=True):
                raise AllocationError(problem)
            if self._policy.enforced and (refusal := self.refusal(node.path)):
                raise AllocationError(refusal)
            state = self.state(node.path)
            if state is None:
                continue
            if not state.kind.is_node and state.identity != node.state.identity:
                raise AllocationError(
                    f"{node.path} is another file than at the last scan; a scan is due"
                )
            found.append((node, state))
        return found

    def lookup(self, path: str) -> FileState | str | None:
        """Return what is at a host path, if anything, or why that cannot be read. Blocks."""
        if path not in self._seen:
            try:
                self._seen[path] = self._cached.stat(path)
                if self._seen[path] is None:
                    self._absent[path] = self._files.realpath(path)
            except OSError as error:
                self._seen[path] = error.strerror or str(error)
        return self._seen[path]

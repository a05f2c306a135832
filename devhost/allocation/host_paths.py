"""Whether what a container would receive is there on the host, and allowed."""

import os
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property
from typing import Final

from devhost.allocation.policy import Policy
from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import mounts
from devhost.model import names
from devhost.model.answer import DeviceSpec, MountSpec
from devhost.model.device import FileKind, FileState

_PARTS_MAX: Final = 1000

Spec = DeviceSpec | MountSpec


class HostPaths:
    """Looks at host paths, at each once; made anew for each scan and each Allocate."""

    def __init__(self, files: HostFiles, policy: Policy) -> None:
        self._files, self._policy = files, policy
        self._looks = files.looks()
        self._seen: dict[str, FileState | str | None] = {}
        self._absent: dict[str, str] = {}  # where a path leads at which there is nothing
        self._parts: dict[DeviceSpec, tuple[DeviceSpec, ...]] = {}

    def known(self, path: str, state: FileState) -> None:
        """Take note of what is at a path: it was just looked at."""
        self._seen[path] = state

    def problem(self, spec: Spec) -> str | None:
        """Return why a spec cannot be handed out, or ``None``. Blocks."""
        state = self.look(spec.host_path)
        if isinstance(state, str):
            return f"{spec.host_path}: {state}"
        if problem := names.text_problem(self.realpath(spec.host_path)):
            return f"{spec.host_path} leads to a name that cannot be handed out: {problem}"
        if state is None:
            if spec.optional or not self.is_unseen(spec):
                hint = "" if self._files.is_host else f" (below {self._files.root})"
                return f"{spec.host_path} is not there{hint}"
        elif isinstance(spec, DeviceSpec):
            if state.kind is FileKind.DIRECTORY:
                return self._directory_problem(spec)
            if not state.kind.is_node:
                return f"{spec.host_path} is a {state.kind.value}, not a device node"
        return self._refusal(spec, state) if self._policy.enforced else None

    def is_unseen(self, spec: Spec) -> bool:
        """Whether a mount's host path is missing where the host's files are not visible. Blocks.

        Below a root that is no mount itself only the mounts below it show the host's files, as
        in the chart's container: the runtime made the directories between them.
        """
        if not isinstance(spec, MountSpec) or self.look(spec.host_path) is not None:
            return False
        where = f"{self.realpath(spec.host_path)}/"
        return bool(self._visible) and not any(map(where.startswith, self._visible))

    @cached_property
    def _visible(self) -> tuple[str, ...]:
        """The host paths, with a slash, below which files are visible; empty: all of them."""
        if self._files.is_host:
            return ()
        root = os.path.realpath(self._files.root)
        points = {mount.point for mount in mounts("/proc/self/mountinfo")}
        below = {f"{point.removeprefix(root)}/" for point in points if point.startswith(f"{root}/")}
        return () if root in points else tuple(below)

    def parts(self, spec: Spec) -> tuple[Spec, ...]:
        """Return a spec's device nodes: of a directory, all below it; links are left out.

        Runtimes would expand it each in its own way, and CDI not at all. Blocks.

        Raises:
            OSError: A directory cannot be read.
        """
        state = self.look(spec.host_path)
        if isinstance(spec, MountSpec) or not isinstance(state, FileState):
            return (spec,)
        if state.kind is not FileKind.DIRECTORY:
            return (spec,)
        if spec not in self._parts:  # later ones have not been judged
            self._parts[spec] = self._below(spec, state)
        return self._parts[spec]

    def _below(self, spec: DeviceSpec, state: FileState) -> tuple[DeviceSpec, ...]:
        found = []
        for name in names.natural(self._files.walk(state.realpath)):
            path = f"{spec.host_path.rstrip('/')}/{name}"
            part = self.look(path)
            if not isinstance(part, FileState) or not part.kind.is_node:
                continue
            if self._files.is_link(path):
                continue
            inside = f"{spec.container_path.rstrip('/')}/{name}"
            found.append(replace(spec, host_path=path, container_path=inside))
        return tuple(found)

    def state(self, path: str) -> FileState | None:
        """Return what is at a host path, if anything. Blocks."""
        state = self.look(path)
        return state if isinstance(state, FileState) else None

    def realpath(self, path: str) -> str:
        """Return where a path leads that has no `problem`, as it was when that was judged."""
        state = self.look(path)
        return state.realpath if isinstance(state, FileState) else self._absent[path]

    def _directory_problem(self, spec: DeviceSpec) -> str | None:
        try:
            parts = self.parts(spec)
        except OSError as error:
            return f"{spec.host_path}: {error.strerror or error}"
        if not parts:
            return f"{spec.host_path} is a directory with no device nodes below"
        if len(parts) > _PARTS_MAX:
            return f"{spec.host_path} has {len(parts)} device nodes below, more than {_PARTS_MAX}"
        problems = (names.path_problem(part.host_path) or self.problem(part) for part in parts)
        return next(filter(None, problems), None)

    def needs(self, specs: Iterable[Spec]) -> dict[str, None]:
        """Return what the process would have to be allowed, in order."""
        return {
            reason: None
            for whole in specs
            for spec in self._parts_found(whole)
            if not isinstance(state := self.look(spec.host_path), str)
            and not (state is None and spec.optional)  # it is left out
            and (reason := self._refusal(spec, state))
        }

    def _refusal(self, spec: Spec, state: FileState | None) -> str | None:
        realpath = self.realpath(spec.host_path)
        kind, number = (state.kind, state.number) if state else (None, None)
        return self._policy.refusal(realpath, kind, number, mount=isinstance(spec, MountSpec))

    def _parts_found(self, spec: Spec) -> tuple[Spec, ...]:
        try:
            return self.parts(spec)
        except OSError:
            return ()

    def look(self, path: str) -> FileState | str | None:
        """Return what is at a host path, if anything, or why the host could not say. Blocks."""
        if path not in self._seen:
            try:
                self._seen[path] = self._looks.look(path)
                if self._seen[path] is None:
                    self._absent[path] = self._files.located(path)
            except OSError as error:
                self._seen[path] = error.strerror or str(error)
        return self._seen[path]

"""Whether what a container would receive is there on the host, and allowed."""

from collections.abc import Iterable

from devhost.discovery.host_files import HostFiles
from devhost.model.answer import DeviceSpec, MountSpec
from devhost.model.device import FileState
from devhost.trust import Policy

Spec = DeviceSpec | MountSpec


class HostPaths:
    """Looks at host paths, at each once; made anew for each scan and each Allocate."""

    def __init__(self, files: HostFiles, policy: Policy) -> None:
        self._files, self._policy = files, policy
        self._seen: dict[str, FileState | str | None] = {}

    def problem(self, spec: Spec) -> str | None:
        """Return why a spec cannot be handed out, or ``None``. Blocks."""
        state = self._look(spec.host_path)
        if isinstance(state, str):
            return f"{spec.host_path}: {state}"
        if isinstance(spec, MountSpec):
            if state is None and self._files.is_host:
                return f"{spec.host_path} is not there"
        elif state is None:
            hint = "" if self._files.is_host else f" (below {self._files.root})"
            return f"{spec.host_path} is not there{hint}"
        elif not state.kind.is_node:
            return f"{spec.host_path} is a {state.kind.value}, not a device node"
        return self._refusal(spec, state) if self._policy.enforced else None

    def needs(self, specs: Iterable[Spec]) -> dict[str, None]:
        """Return what the process would have to be allowed, in order."""
        return {
            reason: None
            for spec in specs
            if not isinstance(state := self._look(spec.host_path), str)
            and (reason := self._refusal(spec, state))
        }

    def _refusal(self, spec: Spec, state: FileState | None) -> str | None:
        realpath = state.realpath if state else self._files.resolve(spec.host_path)
        kind, number = (state.kind, state.number) if state else (None, None)
        return self._policy.refusal(realpath, kind, number, mount=isinstance(spec, MountSpec))

    def _look(self, path: str) -> FileState | str | None:
        if path not in self._seen:
            try:
                self._seen[path] = self._files.look(path)
            except OSError as error:
                self._seen[path] = error.strerror or str(error)
        return self._seen[path]

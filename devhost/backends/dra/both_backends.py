"""DRA beside device plugins, as one backend: it offers each resource as its configuration says."""

from dataclasses import replace
from typing import Final

from devhost.backends.backend import Backend, ClaimRecords, Publication, ResourceHooks, run_together
from devhost.backends.dra.dra_backend import DraBackend
from devhost.model.config import Resource
from devhost.watch.watcher import Watcher

_SERVED_BY_PLUGIN: Final = "another instance of devhost serves it by a device plugin"
_IN_SLICES: Final = "its slices are not deleted yet"
_MAY_BE_HELD: Final = "kubelet has not told yet which pods have devices by the device plugin"


class BothBackends:
    """Both backends of a process (a `devhost.backends.backend.Backend`)."""

    def __init__(self, plugins: Backend, dra: DraBackend) -> None:
        self._plugins, self._dra, self.leave_after = plugins, dra, plugins.leave_after
        # Kubelet has one list of pods, and a resource one lock, whichever backend offers it.
        self.pods, self.locks = plugins.pods, plugins.locks

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""
        return max(self._plugins.restarts, self._dra.restarts)

    def open(self, resource: Resource, hooks: ResourceHooks) -> Publication:
        """Return the publication of a resource, to be run."""

        def in_slices() -> str | None:  # of the instance that had the lock before
            has_slices = self._dra.has_slices(resource.name)
            return _IN_SLICES if has_slices else hooks.other_holders()

        def held_by_plugin() -> str | None:  # another instance may not know DRA, or the file, yet
            if (reason := hooks.other_holders()) is not None:
                return reason
            if not self.locks.has_served(resource.name):
                return None
            if self.locks.locked_by_other(resource.name):
                return _SERVED_BY_PLUGIN
            return None if hooks.holders_known() else _MAY_BE_HELD

        self._dra.look_up_by(resource.name, hooks.handler)
        if self._dra.offers(resource):
            return self._dra.open(resource, replace(hooks, other_holders=held_by_plugin))
        return self._plugins.open(resource, replace(hooks, other_holders=in_slices))

    def publisher(self, resource: Resource) -> str:
        """Return the driver that publishes a resource; empty for the device plugin."""
        return self._dra.driver if self._dra.offers(resource) else ""

    async def run(self, watcher: Watcher, records: ClaimRecords) -> None:
        """Keep up with kubelet until cancelled; raise `BackendGoneError` if that is hopeless."""
        await run_together(self._plugins.run(watcher, records), self._dra.run(watcher, records))

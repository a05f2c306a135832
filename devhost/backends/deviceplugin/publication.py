"""Device plugins of kubelet as a backend of the node (`devhost.backends.backend.Backend`)."""

import asyncio
from pathlib import Path
from typing import Final

from devhost.backends.backend import ResourceHooks
from devhost.backends.deviceplugin.device_list import LEAVE_AFTER_S, DeviceList
from devhost.backends.deviceplugin.directory import PluginDirectory
from devhost.backends.deviceplugin.podresources import PodResources
from devhost.backends.deviceplugin.registration import Registration
from devhost.model.resource_state import PublicationStatus

_STEP_S: Final = 0.2  # while IDs are leaving


class DevicePluginBackend(PluginDirectory):
    """The device plugins of a process, in one plugin directory of kubelet.

    `socket` is that of kubelet's pod-resources, where it may be asked which pods hold devices.
    """

    def __init__(
        self, plugin_dir: Path, socket: Path | None = None, leave_after: float = LEAVE_AFTER_S
    ) -> None:
        self.pods = PodResources(socket) if socket else None
        super().__init__(plugin_dir, self.pods, leave_after)

    def open(self, hooks: ResourceHooks) -> "PluginPublication":
        """Return the publication of a resource, to be run."""
        return PluginPublication(self, hooks)


class PluginPublication:
    """One resource: its device list, and the socket that is kept registered."""

    def __init__(self, directory: PluginDirectory, hooks: ResourceHooks) -> None:
        self._hooks, name = hooks, hooks.handler.name
        self.offered_ids = DeviceList(directory.leave_after, directory.inflight_since, name)
        self._leaving = asyncio.Event()
        self.offered_ids.ids_held_by_pods = hooks.held
        self.offered_ids.on_leaving = self._leaving.set
        self._registration = Registration(
            hooks.handler,
            self.offered_ids,
            directory,
            hooks.set_state,
            directory.served_names if hooks.exclusive else None,
        )

    def spec_changed(self) -> None:
        """Register again if kubelet has other options than those of the spec."""
        self._registration.spec_changed()

    @property
    def status(self) -> PublicationStatus:
        """How many IDs are listed, on how many streams, and what is wrong with the list."""
        device_list = self.offered_ids
        truncated = f"{device_list.omitted} IDs left out: the kubelet takes 4 MiB"
        return PublicationStatus(
            listed=len(device_list),
            healthy=sum(entry.healthy for entry in device_list.entries.values()),
            streams=len(device_list.streams),
            lists_sent=device_list.streams.lists_sent,
            warnings=(truncated,) if device_list.omitted else (),
        )

    async def run(self) -> None:
        """Serve and register until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._registration.run(), name=f"register {self._hooks.handler.name}")
            await self._remove_unlisted()

    async def _remove_unlisted(self) -> None:
        """Remove leaving IDs from the list as soon as they may go, until cancelled."""
        device_list, clock = self.offered_ids, asyncio.get_running_loop().time
        while True:
            await self._leaving.wait()
            self._leaving.clear()
            while device_list.leaving - device_list.ids_held_by_pods():
                await asyncio.sleep(_STEP_S)
                if device_list.removable_at(clock()):
                    await self._hooks.refresh()
                    if device_list.remove_unlisted(clock()):
                        self._hooks.on_left()

"""Device plugins of kubelet as a backend of the node (`devhost.backends.backend.Backend`)."""

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final

from devhost.backends.deviceplugin.device_list import LEAVE_AFTER_S, DeviceList
from devhost.backends.deviceplugin.directory import PluginDirectory
from devhost.backends.deviceplugin.podresources import PodResources
from devhost.backends.deviceplugin.registration import Registration
from devhost.backends.plugin_handler import DEVICE_PLUGIN, PluginHandler
from devhost.model.resource_state import PublicationStatus, SetState

_STEP_S: Final = 0.2  # while IDs are leaving


class DevicePluginBackend:
    """The device plugins of a process, in one plugin directory of kubelet.

    `pod_resources` is kubelet's socket, where it may be asked which pods hold devices.
    """

    name = "plugin directory"

    def __init__(
        self,
        plugin_dir: Path,
        pod_resources: Path | None = None,
        leave_after: float = LEAVE_AFTER_S,
    ) -> None:
        self.leave_after = leave_after
        self.pods = PodResources(pod_resources) if pod_resources else None
        self._directory = directory = PluginDirectory(plugin_dir, self.pods, leave_after)
        self.locked_by_other, self.has_served = directory.locked_by_other, directory.has_served
        self.run, self.close = directory.run, directory.close

    @property
    def restarts(self) -> int:
        """How often kubelet was another one than before."""
        return self._directory.restarts

    def open(
        self,
        handler: PluginHandler,
        set_state: SetState,
        *,
        held: Callable[[], AbstractSet[str]],
        refresh: Callable[[], Awaitable[None]],
        on_left: Callable[[], None],
        exclusive: bool,
    ) -> "PluginPublication":
        """Return the publication of a resource."""
        return PluginPublication(
            self._directory,
            handler,
            set_state,
            held=held,
            refresh=refresh,
            on_left=on_left,
            exclusive=exclusive,
        )


def device_plugins(
    plugin_dir: Path, pod_resources: Path | None = None, leave_after: float = LEAVE_AFTER_S
) -> dict[str, DevicePluginBackend]:
    """Return the backend of device plugins by its name, for a host."""
    return {DEVICE_PLUGIN: DevicePluginBackend(plugin_dir, pod_resources, leave_after)}


class PluginPublication:
    """One resource: its device list, and the socket that is kept registered.

    The parameters are those of `devhost.backends.backend.Backend.open`.
    """

    def __init__(
        self,
        directory: PluginDirectory,
        handler: PluginHandler,
        set_state: SetState,
        *,
        held: Callable[[], AbstractSet[str]],
        refresh: Callable[[], Awaitable[None]],
        on_left: Callable[[], None],
        exclusive: bool,
    ) -> None:
        self._name, self._refresh, self._left = handler.name, refresh, on_left
        self.offered_ids = DeviceList(directory.leave_after, directory.inflight_since, handler.name)
        self._leaving = asyncio.Event()
        self.offered_ids.ids_held_by_pods = held
        self.offered_ids.on_leaving = self._leaving.set
        self._registration = Registration(
            handler,
            self.offered_ids,
            directory,
            set_state,
            directory.served_names if exclusive else None,
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
            tasks.create_task(self._registration.run(), name=f"register {self._name}")
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
                    await self._refresh()
                    if device_list.remove_unlisted(clock()):
                        self._left()

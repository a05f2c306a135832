"""Device plugins of kubelet as a backend of the node (`devhost.host.backend`)."""

import asyncio
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import Final

from devhost.kubelet.device_list import DeviceList
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.registration import Registration, SetState
from devhost.model.plugin_handler import PluginHandler
from devhost.model.resource_state import Published

_STEP_S: Final = 0.2  # while IDs are leaving


class PublishedResource:
    """One resource: its device list, and the socket that is kept registered.

    `held` returns the IDs that pods hold, as far as that is known, and `refresh` asks again; `left`
    is called when IDs have left the list. If `exclusive`, it waits while another device plugin
    serves the resource.
    """

    def __init__(
        self,
        directory: PluginDirectory,
        handler: PluginHandler,
        set_state: SetState,
        *,
        held: Callable[[], AbstractSet[str]],
        refresh: Callable[[], Awaitable[None]],
        left: Callable[[], None],
        exclusive: bool,
    ) -> None:
        self._name, self._refresh, self._left = handler.name, refresh, left
        self.device_list = DeviceList(directory.leave_after, directory.inflight_since, handler.name)
        self._leaving = asyncio.Event()
        self.device_list.ids_held_by_pods = held
        self.device_list.on_leaving = self._leaving.set
        self._registration = Registration(
            handler,
            self.device_list,
            directory,
            set_state,
            directory.served_names if exclusive else None,
        )

    def spec_changed(self) -> None:
        """Register again if kubelet has other options than those of the spec."""
        self._registration.spec_changed()

    @property
    def state(self) -> Published:
        """How many IDs are listed, on how many streams, and what is wrong with the list."""
        device_list = self.device_list
        truncated = f"{device_list.omitted} IDs left out: the kubelet takes 4 MiB"
        return Published(
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
        device_list, clock = self.device_list, asyncio.get_running_loop().time
        while True:
            await self._leaving.wait()
            self._leaving.clear()
            while device_list.leaving - device_list.ids_held_by_pods():
                await asyncio.sleep(_STEP_S)
                if device_list.removable_at(clock()):
                    await self._refresh()
                    if device_list.remove_unlisted(clock()):
                        self._left()

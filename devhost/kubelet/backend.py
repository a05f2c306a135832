"""Device plugins of kubelet as a backend of the node (`devhost.host.backend`)."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from collections.abc import Set as AbstractSet
from typing import Final

from devhost.kubelet.device_list import AdvertisedDevice, DeviceList
from devhost.kubelet.directory import PluginDirectory
from devhost.kubelet.registration import Registration, Report
from devhost.kubelet.servicer import Answering
from devhost.model.config import Resource
from devhost.model.device import Snapshot
from devhost.model.names import share_ids, without_share
from devhost.model.state import Published

_STEP_S: Final = 0.2  # while IDs are leaving
_LOG: Final = logging.getLogger(__name__)


class PublishedResource:
    """One resource: its device list, and the socket that is kept registered.

    `held` returns the IDs that pods hold, as far as that is known, and `refresh` asks again; `left`
    is called when IDs have left the list. With `alone` it waits while another device plugin serves
    the resource.
    """

    def __init__(
        self,
        directory: PluginDirectory,
        answers: Answering,
        report: Report,
        *,
        held: Callable[[], AbstractSet[str]],
        refresh: Callable[[], Awaitable[None]],
        left: Callable[[], None],
        alone: bool,
    ) -> None:
        self._name, self._refresh, self._left = answers.name, refresh, left
        self.device_list = DeviceList(directory.leave_after, directory.unanswered)
        self.device_list.ids_held_by_pods = held
        self._leaving = asyncio.Event()
        self._resource: Resource | None = None  # the declaration
        self._registration = Registration(
            answers, self.device_list, directory, report, directory.served_names if alone else None
        )

    def may_hand_out(self) -> AbstractSet[str]:
        """Return the IDs of devices that are listed, or leaving the list."""
        return set(map(without_share, self.device_list.entries))

    def publish(self, resource: Resource, snapshot: Snapshot) -> bool:
        """Set what kubelet is to have; return whether IDs have left that it cannot know."""
        device_list = self.device_list
        before, omitted = device_list.entries, device_list.omitted
        wanted = entries(snapshot, resource.replicas)
        held = device_list.ids_held_by_pods() - wanted.keys() - before.keys()
        device_list.update(wanted)
        if held:
            # What a pod holds is listed, as on its way out, even if it was gone before this
            # process came: kubelet may know it.
            device_list.may_be_known(held)
            device_list.update(wanted | dict.fromkeys(held, AdvertisedDevice(False)))
            device_list.update(wanted)
        if device_list.omitted and device_list.omitted != omitted:
            fields = {"resource": self._name, "left_out": device_list.omitted}
            _LOG.warning("list truncated", extra={"fields": fields})
        if device_list.leaving:
            self._leaving.set()
        if resource is not self._resource:
            self._resource = resource
            self._registration.declared()
        return not before.keys() <= device_list.entries.keys()

    @property
    def state(self) -> Published:
        """How it is doing."""
        device_list = self.device_list
        cut = f"{device_list.omitted} IDs left out: the kubelet takes 4 MiB"
        return Published(
            listed=len(device_list),
            healthy=sum(entry.healthy for entry in device_list.entries.values()),
            streams=device_list.stream_count,
            lists_sent=device_list.lists_sent,
            warnings=(cut,) if device_list.omitted else (),
        )

    async def run(self) -> None:
        """Serve and register until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            work = self._registration.run()
            tasks.create_task(work, name=f"register {self._name}")
            await self._let_leave()

    async def _let_leave(self) -> None:
        """Have IDs leave the list as soon as they may, until cancelled."""
        device_list, clock = self.device_list, asyncio.get_running_loop().time
        while True:
            await self._leaving.wait()
            self._leaving.clear()
            while device_list.leaving - device_list.ids_held_by_pods():
                await asyncio.sleep(_STEP_S)
                if device_list.prunable(clock()):
                    await self._refresh()
                    if device_list.prune(clock()):
                        self._left()


# ── pure ──


def entries(snapshot: Snapshot, replicas: int) -> dict[str, AdvertisedDevice]:
    """Return what the list is to have: each share of each device that is declared."""
    wanted: dict[str, AdvertisedDevice] = {}
    for device in snapshot.devices.values():
        if not device.replaced:
            entry = AdvertisedDevice(device.healthy, device.numa_nodes)
            wanted |= dict.fromkeys(share_ids(device.id, replicas), entry)
    return wanted

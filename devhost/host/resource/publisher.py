"""From what was found to the list that the kubelet is sent, and to what is claimed."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from typing import Final

from devhost.discovery.scan import Scanner
from devhost.host.ownership.owners import Owners
from devhost.host.resource.changes import log_changes
from devhost.kubelet.device_list import AdvertisedDevice, DeviceList
from devhost.model.device import Snapshot
from devhost.model.names import share_ids, without_share

_LOG: Final = logging.getLogger(__name__)

Judge = Callable[[Snapshot], Snapshot]


class Publisher:
    """Keeps one resource's list in step with what was found.

    Attributes:
        device_list: What the kubelet is sent.
        found: What the last scan found, before it was judged.
        snapshot: What is advertised.
        scanner: The declaration by which that was found.
        skipped: The nodes (`Node.key`) that were left to other resources.
    """

    def __init__(
        self,
        scanner: Scanner,
        device_list: DeviceList,
        owners: Owners,
        judges: Sequence[Judge],
    ) -> None:
        self.scanner, self.device_list = scanner, device_list
        self._owners, self._judges = owners, judges
        self.found = self.snapshot = Snapshot()
        self.skipped: frozenset[str] = frozenset()

    def publish(
        self, scanner: Scanner, found: Snapshot, skipped: Iterable[str] | None = None
    ) -> None:
        """Set the list by what was found; IDs leave it when they may.

        Args:
            scanner: The declaration by which it was found.
            found: What was found.
            skipped: The nodes that were left to other resources; as before by default.
        """
        self.scanner = scanner
        self.skipped = self.skipped if skipped is None else frozenset(skipped)
        device_list, replicas = self.device_list, scanner.resource.replicas
        before, left = device_list.entries, device_list.left_count
        found = without_left(found, before)
        snapshot = self._judged(found)
        wanted = entries(snapshot, replicas)
        held = device_list.ids_held_by_pods() - wanted.keys() - before.keys()
        wanted = self._fitting(wanted)
        device_list.update(wanted)
        if held:
            # What a pod holds is listed, as on its way out, even if it was gone before this
            # process came: the kubelet may know it. But not beyond what the list can have.
            kept = device_list.fitting(dict.fromkeys(held, AdvertisedDevice(False)))
            device_list.may_be_known(kept)
            device_list.update(wanted | kept)
            device_list.update(wanted)
        device_list.prune(asyncio.get_running_loop().time())
        if device_list.left_count != left:
            self.publish(scanner, found)  # devices may have waited for IDs that have left
            return
        self.found = without_left(found, device_list.leaving)
        former, self.snapshot = self.snapshot, without_left(snapshot, device_list.leaving)
        log_changes(scanner.resource.name, former, self.snapshot)
        self._owners.published(scanner.resource, self.snapshot)

    def _judged(self, found: Snapshot) -> Snapshot:
        """Say of each device whether it can be offered."""
        snapshot = self._owners.judged(self.scanner.resource, found)
        for judge in self._judges:
            snapshot = judge(snapshot)
        return snapshot

    def prune(self) -> bool:
        """Let IDs leave whose time has come; return whether any did."""
        if not self.device_list.prune(asyncio.get_running_loop().time()):
            return False
        self.publish(self.scanner, self.found)
        return True

    def _fitting(self, wanted: dict[str, AdvertisedDevice]) -> dict[str, AdvertisedDevice]:
        device_list = self.device_list
        listed = device_list.fitting(wanted)
        before, device_list.omitted = device_list.omitted, len(wanted) - len(listed)
        if device_list.omitted and device_list.omitted != before:
            fields = {"resource": self.scanner.resource.name, "left_out": device_list.omitted}
            _LOG.warning("list truncated", extra={"fields": fields})
        return listed


# ── pure ──


def withdrawn(snapshot: Snapshot, reason: str, now: float) -> Snapshot:
    """Return a snapshot of which every device has to go."""
    devices = {
        device_id: replace(device, reason=reason, missing_since=now, replaced=True)
        for device_id, device in snapshot.devices.items()
    }
    return Snapshot(devices)


def without_left(snapshot: Snapshot, leaving: Collection[str]) -> Snapshot:
    """Forget replaced devices whose IDs have all left the list."""
    if not any(device.replaced for device in snapshot.devices.values()):
        return snapshot
    bases = {without_share(advertised_id) for advertised_id in leaving}
    kept = {
        device_id: device
        for device_id, device in snapshot.devices.items()
        if not device.replaced or device_id in bases
    }
    return replace(snapshot, devices=kept)


def entries(snapshot: Snapshot, replicas: int) -> dict[str, AdvertisedDevice]:
    """Return what the list is to have: each share of each device that is declared."""
    wanted: dict[str, AdvertisedDevice] = {}
    for device in snapshot.devices.values():
        if not device.replaced:
            entry = AdvertisedDevice(device.healthy, device.numa_nodes)
            wanted |= dict.fromkeys(share_ids(device.id, replicas), entry)
    return wanted

"""From what was found to the list that the kubelet is sent, and to what is claimed."""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Final

from devhost.discovery.partial import Part
from devhost.discovery.scan import Scanner
from devhost.host.ownership.claim import Claim
from devhost.host.ownership.claims import Claims
from devhost.host.ownership.owners import Owners, owner_of
from devhost.host.resource import advertising
from devhost.host.resource.changes import log_changes
from devhost.kubelet.device_list import AdvertisedDevice, DeviceList
from devhost.model.device import Snapshot
from devhost.model.names import share_ids

_LOG: Final = logging.getLogger(__name__)

Judge = Callable[[Snapshot], Snapshot]


class Publisher:
    """Keeps one resource's list in step with what was found.

    Attributes:
        device_list: What the kubelet is sent.
        found: What the last look found, before it was judged.
        snapshot: What is advertised.
        scanner: The declaration by which that was found.
        skipped: The nodes (`Node.key`) that were left to other resources.
    """

    def __init__(
        self,
        scanner: Scanner,
        device_list: DeviceList,
        claims: Claims,
        claim: Claim,
        owners: Owners,
        judges: Sequence[Judge],
    ) -> None:
        self.scanner, self.device_list = scanner, device_list
        self._claims, self._claim, self._judges = claims, claim, judges
        self._owners = owners
        self.found = self.snapshot = Snapshot()
        self.skipped: frozenset[str] = frozenset()

    def publish(
        self, scanner: Scanner, found: Snapshot, skipped: Iterable[str] | None = None
    ) -> None:
        """Set the list by what was found; IDs leave it when they may.

        Args:
            scanner: The declaration by which it was found.
            found: What was found.
            skipped: The nodes that were left to other resources; as before unless told.
        """
        self.scanner = scanner
        self.skipped = self.skipped if skipped is None else frozenset(skipped)
        device_list, replicas = self.device_list, scanner.resource.replicas
        before, left = device_list.entries, device_list.left_count
        found = advertising.without_left(found, before)
        snapshot = self._judged(found)
        wanted = advertising.entries(snapshot, replicas)
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
            self.publish(scanner, found)  # what has waited for the IDs that left need wait no more
            return
        self.found = advertising.without_left(found, device_list.leaving)
        former, self.snapshot = (
            self.snapshot,
            advertising.without_left(snapshot, device_list.leaving),
        )
        log_changes(scanner.resource.name, former, self.snapshot)
        devices = self.snapshot.devices.values()
        declared = {owner_of(scanner.resource, one) for one in devices if not one.replaced}
        self._owners.offered(scanner.resource.name, declared)
        self._owners.count(scanner.resource.name, self.snapshot)
        offered = advertising.keys(self.snapshot, leaving=False)
        leaving = advertising.keys(self.snapshot, leaving=True)
        self._claims.set(self._claim, offered, leaving, self.skipped)

    def publish_part(self, part: Part) -> bool:
        """Do what `publish` does, for the few devices that may be different.

        Returns:
            Whether that could be done; else nothing was.
        """
        resource, device_list = self.scanner.resource, self.device_list
        if self.found is not part.before or device_list.omitted:
            return False
        if part.after is part.before:
            return True
        judged = self._judged(Snapshot(part.devices))
        wanted = advertising.entries(judged, resource.replicas)
        if len(device_list.fitting(wanted)) < len(wanted):
            return False
        gone = [one for key in part.gone for one in share_ids(key, resource.replicas)]
        device_list.change(wanted, gone)
        devices = {**self.snapshot.devices, **judged.devices}
        former = {key: devices[key] for key in part.gone}
        for key in part.gone:
            self._owners.left(owner_of(resource, devices.pop(key)))
        former |= {
            key: self.snapshot.devices[key] for key in part.devices if key in self.snapshot.devices
        }
        before = Snapshot(former, self.snapshot.skipped)
        self.found, self.snapshot = part.after, replace(part.after, devices=devices)
        # After the stream's turn: the kubelet is told first.
        after = Snapshot(judged.devices, self.snapshot.skipped)
        asyncio.get_running_loop().call_later(0, log_changes, resource.name, before, after)
        self._claims.change(
            self._claim,
            offered=(offered := advertising.keys(judged, leaving=False)),
            leaving=(leaving := advertising.keys(judged, leaving=True)),
            gone=advertising.keys(before, leaving=False) - offered - leaving,
        )
        self._owners.count(resource.name, self.snapshot)
        return True

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

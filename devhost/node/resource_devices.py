"""The devices of one resource: from what a scan finds to what is offered."""

import asyncio
from dataclasses import replace

from devhost.backends.backend import OfferedIds
from devhost.custody.custody import Custody
from devhost.devices.scan import Scanner
from devhost.model.device import Cause, Leaving, Snapshot, Verdict
from devhost.node.answers import Offer, ResourceAnswers
from devhost.node.cdi_files import CdiInjection
from devhost.node.health_monitor import HealthMonitor
from devhost.node.reconciler import ResourceScan
from devhost.node.resource_status import ChangeLog, DeviceCount


class ResourceDevices:
    """The devices of one resource."""

    def __init__(
        self,
        answers: ResourceAnswers,
        offered_ids: OfferedIds,
        custody: Custody,
        injection: CdiInjection,
        scan: ResourceScan,
    ) -> None:
        self.offered = Snapshot()  # as listed, with the verdicts of all judges
        self.health: HealthMonitor | None = None  # if there are checks
        self.count = DeviceCount(answers.name)
        self.change_log = ChangeLog(answers.name, self.count.log_change)
        self.injection, self._custody = injection, custody
        self._answers, self._offered_ids, self._scan = answers, offered_ids, scan

    def check(self, scanner: Scanner, snapshot: Snapshot) -> None:
        """Check the health of devices that were found, by the checks of their specification."""
        if scanner.resource.health is None:
            self.end_checks()
            return
        if self.health is None:
            # What is offered without checks stays healthy until the first round.
            offered = self._scan.found.devices
            self.health = HealthMonitor(scanner, self._scan.request, offered=offered)
        self.health.watch(scanner, snapshot)

    def end_checks(self) -> None:
        """End the health checks."""
        if self.health is not None:
            self.health.close()
            self.health = None

    def publish(self, scanner: Scanner, snapshot: Snapshot) -> None:
        """Judge what was found, and offer it; all of it is leaving if the resource drains."""
        resource, offered_ids, listed = scanner.resource, self._offered_ids, snapshot
        drain_reason = self._answers.drain_reason
        if drain_reason is not None:
            verdict = Verdict(Cause.REMOVED, drain_reason)
            listed = with_all_leaving(snapshot, verdict, asyncio.get_running_loop().time())
        is_again = True
        while is_again:  # devices may have waited for IDs that have left
            listed = without_unlisted(listed, offered_ids)
            offered = self._custody.judge(resource, listed)
            if self.health is not None:
                offered = self.health.judge(offered)
            if scanner.has_cdi_file:
                offered = self.injection.judge(offered)
            self._answers.offer = Offer(scanner, offered)
            is_again = offered_ids.publish(offered, resource)
        self._scan.found, self.offered = listed, offered
        if len(listed.devices) < len(snapshot.devices) and drain_reason is None:
            self._scan.request()  # it does not keep the nodes of what has left from others
        self._custody.set_listed(resource, self.offered)
        self.change_log.update(self.offered)


def with_all_leaving(snapshot: Snapshot, verdict: Verdict, now: float) -> Snapshot:
    """Return a snapshot whose devices are all leaving."""
    devices = {
        device_id: replace(device, verdict=verdict, absence=Leaving(now))
        for device_id, device in snapshot.devices.items()
    }
    return Snapshot(devices)


def without_unlisted(snapshot: Snapshot, offered_ids: OfferedIds) -> Snapshot:
    """Return a snapshot without the leaving devices that the kubelet's list no longer has."""
    if not any(device.is_leaving for device in snapshot.devices.values()):
        return snapshot
    listed = offered_ids.device_ids
    kept = {
        device_id: device
        for device_id, device in snapshot.devices.items()
        if not device.is_leaving or device_id in listed
    }
    return replace(snapshot, devices=kept)

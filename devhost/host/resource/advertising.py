"""From what a scan found to what the kubelet is told; pure."""

from collections.abc import Collection
from dataclasses import replace

from devhost.kubelet.device_list import AdvertisedDevice
from devhost.model.device import Snapshot
from devhost.model.names import share_ids, without_share


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


def keys(snapshot: Snapshot, *, leaving: bool) -> frozenset[str]:
    """Return the nodes (`Node.key`) that are offered, or those that are on their way out."""
    return frozenset(
        node.key
        for device in snapshot.devices.values()
        for node in device.nodes
        if node.state
        and (
            (device.replaced or node.key in device.remaining)
            if leaving
            else device.missing_since is None
        )
    )

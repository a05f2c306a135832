"""From what a scan found to what the kubelet is told; pure."""

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from devhost.kubelet.listing import Advertised
from devhost.model.device import Device, Snapshot, distinct, share_ids, without_share

Identities = frozenset[tuple[int, int]]
InHand = Mapping[str, Identities]


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


def held_back(
    snapshot: Snapshot,
    replicas: int,
    listed: Iterable[str],
    listed_elsewhere: Callable[[str], str | None],
    in_hand: InHand,
) -> Snapshot:
    """Make devices wait, as unhealthy, that the kubelet still has under another ID.

    A pod may just have been given the other ID, so the node would be in two hands.

    Args:
        snapshot: What was found.
        replicas: How many shares of a device are advertised.
        listed: The IDs that the kubelet's list of this resource has at the moment.
        listed_elsewhere: Names another resource in whose list a node (`Node.key`) still is.
        in_hand: What pods hold of this resource.
    """
    renamed = {
        node.state.identity: device.id
        for device in snapshot.devices.values()
        if device.replaced
        for node in device.nodes
        if node.state
    }
    resized = {  # from one ID to shares, or back
        without_share(advertised_id)
        for advertised_id in listed
        if (without_share(advertised_id) == advertised_id) != (replicas == 1)
    }

    def judged(device: Device) -> Device:
        if not device.healthy or device.replaced:
            return device
        states = [node.state for node in device.nodes if node.state]
        other = next((renamed[it.identity] for it in states if it.identity in renamed), None)
        if other is not None:
            return replace(device, reason=f"waits until its ID {other} has left the list")
        if device.id in resized:
            return replace(device, reason="waits until its former IDs have left the list")
        holder = next(
            (
                of
                for of, nodes in in_hand.items()
                if of != device.id and not nodes.isdisjoint(state.identity for state in states)
            ),
            None,
        )
        if holder is not None:
            return replace(device, reason=f"waits until no pod holds it as a part of {holder}")
        elsewhere = next(
            (name for node in device.nodes if (name := listed_elsewhere(node.key))), None
        )
        if elsewhere is not None:
            return replace(device, reason=f"waits until it has left the list of {elsewhere}")
        return device

    devices = {device_id: judged(device) for device_id, device in snapshot.devices.items()}
    return replace(snapshot, devices=devices)


def in_hand(before: InHand, held: Iterable[str], snapshot: Snapshot) -> dict[str, Identities]:
    """Return what pods hold: by device ID, the nodes that it had when it was first seen held.

    Another ``group`` may give them to another device, and the ID go on with fewer.
    """
    found: dict[str, Identities] = {}
    for device_id in distinct(held):
        if device_id in before:
            found[device_id] = before[device_id]
        elif device := snapshot.devices.get(device_id):
            states = (node.state for node in device.nodes)
            found[device_id] = frozenset(state.identity for state in states if state)
    return found


def entries(snapshot: Snapshot, replicas: int) -> dict[str, Advertised]:
    """Return what the list is to have: each share of each device that is declared."""
    wanted: dict[str, Advertised] = {}
    for device in snapshot.devices.values():
        if not device.replaced:
            entry = Advertised(device.healthy, device.numa_nodes)
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

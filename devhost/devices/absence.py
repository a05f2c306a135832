"""Devices that are not found now, and those in whose place another node was found; pure."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from devhost.devices.context import ScanContext, labels
from devhost.model.config import Resource
from devhost.model.device import Cause, HostDevice, Leaving, Missing, Verdict
from devhost.model.device_node import Node
from devhost.sources.selection import Selection

SWAP_S: Final = 10.0  # unhealthy, when another node was found in a device's place
SOURCE_REMOVED: Final = -1  # of a node: the source that found it is no longer declared
_NOT_FOUND: Final = Verdict(Cause.NOT_FOUND, "not found any more")
_NOT_OFFERED: Final = Verdict(Cause.NOT_OFFERED, "not offered any more, or under another ID")


def missing_devices(
    selection: Selection,
    context: ScanContext,
    devices: Mapping[str, HostDevice],
    incomplete: Mapping[str, Verdict],
) -> dict[str, HostDevice]:
    """Return the devices that were offered and are not among these now, as they go on.

    A device that could not be read, or whose source could not, is kept as it was; one whose node is
    there but no longer offered, or under another ID, is leaving; any other, also one that lacks a
    node, is missing, until ``removeMissingAfter`` has passed.
    """
    previous, now = context.previous.devices, context.now
    if previous.keys() <= devices.keys():
        return {}
    sight, missing = _Sight(selection, context, devices), dict[str, HostDevice]()
    for device_id, device in previous.items():
        if device_id in devices:
            continue
        if (failure := _failure(selection, device)) is not None:
            verdict = Verdict(Cause.SOURCE_FAILED, failure)
            missing[device_id] = replace(device, verdict=verdict)
            continue
        since = device.absence.since if device.absence else now
        remaining = sight.free_keys.intersection(node.key for node in device.nodes)
        if device_id in incomplete and not device.is_leaving:
            verdict = incomplete[device_id]
            absence = Missing(since, remaining - sight.keys_of_devices)
        elif has_lost_source(device) or any(map(sight.has, device.nodes)):
            verdict, absence = _NOT_OFFERED, Leaving(since, remaining)
        else:
            verdict, absence = sight.verdict_of_unit(device) or _NOT_FOUND, Missing(since)
        if isinstance(absence, Leaving) or now < since + keep_missing_for(context.resource, device):
            missing[device_id] = replace(device, verdict=verdict, absence=absence)
    return missing


class _Sight:
    """The nodes that a selection and its devices have, to look for those of former devices."""

    def __init__(
        self, selection: Selection, context: ScanContext, devices: Mapping[str, HostDevice]
    ) -> None:
        nodes = [node for device in devices.values() for node in device.nodes]
        self.keys_of_devices = {node.key for node in nodes}
        self._versions_of_devices = {node.state.version for node in nodes if node.state}
        free_nodes = (node for node in selection.nodes if context.owners[node.key] is None)
        self.free_keys = frozenset(node.key for node in free_nodes)
        # What is in sysfs is found by its place: its path may be another device's by now.
        self._places = {node.found_at for node in selection.nodes}
        self._verdicts = {skip.candidate: skip.verdict for skip in selection.skipped}
        self._seen = {
            skip.candidate for skip in selection.skipped if skip.verdict.cause is not Cause.DANGLING
        }

    def has(self, node: Node) -> bool:
        """Whether a node is there, also under another name."""
        return (
            node.found_at in self._places
            or labels([node]) in self._seen
            or (node.state is not None and node.state.version in self._versions_of_devices)
        )

    def verdict_of_unit(self, device: HostDevice) -> Verdict | None:
        """Return why the hardware of a device is not offered, if it was found."""
        units = (node.hardware.label for node in device.nodes if node.hardware is not None)
        return next((self._verdicts[unit] for unit in units if unit in self._verdicts), None)


def keep_missing_for(resource: Resource, device: HostDevice) -> float:
    """Return how long a device that is missing stays a device of the resource, in seconds.

    That of a device node at least as long as another one in its place would be unhealthy.
    """
    return max(resource.remove_missing_after, SWAP_S if device.numbers else 0.0)


def has_lost_source(device: HostDevice) -> bool:
    """Whether a source of a device is no longer declared."""
    return any(node.source == SOURCE_REMOVED for node in device.nodes)


def _failure(selection: Selection, device: HostDevice) -> str | None:
    """Return why a device, or a source of it, could not be read."""
    for node in device.nodes:
        path = PurePosixPath(node.path)
        for place in map(str, (path, *path.parents) if selection.unreadable else ()):
            if place in selection.unreadable:
                return f"cannot be read: {selection.unreadable[place]}"
    for source, reason in selection.failed_sources.items():
        if has_lost_source(device) or any(node.source == source for node in device.nodes):
            return f"its source could not be read: {reason}"
    return None


def with_swap(device: HostDevice, former: HostDevice, now: float) -> HostDevice:
    """Return a device, unhealthy for a while if it is another node than before.

    A pod that holds it has lost it, for containers are given numbers, and kubelet would hear
    nothing of it. The time counts from when a scan has seen that the former node was gone, if so.
    """
    before, numbers = former.numbers, device.numbers
    lost, new = {*before.values()} - {*numbers.values()}, {*numbers.values()} - {*before.values()}
    is_swapped = bool(lost and new) or any(before.get(at, n) != n for at, n in numbers.items())
    lost_at = former.absence.since if former.absence else now
    since = lost_at if is_swapped else former.swapped_at
    if since is None:
        return device
    verdict = device.verdict
    if verdict is None and now < since + SWAP_S:
        verdict = Verdict(Cause.SWAPPED, "another device was found in its place")
    return replace(device, verdict=verdict, swapped_at=since)

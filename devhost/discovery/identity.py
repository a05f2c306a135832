"""From candidates to devices: who has which ID, who has a slot, who is gone.

Pure: the same selection, previous devices and time give the same result.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from devhost.discovery.candidates import (
    NEW,
    Candidates,
    Moment,
    find_candidates,
    keys_of_node,
    labels,
    place,
)
from devhost.discovery.selection import DANGLING, UNREADABLE, Selection
from devhost.model import limits, names
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot

SWAP_S: Final = 10.0  # unhealthy, when another node was found in a device's place
NO_SOURCE: Final = -1  # of a node: the source that found it is no longer declared
File = tuple[int, int, int]
NO_ROOM: Final = f"devhost offers {limits.DEVICE_IDS_MAX} device IDs at most, of all resources"


@dataclass(slots=True)
class Identified(Candidates):
    """Devices that are present, not yet rendered, and what is not offered, for the limit or else.

    Those that were offered and are not found now are `gone`, as they go on.
    """

    devices: dict[str, HostDevice] = field(default_factory=dict)
    over_limit: bool = False
    gone: dict[str, HostDevice] = field(default_factory=dict)
    cut: int = 0  # devices, by `cut_to`

    def cut_to(self, most: int, previous: Snapshot) -> None:
        """Leave out the last of the new devices, where there would be more than that."""
        extra = len(self.devices) + len(self.gone) - most
        if extra <= 0:
            return
        new = [one for one in self.devices if one not in previous.devices][-extra:]
        for device_id in new:
            device = self.devices.pop(device_id)
            self.skip(labels(device.nodes[:1]), NO_ROOM)
        self.cut = len(new)

    @property
    def offered(self) -> frozenset[str]:
        """The nodes (`Node.key`) of the devices, but those that are missing."""
        return keys_of(self.devices.values()) | keys_of(self.gone.values())


def identify(resource: Resource, selection: Selection, moment: Moment) -> Identified:
    """Give each candidate its device: those already offered keep their IDs and their slots."""
    result = Identified(moment, skipped=[*selection.skipped])
    find_candidates(resource, selection, result)
    _assign(resource, result)
    result.gone = _vanished(resource, selection, result)
    return result


def keys_of(devices: Iterable[HostDevice]) -> frozenset[str]:
    """Return the nodes (`Node.key`) of devices, but those that are missing."""
    return frozenset(
        key
        for device in devices
        for node in device.nodes
        for key in keys_of_node(node)
        if device.missing_since is None or key in device.remaining
    )


def _assign(resource: Resource, result: Identified) -> None:
    """Assign IDs and slots: those already offered first, then in natural order."""
    # Of equal IDs, the first source's device counts: sorting keeps their order.
    by_source = sorted(result.found, key=lambda one: one[1].nodes[0].source)
    ordered = sorted(by_source, key=lambda one: (one[0], names.natural_key(one[1].id), one[1].id))
    kept = sum(1 for device in result.moment.previous.devices.values() if not device.replaced)
    absent = kept - len({device.id for rank, device in ordered if rank != NEW})
    limit = resource.limit
    for rank, device in ordered:
        if (other := result.devices.get(device.id)) is not None:
            reason = f"its ID {device.id} is that of {labels(other.nodes[:1])}"
            result.skip(labels(device.nodes), reason)
        elif limit is not None and len(result.devices) + (absent if rank == NEW else 0) >= limit:
            default = "" if resource.max_devices else " by default"
            result.skip(labels(device.nodes), f"over the limit: maxDevices is {limit}{default}")
            result.over_limit = True
        else:
            result.devices[device.id] = device


def _vanished(
    resource: Resource, selection: Selection, present: Identified
) -> dict[str, HostDevice]:
    """Return the devices that were offered and are not found now, as they go on.

    A device that could not be read, or whose source could not, is kept as it was known; one whose
    node is there but no longer offered, or under another ID, is marked as replaced; any other, also
    one that lacks a node, is missing, until ``removeMissingAfter`` has passed.
    """
    moment, previous, now = present.moment, present.moment.previous, present.moment.now
    if previous.devices.keys() <= present.devices.keys():
        return {}
    moved = _moved(present)
    # What is found in sysfs is known by its place: its path may be another device's by now.
    there = {place(node) for node in selection.nodes}
    seen = {skipped.candidate for skipped in selection.skipped if skipped.reason != DANGLING}
    present_keys = frozenset(
        node.key for node in selection.nodes if moment.owner_of(node.key) is None
    )
    left = {skipped.candidate: skipped.reason for skipped in selection.skipped}
    gone: dict[str, HostDevice] = {}
    for device_id, device in previous.devices.items():
        if device_id in present.devices:
            continue
        failure = _failure(selection, device)
        if failure is not None:
            gone[device_id] = replace(device, reason=failure)
            continue
        since = now if device.missing_since is None else device.missing_since
        remaining = present_keys.intersection(node.key for node in device.nodes)
        if device_id in present.incomplete and not device.replaced:
            reason, withdrawn = present.incomplete[device_id], False
        elif (
            _orphan(device)
            or any(place(node) in there or labels([node]) in seen for node in device.nodes)
            or not moved.isdisjoint(files_of(device))
        ):
            reason, withdrawn = "not offered any more, or under another ID", True
        else:
            reason, withdrawn, remaining = _why_gone(device, left), False, frozenset()
        if withdrawn or now < since + remembered(resource, device):
            gone[device_id] = replace(
                device, reason=reason, missing_since=since, replaced=withdrawn, remaining=remaining
            )
    return gone


def _why_gone(device: HostDevice, left: Mapping[str, str]) -> str:
    """Return why a device is not found, if what it was of is there and says so."""
    labels = (node.hardware.label for node in device.nodes if node.hardware is not None)
    return next((left[one] for one in labels if one in left), "not found any more")


def remembered(resource: Resource, device: HostDevice) -> float:
    """Return how long a device that is missing is known, in seconds.

    That of a device node at least as long as another one in its place would be unhealthy.
    """
    return max(resource.remove_missing_after, SWAP_S if device.numbers else 0.0)


def files_of(device: HostDevice) -> set[File]:
    """Return of each file what stays of it under another name, and what no other file has.

    A filesystem may reuse an inode immediately, but what the new file holds is of another time.
    Device nodes are not renamed, and that time tells when they were used.
    """
    states = (node.state for node in device.nodes if node.state)
    return {one.stamp if one.number else (*one.identity, one.modified) for one in states}


def _moved(present: Identified) -> set[File]:
    """Return the files of devices that are no longer found which others have now, or may have.

    A device that has had the file all the time is none of them: it is another name of it, a hard
    link. But while the former ID of one that has moved is in the list, it counts as moved.
    """
    previous, lost = present.moment.previous, dict[File, bool]()
    for device_id, device in previous.devices.items():
        if device_id not in present.devices:
            for file in files_of(device):
                lost[file] = device.replaced or lost.get(file, False)
    moved: set[File] = set()
    for device_id, device in present.devices.items():
        for file in files_of(device) & lost.keys():
            before = previous.devices.get(device_id)
            if before is None or lost[file] or file not in files_of(before):
                moved.add(file)
    return moved


def _orphan(device: HostDevice) -> bool:
    return any(node.source == NO_SOURCE for node in device.nodes)


def _failure(selection: Selection, device: HostDevice) -> str | None:
    """Return why a device, or a source of it, could not be read."""
    for node in device.nodes:
        for path in _above(node.path) if selection.unreadable else ():
            if path in selection.unreadable:
                return f"{UNREADABLE}{selection.unreadable[path]}"
    for source, reason in selection.failed.items():
        if _orphan(device) or any(node.source == source for node in device.nodes):
            return f"its source could not be read: {reason}"
    return None


def _above(path: str) -> Iterator[str]:
    """Yield a path and the directories that lead to it."""
    while path:
        yield path
        path = path.rpartition("/")[0]

"""The devices that the scheduler gives a claim, and the edits for its containers; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from devhost.allocation.cdi import Edits, OwnedEdits
from devhost.backends.share_ids import offered_id
from devhost.errors import AllocationError
from devhost.model.claim_record import ClaimedDevice, ClaimRecord
from devhost.model.device import HostDevice

_Json = dict[str, Any]
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"


class Result(NamedTuple):
    """A device that the scheduler has given to a request of a claim."""

    request: str
    pool: str
    device: str
    share: str | None
    admin: bool


class Scope(NamedTuple):
    """What the devices of a claim that are allocated together bring."""

    edits: OwnedEdits
    cdi_devices: Sequence[str]  # of other CDI specs
    devices: Mapping[str, HostDevice]

    def places(self, device_id: str, entry: Edits) -> Mapping[str, str]:
        """Return the places of a device's own nodes by their paths in the container."""
        nodes: Sequence[Any] = entry.get("deviceNodes", ())
        device = self.devices.get(device_id)
        by_number = {number: place for place, number in (device.numbers if device else {}).items()}
        found = ((node["path"], by_number.get((node["major"], node["minor"]))) for node in nodes)
        return {path: place for path, place in found if place is not None}


def scopes(claim: _Json, driver: str) -> list[list[Result]]:
    """Return what a claim has of a driver, by what is one container to a device plugin.

    Of a claim for extended resources that is a request: one container's of one resource. Which
    containers use the requests of any other claim stands in the pod, which devhost does not read.
    """
    is_extended = (claim["metadata"].get("annotations") or {}).get(_EXTENDED) == "true"
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    for config in devices.get("config") or ():
        if (config.get("opaque") or {}).get("driver") == driver:
            raise AllocationError(f"it has parameters for {driver}, which takes none")
    by_scope: dict[tuple[object, ...], list[Result]] = {}
    for entry in devices.get("results") or ():
        if entry["driver"] == driver:
            request = entry["request"].partition("/")[0]  # not that of the alternative in it
            place = entry["pool"], entry["device"], entry.get("shareID")
            result = Result(request, *place, bool(entry.get("adminAccess")))
            key = result.pool, result.admin, request if is_extended else None
            by_scope.setdefault(key, []).append(result)
    return [*by_scope.values()]


def claim_kind(driver: str) -> str:
    """Return the ``vendor/class`` of the CDI specs of a driver's claims."""
    return f"dra.{driver}/claim"


def own_entry(uid: str, number: int) -> str:
    """Return the name of what a device of a claim brings."""
    return f"c{uid}-{number}"


def common_entry(uid: str, scope: int) -> str:
    """Return the name of what belongs to no device of a scope."""
    return f"c{uid}-s{scope}"


def completed(record: ClaimRecord, kind: str, brought: Mapping[int, Scope]) -> ClaimRecord:
    """Return the record of a claim with what its devices bring, by scope.

    What belongs to no device is brought by the first of each request.
    """
    devices: list[ClaimedDevice] = []
    entries: dict[str, Edits] = {}
    seen = set[tuple[int, str]]()
    for number, device in enumerate(record.devices):
        scope, device_id = brought[device.scope], offered_id(device.id).device
        own, common = own_entry(record.claim, number), common_entry(record.claim, device.scope)
        entries[own] = scope.edits.by_device.get(device_id, {})
        entries[common] = scope.edits.common
        is_first = (device.scope, device.request) not in seen
        seen.add((device.scope, device.request))
        names = (own, common) if is_first else (own,)
        cdi_names = [f"{kind}={name}" for name in names if entries[name]]
        update = {
            "cdi": [*cdi_names, *(scope.cdi_devices if is_first else ())],
            "places": scope.places(device_id, entries[own]),
        }
        devices.append(device.model_copy(update=update))
    kept = {name: edits for name, edits in entries.items() if edits}
    return record.model_copy(update={"state": "completed", "devices": devices, "entries": kept})


def with_located_nodes(
    record: ClaimRecord, devices: Mapping[str, HostDevice], resource: str
) -> dict[str, Edits]:
    """Return the entries of a record with the nodes of a resource's devices where they are now."""
    entries = dict(record.entries)
    for number, device in enumerate(record.devices):
        name, found = own_entry(record.claim, number), devices.get(offered_id(device.id).device)
        if device.resource != resource or not device.places:
            continue
        located = found.located if found is not None and found.is_present else {}
        nodes = [_located(node, device.places, located) for node in entries[name]["deviceNodes"]]
        entries[name] = {**entries[name], "deviceNodes": nodes}
    return entries


def _located(
    node: Any, places: Mapping[str, str], located: Mapping[str, tuple[tuple[int, int], str]]
) -> Mapping[str, Any]:
    if (place := places.get(node["path"])) is None:
        return dict(node)
    if place not in located:
        raise AllocationError(f"what the claim has as {node['path']} is not there")
    (major, minor), path = located[place]
    host_path = {} if path == node["path"] else {"hostPath": path}
    kept = {key: value for key, value in node.items() if key != "hostPath"}
    return {**kept, "major": major, "minor": minor, **host_path}


def numbers(entry: Edits) -> set[tuple[int, int]]:
    """Return the major and minor of the device nodes of an entry."""
    nodes: Sequence[Any] = entry.get("deviceNodes", ())
    return {(node["major"], node["minor"]) for node in nodes}

"""The devices that the scheduler gives a claim, and the edits for its containers; pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from devhost.allocation.cdi import Edits, OwnedEdits
from devhost.errors import AllocationError
from devhost.model.advertised import OfferedId
from devhost.model.claim_record import ClaimedDevice, ClaimRecord

_Json = dict[str, Any]
_EXTENDED: Final = "resource.kubernetes.io/extended-resource-claim"
_PLACE: Final = ("hostPath", "type", "major", "minor")  # of a device node: where it is now


class Result(NamedTuple):
    """A device that the scheduler has given to a request of a claim."""

    request: str
    pool: str
    device: str
    share: str | None
    admin: bool


class Scope(NamedTuple):
    """The devices of a claim that are allocated together, and what they bring."""

    resource: str
    results: Sequence[Result]
    ids: Sequence[OfferedId]
    edits: OwnedEdits
    cdi_devices: Sequence[str]  # of other CDI specs


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


def claimed(
    uid: str, kind: str, scopes: Sequence[Scope]
) -> tuple[list[ClaimedDevice], dict[str, Edits]]:
    """Return the devices of a claim with the CDI names for kubelet, and the edits by name.

    What belongs to no device is brought by the first of each request.
    """
    devices: list[ClaimedDevice] = []
    entries: dict[str, Edits] = {}
    for number, scope in enumerate(scopes):
        common, seen = common_entry(uid, number), set[str]()
        entries[common] = scope.edits.common
        for result, offered in zip(scope.results, scope.ids, strict=True):
            own = own_entry(uid, len(devices))
            entries[own] = scope.edits.by_device.get(offered.device, {})
            is_first = result.request not in seen
            seen.add(result.request)
            names = (own, common) if is_first else (own,)
            cdi_names = [f"{kind}={name}" for name in names if entries[name]]
            device = ClaimedDevice(
                resource=scope.resource,
                id=offered.id,
                cdi=[*cdi_names, *(scope.cdi_devices if is_first else ())],
                scope=number,
                **result._asdict(),
            )
            devices.append(device)
    return devices, {name: brought for name, brought in entries.items() if brought}


def members(record: ClaimRecord) -> dict[int, dict[str, ClaimedDevice]]:
    """Return the devices of a record by scope, and by the name of what they bring."""
    by_scope: dict[int, dict[str, ClaimedDevice]] = {}
    for number, device in enumerate(record.devices):
        by_scope.setdefault(device.scope, {})[own_entry(record.claim, number)] = device
    return by_scope


def with_nodes_of(entries: Mapping[str, Edits], now: Mapping[str, Edits]) -> dict[str, Edits]:
    """Return entries whose device nodes are where they are `now`; all else stays."""
    renewed: dict[str, Edits] = {}
    for name, entry in entries.items():
        renewed[name] = entry
        if name in now and "deviceNodes" in entry:
            present: Sequence[Any] = now[name].get("deviceNodes", ())
            nodes = [_moved_node(node, present) for node in entry["deviceNodes"]]
            renewed[name] = {**entry, "deviceNodes": nodes}
    return renewed


def numbers(entry: Edits) -> set[tuple[int, int]]:
    """Return the major and minor of the device nodes of an entry."""
    nodes: Sequence[Any] = entry.get("deviceNodes", ())
    return {(node["major"], node["minor"]) for node in nodes}


def _moved_node(node: Any, present: Sequence[Any]) -> Mapping[str, Any]:
    """Return a recorded node as it is now: by its path in the container, else by its number.

    Never by its path on the host: that may lead to another device by now.
    """
    for moved in present:
        if moved["path"] == node["path"]:
            kept = {key: value for key, value in node.items() if key not in _PLACE}
            return {**kept, **{key: moved[key] for key in _PLACE if key in moved}}
    if numbers({"deviceNodes": [node]}) <= numbers({"deviceNodes": present}):
        return dict(node)
    raise AllocationError(f"what the claim has as {node['path']} is not there")

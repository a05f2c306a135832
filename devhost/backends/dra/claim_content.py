"""The devices that the scheduler gives a claim, and the edits for its containers; pure."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Final, NamedTuple

from devhost.allocation.cdi import CdiNode, Edits, OwnedEdits
from devhost.backends.share_ids import offered_id
from devhost.errors import AllocationError
from devhost.model.allocation import DeviceSpec
from devhost.model.device import HostDevice
from devhost.model.device_node import FileKind
from devhost.model.records import ClaimedDevice, ClaimRecord, with_new_nodes

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
    """The edits of devices of a claim that are allocated together."""

    edits: OwnedEdits
    cdi_owners: Mapping[str, str | None]  # of names in other CDI specs; ``None``: of no device
    devices: Mapping[str, HostDevice]

    def own_part(self, device: ClaimedDevice, entry: Edits, boot: str) -> dict[str, object]:
        """Return the nodes of a device in a boot, and the places of those in its entry."""
        if (present := self.devices.get(offered_id(device.id).device)) is None:
            return {}
        by_number = {number: place for place, number in present.numbers.items()}
        places = {
            node["path"]: by_number[number]
            for node in device_nodes(entry)
            if (number := (node["major"], node["minor"])) in by_number
        }
        if device.admin:
            return {"places": places}
        former = tuple(node for node in device.nodes if node.boot == boot)
        return {"places": places, "nodes": with_new_nodes(former, present, boot)}


def scopes(claim: _Json, driver: str) -> list[list[Result]]:
    """Return what a claim has of a driver, by what is one container to a device plugin.

    Of a claim for extended resources that is a request: one container's of one resource. Which
    containers use the requests of any other claim stands in the pod, which devhost does not read.
    """
    devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
    for config in devices.get("config") or ():
        if (config.get("opaque") or {}).get("driver") == driver:
            raise AllocationError(f"it has parameters for {driver}, which takes none")
    extended = is_extended(claim)
    by_scope: dict[tuple[object, ...], list[Result]] = defaultdict(list)
    for entry in devices.get("results") or ():
        if entry["driver"] == driver:
            request = entry["request"].partition("/")[0]  # not that of the alternative in it
            place = entry["pool"], entry["device"], entry.get("shareID")
            result = Result(request, *place, bool(entry.get("adminAccess")))
            by_scope[result.pool, result.admin, request if extended else None].append(result)
    return [*by_scope.values()]


def is_extended(claim: _Json) -> bool:
    """Whether a claim was made for the requests of a pod by resource name."""
    return (claim["metadata"].get("annotations") or {}).get(_EXTENDED) == "true"


def pods(claim: _Json) -> list[str]:
    """Return the UIDs of the pods that may use a claim."""
    return [str(user["uid"]) for user in (claim.get("status") or {}).get("reservedFor") or ()]


def clash(record: ClaimRecord, rival: ClaimRecord) -> str | None:
    """Return why no pod can have a claim for extended resources and another one, or ``None``.

    Each is numbered from 0, and of two nodes or variables by one name a container gets one.
    """
    shared = record.resources & rival.resources
    if not shared or rival.pod or rival.namespace != record.namespace:
        return None
    brought, also = _brought(record), _brought(rival)
    clashes = [name for name, edit in brought.items() if also.get(name, edit) != edit]
    text = f"{min(shared)}: claim {rival.shown} of the same pod brings {', '.join(clashes)}, too"
    return f"{text}: ask for all by claims, or for all by resource name" if clashes else None


def _brought(record: ClaimRecord) -> dict[str, object]:
    """Return what a claim brings into containers, by path or variable there."""
    edits = [edit for entry in record.entries.values() for edit in chain(*entry.values())]
    variables = {edit.partition("=")[0]: edit for edit in edits if isinstance(edit, str)}
    mappings = (edit for edit in edits if not isinstance(edit, str))
    return variables | {edit.get("containerPath") or edit["path"]: edit for edit in mappings}


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
        entry_name = own_entry(record.claim, number)
        common = common_entry(record.claim, device.scope)
        entries[common] = scope.edits.common
        entries[entry_name] = scope.edits.by_device.get(device_id, {})
        is_first = (device.scope, device.request) not in seen
        seen.add((device.scope, device.request))
        names = (entry_name, common) if is_first else (entry_name,)
        cdi_names = [f"{kind}={name}" for name in names if entries[name]]
        for name, owner in scope.cdi_owners.items():
            cdi_names += [name] if owner == device_id or (is_first and owner is None) else []
        update = {
            "cdi": cdi_names,
            **scope.own_part(device, entries[entry_name], record.boot),
        }
        devices.append(device.model_copy(update=update))
    kept = {name: edits for name, edits in entries.items() if edits}
    return record.model_copy(update={"state": "completed", "devices": devices, "entries": kept})


def scoped_devices(record: ClaimRecord) -> dict[int, list[ClaimedDevice]]:
    """Return the devices of a claim by scope."""
    by_scope: dict[int, list[ClaimedDevice]] = defaultdict(list)
    for device in record.devices:
        by_scope[device.scope].append(device)
    return by_scope


# ── the device nodes of an entry ──


def device_nodes(entry: Edits) -> Sequence[Any]:
    """Return the device nodes of an entry."""
    return entry.get("deviceNodes", ())


def with_nodes(entry: Edits, moved: Mapping[str, CdiNode]) -> Edits:
    """Return an entry with device nodes instead of others, by path in the container."""
    if not moved:
        return entry
    nodes = [moved.get(node["path"], node) for node in device_nodes(entry)]
    return {**entry, "deviceNodes": nodes}


def moved_node(node: CdiNode, number: tuple[int, int], path: str) -> CdiNode:
    """Return a device node with its number and path on the host."""
    major, minor = number
    kept = {key: value for key, value in node.items() if key != "hostPath"}
    host_path = {} if path == node["path"] else {"hostPath": path}
    return {**kept, "major": major, "minor": minor, **host_path}


def spec_of(node: CdiNode) -> DeviceSpec:
    """Return what was allocated as a device node."""
    return DeviceSpec(
        node.get("hostPath", node["path"]),
        node["path"],
        node["permissions"],
        uid=node.get("uid"),
        gid=node.get("gid"),
        mode=node["fileMode"],
    )


def entity(node: CdiNode) -> str:
    """Return the identity of a device node in its boot (`NodeId.entity`)."""
    kind = FileKind.BLOCK if node["type"] == "b" else FileKind.CHAR
    return f"{kind.value} {node['major']}:{node['minor']}"


def numbers(entry: Edits) -> set[tuple[int, int]]:
    """Return the major and minor of the device nodes of an entry."""
    return {(node["major"], node["minor"]) for node in device_nodes(entry)}

"""A resource's devices as a pool of ResourceSlices, and the writes that publish it; pure.

The API is resource.k8s.io/v1 of Kubernetes v1.37.1 (k8s.io/api/resource/v1/types.go). A pool is
complete when there are as many slices of its newest generation as each of them says; pods are given
no device of an incomplete one.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from devhost.backends.share_ids import offered_ids
from devhost.model.advertised import OfferedId
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot
from devhost.model.limits import ATTRIBUTE_BYTES_MAX, ATTRIBUTES_MAX
from devhost.model.names import attribute_name, text_hash

_Json = dict[str, Any]
SliceDevice = Mapping[str, Any]
"""A device in a slice."""

SLICE_MAX: Final = 64  # devices; more with a taint are refused
_NAME_MAX: Final = 253
_READABLE: Final = 52  # of a device's name that is made
_HASH: Final = 10  # characters
_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
# Attributes by which drivers know a device in the same way
# (k8s.io/dynamic-resource-allocation v0.37.1 deviceattribute/attribute.go and pci_linux.go).
_NUMA_NODE: Final = "resource.kubernetes.io/numaNode"
_PCI: Final = {  # where they stand in the path of a device
    "resource.kubernetes.io/pcieRoot": re.compile(r"/(pci[0-9a-f]{4,}:[0-9a-f]{2})/"),
    "resource.kubernetes.io/pciBusID": re.compile(r".*/([0-9a-f]{4,}(?::[0-9a-f]{2}){2}\.[0-7])\b"),
}


class PoolDevice(NamedTuple):
    """A device of a pool, and the IDs of which each claim gets one, the lowest first."""

    name: str
    device: HostDevice
    ids: Sequence[OfferedId]


class PoolWrite(NamedTuple):
    """One request that brings a pool closer to what is wanted."""

    verb: Literal["DELETE", "PUT", "POST"]
    name: str
    body: _Json | None = None


# ── names ──


def device_name(advertised_id: str) -> str:
    """Return the name of a device, a DNS label: its ID if that is one."""
    if _LABEL.fullmatch(advertised_id):
        return advertised_id
    readable = re.sub(r"[^a-z0-9]+", "-", advertised_id.lower()).strip("-")
    readable = readable[:_READABLE].strip("-") or "d"
    return f"{readable}-{text_hash(advertised_id, _HASH)}"


def pool_name(node_name: str, resource: str) -> str:
    """Return the name of a resource's pool on a node, which no other pool of the cluster has.

    It begins with the node, to which the chart's policy ties what a node may write.
    """
    domain = resource.partition("/")[0]
    name = f"{node_name}/{domain}/{plain_name(resource)}"
    return name if len(name) <= _NAME_MAX else f"{node_name}/{text_hash(resource, _HASH)}"


def plain_name(resource: str) -> str:
    """Return a resource's name without its domain as a DNS label, which no other one there has."""
    name = resource.partition("/")[2]
    plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return plain if plain == name else f"{plain}-{text_hash(resource, _HASH)}"


# ── devices ──


def pool_devices(resource: Resource, snapshot: Snapshot) -> list[PoolDevice]:
    """Return the devices of a pool, healthy or not, in the order in which claims get them.

    A device of which a container gets one share is one with a capacity, else each share is one.
    """
    devices = [
        (device, offered_ids(device.id, resource.replicas)) for device in snapshot.devices.values()
    ]
    if resource.max_per_container == 1:
        return [PoolDevice(device_name(device.id), device, ids) for device, ids in devices]
    shares = [
        PoolDevice(device_name(offered.id), device, (offered,))
        for device, ids in devices
        for offered in ids
    ]
    if resource.prefer == "packed":
        return shares
    count = resource.replicas
    return [share for number in range(count) for share in shares[number::count]]


def device_entries(
    resource: Resource,
    devices: Sequence[PoolDevice],
    taints: Mapping[str, _Json],
    claimed: Mapping[str, str],
) -> list[SliceDevice]:
    """Return the devices of a pool as they stand in slices.

    The last are those that claims have and that are listed no longer: `claimed` has the IDs that
    claims have, by the device's name. All have the same attributes, empty where a device has no
    value: a selector fails for a pod on this node where an attribute is missing. Those of PCI are
    missing all the same: by `matchAttribute` two empty ones would be one PCI function.
    """
    values = {device.device.id: _named_values(device.device) for device in devices}
    names = sorted(frozenset[str]().union(*values.values()) - _PCI.keys())[:ATTRIBUTES_MAX]
    is_numa = bool(devices) and all(len(device.device.numa_nodes) == 1 for device in devices)
    has_shares = resource.max_per_container == 1 and resource.replicas > 1
    rows: dict[str, tuple[str, Mapping[str, str], int]] = {
        name: (
            device.id if has_shares else ids[0].id,
            values[device.id],
            next(iter(device.numa_nodes), 0),
        )
        for name, device, ids in devices
    }
    for name in sorted(claimed.keys() - rows.keys()):
        rows[name] = claimed[name], {}, 0
    entries: list[SliceDevice] = []
    for name, (device_id, named, numa_node) in rows.items():
        texts = {attribute: named.get(attribute, "") for attribute in names}
        texts |= {"resource": resource.name, "id": _fitting(device_id) or ""}
        texts |= {attribute: named[attribute] for attribute in _PCI if attribute in named}
        entry: _Json = {"name": name, "attributes": {key: {"string": texts[key]} for key in texts}}
        if is_numa:
            entry["attributes"][_NUMA_NODE] = {"int": numa_node}
        if has_shares:
            entry |= _shares(resource.replicas)
        if name in taints:
            entry["taints"] = [taints[name]]
        entries.append(entry)
    return entries


def _shares(count: int) -> _Json:
    """Return the fields of a device that several claims may have, each a share."""
    # As the API server writes a quantity, else what it has would differ from what is wanted.
    value = str(count) if count % 1000 else f"{count // 1000}k"
    policy = {"default": "1", "validRange": {"min": "1", "step": "1"}}
    shares = {"value": value, "requestPolicy": policy}
    return {"allowMultipleAllocations": True, "capacity": {"shares": shares}}


def _named_values(device: HostDevice) -> dict[str, str]:
    """Return the values of a device's variables, by the names of attributes: ``usbSerial``."""
    values: dict[str, str] = {}
    for node in device.nodes:
        for variable, value in node.variables.items():
            name = attribute_name(variable)
            if name is not None and _fitting(value) is not None:
                values.setdefault(name, value)
    for name, pattern in _PCI.items():
        matches = {match[1] for match in map(pattern.search, device.places) if match}
        values |= {name: matches.pop()} if len(matches) == 1 else {}
    return values


def _fitting(value: str) -> str | None:
    return value if len(value.encode("utf-8", "replace")) <= ATTRIBUTE_BYTES_MAX else None


# ── slices ──


@dataclass(frozen=True, slots=True)
class PoolKey:
    """The pool of a resource of a driver on a node, which is the owner of its slices."""

    driver: str
    node_name: str
    node_uid: str
    name: str

    def slices(self, devices: Sequence[SliceDevice], generation: int) -> dict[str, _Json]:
        """Return the slices of a generation, by name."""
        parts = [devices[at : at + SLICE_MAX] for at in range(0, len(devices), SLICE_MAX)]
        pool = {"name": self.name, "generation": generation, "resourceSliceCount": len(parts)}
        owner = {
            "apiVersion": "v1",
            "kind": "Node",
            "name": self.node_name,
            "uid": self.node_uid,
            "controller": True,
        }
        return {
            name: {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": name, "ownerReferences": [owner]},
                "spec": {
                    "driver": self.driver,
                    "nodeName": self.node_name,
                    "pool": pool,
                    "devices": list(part),
                },
            }
            for index, part in enumerate(parts)
            for name in (self._slice_name(index),)
        }

    def _slice_name(self, index: int) -> str:
        """Return a name: that of a place in the pool, so that a lost answer is a conflict.

        The chart's policy wants the node after 17 bytes; the API refuses a node of more than 236.
        """
        return f"{index:05}-{text_hash(f'{self.driver} {self.name}', _HASH)}-{self.node_name}"


def pool_of(content: _Json) -> str:
    """Return the pool of a slice as it was read."""
    return str(content["spec"]["pool"]["name"])


def named_slice(content: _Json) -> tuple[str, _Json]:
    """Return a slice as it was read with its name, if it has all that is asked of it."""
    pool_of(content)
    int(content["spec"]["pool"]["generation"])
    _taint_times([content["spec"]])
    metadata = content["metadata"]
    return f"{metadata['name']}", {**content, "metadata": {"resourceVersion": None, **metadata}}


def writes(
    key: PoolKey, devices: Sequence[SliceDevice], present: Mapping[str, _Json], now: str
) -> list[PoolWrite]:
    """Return what brings the slices of a pool, as they were read, to these devices; in order.

    With as many slices as before, only those change that differ. Else there is a new generation:
    slices that are not needed go first and new ones come last, so that neither generation is
    complete before the new one is whole.

    `now` is the time of taints that are new, as in ``timeAdded``.
    """
    specs = {name: content["spec"] for name, content in present.items()}
    newest = max((spec["pool"]["generation"] for spec in specs.values()), default=0)
    devices = _with_taint_times(devices, specs.values(), now)
    wanted = key.slices(devices, newest)
    is_same_shape = wanted.keys() == specs.keys() and all(
        specs[name]["pool"] == body["spec"]["pool"] for name, body in wanted.items()
    )
    if not is_same_shape:
        wanted = key.slices(devices, newest + 1)
    deleted = [PoolWrite("DELETE", name) for name in sorted(specs.keys() - wanted.keys())]
    changed, created = [], []
    for name, body in wanted.items():
        if name not in specs:
            created.append(PoolWrite("POST", name, body))
        elif any(specs[name].get(field) != value for field, value in body["spec"].items()):
            version = present[name]["metadata"]["resourceVersion"]
            metadata = {**body["metadata"], "resourceVersion": version}
            changed.append(PoolWrite("PUT", name, {**body, "metadata": metadata}))
    return [*deleted, *changed, *created]


def _with_taint_times(
    devices: Sequence[SliceDevice], specs: Iterable[_Json], now: str
) -> Sequence[SliceDevice]:
    """Return devices whose taints have the time of the same taint in slices, or that of now.

    Without it the API server would set it again at each write, and a pod that tolerates the taint
    for some time would stay longer.
    """
    times = _taint_times(specs)

    def timed(name: str, taint: _Json) -> _Json:
        return {**taint, "timeAdded": times.get((name, taint["key"], taint["effect"])) or now}

    return [
        {**device, "taints": [timed(device["name"], taint) for taint in device["taints"]]}
        if "taints" in device
        else device
        for device in devices
    ]


def _taint_times(specs: Iterable[_Json]) -> dict[tuple[str, str, str], str | None]:
    """Return when the taints of slices were added, by device, key and effect."""
    return {
        (f"{device['name']}", f"{taint['key']}", f"{taint['effect']}"): taint.get("timeAdded")
        for spec in specs
        for device in spec.get("devices") or ()
        for taint in device.get("taints") or ()
    }

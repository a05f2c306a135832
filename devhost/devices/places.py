"""The places of devices in sysfs, and the NUMA nodes that they are attached to."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import SysfsTree, sysfs_by_number
from devhost.model.config import Resource
from devhost.model.device import HostDevice, Snapshot
from devhost.model.device_node import FileKind


def with_places(
    devices: Mapping[str, HostDevice],
    previous: Snapshot,
    resource: Resource,
    files: HostFiles,
    *,
    full: bool,
) -> tuple[dict[str, HostDevice], bool]:
    """Return the devices with their places in sysfs and their NUMA nodes.

    Also returns whether only some are attached to NUMA nodes: then none is shown with any.
    Those without would never satisfy a hint (k8s.io/kubernetes v1.37.1
    pkg/kubelet/cm/devicemanager/topology_hints.go). Blocks.
    """
    topology = resource.topology
    sysfs = functools.cache(lambda: sysfs_by_number(files))

    def locate(device: HostDevice) -> tuple[tuple[str, ...], tuple[int, ...]]:
        former = previous.devices.get(device.id)
        if previous.partly_numa or (device.is_present and (device is not former or full)):
            former = None
        places = former.places if former else tuple(sorted({*_places(device, sysfs)}))
        if topology != "auto":
            return places, () if topology == "none" else (topology,)
        if former is not None:
            return places, former.numa_nodes
        numbers = {sysfs().numa_node(place) for place in places}
        return places, tuple(sorted(number for number in numbers if number is not None))

    located = {device_id: locate(device) for device_id, device in devices.items()}
    is_partial = len({bool(numbers) for _, numbers in located.values()}) > 1
    placed = dict[str, HostDevice]()
    for device_id, (places, numbers) in located.items():
        device, numa_nodes = devices[device_id], () if is_partial else numbers
        if (places, numa_nodes) != (device.places, device.numa_nodes):
            device = replace(device, places=places, numa_nodes=numa_nodes)
        placed[device_id] = device
    return placed, is_partial


def _places(device: HostDevice, sysfs: Callable[[], SysfsTree]) -> Iterator[str]:
    for node in device.nodes:
        if node.hardware is not None:
            yield node.hardware.numa
        elif node.state is not None and node.state.number is not None:
            kind = "block" if node.state.kind is FileKind.BLOCK else "char"
            place = sysfs().device_by_number(kind, node.state.number)
            yield from sysfs().parts(place) if place else ()

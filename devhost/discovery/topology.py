"""Which NUMA nodes devices are attached to, from sysfs."""

import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Literal

from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import SysfsTree, sysfs_by_number
from devhost.model.device import FileKind, HostDevice, Snapshot


def placed(
    choice: int | Literal["auto", "none"],
    devices: Mapping[str, HostDevice],
    previous: Snapshot,
    files: HostFiles,
    *,
    thorough: bool = True,
) -> tuple[dict[str, HostDevice], bool]:
    """Return the devices with their NUMA nodes: all of them have some, or none has. Blocks.

    A resource of which some devices have NUMA nodes and others have not cannot be aligned: the
    latter never satisfy a hint (k8s.io/kubernetes v1.37.1
    pkg/kubelet/cm/devicemanager/topology_hints.go).

    Returns:
        The devices, and whether some are attached to NUMA nodes and others are not.
    """
    nodes: dict[str, tuple[int, ...]] = {}
    sysfs = functools.cache(lambda: sysfs_by_number(files))
    for device_id, device in devices.items():
        if choice == "none":
            nodes[device_id] = ()
        elif isinstance(choice, int):
            nodes[device_id] = (choice,)
        else:
            known = _known(device, previous, thorough=thorough)
            nodes[device_id] = _nodes_of(device, sysfs) if known is None else known
    mixed = any(nodes.values()) and not all(nodes.values())
    if mixed:
        nodes = dict.fromkeys(devices, ())
    placed = {
        device_id: device
        if device.numa_nodes == nodes[device_id]
        else replace(device, numa_nodes=nodes[device_id])
        for device_id, device in devices.items()
    }
    return placed, mixed


def _known(device: HostDevice, previous: Snapshot, *, thorough: bool) -> tuple[int, ...] | None:
    """Return what was found before, if that counts: the device is not there, or as it was."""
    before = previous.devices.get(device.id)
    if before is None or previous.mixed:
        return None
    kept = device is before and not thorough
    return before.numa_nodes if kept or device.missing_since is not None else None


def _nodes_of(device: HostDevice, sysfs: Callable[[], SysfsTree]) -> tuple[int, ...]:
    """Return the NUMA nodes of a device, none where sysfs names none. Blocks."""
    found: set[int | None] = set()
    for node in device.nodes:
        if node.hardware is not None:
            found.add(sysfs().numa(node.hardware.numa))
        elif node.state is not None and node.state.number is not None:
            kind = "block" if node.state.kind is FileKind.BLOCK else "char"
            place = sysfs().of_number(kind, node.state.number)
            found |= set(map(sysfs().numa, _parts(place, sysfs()) if place else ()))
    return tuple(sorted(one for one in found if one is not None))


def _parts(place: str, sysfs: SysfsTree) -> Iterator[str]:
    """Yield the devices that a block device is made of, or itself."""
    try:
        slaves = sysfs.list(f"{place}/slaves")
    except OSError:
        slaves = None
    if not slaves:
        yield place
    for slave in slaves or ():
        if (below := sysfs.link(f"{place}/slaves/{slave}")) is not None:
            yield from _parts(below, sysfs)

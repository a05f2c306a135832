"""Which NUMA nodes devices are attached to, from sysfs."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Literal

from devhost.discovery.host_files import HostFiles
from devhost.model.device import Device, FileKind, FileState, Snapshot


def placed(
    choice: int | Literal["auto", "none"],
    devices: Mapping[str, Device],
    previous: Snapshot,
    files: HostFiles,
) -> tuple[dict[str, Device], bool]:
    """Return the devices with their NUMA nodes: all of them have some, or none has. Blocks.

    A resource of which some devices have NUMA nodes and others have not cannot be aligned: the
    latter never satisfy a hint (k8s.io/kubernetes v1.37.1
    pkg/kubelet/cm/devicemanager/topology_hints.go).

    Returns:
        The devices, and whether some are attached to NUMA nodes and others are not.
    """
    nodes: dict[str, tuple[int, ...]] = {}
    for device_id, device in devices.items():
        if choice == "none":
            nodes[device_id] = ()
        elif isinstance(choice, int):
            nodes[device_id] = (choice,)
        else:
            nodes[device_id] = _known(device, previous) or _nodes_of(device, files)
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


def _known(device: Device, previous: Snapshot) -> tuple[int, ...]:
    """Return what was found before, if the device is not there now."""
    before = previous.devices.get(device.id)
    return before.numa_nodes if before and device.missing_since is not None else ()


def _nodes_of(device: Device, files: HostFiles) -> tuple[int, ...]:
    states = [node.state for node in device.nodes if node.state]
    return tuple(sorted({number for state in states for number in numa_nodes(state, files)}))


def numa_nodes(state: FileState, files: HostFiles) -> frozenset[int]:
    """Return the NUMA nodes of a device node, empty where sysfs names none. Blocks.

    The first ancestor in sysfs that has a NUMA node counts (a PCI function, say); a block
    device that is made of others is where these are.
    """
    if state.number is None:
        return frozenset()
    kind = "block" if state.kind is FileKind.BLOCK else "char"
    return frozenset(_climb(_sysfs(files) / "dev" / kind / "{}:{}".format(*state.number)))


def _climb(link: Path) -> Iterator[int]:
    try:
        device = link.resolve(strict=True)
        slaves = sorted((device / "slaves").iterdir()) if (device / "slaves").is_dir() else []
        for slave in slaves:
            yield from _climb(slave)
        for place in () if slaves else (device, *device.parents):
            if (place / "numa_node").is_file():
                number = int((place / "numa_node").read_text())
                if number >= 0:  # -1: it does not matter, or the firmware does not say
                    yield number
                return
    except (OSError, ValueError):
        return


def _sysfs(files: HostFiles) -> Path:
    below = Path(files.here("/sys"))
    return below if (below / "dev").is_dir() else Path("/sys")

"""Which NUMA nodes devices are attached to, from sysfs."""

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
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
            known = _known(device, previous)
            nodes[device_id] = _nodes_of(device, files) if known is None else known
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


def _known(device: Device, previous: Snapshot) -> tuple[int, ...] | None:
    """Return what was found before, if the device is not there now."""
    before = previous.devices.get(device.id)
    if before is None or device.missing_since is None or previous.mixed:
        return None
    return before.numa_nodes


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
    major, minor = state.number
    return frozenset(_climb(f"{_sysfs(files)}/dev/{kind}/{major}:{minor}"))


def _climb(link: str) -> Iterator[int]:
    try:
        target = os.readlink(link)
    except OSError:
        return
    beside = "" if target.startswith("/") else f"{os.path.dirname(link)}/"
    place = os.path.normpath(beside + target)
    with contextlib.suppress(OSError):
        if slaves := sorted(os.listdir(f"{place}/slaves")):  # noqa: PTH208 (a hot path)
            for slave in slaves:
                yield from _climb(f"{place}/slaves/{slave}")
            return
    while len(place) > 1:
        number = _read(f"{place}/numa_node")
        if number is not None:
            if number >= 0:  # -1: it does not matter, or the firmware does not say
                yield number
            return
        place = os.path.dirname(place)


def _read(path: str) -> int | None:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return int(os.read(descriptor, 16))
    except (OSError, ValueError):
        return -1
    finally:
        os.close(descriptor)


def _sysfs(files: HostFiles) -> str:
    below = files.here("/sys")
    return below if os.path.isdir(f"{below}/dev") else "/sys"

"""Which NUMA nodes devices are attached to, from sysfs."""

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Literal

from devhost.hostfs.files import HostFiles
from devhost.model.device import FileKind, FileState, HostDevice, Snapshot


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
    sysfs = NumaNodes(files)
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


def _nodes_of(device: HostDevice, sysfs: "NumaNodes") -> tuple[int, ...]:
    found: set[int] = set()
    for node in device.nodes:
        if node.hardware is not None:
            found |= sysfs.above(node.hardware.numa)
        elif node.state is not None:
            found |= sysfs.numa_nodes(node.state)
    return tuple(sorted(found))


class NumaNodes:
    """Reads sysfs; what is above several devices is read once."""

    def __init__(self, files: HostFiles) -> None:
        below = files.to_local("/sys")
        self._path = below if os.path.isdir(f"{below}/dev") else "/sys"
        self._virtual = f"{self._path}/devices/virtual"  # what is of the kernel alone is nowhere
        self._numbers: dict[str, int | None] = {}

    def numa_nodes(self, state: FileState) -> frozenset[int]:
        """Return the NUMA nodes of a device node, empty where sysfs names none. Blocks.

        The first ancestor in sysfs that has a NUMA node counts (a PCI function, say); a block
        device that is made of others is where these are.
        """
        if state.number is None:
            return frozenset()
        kind = "block" if state.kind is FileKind.BLOCK else "char"
        major, minor = state.number
        return frozenset(self._climb(f"{self._path}/dev/{kind}/{major}:{minor}", kind))

    def above(self, directory: str) -> frozenset[int]:
        """Return the NUMA node of a directory of sysfs (``/sys/devices/…``). Blocks."""
        number = self._nearest(self._path + directory.removeprefix("/sys"))
        return frozenset() if number is None or number < 0 else frozenset({number})

    def _climb(self, link: str, kind: str) -> Iterator[int]:
        try:
            target = os.readlink(link)
        except OSError:
            return
        beside = "" if target.startswith("/") else f"{os.path.dirname(link)}/"
        place = os.path.normpath(beside + target)
        if slaves := _slaves(place) if kind == "block" else ():
            for slave in slaves:
                yield from self._climb(f"{place}/slaves/{slave}", kind)
            return
        number = self._nearest(place)
        if number is not None and number >= 0:  # -1: no matter, or the firmware does not say
            yield number

    def _nearest(self, place: str) -> int | None:
        """Return what the first directory says, from a place upwards, that says something."""
        if len(place) <= 1 or place == self._virtual:
            return None
        if place not in self._numbers:
            number = _read(f"{place}/numa_node")
            self._numbers[place] = (
                self._nearest(place.rpartition("/")[0]) if number is None else number
            )
        return self._numbers[place]


def _slaves(place: str) -> list[str]:
    try:
        return sorted(os.listdir(f"{place}/slaves"))  # noqa: PTH208 (names are all that is wanted)
    except OSError:
        return []


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

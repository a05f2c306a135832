"""What a host has, for people who write a configuration: its devices, and one of them in full."""

import os
import posixpath
from collections.abc import Iterator, Mapping
from typing import Any, Final

from devhost.discovery.sources.kernel import NET, PCI, USB
from devhost.discovery.sources.subsystems import (
    NodesLocation,
    NumbersLocation,
    SubsystemListing,
    SubsystemLocation,
)
from devhost.hostfs.device_classes import PROGRAM_CLASSES
from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import (
    KernelNode,
    SysfsDevice,
    SysfsTree,
    ancestor_devices,
    node_variables,
    owning_device,
)
from devhost.model import names
from devhost.model.device import FileState
from devhost.model.hardware_sources import PCI_CLASSES
from devhost.model.immutable import immutable

Row = tuple[dict[str, Any], bool]  # a device by column, and whether only `--all` shows it

OTHER: Final = "other"


@immutable
class DescribedNode:
    """A device in full.

    Attributes:
        node: The node that was asked for, or that of the device; ``None`` where it has none.
        state: What is at its path below /dev.
        owner: The USB device or PCI function that it is, or is below.
        variables: What a source gives for it.
        parents: What is above it, from below upwards: the names and subsystems.
        nodes: The nodes of its owner.
    """

    node: KernelNode | None
    state: FileState | None
    owner: SysfsDevice | None
    variables: Mapping[str, str]
    parents: tuple[tuple[str, str], ...]
    nodes: tuple[KernelNode, ...]

    @property
    def title(self) -> str:
        """What it is, in a sentence."""
        owner, node = self.owner, self.node
        if owner is None:
            title = f"{self.variables.get('subsystem', '')} {node.name if node else ''}".strip()
        elif owner.prefix == "usb.":
            title = f"USB {owner.name}: {_product(owner) or 'device'} ({owner.facts['device']})"
        else:
            kind = class_name(owner.facts["class"])
            title = f"PCI {owner.name}: {kind} ({owner.facts['device']})"
        nodes = self.nodes if owner is not None else (node,)
        shown = ", ".join(one.path for one in nodes if one is not None and one.path)
        return f"{title}. Now {shown}." if shown else f"{title}."


class Machine:
    """Reads what a host has. All methods block, and raise `OSError` if it cannot be listed."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._usb, self._pci = USB.list(files), PCI.list(files)
        self.usb_devices, self.pci_functions = self._usb.devices, self._pci.devices
        self._numbers = NumbersLocation().list(files)
        self.sysfs = self._numbers.sysfs  # reads more of what has a number
        self._net = NET.list(files)
        self._udev = NodesLocation(links=True).list(files)

    @property
    def problem(self) -> str | None:
        """Why there is nothing, if /sys is not there."""
        return self._usb.missing if self._files.stat("/sys/devices") is None else None

    def subsystem(self, name: str) -> SubsystemListing:
        """Return the devices of a subsystem."""
        return SubsystemLocation(name).list(self._files)

    def rows(self, subsystem: str) -> Iterator[Row]:
        """Yield the devices of a subsystem, or the `OTHER` ones; some only for `--all`."""
        if subsystem == OTHER:
            yield from self._others()
        elif subsystem in ("usb", "pci"):
            yield from self._owners(is_usb=subsystem == "usb")
        else:
            reading = self.subsystem(subsystem)
            for name, path in reading.members.items():
                node = KernelNode.of(subsystem, path, reading.sysfs)
                yield {"name": name, "node": node and node.path, **self._ways(node)}, False

    def _owners(self, *, is_usb: bool) -> Iterator[Row]:
        for one in self.usb_devices if is_usb else self.pci_functions:
            facts, nodes = one.facts, self.nodes(one.syspath)
            row: dict[str, Any] = {"usb" if is_usb else "pci": one.name, "device": facts["device"]}
            if is_usb:
                row |= {"name": _product(one) or None, "serial": facts["serial"] or None}
            else:
                row |= {"class": class_name(facts["class"]), "driver": facts["driver"] or None}
                row["group"] = int(facts["group"]) if facts["group"].isdecimal() else None
            row["nodes"] = [node.path or node.name for node in nodes]
            yield row, one.is_hub_or_bridge or not (is_usb or nodes)

    def _others(self) -> Iterator[Row]:
        """Yield the nodes below no USB device or PCI function, such as those of a board."""
        every = (path for path in self._numbers.members.values() if not self.sysfs.owner(path))
        nodes = [node for path in every if (node := self._node(path, self.sysfs)) is not None]
        for node in sorted(nodes, key=lambda one: (one.subsystem, names.natural_key(one.name))):
            is_for_programs = node.subsystem in PROGRAM_CLASSES
            if is_for_programs or not node.syspath.startswith("/sys/devices/virtual/"):
                row = {"node": node.path, "subsystem": node.subsystem, **self._ways(node)}
                is_port = node.subsystem == "tty" and self.sysfs.text(f"{node.syspath}/type") != "0"
                yield row, not (is_for_programs or is_port)

    def _ways(self, node: KernelNode | None) -> dict[str, str | None]:
        found = node_variables(node, self.sysfs) if node is not None else {}
        return {name: found.get(name) for name in ("driver", "place")}

    def nodes(self, owner: str) -> list[KernelNode]:
        """Return the nodes of a USB device or PCI function but its own, and its interfaces."""
        below = (path for path in self._numbers.below(owner) if path != owner)
        found = [self._node(path, self._numbers.sysfs) for path in below]
        found += [self._node(path, self._net.sysfs) for path in self._net.below(owner)]
        group = self._pci.sysfs.link_name(f"{owner}/iommu_group")
        if group is not None and (driver := self._pci.sysfs.link_name(f"{owner}/driver")):
            reading = self.subsystem("vfio")
            if driver.startswith("vfio") and (own := reading.members.get(group)):
                found.append(self._node(own, reading.sysfs))
        nodes = [one for one in found if one is not None]
        return sorted(nodes, key=lambda one: names.natural_key(one.file or one.name))

    def _node(self, path: str, sysfs: SysfsTree) -> KernelNode | None:
        subsystem = sysfs.link_name(f"{path}/subsystem") or ""
        return KernelNode.of(subsystem, path, sysfs)

    def find(self, what: str) -> list[DescribedNode]:
        """Return what is meant: a node or a link to it, a USB name, a PCI address, or a number."""
        number = what.lower()
        known = (number, f"0000:{number}")
        owners = [
            one
            for one in (*self.usb_devices, *self.pci_functions)
            if one.name in known or one.facts["device"] == number
        ]
        if owners:
            return [self._described(None, one) for one in owners]
        state = self._files.stat(what if what.startswith("/") else f"/dev/{what}")
        if state is not None and state.number is not None:
            syspath = self.sysfs.device_by_number(state.kind.value, state.number)
            node = self._node(syspath, self.sysfs) if syspath else None
            if node is not None:
                return [self._described(node, self._owner(node.syspath, self.sysfs))]
            # Some drivers, such as nvidia, make nodes of which sysfs does not know.
            file = state.realpath.removeprefix("/dev/")
            node = KernelNode(posixpath.basename(file), "", "", file, state.number)
            return [self._described(node, None)] if file != state.realpath else []
        for reading in (self._numbers, self._net):
            for path in reading.members.values():
                named = posixpath.basename(path) == what
                if named and (node := self._node(path, reading.sysfs)) is not None:
                    return [self._described(node, self._owner(path, reading.sysfs))]
        return []

    def _owner(self, path: str, sysfs: SysfsTree) -> SysfsDevice | None:
        """Return the device that a node is of: also of an IOMMU group's, or a disk's head."""
        if (above := owning_device(path, sysfs)) is not None:
            every = (*self.usb_devices, *self.pci_functions)
            return next((one for one in every if one.syspath == above.syspath), above)
        if sysfs.link_name(f"{path}/subsystem") == "vfio":
            group = posixpath.basename(path).removeprefix("noiommu-")
            some = (one for one in self.pci_functions if one.facts["group"] == group)
            return next((one for one in some if not one.is_hub_or_bridge), None)
        if path.startswith("/sys/devices/virtual/nvme-subsystem/"):
            block = self.subsystem("block")
            for one in self.pci_functions:
                if path in block.below(one.syspath):
                    return one
        return None

    def _described(self, node: KernelNode | None, owner: SysfsDevice | None) -> DescribedNode:
        nodes = tuple(self.nodes(owner.syspath)) if owner is not None else ()
        shown = node or (self._node(owner.syspath, self._usb.sysfs) if owner else None)
        variables = owner.variables if owner is not None else {}
        sysfs, path = self.sysfs, shown.syspath if shown else ""
        if shown is not None:
            variables |= {"subsystem": shown.subsystem, "name": shown.name}
            variables |= node_variables(shown, sysfs) | self._udev.udev.get(
                f"/dev/{shown.file}", {}
            )
            variables["syspath"] = path
        state = self._files.stat(f"/dev/{shown.file}") if shown and shown.file else None
        above = path or (owner.syspath if owner else "")
        parents = tuple(
            (posixpath.basename(one), sysfs.link_name(f"{one}/subsystem") or "")
            for one in ancestor_devices(above, sysfs)
        )
        known = {name: value for name, value in variables.items() if value}
        return DescribedNode(shown, state, owner, known, parents, nodes)

    def owner_ids(self, state: FileState) -> tuple[int, int]:
        """Return the user and the group that own a node."""
        there = os.lstat(self._files.to_local(state.realpath))
        return there.st_uid, there.st_gid


def _product(device: SysfsDevice) -> str:
    return f"{device.facts['manufacturer']} {device.facts['product']}".strip()


def class_name(code: str) -> str:
    """Return the most precise name of a PCI class."""
    known = [(digits, name) for name, digits in PCI_CLASSES.items() if code.startswith(digits)]
    return max(known, key=lambda one: len(one[0]), default=("", code))[1]

"""What a host has, for people who write a configuration: its devices, and one of them in full."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from devhost.discovery import hardware
from devhost.discovery.hardware import KernelNode
from devhost.discovery.pci import PciFunction
from devhost.discovery.sysfs import (
    NodesRoot,
    NumbersRoot,
    SubsystemReading,
    SubsystemRoot,
    SysfsTree,
)
from devhost.discovery.usb import UsbDevice
from devhost.hostfs.file_owners import FileAccess, FileOwners
from devhost.hostfs.files import HostFiles
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.class_codes import PCI_CLASSES
from devhost.model.device import FileState

BRIDGE: Final = "06"


@immutable
class DeviceRow:
    """A device in a list.

    Attributes:
        values: By column.
        plain: Whether it is shown without ``--all``.
    """

    values: Mapping[str, str]
    plain: bool = True


@immutable
class Described:
    """A device in full.

    Attributes:
        node: The node that was asked for, or that of the device; ``None`` where it has none.
        state: What is at its path below /dev.
        permissions: Who owns that.
        owner: The USB device or PCI function that it is, or is below.
        variables: What a source gives for it.
        parents: What is above it, from below upwards: the names and subsystems.
        nodes: The nodes of its owner.
    """

    node: KernelNode | None
    state: FileState | None
    owner: UsbDevice | PciFunction | None
    variables: Mapping[str, str]
    parents: tuple[tuple[str, str], ...]
    nodes: tuple[KernelNode, ...]
    permissions: FileAccess | None = None


class Machine:
    """Reads what a host has. All methods block.

    Raises:
        OSError: A subsystem cannot be listed.
    """

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._usb = SubsystemRoot("usb").read(files)
        self._pci = SubsystemRoot("pci").read(files)
        self._numbers = NumbersRoot().read(files)
        self._net = SubsystemRoot("net").read(files)
        self._udev = NodesRoot(links=True).read(files)

    @property
    def problem(self) -> str | None:
        """Why there is nothing, if /sys is not there."""
        return self._usb.missing if self._files.stat("/sys/devices") is None else None

    @property
    def sysfs(self) -> SysfsTree:
        """Reads more of what has a number."""
        return self._numbers.sysfs

    def subsystem(self, name: str) -> SubsystemReading:
        """Return the devices of a subsystem."""
        return SubsystemRoot(name).read(self._files)

    def usb_devices(self) -> list[UsbDevice]:
        """Return all USB devices."""
        sysfs, members = self._usb.sysfs, self._usb.members
        return [
            UsbDevice(path, sysfs, members)
            for name, path in members.items()
            if ":" not in name and sysfs.is_usb_device(path)
        ]

    def pci_functions(self) -> list[PciFunction]:
        """Return all PCI functions."""
        sysfs = self._pci.sysfs
        return [
            PciFunction(p, sysfs) for p in self._pci.members.values() if sysfs.is_pci_function(p)
        ]

    def usb_rows(self) -> Iterator[DeviceRow]:
        """Yield the USB devices; hubs are no plain ones."""
        for device in self.usb_devices():
            texts = (device.text("manufacturer"), device.text("product"))
            nodes = self.nodes(device.syspath)
            values = {
                "USB": device.name,
                "DEVICE": device.number,
                "NAME": " ".join(filter(None, texts)) or "-",
                "SERIAL": device.text("serial") or "-",
                "NODES": _names(nodes),
            }
            yield DeviceRow(values, plain=not device.is_hub)

    def pci_rows(self) -> Iterator[DeviceRow]:
        """Yield the PCI functions; bridges are no plain ones."""
        for function in self.pci_functions():
            nodes = self.nodes(function.syspath)
            values = {
                "PCI": function.address,
                "DEVICE": function.number,
                "CLASS": class_name(function.code),
                "DRIVER": function.driver or "-",
                "GROUP": function.group or "-",
                "NODES": _names(nodes),
            }
            yield DeviceRow(values, plain=not function.code.startswith(BRIDGE))

    def subsystem_rows(self, subsystem: str) -> Iterator[DeviceRow]:
        """Yield the devices of a subsystem."""
        reading = SubsystemRoot(subsystem).read(self._files)
        for name, path in reading.members.items():
            node = KernelNode.of(subsystem, path, reading.sysfs)
            found = hardware.described(node, reading.sysfs) if node else {}
            values = {
                "NAME": name,
                "NODE": f"/dev/{node.file}" if node and node.file else "-",
                "DRIVER": found.get("driver", "-"),
                "PLACE": found.get("place", "-"),
            }
            yield DeviceRow(values)

    def nodes(self, owner: str) -> list[KernelNode]:
        """Return the nodes of a USB device or PCI function but its own, and its interfaces."""
        found = []
        for _, path in self._numbers.below(owner):
            if path != owner:
                found.append(self._node(path, self._numbers.sysfs))
        found += [self._node(path, self._net.sysfs) for _, path in self._net.below(owner)]
        group = self._pci.sysfs.linked(f"{owner}/iommu_group")
        if group is not None and (driver := self._pci.sysfs.linked(f"{owner}/driver")):
            reading = SubsystemRoot("vfio").read(self._files)
            if driver.startswith("vfio") and (own := reading.members.get(group)):
                found.append(self._node(own, reading.sysfs))
        nodes = [one for one in found if one is not None]
        return sorted(nodes, key=lambda one: names.natural_key(one.file or one.name))

    def _node(self, path: str, sysfs: SysfsTree) -> KernelNode | None:
        subsystem = sysfs.linked(f"{path}/subsystem") or ""
        return KernelNode.of(subsystem, path, sysfs)

    def find(self, what: str) -> list[Described]:
        """Return what is meant: a node or a link to it, a USB name, a PCI address, or a number."""
        number = what.lower()
        addresses = (number, f"0000:{number}")
        owners: Sequence[UsbDevice | PciFunction] = [
            *(one for one in self.usb_devices() if number in (one.name, one.number)),
            *(
                one
                for one in self.pci_functions()
                if one.address in addresses or one.number == number
            ),
        ]
        if owners:
            return [self._described(None, one) for one in owners]
        path = what if what.startswith("/") else f"/dev/{what}"
        state = self._files.stat(path)
        there = state if state is not None and state.number is not None else None
        name = (there.realpath if there else path).removeprefix("/dev/")
        alike: list[Described] = []
        for reading in (self._numbers, self._net):
            for syspath in reading.members.values():
                node = self._node(syspath, reading.sysfs)
                if node is not None and name in (node.file, node.name):
                    found = self._described(node, self._owner(syspath, reading.sysfs))
                    if name == node.file:
                        return [found]
                    alike.append(found)
        if not alike and there is not None and there.realpath.startswith("/dev/"):
            # Some drivers, such as nvidia, make nodes of which sysfs does not know.
            node = KernelNode(posixpath.basename(name), "", "", name, there.number)
            return [self._described(node, None)]
        return alike[:1]

    def _owner(self, path: str, sysfs: SysfsTree) -> UsbDevice | PciFunction | None:
        above = sysfs.owner(path) or self._elsewhere(path, sysfs)
        if above is None:
            return None
        if sysfs.is_usb_device(above):
            return UsbDevice(above, self._usb.sysfs, self._usb.members)
        return PciFunction(above, self._pci.sysfs)

    def _elsewhere(self, path: str, sysfs: SysfsTree) -> str | None:
        """Return the PCI function of a node that is below none: an IOMMU group's, a disk's head."""
        if sysfs.linked(f"{path}/subsystem") == "vfio":
            group = posixpath.basename(path).removeprefix("noiommu-")
            some = (one for one in self.pci_functions() if one.group == group)
            return next((one.syspath for one in some if not one.code.startswith(BRIDGE)), None)
        if path.startswith("/sys/devices/virtual/nvme-subsystem/"):
            block = SubsystemRoot("block").read(self._files)
            for one in self.pci_functions():
                if any(path == disk for _, disk in block.below(one.syspath)):
                    return one.syspath
        return None

    def _described(
        self, node: KernelNode | None, owner: UsbDevice | PciFunction | None
    ) -> Described:
        nodes = tuple(self.nodes(owner.syspath)) if owner is not None else ()
        shown = node or (owner.node() if isinstance(owner, UsbDevice) else None)
        variables = dict(owner.variables()) if owner is not None else {}
        sysfs, path = self._numbers.sysfs, shown.syspath if shown else ""
        if shown is not None:
            if isinstance(owner, UsbDevice) and (at := sysfs.interface(path)) is not None:
                variables["usb.interface"] = self._interface(owner, at)
            variables |= {"subsystem": shown.subsystem, "name": shown.name}
            variables |= hardware.described(shown, sysfs)
            for variable, by in (("byId", "by-id"), ("byPath", "by-path")):
                if link := self._udev.by[by].get(f"/dev/{shown.file}"):
                    variables[variable] = link
            variables["syspath"] = path
        state = self._files.stat(f"/dev/{shown.file}") if shown and shown.file else None
        above = path or (owner.syspath if owner else "")
        parents = tuple(
            (posixpath.basename(one), sysfs.linked(f"{one}/subsystem") or "")
            for one in ancestors(above)
            if sysfs.link(f"{one}/subsystem") is not None
        )
        permissions = FileOwners(self._files).of(state.realpath) if state is not None else None
        known = {name: value for name, value in variables.items() if value}
        return Described(shown, state, owner, known, parents, nodes, permissions)

    def _interface(self, owner: UsbDevice, path: str) -> str:
        one = next((one for one in owner.interfaces() if one.syspath == path), None)
        return "" if one is None else str(one.number)


def _names(nodes: Sequence[KernelNode]) -> str:
    return ", ".join(one.file or one.name for one in nodes) or "-"


def class_name(code: str) -> str:
    """Return the most precise name of a PCI class."""
    known = [(digits, name) for name, digits in PCI_CLASSES.items() if code.startswith(digits)]
    return max(known, key=lambda one: len(one[0]), default=("", code))[1]


def ancestors(path: str) -> Iterator[str]:
    """Yield the directories above a device, from below upwards."""
    path = posixpath.dirname(path)
    while path.startswith("/sys/devices/"):
        yield path
        path = posixpath.dirname(path)

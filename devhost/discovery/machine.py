"""What a host has, for people who write a configuration: its devices, and one of them in full."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence

from devhost.discovery.hardware import (
    NET,
    PCI,
    USB,
    KernelNode,
    SysfsDevice,
    described,
    device_above,
    devices_above,
    pci_functions,
    usb_devices,
)
from devhost.discovery.sysfs import (
    NodesRoot,
    NumbersRoot,
    SubsystemReading,
    SubsystemRoot,
)
from devhost.hostfs.file_owners import FileAccess, FileOwners
from devhost.hostfs.files import HostFiles
from devhost.hostfs.sysfs import SysfsTree
from devhost.immutable import immutable
from devhost.model import names
from devhost.model.class_codes import PCI_CLASSES
from devhost.model.device import FileState


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
    owner: SysfsDevice | None
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
        self._usb = USB.read(files)
        self._pci = PCI.read(files)
        self._numbers = NumbersRoot().read(files)
        self._net = NET.read(files)
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

    def usb_devices(self) -> Sequence[SysfsDevice]:
        """Return all USB devices."""
        return self._usb.once(usb_devices)

    def pci_functions(self) -> Sequence[SysfsDevice]:
        """Return all PCI functions."""
        return self._pci.once(pci_functions)

    def usb_rows(self) -> Iterator[DeviceRow]:
        """Yield the USB devices; hubs are no plain ones."""
        for device in self.usb_devices():
            facts, nodes = device.facts, self.nodes(device.syspath)
            values = {
                "USB": device.name,
                "DEVICE": facts["device"],
                "NAME": f"{facts['manufacturer']} {facts['product']}".strip() or "-",
                "SERIAL": facts["serial"] or "-",
                "NODES": _names(nodes),
            }
            yield DeviceRow(values, plain=not device.is_between)

    def pci_rows(self) -> Iterator[DeviceRow]:
        """Yield the PCI functions; bridges are no plain ones."""
        for function in self.pci_functions():
            facts, nodes = function.facts, self.nodes(function.syspath)
            values = {
                "PCI": function.name,
                "DEVICE": facts["device"],
                "CLASS": class_name(facts["class"]),
                "DRIVER": facts["driver"] or "-",
                "GROUP": facts["group"] or "-",
                "NODES": _names(nodes),
            }
            yield DeviceRow(values, plain=not function.is_between)

    def subsystem_rows(self, subsystem: str) -> Iterator[DeviceRow]:
        """Yield the devices of a subsystem."""
        reading = SubsystemRoot(subsystem).read(self._files)
        for name, path in reading.members.items():
            node = KernelNode.of(subsystem, path, reading.sysfs)
            found = described(node, reading.sysfs) if node else {}
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
        known = (number, f"0000:{number}")
        owners = [
            one
            for one in (*self.usb_devices(), *self.pci_functions())
            if one.name in known or one.facts["device"] == number
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

    def _owner(self, path: str, sysfs: SysfsTree) -> SysfsDevice | None:
        """Return the device that a node is of: also of an IOMMU group's, or a disk's head."""
        if (above := device_above(path, sysfs)) is not None:
            every = (*self.usb_devices(), *self.pci_functions())
            return next((one for one in every if one.syspath == above.syspath), above)
        if sysfs.linked(f"{path}/subsystem") == "vfio":
            group = posixpath.basename(path).removeprefix("noiommu-")
            some = (one for one in self.pci_functions() if one.facts["group"] == group)
            return next((one for one in some if not one.is_between), None)
        if path.startswith("/sys/devices/virtual/nvme-subsystem/"):
            block = SubsystemRoot("block").read(self._files)
            for one in self.pci_functions():
                if any(path == disk for _, disk in block.below(one.syspath)):
                    return one
        return None

    def _described(self, node: KernelNode | None, owner: SysfsDevice | None) -> Described:
        nodes = tuple(self.nodes(owner.syspath)) if owner is not None else ()
        shown = node or (self._node(owner.syspath, self._usb.sysfs) if owner else None)
        variables = owner.variables() if owner is not None else {}
        sysfs, path = self._numbers.sysfs, shown.syspath if shown else ""
        if shown is not None:
            variables |= {"subsystem": shown.subsystem, "name": shown.name}
            variables |= described(shown, sysfs)
            for variable, by in (("byId", "by-id"), ("byPath", "by-path")):
                if link := self._udev.by[by].get(f"/dev/{shown.file}"):
                    variables[variable] = link
            variables["syspath"] = path
        state = self._files.stat(f"/dev/{shown.file}") if shown and shown.file else None
        above = path or (owner.syspath if owner else "")
        parents = tuple(
            (posixpath.basename(one), sysfs.linked(f"{one}/subsystem") or "")
            for one in devices_above(above, sysfs)
        )
        permissions = FileOwners(self._files).of(state.realpath) if state is not None else None
        known = {name: value for name, value in variables.items() if value}
        return Described(shown, state, owner, known, parents, nodes, permissions)


def _names(nodes: Sequence[KernelNode]) -> str:
    return ", ".join(one.file or one.name for one in nodes) or "-"


def class_name(code: str) -> str:
    """Return the most precise name of a PCI class."""
    known = [(digits, name) for name, digits in PCI_CLASSES.items() if code.startswith(digits)]
    return max(known, key=lambda one: len(one[0]), default=("", code))[1]

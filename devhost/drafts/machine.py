"""The devices of a host, for people who write a configuration: as tables, and one in full."""

import posixpath
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

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
from devhost.sources.cdi_specs import list_vendor_devices
from devhost.sources.kernel import NET, PCI, USB
from devhost.sources.subsystems import (
    NodesLocation,
    NumbersLocation,
    SubsystemListing,
    SubsystemLocation,
)

DeviceRow = tuple[dict[str, Any], bool]  # a device by column, and whether only `--all` shows it

CDI: Final = "cdi"
OTHER_CLASS: Final = "other"
_SHOWN_CLASSES: Final = (PCI_CLASSES["display"], PCI_CLASSES["accelerator"])  # also without a node


@dataclass(frozen=True, slots=True)
class DescribedNode:
    """A device in full.

    Attributes:
        node: The node that was asked for, or that of the device; ``None`` where it has none.
        state: The file at its path below /dev.
        owner: The USB device or PCI function that it is, or is below.
        variables: The variables that a source gives for it.
        parents: The names and subsystems of the devices above it, from below upwards.
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
        """The device in a sentence."""
        owner, node = self.owner, self.node
        if owner is None:
            title = f"{self.variables.get('subsystem', '')} {node.name if node else ''}".strip()
        else:
            title = f"{owner.prefix[:3].upper()} {owner.name}: {describe(owner)}"
        nodes = self.nodes if owner is not None else filter(None, (node,))
        paths = ", ".join(node.path for node in nodes if node.path)
        return f"{title}. Now {paths}." if paths else f"{title}."


class Machine:
    """The devices of a host. All methods block, and raise `OSError` if it cannot be listed."""

    def __init__(self, files: HostFiles) -> None:
        self._files = files
        self._usb, self._pci = USB.list(files), PCI.list(files)
        self.usb_devices, self.pci_functions = self._usb.devices, self._pci.devices
        self._numbers = NumbersLocation().list(files)
        self.sysfs = self._numbers.sysfs  # reads more of what has a number
        self._net = NET.list(files)
        self._udev = NodesLocation(links=True).list(files)
        self.vendor_devices = [*list_vendor_devices(files)]

    @property
    def problem(self) -> str | None:
        """Why there is nothing, if /sys is not there."""
        return self._usb.missing if self._files.stat("/sys/devices") is None else None

    def subsystem(self, name: str) -> SubsystemListing:
        """Return the devices of a subsystem."""
        return SubsystemLocation(name).list(self._files)

    def rows(self, subsystem: str) -> Iterator[DeviceRow]:
        """Yield the devices of a subsystem, or of the `OTHER_CLASS`; some only for `--all`."""
        if subsystem == OTHER_CLASS:
            for other, is_hidden in self.other_nodes():
                row = {"node": other.path, "subsystem": other.subsystem, **self._columns(other)}
                yield row, is_hidden
        elif subsystem == CDI:
            for kind, device in self.vendor_devices:
                nodes = names.natural(device.nodes)
                yield {"cdi": kind, "device": device.names[0], "nodes": nodes}, False
        elif subsystem in ("usb", "pci"):
            yield from self._owner_rows(is_usb=subsystem == "usb")
        else:
            listing = self.subsystem(subsystem)
            for name, path in listing.members.items():
                node = KernelNode.of(subsystem, path, listing.sysfs)
                columns = self._columns(node) if node else {"driver": None, "place": None}
                yield {"name": name, "node": node and node.path, **columns}, False

    def _owner_rows(self, *, is_usb: bool) -> Iterator[DeviceRow]:
        for owner, nodes, is_hidden in self.bus_devices(is_usb=is_usb):
            facts = owner.facts
            row: dict[str, Any] = {"usb" if is_usb else "pci": owner.name}
            row["device"] = facts["device"]
            if is_usb:
                row |= {"name": _product(owner) or None, "serial": facts["serial"] or None}
            else:
                row |= {"class": class_name(facts["class"]), "driver": facts["driver"] or None}
                row["group"] = int(facts["group"]) if facts["group"].isdecimal() else None
            row["nodes"] = [node.path or node.name for node in nodes]
            yield row, is_hidden

    def bus_devices(self, *, is_usb: bool) -> Iterator[tuple[SysfsDevice, list[KernelNode], bool]]:
        """Yield USB devices or PCI functions, their nodes, and whether only `--all` shows them."""
        for owner in self.usb_devices if is_usb else self.pci_functions:
            nodes = self.nodes(owner.syspath)
            is_shown = is_usb or nodes or owner.facts["class"].startswith(_SHOWN_CLASSES)
            yield owner, nodes, owner.is_hub_or_bridge or not is_shown

    def other_nodes(self) -> Iterator[tuple[KernelNode, bool]]:
        """Yield the nodes of no USB device or PCI function, and whether only `--all` shows them."""
        paths = (path for path in self._numbers.members.values() if not self.sysfs.owner(path))
        nodes = filter(None, (_node(path, self.sysfs) for path in paths))
        for node in sorted(nodes, key=lambda node: (node.subsystem, names.natural_key(node.name))):
            is_for_programs = node.subsystem in PROGRAM_CLASSES
            if is_for_programs or not node.syspath.startswith("/sys/devices/virtual/"):
                is_port = node.subsystem == "tty" and self.sysfs.text(f"{node.syspath}/type") != "0"
                yield node, not (is_for_programs or is_port)

    def _columns(self, node: KernelNode) -> dict[str, str | None]:
        """Return the columns that the nodes of all subsystems have."""
        variables = node_variables(node, self.sysfs)
        return {name: variables.get(name) for name in ("driver", "place")}

    def nodes(self, owner: str) -> list[KernelNode]:
        """Return the nodes of a USB device or PCI function but its own, and its interfaces."""
        paths = (path for path in self._numbers.below(owner) if path != owner)
        nodes = [_node(path, self.sysfs) for path in paths]
        nodes += [_node(path, self._net.sysfs) for path in self._net.below(owner)]
        group = self._pci.sysfs.link_name(f"{owner}/iommu_group")
        driver = self._pci.sysfs.link_name(f"{owner}/driver")
        if group is not None and driver is not None and driver.startswith("vfio"):
            vfio = self.subsystem("vfio")
            nodes += [_node(path, vfio.sysfs) for path in (vfio.members.get(group),) if path]
        return sorted(
            filter(None, nodes), key=lambda node: names.natural_key(node.file or node.name)
        )

    def node(self, syspath: str) -> KernelNode | None:
        """Return the node of a directory in sysfs, if it has any."""
        return _node(syspath, self.sysfs)

    def bus_device(self, syspath: str) -> SysfsDevice | None:
        """Return the USB device or PCI function of a directory in sysfs."""
        devices = (*self.usb_devices, *self.pci_functions)
        return next((device for device in devices if device.syspath == syspath), None)

    def find(self, text: str) -> list[DescribedNode]:
        """Return the devices of a name.

        It names a node or a link to it, a USB device, a PCI address, or a device number.
        """
        number = text.lower()
        owners = [
            owner
            for owner in (*self.usb_devices, *self.pci_functions)
            if owner.name in (number, f"0000:{number}") or owner.facts["device"] == number
        ]
        if owners:
            return [self._described(None, owner) for owner in owners]
        state = self._files.stat(text if text.startswith("/") else f"/dev/{text}")
        if state is not None and state.number is not None:
            syspath = self.sysfs.device_by_number(state.kind.value, state.number)
            node = _node(syspath, self.sysfs) if syspath else None
            if node is not None:
                return [self._described(node, self._owner(node.syspath, self.sysfs))]
            # Some drivers, such as nvidia, make nodes of which sysfs does not know.
            file = state.realpath.removeprefix("/dev/")
            node = KernelNode(posixpath.basename(file), "", "", file, state.number)
            return [self._described(node, None)] if file != state.realpath else []
        for listing in (self._numbers, self._net):
            for path in listing.members.values():
                is_named = posixpath.basename(path) == text
                if is_named and (node := _node(path, listing.sysfs)) is not None:
                    return [self._described(node, self._owner(path, listing.sysfs))]
        return []

    def _owner(self, path: str, sysfs: SysfsTree) -> SysfsDevice | None:
        """Return the device that a node is of: also of an IOMMU group's, or a disk's head."""
        if (owner := owning_device(path, sysfs)) is not None:
            return self.bus_device(owner.syspath) or owner  # that has its interfaces, too
        functions = [function for function in self.pci_functions if not function.is_hub_or_bridge]
        if sysfs.link_name(f"{path}/subsystem") == "vfio":
            group = posixpath.basename(path).removeprefix("noiommu-")
            members = (function for function in functions if function.facts["group"] == group)
            return next(members, None)
        if path.startswith("/sys/devices/virtual/nvme-subsystem/"):
            block = self.subsystem("block")
            return next(
                (function for function in functions if path in block.below(function.syspath)), None
            )
        return None

    def _described(self, node: KernelNode | None, owner: SysfsDevice | None) -> DescribedNode:
        nodes = tuple(self.nodes(owner.syspath)) if owner is not None else ()
        variables = owner.variables if owner is not None else {}
        if node is None and owner is not None:
            node = _node(owner.syspath, self._usb.sysfs)
        if node is not None:
            variables |= {"subsystem": node.subsystem, "name": node.name}
            variables |= node_variables(node, self.sysfs)
            variables |= self._udev.udev.get(f"/dev/{node.file}", {})
        state = self._files.stat(f"/dev/{node.file}") if node and node.file else None
        device = node or owner
        parents = tuple(
            (posixpath.basename(path), self.sysfs.link_name(f"{path}/subsystem") or "")
            for path in ancestor_devices(device.syspath if device else "", self.sysfs)
        )
        variables = {name: value for name, value in variables.items() if value}
        return DescribedNode(node, state, owner, variables, parents, nodes)

    def owner_ids(self, state: FileState) -> tuple[int, int]:
        """Return the user and the group that own a node."""
        status = self._files.lstat(state.realpath)
        return status.st_uid, status.st_gid


def _node(path: str, sysfs: SysfsTree) -> KernelNode | None:
    """Return the node of a directory in sysfs, if it has any."""
    return KernelNode.of(sysfs.link_name(f"{path}/subsystem") or "", path, sysfs)


def _product(device: SysfsDevice) -> str:
    return " ".join(filter(None, map(device.facts.get, ("manufacturer", "product"))))


def describe(device: SysfsDevice) -> str:
    """Return what a USB device or PCI function is: its product or class, and its number."""
    kind = _product(device) or "device"
    if device.prefix == "pci.":
        kind = class_name(device.facts["class"])
    return f"{kind} ({device.facts['device']})"


def class_name(code: str) -> str:
    """Return the most precise name of a PCI class."""
    fits = {digits: name for name, digits in PCI_CLASSES.items() if code.startswith(digits)}
    return fits[max(fits, key=len)] if fits else code

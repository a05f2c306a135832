"""The devices of a host, for people who write a configuration: as tables, and one in full."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from devhost.hostfs.device_classes import PROGRAM_CLASSES
from devhost.hostfs.files import HostFiles, is_in_dev
from devhost.hostfs.kernel_devices import KernelNode, SysfsDevice, node_variables, owning_device
from devhost.hostfs.sysfs import Number, ancestor_devices
from devhost.model import names
from devhost.model.device_node import FileState
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


class Machine:
    """The devices of a host. All methods block, and raise `OSError` if it cannot be listed."""

    def __init__(self, files: HostFiles) -> None:
        self.files = files
        self._usb = USB.list(files)
        self.bus_devices = (*self._usb.devices, *PCI.list(files).devices)
        self._numbers = NumbersLocation().list(files)
        self.sysfs = self._numbers.sysfs  # reads more of what has a number
        self._net = NET.list(files)
        self._udev = NodesLocation(links=True).list(files)
        self.vendor_devices = [*list_vendor_devices(files)]

    @property
    def problem(self) -> str | None:
        """Why there is nothing, if /sys is not there."""
        return self._usb.missing if self.files.stat("/sys/devices") is None else None

    def subsystem(self, name: str) -> SubsystemListing:
        """Return the devices of a subsystem."""
        return SubsystemLocation(name).list(self.files)

    def rows(self, subsystem: str) -> Iterator[DeviceRow]:
        """Yield the devices of a subsystem, or of the `OTHER_CLASS`; some only for `--all`."""
        if subsystem == OTHER_CLASS:
            for kernel_node, is_left_out in self.other_nodes():
                row = {
                    "node": kernel_node.path,
                    "subsystem": kernel_node.subsystem,
                    **self._columns(kernel_node),
                }
                yield row, is_left_out
        elif subsystem == CDI:
            for kind, device in self.vendor_devices:
                nodes = names.natural(device.nodes)
                yield {"cdi": kind, "device": device.names[0], "nodes": nodes}, False
        elif subsystem in ("usb", "pci"):
            for owner in self.bus_devices:
                if owner.prefix == f"{subsystem}.":
                    yield self._bus_row(subsystem, owner)
        else:
            listing = self.subsystem(subsystem)
            for name, path in listing.members.items():
                node = KernelNode.of(subsystem, path, self.sysfs)
                yield {"name": name, "node": node and node.path, **self._columns(node)}, False

    def _bus_row(self, bus: str, owner: SysfsDevice) -> DeviceRow:
        facts, nodes = owner.facts, self.nodes(owner.syspath)
        row: dict[str, Any] = {bus: owner.name, "device": facts["device"]}
        if bus == "usb":
            row |= {"name": _product(owner) or None, "serial": facts["serial"] or None}
        else:
            row |= {"class": class_name(facts["class"]), "driver": facts["driver"] or None}
            row["group"] = int(facts["group"]) if facts["group"].isdecimal() else None
        row["nodes"] = [node.path or node.name for node in nodes]
        return row, is_hidden(owner, nodes)

    def other_nodes(self) -> Iterator[tuple[KernelNode, bool]]:
        """Yield the nodes of no USB device or PCI function, and whether only `--all` shows them."""
        paths = (path for path in self._numbers.members.values() if not self.sysfs.owner(path))
        nodes = filter(None, map(self.node, paths))
        for node in sorted(nodes, key=lambda node: (node.subsystem, names.natural_key(node.name))):
            is_for_programs = node.subsystem in PROGRAM_CLASSES
            if is_for_programs or not node.syspath.startswith("/sys/devices/virtual/"):
                is_port = node.subsystem == "tty" and self.sysfs.text(f"{node.syspath}/type") != "0"
                yield node, not (is_for_programs or is_port)

    def _columns(self, node: KernelNode | None) -> dict[str, str | None]:
        """Return the columns that the nodes of all subsystems have."""
        variables = node_variables(node, self.sysfs) if node is not None else {}
        return {name: variables.get(name) for name in ("driver", "place")}

    def nodes(self, owner: str) -> list[KernelNode]:
        """Return the nodes of a USB device or PCI function but its own, and its interfaces."""
        paths = [path for path in self._numbers.below(owner) if path != owner]
        paths += self._net.below(owner)
        group = self.sysfs.link_name(f"{owner}/iommu_group") or ""
        if (self.sysfs.link_name(f"{owner}/driver") or "").startswith("vfio"):
            members = self.subsystem("vfio").members
            paths += [members[group]] if group in members else []
        nodes = filter(None, map(self.node, paths))
        return sorted(nodes, key=lambda node: names.natural_key(node.file or node.name))

    def node(self, syspath: str) -> KernelNode | None:
        """Return the node of a directory in sysfs, if it has any."""
        subsystem = self.sysfs.link_name(f"{syspath}/subsystem") or ""
        return KernelNode.of(subsystem, syspath, self.sysfs)

    def bus_device(self, syspath: str) -> SysfsDevice | None:
        """Return the USB device or PCI function of a directory in sysfs."""
        devices = (device for device in self.bus_devices if device.syspath == syspath)
        return next(devices, None)

    def find(self, text: str) -> list[DescribedNode]:
        """Return the devices of a name.

        It names a node or a link to it, a USB device, a PCI address, or a device number.
        """
        number = text.lower()
        owners = [
            owner
            for owner in self.bus_devices
            if owner.name in (number, f"0000:{number}") or owner.facts["device"] == number
        ]
        if owners:
            return [self._described(None, owner) for owner in owners]
        members = (*self._numbers.members.values(), *self._net.members.values())
        path = next((path for path in members if posixpath.basename(path) == text), None)
        state = self.files.stat(text if text.startswith("/") else f"/dev/{text}")
        if state is not None and state.number is not None:
            path = self.sysfs.device_by_number(state.kind.value, state.number)
            if path is None and is_in_dev(state.realpath):
                return [self._described(file_node(state.realpath, state.number), None)]
        node = self.node(path) if path is not None else None
        return [self._described(node, self._owner(node.syspath))] if node is not None else []

    def _owner(self, path: str) -> SysfsDevice | None:
        """Return the device that a node is of: also of an IOMMU group's, or a disk's head."""
        if (owner := owning_device(path, self.sysfs)) is not None:
            return self.bus_device(owner.syspath) or owner  # that has its interfaces, too
        is_of_group = self.sysfs.link_name(f"{path}/subsystem") == "vfio"
        group = posixpath.basename(path).removeprefix("noiommu-")
        is_head = path.startswith("/sys/devices/virtual/nvme-subsystem/")
        block = self.subsystem("block") if is_head else None
        for device in self.bus_devices:
            is_member = is_of_group and device.facts.get("group") == group
            has_disk = block is not None and path in block.below(device.syspath)
            if (is_member or has_disk) and not device.is_hub_or_bridge:
                return device
        return None

    def _described(self, node: KernelNode | None, owner: SysfsDevice | None) -> DescribedNode:
        nodes = tuple(self.nodes(owner.syspath)) if owner is not None else ()
        variables = owner.variables if owner is not None else {}
        if node is None and owner is not None:
            node = self.node(owner.syspath)
        if node is not None:
            variables |= {"subsystem": node.subsystem, "name": node.name}
            variables |= node_variables(node, self.sysfs)
            variables |= self._udev.udev.get(f"/dev/{node.file}", {})
        state = self.files.stat(f"/dev/{node.file}") if node and node.file else None
        device = node or owner
        parents = tuple(
            (posixpath.basename(path), self.sysfs.link_name(f"{path}/subsystem") or "")
            for path in ancestor_devices(device.syspath if device else "", self.sysfs)
        )
        variables = {name: value for name, value in variables.items() if value}
        return DescribedNode(node, state, owner, variables, parents, nodes)

    def owner_ids(self, state: FileState) -> tuple[int, int]:
        """Return the user and the group that own a node."""
        status = self.files.lstat(state.realpath)
        return status.st_uid, status.st_gid


def _product(device: SysfsDevice) -> str:
    return " ".join(filter(None, map(device.facts.get, ("manufacturer", "product"))))


def file_node(path: str, number: Number | None) -> KernelNode:
    """Return a node below /dev of which sysfs does not know: some drivers, as nvidia, make such."""
    file = path.removeprefix("/dev/")
    return KernelNode(posixpath.basename(file), "", "", file, number)


def is_hidden(device: SysfsDevice, nodes: Sequence[KernelNode]) -> bool:
    """Whether only `--all` shows a USB device or PCI function, which has these nodes."""
    is_shown = device.prefix == "usb." or nodes or device.facts["class"].startswith(_SHOWN_CLASSES)
    return device.is_hub_or_bridge or not is_shown


def describe(device: SysfsDevice) -> str:
    """Return what a USB device or PCI function is: its product or class, and its number."""
    kind = _product(device) or "device"
    if device.prefix == "pci.":
        kind = class_name(device.facts["class"])
    return f"{kind} ({device.facts['device']})"


def title(owner: SysfsDevice | None, nodes: Iterable[KernelNode], name: str = "") -> str:
    """Return sentences on the nodes of a device: what it is, or its name, and where they are."""
    if owner is not None:
        name = f"{owner.prefix[:3].upper()} {owner.name}: {describe(owner)}"
    paths = ", ".join(node.path for node in nodes if node.path)
    return " ".join(filter(None, (name and f"{name}.", paths and f"Now {paths}.")))


def class_name(code: str) -> str:
    """Return the most precise name of a PCI class."""
    fits = {digits: name for name, digits in PCI_CLASSES.items() if code.startswith(digits)}
    return fits[max(fits, key=len)] if fits else code

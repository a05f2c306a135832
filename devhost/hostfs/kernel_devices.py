"""The devices of the kernel: those on a bus, with their facts, and the nodes of containers."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from devhost.hostfs.nvidia import NAME
from devhost.hostfs.sysfs import Number, SysfsTree, ancestor_devices, number_of

_USB_TEXTS: Final = ("manufacturer", "product", "serial")
HUBS_AND_BRIDGES: Final = {"usb.": "09", "pci.": "06"}  # the classes of hubs and bridges
_NO_FILE: Final = "net"  # its members have a name that containers can use, but no file


@dataclass(frozen=True, slots=True)
class SysfsDevice:
    """A device of the kernel.

    Attributes:
        facts: Values of a USB device, its interface or a PCI function by name; empty for no value.
        id: Its default ID; empty where the place in which it is plugged in is unknown.
        prefix: Of the names of its variables: ``usb.``, ``pci.`` or empty.
    """

    syspath: str
    sysfs: SysfsTree
    facts: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    prefix: str = ""
    interfaces: tuple["SysfsDevice", ...] = ()

    @property
    def name(self) -> str:
        """The kernel's name."""
        return posixpath.basename(self.syspath)

    @property
    def place(self) -> str:
        """The place in which it is plugged in; empty where that is unknown. Blocks."""
        return (self.sysfs.place(self.syspath) or "") if self.id else ""

    @property
    def is_hub_or_bridge(self) -> bool:
        """Whether it is a hub or a bridge."""
        return self.facts.get("class", "").startswith(HUBS_AND_BRIDGES.get(self.prefix, "-"))

    @property
    def variables(self) -> dict[str, str]:
        """The variables of templates that its facts are the values of."""
        return {f"{self.prefix}{name}": value for name, value in self.facts.items() if value}

    def fact(self, option: str) -> str:
        """Return the value for an option of a source; empty for no value. Blocks."""
        if option in self.facts:
            return self.facts[option]
        kind, _, name = option.partition(".")
        value: str | None = None
        match kind:
            case "name":
                value = self.name
            case "place":
                value = self.sysfs.place(self.syspath)
            case "driver":
                value = self.sysfs.driver(self.syspath)
            case "subsystem":
                value = self.sysfs.link_name(f"{self.syspath}/subsystem")
            case "attr":
                value = self.sysfs.attribute(self.syspath, name)
            case "uevent":
                value = self.sysfs.uevent(self.syspath).get(name)
        return value or ""


def bus_device(syspath: str, sysfs: SysfsTree) -> SysfsDevice | None:
    """Return the USB device, with its interfaces, or the PCI function in a directory. Blocks."""
    if sysfs.is_usb_device(syspath):
        return _usb_device(syspath, sysfs)
    return _pci_function(syspath, sysfs) if sysfs.is_pci_function(syspath) else None


def owning_device(syspath: str, sysfs: SysfsTree) -> SysfsDevice | None:
    """Return the USB device or PCI function that a device is, or is below. Blocks."""
    above = sysfs.owner(syspath)
    return bus_device(above, sysfs) if above is not None else None


def _usb_device(syspath: str, sysfs: SysfsTree) -> SysfsDevice:
    above, name = posixpath.split(syspath)
    is_present = sysfs.link_name(f"{syspath}/subsystem") == "usb"  # else it is being removed
    port = (sysfs.place(syspath) or "") if is_present else ""
    facts = {
        "device": sysfs.codes(syspath, "idVendor", "idProduct", by=":"),
        **{file: sysfs.text(f"{syspath}/{file}") or "" for file in _USB_TEXTS},
        "port": port,
        "class": sysfs.codes(syspath, "bDeviceClass", "bDeviceSubClass", "bDeviceProtocol"),
        "busnum": sysfs.text(f"{syspath}/busnum") or "",
        "devnum": sysfs.text(f"{syspath}/devnum") or "",
        "hub": (sysfs.place(above) or "") if sysfs.is_usb_device(above) else "",
        "name": name,
    }
    paths = (f"{syspath}/{part}" for part in sysfs.names(syspath) if ":" in part)
    interfaces = filter(None, (_interface(path, sysfs) for path in paths))
    ordered = sorted(interfaces, key=lambda interface: int(interface.facts["interface"]))
    return SysfsDevice(syspath, sysfs, facts, port, "usb.", tuple(ordered))


def _interface(syspath: str, sysfs: SysfsTree) -> SysfsDevice | None:
    parts = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
    try:
        number = int(sysfs.text(f"{syspath}/bInterfaceNumber") or "", 16)
    except ValueError:
        return None
    facts = {
        "class": sysfs.codes(syspath, *parts),
        "interface": str(number),
        "driver": sysfs.link_name(f"{syspath}/driver") or "",
    }
    return SysfsDevice(syspath, sysfs, facts)


def _pci_function(syspath: str, sysfs: SysfsTree) -> SysfsDevice:
    address = posixpath.basename(syspath)
    physical, link, count = sysfs.link(f"{syspath}/physfn"), None, 0
    while physical and (link := sysfs.link(f"{physical}/virtfn{count}")) not in (None, syspath):
        count += 1
    facts = {
        "device": sysfs.codes(syspath, "vendor", "device", by=":"),
        "subsystem": sysfs.codes(syspath, "subsystem_vendor", "subsystem_device", by=":"),
        "class": sysfs.codes(syspath, "class"),
        "driver": sysfs.link_name(f"{syspath}/driver") or "",
        "address": address,
        "group": sysfs.link_name(f"{syspath}/iommu_group") or "",
        "pf": sysfs.link_name(f"{syspath}/physfn") or "",
        "vf": str(count) if link else "",
        "uuid": "",
        "model": "",
        **sysfs.nvidia.facts.get(syspath, {}),
    }
    return SysfsDevice(syspath, sysfs, facts, address, "pci.")


@dataclass(frozen=True, slots=True)
class KernelNode:
    """A device of the kernel that a container can be given: `file` is its path below /dev."""

    name: str
    subsystem: str
    syspath: str
    file: str | None = None
    number: Number | None = None

    @property
    def path(self) -> str | None:
        """Its path on the host; ``None`` if it has no file."""
        return f"/dev/{self.file}" if self.file else None

    @classmethod
    def of(cls, subsystem: str, syspath: str, sysfs: SysfsTree) -> "KernelNode | None":
        """Return the node of a directory in sysfs; ``None`` where it has none. Blocks."""
        name, number = posixpath.basename(syspath), number_of(sysfs.text(f"{syspath}/dev"))
        if number is None:  # whatever its uevent says: a device chooses some of that
            return cls(name, subsystem, syspath) if subsystem == _NO_FILE else None
        file = sysfs.uevent(syspath).get("DEVNAME", "")
        usable = {"", ".", ".."}.isdisjoint(file.split("/"))
        return cls(name, subsystem, syspath, file, number) if usable else None


def node_variables(node: KernelNode, sysfs: SysfsTree) -> dict[str, str]:
    """Return the variables of a node in sysfs, and of what it is below; none without value. Blocks.

    What it is below is the USB device or PCI function that it is part of.
    """
    owner = owning_device(node.syspath, sysfs)
    variables = {
        **(owner.variables if owner is not None else {}),
        "subsystem": node.subsystem,
        "place": sysfs.place(node.syspath),
        "parent": posixpath.basename(next(ancestor_devices(node.syspath, sysfs), "")),
        "driver": sysfs.driver(node.syspath),
        "syspath": node.syspath.removesuffix(f"/{NAME}/{node.name}"),  # what sysfs really has
    }
    path = sysfs.interface(node.syspath)
    if path is not None and (interface := _interface(path, sysfs)) is not None:
        variables["usb.interface"] = interface.facts["interface"]
    return {name: value for name, value in variables.items() if value}

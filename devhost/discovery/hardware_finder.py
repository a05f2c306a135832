"""The sources ``usb``, ``pci`` and ``sysfs``: devices that the kernel knows, and their nodes."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from devhost.discovery.hardware import (
    NET,
    PCI,
    USB,
    KernelNode,
    SysfsDevice,
    differs,
    given,
    member,
    member_differs,
    members,
    pci_function,
    pci_functions,
    selected,
    usb_devices,
)
from devhost.discovery.kernel_nodes import Nodes, Selected, nodes_root, roots_of
from devhost.discovery.match import Match, Missed, Readings
from devhost.discovery.roots import Root
from devhost.discovery.sysfs import EventsRoot, SubsystemReading, SubsystemRoot
from devhost.immutable import immutable
from devhost.model.device import Skipped
from devhost.model.hardware import VFIO_NODE, NodeChoice, Pci, Sysfs, Usb

_SHOWN_MAX: Final = 3
_UNUSED: Final = "pci-stub"
_VFIO: Final = SubsystemRoot("vfio")


@immutable
class BusFinder:
    """Finds USB devices or PCI functions, and their nodes.

    Attributes:
        options: Which ones.
        mentioned: The variables that templates mention.
    """

    options: Usb | Pci
    mentioned: frozenset[str] = frozenset()

    @property
    def roots(self) -> tuple[Root, ...]:
        """Return the bus, the subsystems of the nodes, and /dev."""
        selectors = (self.options, *self.options.exclude)
        net = (NET,) if any("pf" in given(one) for one in selectors) else ()
        bus = USB if isinstance(self.options, Usb) else PCI
        return tuple(dict.fromkeys((bus, *net, *roots_of(self.options.nodes, self.mentioned))))

    def find(self, readings: Readings) -> Iterator[Match | Skipped]:
        """Yield the nodes of each device, or IOMMU group, that matches."""
        options, bus = self.options, members(readings, self.roots[0])
        nodes = Nodes(options.nodes, self.mentioned, readings, split=options.split)
        excluded = [given(one) for one in options.exclude]
        groups: set[str] = set()
        for device, differ in self._compared(readings):
            if differ:
                continue
            if not all(differs(device, one, _interfaces(device, readings)) for one in excluded):
                yield Skipped(device.name, "excluded")
            elif options.nodes[0].subsystem == VFIO_NODE:
                group = device.facts["group"]
                if not group:
                    yield Skipped(device.name, "has no IOMMU group: the IOMMU is off")
                elif group not in groups:
                    groups.add(group)
                    yield _group(device, nodes, bus, members(readings, _VFIO))
            else:
                yield from nodes.of(self._selected(device))

    def missed(self, readings: Readings) -> Iterator[Missed]:
        """Yield the other devices."""
        some = self._compared(readings)
        return (Missed(device.name, differ) for device, differ in some if differ)

    def _compared(self, readings: Readings) -> Iterator[tuple[SysfsDevice, dict[str, str]]]:
        """Yield all devices, and how they differ from the options; hubs only if asked for."""
        is_usb, wanted = isinstance(self.options, Usb), given(self.options)
        devices = members(readings, self.roots[0]).once(usb_devices if is_usb else pci_functions)
        between = any(one.startswith("09" if is_usb else "06") for one in wanted.get("class", ()))
        for device in devices:
            if between or not device.is_between:
                yield device, differs(device, wanted, _interfaces(device, readings))

    def _selected(self, device: SysfsDevice) -> Selected:
        wanted = given(self.options)
        # Its own class selects it as a whole, unless some of its interfaces are of that class.
        some = selected(device, wanted)
        by_interface = isinstance(self.options, Usb) and self.options.by_interface
        return Selected(device, some if some and by_interface else None)


def _interfaces(device: SysfsDevice, readings: Readings) -> Iterable[str]:
    """Return the network interfaces of a virtual function's physical one, if that is read."""
    if NET not in readings or not device.facts.get("pf"):
        return ()
    net = members(readings, NET)
    physical = net.sysfs.link(f"{device.syspath}/physfn") or ""
    return [name for name, _ in net.below(physical)]


def _group(
    function: SysfsDevice, nodes: Nodes, bus: SubsystemReading, vfio: SubsystemReading
) -> Match | Skipped:
    """Return the node of an IOMMU group, or why it is not offered.

    Userspace gets a group only if no function of it is used by the kernel (Linux's
    Documentation/driver-api/vfio.rst).
    """
    group, driver = function.facts["group"], function.facts["driver"]
    for syspath in bus.members.values():
        if bus.sysfs.linked(f"{syspath}/iommu_group") != group:
            continue
        other = pci_function(syspath, bus.sysfs)
        used = other.facts["driver"]
        if not other.is_between and used not in ("", _UNUSED) and not used.startswith("vfio"):
            reason = f"group {group} holds {other.name} (driver {used})"
            return Skipped(function.name, f"{reason}: bind all of it to vfio-pci")
    for name in (group, f"noiommu-{group}"):
        syspath = vfio.members.get(name, "")
        if (node := KernelNode.of(VFIO_NODE, syspath, vfio.sysfs)) is not None:
            whole = replace(function, unit=f"/sys/kernel/iommu_groups/{group}")
            return nodes.match(Selected(whole), node)
    if driver.startswith("vfio"):
        reason = f"bound to {driver}, but the kernel has no node of group {group}"
        return Skipped(function.name, reason)
    return Skipped(function.name, "not bound to vfio-pci")


@immutable
class SubsystemFinder:
    """Finds the devices of a subsystem.

    Attributes:
        options: Which ones.
        mentioned: The variables that templates mention.
    """

    options: Sysfs
    mentioned: frozenset[str] = frozenset()

    @property
    def roots(self) -> tuple[Root, ...]:
        """Return the subsystem and /dev, and what may change above its devices."""
        own = (SubsystemRoot(self.options.subsystem), nodes_root(self.mentioned))
        selectors = (self.options, *self.options.exclude)
        above = frozenset(
            name
            for selector in selectors
            for parent in selector.parent
            for name in parent.subsystem or ()
        )
        return (*own, *((EventsRoot(above),) if above else ()))

    def find(self, readings: Readings) -> Iterator[Match | Skipped]:
        """Yield each device that matches."""
        options, reading = self.options, members(readings, self.roots[0])
        sysfs, subsystem = reading.sysfs, options.subsystem
        nodes = Nodes((NodeChoice(subsystem=subsystem),), self.mentioned, readings)
        attributes = [name for name in self.mentioned if name.startswith("attr.")]
        without: list[str] = []
        for name, syspath in reading.members.items():
            if member_differs(syspath, options, sysfs):
                continue
            if not all(member_differs(syspath, one, sysfs) for one in options.exclude):
                yield Skipped(name, "excluded")
            elif (node := KernelNode.of(subsystem, syspath, sysfs)) is None:
                without.append(name)
            else:
                yield nodes.match(Selected(member(syspath, sysfs, attributes)), node)
        if without:  # of input and sound, most devices; a line of each would hide the others
            *shown, last = without[:_SHOWN_MAX]
            more = len(without) - _SHOWN_MAX
            names = f"{', '.join(shown)} and {last}" if shown else last
            what = f"{', '.join((*shown, last))} and {more} more" if more > 0 else names
            verb = "has" if len(without) == 1 else "have"
            yield Skipped(subsystem, f"{what} {verb} no node below /dev")

    def missed(self, readings: Readings) -> Iterator[Missed]:
        """Yield the other devices."""
        reading = members(readings, self.roots[0])
        for name, syspath in reading.members.items():
            if found := member_differs(syspath, self.options, reading.sysfs):
                yield Missed(name, found)

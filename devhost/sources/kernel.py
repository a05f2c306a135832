"""The sources ``usb``, ``pci`` and ``sysfs``: devices that the kernel knows, and their nodes."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from devhost.hostfs.kernel_devices import (
    HUBS_AND_BRIDGES,
    KernelNode,
    SysfsDevice,
    node_variables,
)
from devhost.model import names
from devhost.model.device import Cause, Skipped
from devhost.model.device_node import LINK_VARIABLES, Hardware
from devhost.model.hardware_sources import (
    NO_NODE,
    USB_NODE,
    VFIO_NODE,
    NodeChoice,
    Pci,
    Sysfs,
    Usb,
)
from devhost.sources.base import Candidate, Listings, Location, NodeSource, Unmatched
from devhost.sources.matcher import NO_INTERFACES, ByOption, Matcher
from devhost.sources.subsystems import (
    NodesLocation,
    NumbersLocation,
    SubsystemLocation,
)

USB: Final = SubsystemLocation("usb")
PCI: Final = SubsystemLocation("pci")
NET: Final = SubsystemLocation("net")
_VFIO: Final = SubsystemLocation("vfio")
_NUMBERS: Final = NumbersLocation()
_UNUSED: Final = "pci-stub"


class KernelSource(NodeSource):
    """Finds USB devices, PCI functions or the devices of a subsystem, and their nodes.

    Some variables are read only if templates have `mentioned` them.
    """

    def __init__(self, options: Usb | Pci | Sysfs, mentioned: frozenset[str]) -> None:
        self._matcher, *self._excluded = map(Matcher.of_device, (options, *options.exclude))
        self._links = {name.rpartition(".")[2] for name in mentioned} & LINK_VARIABLES.keys()
        self._nodes = NodesLocation(links=bool(self._links))
        self._attributes: tuple[str, ...] = ()
        self._splits = False  # each node is a device of its own
        choices: tuple[NodeChoice, ...]
        if isinstance(options, Sysfs):
            selectors = (options, *options.exclude)
            parents = (parent for selector in selectors for parent in selector.parent)
            above = frozenset(name for parent in parents for name in parent.subsystem or ())
            self._main = SubsystemLocation(options.subsystem, above)
            self._attributes = tuple(name for name in mentioned if name.startswith("attr."))
            choices = (NodeChoice(subsystem=options.node or options.subsystem),)
        else:
            self._main = USB if isinstance(options, Usb) else PCI
            self._splits, choices = options.split, options.node
        # Devices of a bus have nodes of other subsystems.
        self._is_bus = not isinstance(options, Sysfs)
        self._choices = [(choice, Matcher.of_device(choice)) for choice in choices]
        self._subsystems = [choice.subsystem for choice in choices]
        locations: list[Location] = [self._main, self._nodes]
        if self._is_bus:
            chosen = (name for name in self._subsystems if name not in (USB_NODE, NO_NODE))
            locations += map(SubsystemLocation, chosen)
        locations += [_NUMBERS] if USB_NODE in self._subsystems else []
        matchers = (self._matcher, *self._excluded)
        locations += [NET] if any("pf" in matcher.options for matcher in matchers) else []
        self.locations = tuple(dict.fromkeys(locations))
        classes = (self._matcher.options | self._matcher.of_interface).get("class", ())
        self._finds_hubs_or_bridges = any(
            text.startswith(tuple(HUBS_AND_BRIDGES.values())) for text in classes
        )

    def find(self, listings: Listings, _previous: object) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of each device, or IOMMU group, that matches."""
        groups = set[str]()
        for device, mismatches in self._compared(listings):
            if mismatches:
                continue
            if not all(_mismatches(device, matcher, listings) for matcher in self._excluded):
                yield Skipped.because(Cause.EXCLUDED, device.name, "excluded")
            elif VFIO_NODE not in self._subsystems:
                yield from self._nodes_of(device, listings)
            elif not (group := device.facts["group"]):
                text = "has no IOMMU group: the IOMMU is off"
                yield Skipped.because(Cause.INCOMPLETE, device.name, text)
            elif group not in groups:
                groups.add(group)
                yield self._group(device, group, listings)

    def unmatched(self, listings: Listings) -> Iterator[Unmatched]:
        """Yield the other devices."""
        for device, mismatches in self._compared(listings):
            if mismatches:
                yield Unmatched(device.name, mismatches)

    def _compared(self, listings: Listings) -> Iterator[tuple[SysfsDevice, Mapping[str, str]]]:
        """Yield all devices with their mismatches; hubs and bridges only if asked for."""
        listing, choice = listings[self._main], self._choices[0]
        devices = listing.devices
        if not self._is_bus:
            members = listing.members.items()
            devices = [SysfsDevice(path, listing.sysfs, id=name) for name, path in members]
        for device in devices:
            if device.is_hub_or_bridge and not self._finds_hubs_or_bridges:
                continue
            mismatches = _mismatches(device, self._matcher, listings)
            if not (mismatches or self._is_bus or any(self._chosen(*choice, device, listings))):
                mismatches = {"": "it has no node below /dev; `node: none` offers it without"}
            yield device, mismatches

    def _group(self, function: SysfsDevice, group: str, listings: Listings) -> Candidate | Skipped:
        """Return the node of an IOMMU group, or why it is not offered.

        Userspace gets a group only if no function of it is used by the kernel (Linux's
        Documentation/driver-api/vfio.rst).
        """
        for member in listings[PCI].devices:
            driver = member.facts["driver"]
            is_free = member.is_hub_or_bridge or driver in ("", _UNUSED)
            if member.facts["group"] == group and not (is_free or driver.startswith("vfio")):
                reason = f"group {group} holds {member.name} (driver {driver})"
                text = f"{reason}: bind all of it to vfio-pci"
                return Skipped.because(Cause.IN_USE, function.name, text)
        vfio = listings[_VFIO]
        for name in (group, f"noiommu-{group}"):
            node = KernelNode.of(VFIO_NODE, vfio.members.get(name, ""), vfio.sysfs)
            if node is not None:
                return self._candidate(function, node, function.id, listings)
        reason, driver = "not bound to vfio-pci", function.facts["driver"]
        if driver.startswith("vfio"):
            reason = f"bound to {driver}, but the kernel has no node of group {group}"
        return Skipped.because(Cause.INCOMPLETE, function.name, reason)

    def _nodes_of(self, device: SysfsDevice, listings: Listings) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of a device, or why it is not offered."""
        nodes: dict[KernelNode, None] = {}
        absent: list[NodeChoice] = []
        for choice, matcher in self._choices:
            chosen = dict.fromkeys(self._chosen(choice, matcher, device, listings))
            nodes |= chosen
            absent += [] if chosen or choice.optional else [choice]
        missing = None
        if absent:
            subsystems = " and no ".join(choice.subsystem for choice in absent)
            missing = f"no {subsystems} node: {self._explain_no_node(absent[0], device, listings)}"
        if missing and not nodes:
            yield Skipped.because(Cause.INCOMPLETE, device.name, missing)
        ids = self._ids(device, list(nodes))
        for node in nodes:
            incomplete = f"incomplete: {missing}" if missing else None
            yield self._candidate(device, node, ids[node], listings, incomplete)

    def _chosen(
        self, choice: NodeChoice, matcher: Matcher, device: SysfsDevice, listings: Listings
    ) -> Iterator[KernelNode]:
        """Yield the nodes of a device that one choice names."""
        subsystem, sysfs = choice.subsystem, device.sysfs
        if subsystem == NO_NODE:
            subsystem = sysfs.link_name(f"{device.syspath}/subsystem") or ""
            yield KernelNode(device.name, subsystem, device.syspath)
            return
        paths: Iterable[str] = (device.syspath,)
        if self._is_bus and subsystem != USB_NODE:
            listing = listings[SubsystemLocation(subsystem)]
            sysfs, paths = listing.sysfs, listing.below(device.syspath)
            interfaces = {part.syspath for part in self._matcher.interfaces(device)}
            if interfaces:
                paths = (path for path in paths if sysfs.interface(path) in interfaces)
        for path in paths:
            if not matcher.mismatches(SysfsDevice(path, sysfs)):
                node = KernelNode.of(subsystem, path, sysfs)
                if node is not None:
                    yield node

    def _explain_no_node(self, choice: NodeChoice, device: SysfsDevice, listings: Listings) -> str:
        """Return what a device has instead: other nodes of the subsystem, or its drivers."""
        if device.prefix == "usb." and not device.interfaces:
            return NO_INTERFACES
        if nodes := [node.name for node in self._chosen(choice, Matcher({}), device, listings)]:
            return f"there is {', '.join(nodes)}"
        parts = self._matcher.interfaces(device) or device.interfaces or (device,)
        drivers = dict.fromkeys(filter(None, (part.facts.get("driver") for part in parts)))
        return f"bound to {', '.join(drivers)}" if drivers else "no driver is bound to it"

    def _ids(self, device: SysfsDevice, nodes: Sequence[KernelNode]) -> Mapping[KernelNode, str]:
        """Return the default device ID that each node gives."""
        if not self._splits or not device.id:
            return dict.fromkeys(nodes, device.id)
        places: dict[str, list[KernelNode]] = {}
        for node in nodes:
            place = device.sysfs.place(node.syspath)
            if place is None or place == device.place:
                place = device.id
            places.setdefault(place, []).append(node)
        ids: dict[KernelNode, str] = {}
        for place, neighbours in places.items():
            neighbours.sort(key=lambda node: names.natural_key(node.name))
            is_alone = len(neighbours) == 1 and place != device.id
            for count, node in enumerate(neighbours):
                ids[node] = place if is_alone else f"{place}-{count}"
        return ids

    def _candidate(
        self,
        device: SysfsDevice,
        node: KernelNode,
        device_id: str,
        listings: Listings,
        incomplete: str | None = None,
    ) -> Candidate:
        """Return a node of a device as a candidate."""
        path, listing = node.path or "", listings[self._nodes]
        links = listing.udev.get(path, {})
        variables = {
            "name": node.name,
            "place": device.place,
            **node_variables(node, device.sysfs),
            **device.variables,
            **{name: device.fact(name) for name in self._attributes},
            **links,
        }
        # Several interfaces get their nodes one after the other.
        parts = self._matcher.interfaces(device) or device.interfaces
        grows = len(parts) > 1 and not self._splits and node.subsystem != USB_NODE
        is_device = self._splits or node.subsystem == VFIO_NODE  # a group has one node
        entity = place = node.syspath
        if node.file is None:
            entity, place = device.sysfs.identity(node.syspath)
        return Candidate(
            path,
            device_id,
            {name: value for name, value in variables.items() if value},
            listing=listing if path else None,
            hardware=Hardware(
                unit=node.syspath if is_device else device.syspath,
                label=device.name,
                syspath=node.syspath,
                place=place,
                entity=entity,
                number=node.number,
                role=None if NO_NODE in self._subsystems else node.subsystem,
                numa=device.syspath,
                excludes=self._excludes(device, node, listings),
                incomplete=incomplete,
                grows=grows or bool(path and self._links - links.keys()),
            ),
        )

    def _excludes(
        self, device: SysfsDevice, node: KernelNode, listings: Listings
    ) -> frozenset[str]:
        """Return the nodes of a device if this is its own: libusb detaches drivers."""
        if node.subsystem != USB_NODE or NO_NODE in self._subsystems:
            return frozenset()
        numbers = listings[_NUMBERS]
        paths = (path for path in numbers.below(device.syspath) if path != device.syspath)
        files = (numbers.sysfs.uevent(path).get("DEVNAME") for path in paths)
        return frozenset(f"/dev/{file}" for file in files if file)


def _mismatches(device: SysfsDevice, matcher: Matcher, listings: Listings) -> Mapping[str, str]:
    aliases: ByOption = {"port": [device.name]}
    if NET in listings and device.facts.get("pf"):  # interfaces of the physical function
        physical = device.sysfs.link(f"{device.syspath}/physfn") or ""
        interfaces = listings[NET].below(physical)
        aliases["pf"] = [posixpath.basename(path) for path in interfaces]
    return matcher.mismatches(device, aliases)

"""The sources ``usb``, ``pci`` and ``sysfs``: devices that the kernel knows, and their nodes."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from devhost.hostfs.sysfs import (
    HUBS_AND_BRIDGES,
    KernelNode,
    SysfsDevice,
    node_variables,
    owning_device,
)
from devhost.model import names
from devhost.model.device import LINK_VARIABLES, Cause, Hardware, Skipped
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
    NodesListing,
    NodesLocation,
    NumbersLocation,
    SubsystemListing,
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

    Attributes:
        main: The bus or subsystem; the other locations are /dev (`nodes`) and the subsystems of
            the nodes.
        is_bus: Whether it selects the devices of a bus, which have nodes of other subsystems.
        splits: Whether each node is a device of its own.
    """

    def __init__(self, options: Usb | Pci | Sysfs, mentioned: frozenset[str]) -> None:
        matchers = [*map(Matcher.of_device, (options, *options.exclude))]
        self.matcher, self.excluded = matchers[0], matchers[1:]
        self.links = {name.rpartition(".")[2] for name in mentioned} & LINK_VARIABLES.keys()
        self.nodes = NodesLocation(links=bool(self.links))
        self.attributes: tuple[str, ...] = ()
        self.splits, self.is_bus = False, not isinstance(options, Sysfs)
        choices: tuple[NodeChoice, ...]
        if isinstance(options, Sysfs):
            selectors = (options, *options.exclude)
            parents = (parent for selector in selectors for parent in selector.parent)
            above = frozenset(name for parent in parents for name in parent.subsystem or ())
            self.main = SubsystemLocation(options.subsystem, above)
            self.attributes = tuple(name for name in mentioned if name.startswith("attr."))
            choices = (NodeChoice(subsystem=options.node or options.subsystem),)
        else:
            self.main = USB if isinstance(options, Usb) else PCI
            self.splits, choices = options.split, options.node
        self.choices = [(choice, Matcher.of_device(choice)) for choice in choices]
        locations: list[Location] = [self.main, self.nodes]
        if self.is_bus:
            chosen = (name for name in self.subsystems if name not in (USB_NODE, NO_NODE))
            locations += map(SubsystemLocation, chosen)
        locations += [_NUMBERS] if USB_NODE in self.subsystems else []
        locations += [NET] if any("pf" in matcher.globs for matcher in matchers) else []
        self.locations = tuple(dict.fromkeys(locations))

    @property
    def subsystems(self) -> list[str]:
        """The subsystems of the nodes."""
        return [choice.subsystem for choice, _ in self.choices]

    @property
    def finds_hubs_or_bridges(self) -> bool:
        """Whether its options ask for hubs or bridges, which are left out otherwise."""
        classes = (self.matcher.globs | self.matcher.of_interface).get("class", ())
        return any(glob.startswith(tuple(HUBS_AND_BRIDGES.values())) for glob in classes)

    def find(self, listings: Listings, _previous: object) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of each device, or IOMMU group, that matches."""
        return _Search(self, listings).candidates()

    def unmatched(self, listings: Listings) -> Iterator[Unmatched]:
        """Yield the other devices."""
        for device, mismatches in _Search(self, listings).compared():
            if mismatches:
                yield Unmatched(device.name, mismatches)


class _Search:
    """One search of a source in its listings. All methods block."""

    def __init__(self, source: KernelSource, listings: Listings) -> None:
        self._source, self._listings = source, listings

    def _members(self, location: Location) -> SubsystemListing:
        listing = self._listings[location]
        assert isinstance(listing, SubsystemListing), "of that location"  # noqa: S101
        return listing

    def compared(self) -> Iterator[tuple[SysfsDevice, Mapping[str, str]]]:
        """Yield all devices with their mismatches; hubs and bridges only if asked for."""
        source, listing = self._source, self._members(self._source.main)
        devices, choice = listing.devices, source.choices[0]
        if not source.is_bus:
            members = listing.members.items()
            devices = [SysfsDevice(path, listing.sysfs, id=name) for name, path in members]
        finds_hubs_or_bridges = source.finds_hubs_or_bridges
        for device in devices:
            if device.is_hub_or_bridge and not finds_hubs_or_bridges:
                continue
            mismatches = self._mismatches(device, source.matcher)
            if not (mismatches or source.is_bus or any(self._chosen(*choice, device))):
                mismatches = {"": "it has no node below /dev; `node: none` offers it without"}
            yield device, mismatches

    def _mismatches(self, device: SysfsDevice, matcher: Matcher) -> Mapping[str, str]:
        aliases: ByOption = {"port": [device.name]}
        if NET in self._listings and device.facts.get("pf"):  # interfaces of the physical function
            physical = device.sysfs.link(f"{device.syspath}/physfn") or ""
            aliases["pf"] = [
                posixpath.basename(path) for path in self._members(NET).below(physical)
            ]
        return matcher.mismatches(device, aliases)

    def candidates(self) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of each device, or IOMMU group, that matches."""
        source, groups = self._source, set[str]()
        for device, mismatches in self.compared():
            if mismatches:
                continue
            if not all(self._mismatches(device, matcher) for matcher in source.excluded):
                yield Skipped.because(Cause.EXCLUDED, device.name, "excluded")
            elif VFIO_NODE not in source.subsystems:
                yield from self._nodes_of(device)
            elif not (group := device.facts["group"]):
                text = "has no IOMMU group: the IOMMU is off"
                yield Skipped.because(Cause.INCOMPLETE, device.name, text)
            elif group not in groups:
                groups.add(group)
                yield self._group(device, group)

    def _group(self, function: SysfsDevice, group: str) -> Candidate | Skipped:
        """Return the node of an IOMMU group, or why it is not offered.

        Userspace gets a group only if no function of it is used by the kernel (Linux's
        Documentation/driver-api/vfio.rst).
        """
        for member in self._members(PCI).devices:
            driver = member.facts["driver"]
            is_free = member.is_hub_or_bridge or driver in ("", _UNUSED)
            if member.facts["group"] == group and not (is_free or driver.startswith("vfio")):
                reason = f"group {group} holds {member.name} (driver {driver})"
                text = f"{reason}: bind all of it to vfio-pci"
                return Skipped.because(Cause.IN_USE, function.name, text)
        vfio = self._members(_VFIO)
        for name in (group, f"noiommu-{group}"):
            node = KernelNode.of(VFIO_NODE, vfio.members.get(name, ""), vfio.sysfs)
            if node is not None:
                return self._candidate(function, node, function.id)
        reason, driver = "not bound to vfio-pci", function.facts["driver"]
        if driver.startswith("vfio"):
            reason = f"bound to {driver}, but the kernel has no node of group {group}"
        return Skipped.because(Cause.INCOMPLETE, function.name, reason)

    def _nodes_of(self, device: SysfsDevice) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of a device, or why it is not offered."""
        nodes: dict[KernelNode, None] = {}
        absent: list[NodeChoice] = []
        for choice, matcher in self._source.choices:
            chosen = dict.fromkeys(self._chosen(choice, matcher, device))
            nodes |= chosen
            absent += [] if chosen or choice.optional else [choice]
        missing = None
        if absent:
            subsystems = " and no ".join(choice.subsystem for choice in absent)
            missing = f"no {subsystems} node: {self._explain_no_node(absent[0], device)}"
        if missing and not nodes:
            yield Skipped.because(Cause.INCOMPLETE, device.name, missing)
        ids = self._ids(device, list(nodes))
        for node in nodes:
            incomplete = f"incomplete: {missing}" if missing else None
            yield self._candidate(device, node, ids[node], incomplete)

    def _chosen(
        self, choice: NodeChoice, matcher: Matcher, device: SysfsDevice
    ) -> Iterator[KernelNode]:
        """Yield the nodes of a device that one choice names."""
        subsystem, sysfs = choice.subsystem, device.sysfs
        if subsystem == NO_NODE:
            subsystem = sysfs.link_name(f"{device.syspath}/subsystem") or ""
            yield KernelNode(device.name, subsystem, device.syspath)
            return
        paths: Iterable[str] = (device.syspath,)
        if self._source.is_bus and subsystem != USB_NODE:
            listing = self._members(SubsystemLocation(subsystem))
            sysfs, paths = listing.sysfs, listing.below(device.syspath)
            interfaces = {part.syspath for part in self._source.matcher.interfaces(device)}
            if interfaces:
                paths = (path for path in paths if sysfs.interface(path) in interfaces)
        for path in paths:
            if not matcher.mismatches(SysfsDevice(path, sysfs)):
                node = KernelNode.of(subsystem, path, sysfs)
                if node is not None:
                    yield node

    def _explain_no_node(self, choice: NodeChoice, device: SysfsDevice) -> str:
        """Return what a device has instead: other nodes of the subsystem, or its drivers."""
        if device.prefix == "usb." and not device.interfaces:
            return NO_INTERFACES
        if nodes := [node.name for node in self._chosen(choice, Matcher({}), device)]:
            return f"there is {', '.join(nodes)}"
        parts = self._source.matcher.interfaces(device) or device.interfaces or (device,)
        drivers = dict.fromkeys(filter(None, (part.facts.get("driver") for part in parts)))
        return f"bound to {', '.join(drivers)}" if drivers else "no driver is bound to it"

    def _ids(self, device: SysfsDevice, nodes: Sequence[KernelNode]) -> Mapping[KernelNode, str]:
        """Return the default device ID that each node gives."""
        if not self._source.splits or not device.id:
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
        self, device: SysfsDevice, node: KernelNode, device_id: str, incomplete: str | None = None
    ) -> Candidate:
        """Return a node of a device as a candidate."""
        source, path = self._source, node.path or ""
        listing = self._listings[source.nodes]
        assert isinstance(listing, NodesListing), "of that location"  # noqa: S101
        links = listing.udev.get(path, {})
        owner = owning_device(node.syspath, device.sysfs) if not source.is_bus else None
        variables = {
            **(owner.variables if owner is not None else {}),
            **device.variables,
            **{name: device.fact(name) for name in source.attributes},
            "name": node.name,
            "subsystem": node.subsystem,
            "place": device.place,
            **links,
            **node_variables(node, device.sysfs),
        }
        # Several interfaces get their nodes one after the other.
        parts = source.matcher.interfaces(device) or device.interfaces
        grows = len(parts) > 1 and not source.splits and node.subsystem != USB_NODE
        is_device = source.splits or node.subsystem == VFIO_NODE  # a group has one node
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
                role=None if NO_NODE in source.subsystems else node.subsystem,
                numa=device.syspath,
                excludes=self._excludes(device, node),
                incomplete=incomplete,
                grows=grows or bool(path and source.links - links.keys()),
            ),
        )

    def _excludes(self, device: SysfsDevice, node: KernelNode) -> frozenset[str]:
        """Return the nodes of a device if this is its own: libusb detaches drivers."""
        if node.subsystem != USB_NODE or NO_NODE in self._source.subsystems:
            return frozenset()
        numbers = self._members(_NUMBERS)
        paths = (path for path in numbers.below(device.syspath) if path != device.syspath)
        files = (numbers.sysfs.uevent(path).get("DEVNAME") for path in paths)
        return frozenset(f"/dev/{file}" for file in files if file)

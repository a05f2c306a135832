"""The sources ``usb``, ``pci`` and ``sysfs``: devices that the kernel knows, and their nodes."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from devhost.discovery.hardware import (
    BETWEEN,
    NET,
    NOT_AUTHORIZED,
    PCI,
    USB,
    KernelNode,
    SysfsDevice,
    Wanted,
    any_matches,
    bus_differs,
    described,
    device_above,
    member_differs,
    members,
    pci_function,
    pci_functions,
    selected,
    sysfs_devices,
    usb_devices,
    wanted_by,
)
from devhost.discovery.roots import Match, Missed, Readings, Root
from devhost.discovery.sysfs import NodesReading, NodesRoot, NumbersRoot, SubsystemRoot
from devhost.model import names
from devhost.model.device import LINK_VARIABLES, Hardware, Skipped
from devhost.model.hardware import (
    NO_NODE,
    USB_NODE,
    VFIO_NODE,
    NodeChoice,
    Pci,
    Sysfs,
    SysfsSelector,
    Usb,
)

_UNUSED: Final = "pci-stub"
_VFIO: Final = SubsystemRoot("vfio")
_NUMBERS: Final = NumbersRoot()


def nodes_root(mentioned: frozenset[str]) -> NodesRoot:
    """Return what has to be read below /dev, by the variables that templates mention."""
    return NodesRoot(links=any(name.rpartition(".")[2] in LINK_VARIABLES for name in mentioned))


class HardwareFinder:
    """Finds USB devices, PCI functions or the devices of a subsystem, and their nodes.

    Some variables are read only if templates have `mentioned` them. `roots` are the bus or
    subsystem, the subsystems of the nodes, and /dev.
    """

    def __init__(self, options: Usb | Pci | Sysfs, mentioned: frozenset[str] = frozenset()) -> None:
        self.options, self.mentioned = options, mentioned
        self._wanted: Wanted = {}
        self._selectors: tuple[Wanted | SysfsSelector, ...]
        found: list[Root] = [nodes_root(mentioned)]
        if isinstance(options, Sysfs):
            self._selectors = selectors = (options, *options.exclude)
            parents = (parent for one in selectors for parent in one.parent)
            above = (name for parent in parents for name in parent.subsystem or ())
            self._main = SubsystemRoot(options.subsystem, frozenset(above))
        else:
            self._selectors = bus = tuple(map(wanted_by, (options, *options.exclude)))
            self._wanted = bus[0]
            self._main = USB if isinstance(options, Usb) else PCI
            chosen = [one.subsystem for one in options.node]
            found += (SubsystemRoot(one) for one in chosen if one not in (USB_NODE, NO_NODE))
            found += (_NUMBERS,) if USB_NODE in chosen else ()
            found += (NET,) if any("pf" in one for one in bus) else ()
        self.roots = tuple(dict.fromkeys((self._main, *found)))

    def find(self, readings: Readings, _known: object = None) -> Iterator[Match | Skipped]:
        """Yield the nodes of each device, or IOMMU group, that matches."""
        options, nodes = self.options, _Nodes(self, readings)
        groups: set[str] = set()
        for device, differ in self._compared(readings):
            if differ:
                continue
            if not all(_differs(device, one, readings) for one in self._selectors[1:]):
                yield Skipped(device.name, "excluded")
            elif isinstance(options, Sysfs):
                if node := _node(options, device):
                    wanted = [one for one in self.mentioned if one.startswith("attr.")]
                    values = (device.sysfs.attribute(device.syspath, one[5:]) for one in wanted)
                    facts = {one: value or "" for one, value in zip(wanted, values, strict=True)}
                    yield nodes.match(replace(device, facts=facts), node)
            elif options.node[0].subsystem == VFIO_NODE:
                group = device.facts["group"]
                if not group:
                    yield Skipped(device.name, "has no IOMMU group: the IOMMU is off")
                elif group not in groups:
                    groups.add(group)
                    yield self._group(device, nodes, readings)
            else:
                # Its own class selects it as a whole, unless some interfaces are of that class.
                some = selected(device, self._wanted)
                yield from nodes.of(replace(device, chosen=some) if some else device)

    def missed(self, readings: Readings) -> Iterator[Missed]:
        """Yield the other devices, and those without a node (of input and sound, most)."""
        for device, differ in self._compared(readings):
            if differ:
                yield Missed(device.name, differ)
            elif isinstance(self.options, Sysfs) and not _node(self.options, device):
                yield Missed(device.name, {"": "it has no node below /dev"})

    def _compared(self, readings: Readings) -> Iterator[tuple[SysfsDevice, Mapping[str, str]]]:
        """Yield all devices, and how they differ from the options; hubs only if asked for."""
        options, reading = self.options, members(readings, self._main)
        make = sysfs_devices
        if not isinstance(options, Sysfs):
            make = usb_devices if isinstance(options, Usb) else pci_functions
        classes = self._wanted.get("class", ())
        for device in reading.once(make):
            code = BETWEEN.get(device.prefix, "-")
            if not device.is_between or any(one.startswith(code) for one in classes):
                yield device, _differs(device, self._selectors[0], readings)

    def _group(self, function: SysfsDevice, nodes: "_Nodes", readings: Readings) -> Match | Skipped:
        """Return the node of an IOMMU group, or why it is not offered.

        Userspace gets a group only if no function of it is used by the kernel (Linux's
        Documentation/driver-api/vfio.rst).
        """
        bus, vfio = members(readings, self._main), members(readings, _VFIO)
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
            node = KernelNode.of(VFIO_NODE, vfio.members.get(name, ""), vfio.sysfs)
            if node is not None:
                whole = replace(function, group=f"/sys/kernel/iommu_groups/{group}")
                return nodes.match(whole, node)
        if driver.startswith("vfio"):
            reason = f"bound to {driver}, but the kernel has no node of group {group}"
            return Skipped(function.name, reason)
        return Skipped(function.name, "not bound to vfio-pci")


def _node(options: Sysfs, device: SysfsDevice) -> KernelNode | None:
    return KernelNode.of(options.subsystem, device.syspath, device.sysfs)


def _differs(
    device: SysfsDevice, selector: Wanted | SysfsSelector, readings: Readings
) -> Mapping[str, str]:
    """Return what a device has instead of what a selector says (`Missed.differs`). Blocks."""
    if isinstance(selector, SysfsSelector):
        return member_differs(device.syspath, selector, device.sysfs)
    interfaces: Iterable[str] = ()
    if NET in readings and device.facts.get("pf"):  # those of the physical function
        net = members(readings, NET)
        physical = net.sysfs.link(f"{device.syspath}/physfn") or ""
        interfaces = [name for name, _ in net.below(physical)]
    return bus_differs(device, selector, interfaces)


class _Nodes:
    """Finds the nodes of selected devices, for one source. All methods block."""

    def __init__(self, finder: HardwareFinder, readings: Readings) -> None:
        options, mentioned = finder.options, finder.mentioned
        self._readings = readings
        self._choices = () if isinstance(options, Sysfs) else options.node
        self._without_file = NO_NODE in (one.subsystem for one in self._choices)
        self._split = not isinstance(options, Sysfs) and options.split
        self._links = {name.rpartition(".")[2] for name in mentioned} & LINK_VARIABLES.keys()
        nodes = readings[nodes_root(mentioned)]
        assert isinstance(nodes, NodesReading), "of that root"  # noqa: S101
        self._files = nodes

    def of(self, device: SysfsDevice) -> Iterator[Match | Skipped]:
        """Yield the nodes of a device, or why it is not offered."""
        if self._without_file:
            subsystem = device.sysfs.linked(f"{device.syspath}/subsystem") or ""
            yield self.match(device, KernelNode(device.name, subsystem, device.syspath))
            return
        found: dict[KernelNode, None] = {}
        absent: list[NodeChoice] = []
        for choice in self._choices:
            some = dict.fromkeys(self._chosen(choice, device))
            found |= some
            if not some and not choice.optional:
                absent.append(choice)
        incomplete = None
        if absent:
            why = self._why_none(absent[0], device)
            lack = " and no ".join(one.subsystem for one in (absent if found else absent[:1]))
            text = f"no {lack} node{f': {why}' if why else ''}"
            if not found:
                yield Skipped(device.name, text)
                return
            incomplete = f"incomplete: {text}"
        ids = self._ids(device, list(found))
        for node in found:
            yield self.match(device, node, ids[node], incomplete)

    def _chosen(self, choice: NodeChoice, device: SysfsDevice) -> Iterator[KernelNode]:
        if choice.subsystem == USB_NODE:
            node = KernelNode.of(USB_NODE, device.syspath, device.sysfs)
            if node is not None:
                yield node
            return
        reading = members(self._readings, SubsystemRoot(choice.subsystem))
        wanted = {one.syspath for one in device.chosen or ()}
        for name, syspath in reading.below(device.syspath):
            if not any_matches(choice.name, name):
                continue
            if wanted and device.sysfs.interface(syspath) not in wanted:
                continue
            held = (
                any_matches((glob,), reading.sysfs.attribute(syspath, file))
                for file, glob in choice.attr.items()
            )
            node = KernelNode.of(choice.subsystem, syspath, reading.sysfs) if all(held) else None
            if node is not None:
                yield node

    def _why_none(self, choice: NodeChoice, device: SysfsDevice) -> str:
        """Say what a device has instead of a node: others of the subsystem, or its drivers."""
        if device.is_unauthorized:
            return NOT_AUTHORIZED
        some = [node.name for node in self._chosen(NodeChoice(subsystem=choice.subsystem), device)]
        if some:
            return f"there is {', '.join(some)}"
        facts = [one.facts for one in device.parts] or [device.facts]
        drivers = dict.fromkeys(one["driver"] for one in facts if one.get("driver"))
        return f"bound to {', '.join(drivers)}" if drivers else "no driver is bound to it"

    def _ids(self, device: SysfsDevice, found: Sequence[KernelNode]) -> Mapping[KernelNode, str]:
        if not self._split or not device.id:
            return dict.fromkeys(found, device.id)
        places: dict[str, list[KernelNode]] = {}
        for node in found:
            place = device.sysfs.place(node.syspath)
            at = device.id if place is None or place == device.place else place
            places.setdefault(at, []).append(node)
        ids: dict[KernelNode, str] = {}
        for at, some in places.items():
            ordered = sorted(some, key=lambda node: names.natural_key(node.name))
            alone = len(some) == 1 and at != device.id
            ids |= {one: at if alone else f"{at}-{count}" for count, one in enumerate(ordered)}
        return ids

    def match(
        self,
        device: SysfsDevice,
        node: KernelNode,
        device_id: str = "",
        incomplete: str | None = None,
    ) -> Match:
        """Return a node of a device as a match."""
        path = f"/dev/{node.file}" if node.file else ""
        by = self._files.links_to(path)
        above = None if device.prefix else device_above(node.syspath, device.sysfs)
        variables = {
            **(above.variables() if above is not None else {}),
            **device.variables(),
            "name": node.name,
            "subsystem": node.subsystem,
            "syspath": node.syspath,
            **({"place": device.place} if device.place else {}),
            **by,
            **described(node, device.sysfs),
        }
        # Several interfaces get their nodes one after the other.
        grows = len(device.parts) > 1 and not self._split and node.subsystem != USB_NODE
        return Match(
            path,
            device_id or device.id,
            variables,
            at=(self._files, node.file) if node.file else None,
            hardware=Hardware(
                unit=node.syspath if self._split else device.group or device.syspath,
                label=device.name,
                syspath=node.syspath,
                number=node.number,
                role=None if self._without_file else node.subsystem,
                numa=device.syspath,
                claims=self._claims(device, node),
                incomplete=incomplete,
                grows=grows or bool(path and self._links - by.keys()),
            ),
        )

    def _claims(self, device: SysfsDevice, node: KernelNode) -> frozenset[str]:
        """Libusb detaches drivers: who has the device's own node has all of its nodes."""
        if node.subsystem != USB_NODE or _NUMBERS not in self._readings:
            return frozenset()
        numbers = members(self._readings, _NUMBERS)
        below = (path for _, path in numbers.below(device.syspath) if path != device.syspath)
        files = (numbers.sysfs.uevent(path).get("DEVNAME") for path in below)
        return frozenset(f"/dev/{file}" for file in files if file)

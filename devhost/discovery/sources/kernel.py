"""The sources ``usb``, ``pci`` and ``sysfs``: devices that the kernel knows, and their nodes."""

import fnmatch
import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Final

from devhost.discovery.sources.base import (
    Candidate,
    Listings,
    Location,
    NodesListing,
    NodesLocation,
    NumbersLocation,
    SubsystemListing,
    SubsystemLocation,
    Unmatched,
)
from devhost.hostfs.sysfs import (
    HUBS_AND_BRIDGES,
    KernelNode,
    SysfsDevice,
    ancestor_devices,
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
    UsbSelector,
)
from devhost.model.immutable import immutable
from devhost.model.values import ConfigModel, options_of

USB: Final = SubsystemLocation("usb")
PCI: Final = SubsystemLocation("pci")
NET: Final = SubsystemLocation("net")
_VFIO: Final = SubsystemLocation("vfio")
_NUMBERS: Final = NumbersLocation()
_UNUSED: Final = "pci-stub"
_OF_INTERFACE: Final = frozenset({"class", "interface", "driver"})  # options of one USB interface
_NO_INTERFACES: Final = "it has no interfaces, as when its `authorized` is 0"


# ── what options match ──

_ByOption = dict[str, Sequence[str]]
"""By option, globs of the fact that it is about."""


@immutable
class Matcher:
    """What a device has to be, compiled: all options match.

    Attributes:
        written: By option, what it says as it is written; it is compared with other names.
        of_interface: The options that one and the same interface of a USB device has to match.
        parents: What devices above it have to be, each some device.
    """

    globs: _ByOption
    written: _ByOption = field(default_factory=dict)
    of_interface: _ByOption = field(default_factory=dict)
    parents: tuple["Matcher", ...] = ()

    @classmethod
    def of(cls, selector: ConfigModel) -> "Matcher":
        """Compile the options of a source, or of a part of it."""
        globs, written = _ByOption(), _ByOption()
        for option, value in options_of(selector).items():
            match value:
                case dict():  # by file or key
                    globs |= {f"{option}.{name}": (glob,) for name, glob in value.items()}
                case (str() | int(), *_):
                    written[option] = [*map(str, value)]
                    globs[option] = [glob for one in value for glob in _globs(option, str(one))]
        split = _OF_INTERFACE & globs.keys() if isinstance(selector, UsbSelector) else ()
        of_interface = {option: globs.pop(option) for option in split}
        parents = tuple(map(cls.of, getattr(selector, "parent", ())))
        return cls(globs, written, of_interface, parents)

    def mismatches(self, device: SysfsDevice, also: _ByOption | None = None) -> dict[str, str]:
        """Return what a device has instead, by option (`Unmatched.mismatches`). Blocks.

        Of some options, it has `also` other values.
        """
        found: dict[str, str] = {}
        for option, globs in self.globs.items():
            if found and "." in option:  # files are read only where the rest matches
                break
            value = device.fact(option)
            others = (_fits(self.written[option], one) for one in (also or {}).get(option, ()))
            if not _fits(globs, value) and not any(others):
                found[option] = value
        found |= self._interfaces_differ(device)
        if self.parents and not found:
            sysfs, above = device.sysfs, list[SysfsDevice]()
            for one in ancestor_devices(device.syspath, sysfs):
                driver = sysfs.linked(f"{one}/driver") or ""  # its own, not the nearest above it
                above.append(SysfsDevice(one, sysfs, {"driver": driver}))
            if any(all(parent.mismatches(one) for one in above) for parent in self.parents):
                found["parent"] = ", ".join(one.name for one in above)
        return found

    def interfaces(self, device: SysfsDevice) -> Sequence[SysfsDevice]:
        """Return the interfaces of a USB device that match; none where any will do."""
        wanted = self.of_interface
        return [
            one
            for one in device.interfaces
            if wanted and all(_fits(wanted[option], one.facts[option]) for option in wanted)
        ]

    def _interfaces_differ(self, device: SysfsDevice) -> dict[str, str]:
        wanted = self.of_interface
        # Its own class satisfies options that say nothing else of interfaces.
        own = wanted.keys() == {"class"} and _fits(wanted["class"], device.facts["class"])
        if not wanted or own or self.interfaces(device):
            return {}
        if not device.interfaces:
            return {"": _NO_INTERFACES}
        found = {}
        for option, globs in wanted.items():
            values = [one.facts[option] for one in device.interfaces]
            if not any(_fits(globs, value) for value in values):
                found[option] = ", ".join(dict.fromkeys(filter(None, values)))
        return found or {"": "no one interface has all of class, interface and driver"}


def _globs(option: str, value: str) -> Iterable[str]:
    """Return the globs of a fact that the value of an option stands for."""
    match option, value:
        case "class", _:
            return (f"{value}*",)
        case "driver", "none":
            return ("",)
        case "address" | "pf", _:  # as sysfs writes them: in lower case, with the first domain
            return (value.lower(), f"0000:{value.lower()}")
    return (value,)


def _fits(globs: Iterable[str], value: str) -> bool:
    """Whether a glob matches a value as a whole; an empty one is matched by an empty one alone."""
    return any(fnmatch.fnmatchcase(value, one) for one in globs) if value else "" in globs


# ── what a source finds ──


class KernelSource:
    """Finds USB devices, PCI functions or the devices of a subsystem, and their nodes.

    Some variables are read only if templates have `mentioned` them. `locations` are the bus or
    subsystem, the subsystems of the nodes, and /dev.
    """

    def __init__(self, options: Usb | Pci | Sysfs, mentioned: frozenset[str]) -> None:
        self.links = {one.rpartition(".")[2] for one in mentioned} & LINK_VARIABLES.keys()
        self.nodes = NodesLocation(links=bool(self.links))
        self.wanted, *self.excluded = every = [*map(Matcher.of, (options, *options.exclude))]
        self.attributes: tuple[str, ...] = ()
        self.split, self.of_bus = False, not isinstance(options, Sysfs)
        if isinstance(options, Sysfs):
            parents = (parent for one in (options, *options.exclude) for parent in one.parent)
            above = frozenset(name for parent in parents for name in parent.subsystem or ())
            self.main = SubsystemLocation(options.subsystem, above)
            self.attributes = tuple(one for one in mentioned if one.startswith("attr."))
            choices: tuple[NodeChoice, ...] = (NodeChoice(subsystem=options.subsystem),)
        else:
            self.main = USB if isinstance(options, Usb) else PCI
            self.split, choices = options.split, options.node
        self.choices = [(one, Matcher.of(one)) for one in choices]
        self.subsystems = [one.subsystem for one in choices]
        classes = (self.wanted.globs | self.wanted.of_interface).get("class", ())
        self.finds_between = any(
            one.startswith(tuple(HUBS_AND_BRIDGES.values())) for one in classes
        )
        found: list[Location] = [self.main, self.nodes]
        if self.of_bus:
            chosen = (one for one in self.subsystems if one not in (USB_NODE, NO_NODE))
            found += map(SubsystemLocation, chosen)
        found += [_NUMBERS] if USB_NODE in self.subsystems else []
        found += [NET] if any("pf" in one.globs for one in every) else []
        self.locations = tuple(dict.fromkeys(found))

    def find(self, listings: Listings, _known: object = None) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of each device, or IOMMU group, that matches. Blocks."""
        return _Search(self, listings).found()

    def unmatched(self, listings: Listings) -> Iterator[Unmatched]:
        """Yield the other devices. Blocks."""
        for device, differ in _Search(self, listings).compared():
            if differ:
                yield Unmatched(device.name, differ)


class _Search:
    """One search of a finder among what was read. All methods block."""

    def __init__(self, finder: KernelSource, listings: Listings) -> None:
        self._finder, self._readings = finder, listings
        nodes = listings[finder.nodes]
        assert isinstance(nodes, NodesListing), "of that root"  # noqa: S101
        self._nodes = nodes

    def _members(self, root: Location) -> SubsystemListing:
        listing = self._readings[root]
        assert isinstance(listing, SubsystemListing), "of that root"  # noqa: S101
        return listing

    def compared(self) -> Iterator[tuple[SysfsDevice, Mapping[str, str]]]:
        """Yield all devices, and how they differ from the options; hubs only if asked for."""
        finder, listing = self._finder, self._members(self._finder.main)
        every, choice = listing.devices, finder.choices[0]
        if not finder.of_bus:
            some = listing.members.items()
            every = [SysfsDevice(path, listing.sysfs, id=name) for name, path in some]
        for device in every:
            if device.is_hub_or_bridge and not finder.finds_between:
                continue
            differ = self._differs(device, finder.wanted)
            if not (differ or finder.of_bus or any(self._chosen(*choice, device))):
                differ = {"": "it has no node below /dev"}
            yield device, differ

    def _differs(self, device: SysfsDevice, wanted: Matcher) -> Mapping[str, str]:
        also: _ByOption = {"port": [device.name]}
        if NET in self._readings and device.facts.get("pf"):  # interfaces of the physical function
            physical = device.sysfs.link(f"{device.syspath}/physfn") or ""
            also["pf"] = [posixpath.basename(one) for one in self._members(NET).below(physical)]
        return wanted.mismatches(device, also)

    def found(self) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of each device, or IOMMU group, that matches."""
        finder, groups = self._finder, set[str]()
        for device, differ in self.compared():
            if differ:
                continue
            if not all(self._differs(device, one) for one in finder.excluded):
                yield Skipped.because(Cause.EXCLUDED, device.name, "excluded")
            elif VFIO_NODE not in finder.subsystems:
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
        for other in self._members(PCI).devices:
            used = other.facts["driver"]
            is_ours = other.is_hub_or_bridge or used in ("", _UNUSED) or used.startswith("vfio")
            if other.facts["group"] == group and not is_ours:
                reason = f"group {group} holds {other.name} (driver {used})"
                text = f"{reason}: bind all of it to vfio-pci"
                return Skipped.because(Cause.IN_USE, function.name, text)
        vfio = self._members(_VFIO)
        for name in (group, f"noiommu-{group}"):
            node = KernelNode.of(VFIO_NODE, vfio.members.get(name, ""), vfio.sysfs)
            if node is not None:
                return self._match(function, node, function.id)
        reason, driver = "not bound to vfio-pci", function.facts["driver"]
        if driver.startswith("vfio"):
            reason = f"bound to {driver}, but the kernel has no node of group {group}"
        return Skipped.because(Cause.INCOMPLETE, function.name, reason)

    def _nodes_of(self, device: SysfsDevice) -> Iterator[Candidate | Skipped]:
        """Yield the nodes of a device, or why it is not offered."""
        found: dict[KernelNode, None] = {}
        absent: list[NodeChoice] = []
        for choice, wanted in self._finder.choices:
            some = dict.fromkeys(self._chosen(choice, wanted, device))
            found |= some
            absent += [] if some or choice.optional else [choice]
        lack = None
        if absent:
            which = " and no ".join(one.subsystem for one in absent)
            lack = f"no {which} node: {self._why_none(absent[0], device)}"
        if lack and not found:
            yield Skipped.because(Cause.INCOMPLETE, device.name, lack)
        ids = self._ids(device, list(found))
        for node in found:
            yield self._match(device, node, ids[node], f"incomplete: {lack}" if lack else None)

    def _chosen(
        self, choice: NodeChoice, wanted: Matcher, device: SysfsDevice
    ) -> Iterator[KernelNode]:
        """Yield the nodes of a device that one choice names."""
        subsystem, sysfs = choice.subsystem, device.sysfs
        if subsystem == NO_NODE:
            own = sysfs.linked(f"{device.syspath}/subsystem") or ""
            yield KernelNode(device.name, own, device.syspath)
            return
        every: Iterable[str] = (device.syspath,)
        if self._finder.of_bus and subsystem != USB_NODE:
            listing = self._members(SubsystemLocation(subsystem))
            sysfs, every = listing.sysfs, listing.below(device.syspath)
            if parts := {one.syspath for one in self._finder.wanted.interfaces(device)}:
                every = (one for one in every if sysfs.interface(one) in parts)
        for path in every:
            if not wanted.mismatches(SysfsDevice(path, sysfs)):
                node = KernelNode.of(subsystem, path, sysfs)
                if node is not None:
                    yield node

    def _why_none(self, choice: NodeChoice, device: SysfsDevice) -> str:
        """Say what a device has instead of a node: others of the subsystem, or its drivers."""
        if device.prefix == "usb." and not device.interfaces:
            return _NO_INTERFACES
        if some := [node.name for node in self._chosen(choice, Matcher({}), device)]:
            return f"there is {', '.join(some)}"
        parts = self._finder.wanted.interfaces(device) or device.interfaces or (device,)
        drivers = dict.fromkeys(one.facts["driver"] for one in parts if one.facts.get("driver"))
        return f"bound to {', '.join(drivers)}" if drivers else "no driver is bound to it"

    def _ids(self, device: SysfsDevice, found: Sequence[KernelNode]) -> Mapping[KernelNode, str]:
        if not self._finder.split or not device.id:
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

    def _match(
        self, device: SysfsDevice, node: KernelNode, device_id: str, incomplete: str | None = None
    ) -> Candidate:
        """Return a node of a device as a match."""
        finder, path = self._finder, node.path or ""
        by = self._nodes.udev.get(path, {})
        above = owning_device(node.syspath, device.sysfs) if not finder.of_bus else None
        variables = {
            **(above.variables if above is not None else {}),
            **device.variables,
            **{one: device.fact(one) for one in finder.attributes},
            "name": node.name,
            "subsystem": node.subsystem,
            "syspath": node.syspath,
            "place": device.place,
            **by,
            **node_variables(node, device.sysfs),
        }
        # Several interfaces get their nodes one after the other.
        parts = finder.wanted.interfaces(device) or device.interfaces
        grows = len(parts) > 1 and not finder.split and node.subsystem != USB_NODE
        alone = finder.split or node.subsystem == VFIO_NODE  # the node of a group is its device
        return Candidate(
            path,
            device_id,
            {name: value for name, value in variables.items() if value},
            at=(self._nodes, node.file) if node.file else None,
            hardware=Hardware(
                unit=node.syspath if alone else device.syspath,
                label=device.name,
                syspath=node.syspath,
                number=node.number,
                role=None if NO_NODE in finder.subsystems else node.subsystem,
                numa=device.syspath,
                claims=self._claims(device, node),
                incomplete=incomplete,
                grows=grows or bool(path and finder.links - by.keys()),
            ),
        )

    def _claims(self, device: SysfsDevice, node: KernelNode) -> frozenset[str]:
        """Libusb detaches drivers: who has the device's own node has all of its nodes."""
        if node.subsystem != USB_NODE or NO_NODE in self._finder.subsystems:
            return frozenset()
        numbers = self._members(_NUMBERS)
        below = (path for path in numbers.below(device.syspath) if path != device.syspath)
        files = (numbers.sysfs.uevent(path).get("DEVNAME") for path in below)
        return frozenset(f"/dev/{file}" for file in files if file)

"""The source ``pci``: PCI functions, their nodes, and with vfio their IOMMU groups."""

import posixpath
from collections.abc import Iterable, Iterator, Mapping, Sequence

from devhost.discovery import hardware, wording
from devhost.discovery.hardware import (
    KernelNode,
    MatchedDevice,
    Nodes,
    Unit,
    any_matches,
    driver_matches,
    members,
    numbers_match,
)
from devhost.discovery.match import Match, Readings
from devhost.discovery.roots import Root
from devhost.discovery.sysfs import SubsystemReading, SubsystemRoot, SysfsTree
from devhost.immutable import immutable
from devhost.model.device import Skipped
from devhost.model.hardware import VFIO_NODE, NodeChoice, Pci, PciSelector

_ROOT = SubsystemRoot("pci")
_NET = SubsystemRoot("net")
_BRIDGE = "06"
_UNUSED = "pci-stub"


class PciFunction:
    """A PCI function; what is asked for is read then. All methods block."""

    def __init__(self, syspath: str, sysfs: SysfsTree) -> None:
        self.address, self.syspath = posixpath.basename(syspath), syspath
        self._sysfs = sysfs

    def _number(self, *files: str) -> str:
        texts = (self._sysfs.text(f"{self.syspath}/{file}") or "" for file in files)
        return ":".join(text.removeprefix("0x").lower() for text in texts)

    @property
    def number(self) -> str:
        """``vendor:device``."""
        return self._number("vendor", "device")

    @property
    def subsystem(self) -> str:
        """``vendor:device`` of the subsystem."""
        return self._number("subsystem_vendor", "subsystem_device")

    @property
    def code(self) -> str:
        """Its class: six hexadecimal digits."""
        return self._number("class")

    @property
    def driver(self) -> str | None:
        """Its driver."""
        return self._sysfs.linked(f"{self.syspath}/driver")

    @property
    def group(self) -> str | None:
        """The number of its IOMMU group."""
        return self._sysfs.linked(f"{self.syspath}/iommu_group")

    def physical(self) -> str | None:
        """Return the physical function of a virtual one."""
        return self._sysfs.link(f"{self.syspath}/physfn")

    def matches(self, selector: PciSelector, net: SubsystemReading | None) -> bool:
        """Whether it is what a selector says, be it a bridge or not."""
        return next(self._differences(selector, net), None) is None

    def mismatches(self, selector: PciSelector, net: SubsystemReading | None) -> Iterator[str]:
        """Yield why it is not what a source selects, the cheapest first."""
        bridges = any(code.startswith(_BRIDGE) for code in selector.class_ or ())
        if self.code.startswith(_BRIDGE) and not bridges:
            yield "a bridge"
        yield from self._differences(selector, net)

    def _differences(self, selector: PciSelector, net: SubsystemReading | None) -> Iterator[str]:
        if selector.device is not None and not numbers_match(selector.device, self.number):
            yield f"device is {self.number}"
        wanted = selector.class_
        if wanted is not None and not self.code.startswith(wanted):
            yield f"class is {self.code}"
        if selector.subsystem is not None and not numbers_match(selector.subsystem, self.subsystem):
            yield f"subsystem is {self.subsystem}"
        if selector.driver is not None and not driver_matches(selector.driver, self.driver):
            yield f"driver is {self.driver}" if self.driver else "it has no driver"
        addresses = selector.address
        if addresses is not None and not any_matches(_whole(addresses), self.address):
            yield f"address is {self.address}"
        if selector.pf is not None:
            yield from self._other_pf(selector.pf, net)

    def _other_pf(self, globs: Sequence[str], net: SubsystemReading | None) -> Iterator[str]:
        physical = self.physical()
        if physical is None:
            yield "it is no virtual function"
            return
        interfaces = [name for name, _ in net.below(physical)] if net is not None else []
        address = posixpath.basename(physical)
        named = any(any_matches(globs, name) for name in interfaces)
        if not named and not any_matches(_whole(globs), address):
            known = f" ({', '.join(interfaces)})" if interfaces else ""
            yield f"its physical function is {address}{known}"

    def variables(self) -> dict[str, str]:
        """Return what it gives to templates, where it has a value."""
        physical = self.physical()
        found = {
            "device": self.number,
            "subsystem": self.subsystem,
            "class": self.code,
            "driver": self.driver,
            "address": self.address,
            "group": self.group,
            "pf": posixpath.basename(physical) if physical else None,
            "vf": self._index(physical) if physical else None,
        }
        return {f"pci.{name}": value for name, value in found.items() if value}

    def _index(self, physical: str) -> str | None:
        """Return which virtual function of a physical one it is."""
        count = 0
        while (link := self._sysfs.link(f"{physical}/virtfn{count}")) is not None:
            if link == self.syspath:
                return str(count)
            count += 1
        return None


def _whole(globs: Iterable[str]) -> Iterator[str]:
    """Yield globs on addresses as sysfs writes these: in lower case, and with the first domain."""
    for glob in globs:
        yield glob.lower()
        yield f"0000:{glob.lower()}"


class _MatchedFunction(MatchedDevice):
    """A PCI function that matches, or its IOMMU group."""

    def __init__(self, function: PciFunction, syspath: str, sysfs: SysfsTree) -> None:
        address = function.address
        place = f"pci-{address}"
        unit = Unit(syspath, address, address, place, function.variables(), function.syspath)
        super().__init__(unit, sysfs)
        self._function = function

    def why_none(self) -> str | None:
        """Say that it has no driver."""
        return None if self._function.driver else "no driver is bound to it"

    def drivers(self) -> str:
        """Name its driver."""
        return f"its driver is {self._function.driver}"


@immutable
class PciFinder:
    """Finds PCI functions and their nodes."""

    options: Pci
    mentioned: frozenset[str] = frozenset()

    @property
    def roots(self) -> tuple[Root, ...]:
        """Return the bus, the subsystems of the nodes, and /dev."""
        selectors = (self.options, *self.options.exclude)
        net = (_NET,) if any(one.pf is not None for one in selectors) else ()
        roots = (_ROOT, *net, *hardware.roots_of(self._choices, self.mentioned))
        return tuple(dict.fromkeys(roots))

    @property
    def _choices(self) -> Sequence[NodeChoice]:
        return self.options.nodes

    def find(self, readings: Readings) -> Iterator[Match | Skipped]:
        """Yield the nodes of each function, or group, that matches."""
        net = members(readings, _NET) if _NET in readings else None
        nodes = Nodes(self._choices, self.mentioned, readings, split=self.options.split)
        groups: set[str] = set()
        for function in self.functions(readings):
            if next(function.mismatches(self.options, net), None) is not None:
                continue
            if any(function.matches(one, net) for one in self.options.exclude):
                yield Skipped(function.address, "excluded")
            elif self._choices[0].subsystem != VFIO_NODE:
                yield from nodes.of(
                    _MatchedFunction(function, function.syspath, members(readings, _ROOT).sysfs)
                )
            elif (group := function.group) is None:
                reason = "has no IOMMU group: the IOMMU is off"
                yield Skipped(function.address, reason)
            elif group not in groups:
                groups.add(group)
                yield self._group(function, group, nodes, readings)

    def functions(self, readings: Readings) -> Iterator[PciFunction]:
        """Yield all PCI functions."""
        reading = members(readings, _ROOT)
        for syspath in reading.members.values():
            if reading.sysfs.is_pci_function(syspath):
                yield PciFunction(syspath, reading.sysfs)

    def _group(
        self, function: PciFunction, group: str, nodes: Nodes, readings: Readings
    ) -> Match | Skipped:
        """Return the node of an IOMMU group, or why it is not offered.

        Userspace gets a group only if no function of it is used by the kernel (Linux's
        Documentation/driver-api/vfio.rst).
        """
        functions = members(readings, _ROOT)
        for path in functions.members.values():
            other = PciFunction(path, functions.sysfs)
            if other.group != group or other.code.startswith(_BRIDGE):
                continue
            driver = other.driver
            if driver is not None and driver != _UNUSED and not driver.startswith("vfio"):
                reason = f"group {group} holds {other.address} (driver {driver})"
                return Skipped(function.address, f"{reason}: bind all of it to vfio-pci")
        reading = members(readings, SubsystemRoot("vfio"))
        for name in (group, f"noiommu-{group}"):
            if (syspath := reading.members.get(name)) is None:
                continue
            if (node := KernelNode.of("vfio", syspath, reading.sysfs)) is not None:
                unit = f"/sys/kernel/iommu_groups/{group}"
                return nodes.match(_MatchedFunction(function, unit, functions.sysfs), node)
        driver = function.driver
        if driver is not None and driver.startswith("vfio"):
            reason = f"bound to {driver}, but the kernel has no node of group {group}"
            return Skipped(function.address, reason)
        return Skipped(function.address, "not bound to vfio-pci")

    @property
    def summary(self) -> str:
        """The source in words."""
        return f"{wording.in_words('pci', self.options)}, {wording.nodes_in_words(self._choices)}"

    def looked(self, readings: Readings) -> str:
        """Say how many functions there are."""
        functions = list(self.functions(readings))
        options, parts = self.options, []
        if options.device is not None:
            count = sum(numbers_match(options.device, one.number) for one in functions)
            parts.append(f"{count} of that number")
        if options.class_ is not None:
            count = sum(one.code.startswith(options.class_) for one in functions)
            parts.append(f"{count} of that class")
        return f"{len(functions)} PCI functions{': ' if parts else ''}{', '.join(parts)}"

    def left(self, readings: Readings) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the functions that match the main option and differ in another."""
        net = members(readings, _NET) if _NET in readings else None
        for function in self.functions(readings):
            reasons = tuple(function.mismatches(self.options, net))
            if reasons and not reasons[0].startswith(("device is ", "class is ", "a bridge")):
                yield function.address, reasons

    def texts(self, readings: Readings) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
        """Yield the numbers and the addresses, where they are asked for."""
        options, functions = self.options, list(self.functions(readings))
        if options.device is not None:
            yield options.device, {one.address: one.number for one in functions}
        if options.address is not None:
            yield list(_whole(options.address)), {one.address: one.address for one in functions}

    def unmatched(self, readings: Readings) -> str:
        """Say how many functions there are, and what comes nearest."""
        return wording.unmatched(self, readings, "devhost devices --pci")

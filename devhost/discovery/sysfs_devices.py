"""The source ``sysfs``: the devices of a class or a bus."""

import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from devhost.discovery import hardware, wording
from devhost.discovery.hardware import (
    KernelNode,
    MatchedDevice,
    Nodes,
    Unit,
    any_matches,
    nearest_driver,
)
from devhost.discovery.match import Match, Readings
from devhost.discovery.pci import PciFunction
from devhost.discovery.roots import Root
from devhost.discovery.sysfs import EventsRoot, SubsystemReading, SubsystemRoot, SysfsTree
from devhost.discovery.usb import UsbDevice, interface_variables
from devhost.immutable import immutable
from devhost.model.device import Skipped
from devhost.model.hardware import NodeChoice, ParentSelector, Sysfs, SysfsSelector

_SHOWN_MAX: Final = 3


class _MatchedMember(MatchedDevice):
    """A device of a subsystem that matches."""

    def __init__(self, syspath: str, variables: Mapping[str, str], sysfs: SysfsTree) -> None:
        name = posixpath.basename(syspath)
        super().__init__(Unit(syspath, name, name, sysfs.place(syspath), variables, syspath), sysfs)

    def describe(self, node: KernelNode) -> dict[str, str]:
        """Add what the USB device or the PCI function gives that the node is below."""
        found, above = super().describe(node), self.sysfs.owner(node.syspath)
        if above is None:
            return found
        if self.sysfs.is_usb_device(above):
            found |= interface_variables(node, self.sysfs)
            return UsbDevice(above, self.sysfs).variables() | found
        return PciFunction(above, self.sysfs).variables() | found


@immutable
class SysfsFinder:
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
        own = (SubsystemRoot(self.options.subsystem), hardware.nodes_root(self.mentioned))
        selectors = (self.options, *self.options.exclude)
        above = frozenset(
            name
            for selector in selectors
            for parent in selector.parent
            for name in parent.subsystem or ()
        )
        return (*own, *((EventsRoot(above),) if above else ()))

    def _reading(self, readings: Readings) -> SubsystemReading:
        return hardware.members(readings, SubsystemRoot(self.options.subsystem))

    def find(self, readings: Readings) -> Iterator[Match | Skipped]:
        """Yield each device that matches."""
        reading = self._reading(readings)
        nodes = Nodes((NodeChoice(subsystem=self.options.subsystem),), self.mentioned, readings)
        without: list[str] = []
        for name, syspath in reading.members.items():
            if next(self.mismatches(syspath, reading.sysfs), None) is not None:
                continue
            if any(
                next(_mismatches(syspath, one, reading.sysfs), None) is None
                for one in self.options.exclude
            ):
                yield Skipped(name, "excluded")
                continue
            node = KernelNode.of(self.options.subsystem, syspath, reading.sysfs)
            if node is None:
                without.append(name)
            else:
                variables = self._attributes(syspath, reading.sysfs)
                yield nodes.match(_MatchedMember(syspath, variables, reading.sysfs), node)
        if without:  # of input and sound, most devices; a line of each would hide the others
            *shown, last = without[:_SHOWN_MAX]
            more = len(without) - _SHOWN_MAX
            names = f"{', '.join(shown)} and {last}" if shown else last
            what = f"{', '.join((*shown, last))} and {more} more" if more > 0 else names
            verb = "has" if len(without) == 1 else "have"
            yield Skipped(self.options.subsystem, f"{what} {verb} no node below /dev")

    def mismatches(self, syspath: str, sysfs: SysfsTree) -> Iterator[str]:
        """Yield why a device is not what the options say."""
        return _mismatches(syspath, self.options, sysfs)

    def _attributes(self, syspath: str, sysfs: SysfsTree) -> Mapping[str, str]:
        files = (name for name in self.mentioned if name.startswith("attr."))
        found = {name: sysfs.attribute(syspath, name.removeprefix("attr.")) for name in files}
        return {name: value for name, value in found.items() if value is not None}

    @property
    def summary(self) -> str:
        """The source in words."""
        return wording.in_words("sysfs", self.options)

    def looked(self, readings: Readings) -> str:
        """Say how many devices there are."""
        return f"{len(self._reading(readings).members)} devices of {self.options.subsystem}"

    def left(self, readings: Readings) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the devices that do not match."""
        reading = self._reading(readings)
        for name, syspath in reading.members.items():
            if reasons := tuple(self.mismatches(syspath, reading.sysfs)):
                yield name, reasons

    def texts(self, readings: Readings) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
        """Yield the names, if they are asked for."""
        if self.options.name is not None:
            yield self.options.name, {name: name for name in self._reading(readings).members}

    def unmatched(self, readings: Readings) -> str:
        """Say how many devices there are, and what comes nearest."""
        listed = f"devhost devices --subsystem {self.options.subsystem}"
        return wording.unmatched(self, readings, listed)


def _above(syspath: str, sysfs: SysfsTree) -> Iterator[str]:
    """Yield the devices above one, from below upwards."""
    path = posixpath.dirname(syspath)
    while path.startswith("/sys/devices/"):
        if sysfs.link(f"{path}/subsystem") is not None:
            yield path
        path = posixpath.dirname(path)


def _mismatches(syspath: str, selector: SysfsSelector, sysfs: SysfsTree) -> Iterator[str]:
    """Yield why a device, with what is above it, is not what a selector says."""
    yield from _differences(syspath, selector, sysfs)
    above = list(_above(syspath, sysfs)) if selector.parent else []
    for parent in selector.parent:
        if not any(_is_parent(path, parent, sysfs) for path in above):
            known = ", ".join(
                f"{posixpath.basename(path)} ({sysfs.linked(f'{path}/subsystem')})"
                for path in above
            )
            what = f"above are {known}" if known else "nothing is above it"
            yield f"nothing above it matches parent: {what}"


def _is_parent(syspath: str, selector: ParentSelector, sysfs: SysfsTree) -> bool:
    subsystem = selector.subsystem
    if subsystem is not None and not any_matches(subsystem, sysfs.linked(f"{syspath}/subsystem")):
        return False
    return next(_differences(syspath, selector, sysfs), None) is None


def _differences(
    syspath: str, selector: SysfsSelector | ParentSelector, sysfs: SysfsTree
) -> Iterator[str]:
    """Yield why a device itself is not what a selector says."""
    name = posixpath.basename(syspath)
    if selector.name is not None and not any_matches(selector.name, name):
        yield f"name is {name!r}"
    if selector.driver is not None:
        is_parent = isinstance(selector, ParentSelector)
        driver = sysfs.linked(f"{syspath}/driver") if is_parent else nearest_driver(syspath, sysfs)
        if not any_matches(selector.driver, driver):
            yield f"driver is {driver}" if driver else "it has no driver"
    for file, glob in selector.attr.items():
        found = sysfs.attribute(syspath, file)
        if not any_matches((glob,), found):
            yield f"{file} is {found!r}" if found is not None else f"it has no {file}"
    keys = sysfs.uevent(syspath) if selector.uevent else {}
    for key, glob in selector.uevent.items():
        if not any_matches((glob,), keys.get(key)):
            yield f"{key} is {keys[key]!r}" if key in keys else f"its uevent has no {key}"

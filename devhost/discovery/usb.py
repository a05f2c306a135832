"""The source ``usb``: USB devices by what they say of themselves, and their nodes."""

import itertools
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence

from devhost.discovery import hardware, wording
from devhost.discovery.hardware import (
    KernelNode,
    MatchedDevice,
    Nodes,
    Unit,
    any_matches,
    members,
    numbers_match,
)
from devhost.discovery.match import LETTERS, NO_INTERFACE, Match, Readings
from devhost.discovery.roots import Root
from devhost.discovery.sysfs import NumbersRoot, SubsystemReading, SubsystemRoot, SysfsTree
from devhost.immutable import immutable
from devhost.model.device import Skipped
from devhost.model.hardware import USB_NODE, NodeChoice, Usb, UsbSelector

_ROOT = SubsystemRoot("usb")
_NUMBERS = NumbersRoot()
_HUB = "09"
# By the vendor, or the class of an interface: the usual drivers of serial adapters.
_DRIVERS = {
    "0403": "ftdi_sio",
    "10c4": "cp210x",
    "1a86": "ch341",
    "067b": "pl2303",
    "02": "cdc_acm",
}
_INTERFACES_MAX = 5  # that are named
NOT_AUTHORIZED = "it is not authorized (its `authorized` is 0)"
_HEX = re.compile(r"[0-9a-fA-F]{1,2}")


@immutable
class UsbInterface:
    """An interface of a USB device."""

    name: str
    syspath: str
    number: int
    code: str
    driver: str | None


class UsbDevice:
    """A USB device; most of what is asked for is read then. All methods block.

    Attributes:
        name: The kernel's name.
        syspath: Its directory in sysfs.
        number: ``vendor:product``.
        code: Its class, subclass and protocol.
    """

    def __init__(
        self, syspath: str, sysfs: SysfsTree, members: Mapping[str, str] | None = None
    ) -> None:
        self.name, self.syspath = posixpath.basename(syspath), syspath
        self._sysfs, self._members = sysfs, members or {}
        self.number = f"{self.text('idVendor')}:{self.text('idProduct')}".lower()
        parts = ("bDeviceClass", "bDeviceSubClass", "bDeviceProtocol")
        self.code = "".join(self.text(part) or "" for part in parts).lower()

    def text(self, file: str) -> str | None:
        """Return what a file of it holds."""
        return self._sysfs.text(f"{self.syspath}/{file}")

    @property
    def port(self) -> str | None:
        """Where it is plugged in; ``None`` also while it is being removed."""
        if self._sysfs.linked(f"{self.syspath}/subsystem") != "usb":
            return None
        return self._sysfs.place(self.syspath)

    def interfaces(self) -> list[UsbInterface]:
        """Return its interfaces, in the order of their numbers."""
        found = []
        for name, syspath in self._members.items():
            if not name.startswith(f"{self.name}:"):
                continue
            number = self._sysfs.text(f"{syspath}/bInterfaceNumber")
            parts = ("bInterfaceClass", "bInterfaceSubClass", "bInterfaceProtocol")
            code = "".join(self._sysfs.text(f"{syspath}/{part}") or "" for part in parts).lower()
            if number is not None and _HEX.fullmatch(number):
                driver = self._sysfs.linked(f"{syspath}/driver")
                found.append(UsbInterface(name, syspath, int(number, 16), code, driver))
        return sorted(found, key=lambda one: one.number)

    @property
    def is_hub(self) -> bool:
        """Whether it is a hub."""
        return self.code.startswith(_HUB)

    def selected(self, selector: UsbSelector) -> list[UsbInterface]:
        """Return the interfaces that satisfy all that a selector says of interfaces."""
        return [
            one
            for one in self.interfaces()
            if (selector.class_ is None or one.code.startswith(selector.class_))
            and (selector.interface is None or one.number in selector.interface)
            and (selector.driver is None or any_matches(selector.driver, one.driver))
        ]

    def is_of_class(self, selector: UsbSelector) -> bool:
        """Whether its own class satisfies a selector that says nothing else of interfaces."""
        alone = selector.interface is None and selector.driver is None
        return alone and selector.class_ is not None and self.code.startswith(selector.class_)

    def matches(self, selector: UsbSelector) -> bool:
        """Whether it is what a selector says, be it a hub or not."""
        return next(self._differences(selector), None) is None

    def mismatches(self, selector: UsbSelector) -> Iterator[str]:
        """Yield why it is not what a source selects, the cheapest first."""
        if self.is_hub and not any(code.startswith(_HUB) for code in selector.class_ or ()):
            yield "a hub"
        yield from self._differences(selector)

    def _differences(self, selector: UsbSelector) -> Iterator[str]:
        if selector.device is not None and not numbers_match(selector.device, self.number):
            yield f"device is {self.number}"
        for option in ("manufacturer", "product", "serial"):
            globs = getattr(selector, option)
            if globs is None:
                continue
            found = self.text(option) or None
            if not any_matches(globs, found):
                yield mismatch(option, found, globs)
        ports = selector.port
        if ports is not None and not any(any_matches(ports, one) for one in (self.port, self.name)):
            yield mismatch("port", self.port, ports)
        if selector.by_interface and not (self.selected(selector) or self.is_of_class(selector)):
            yield f"{NO_INTERFACE}: {self._has()}"

    def _has(self) -> str:
        """Name its interfaces."""
        if not (some := self.interfaces()):
            return NOT_AUTHORIZED if self.text("authorized") == "0" else "it has no interfaces"
        shown = (f"{one.number} ({one.code}, {one.driver or 'no driver'})" for one in some)
        return f"it has {', '.join(itertools.islice(shown, _INTERFACES_MAX))}"

    def variables(self) -> dict[str, str]:
        """Return what it gives to templates, where it has a value."""
        found = {
            "device": self.number,
            "manufacturer": self.text("manufacturer"),
            "product": self.text("product"),
            "serial": self.text("serial"),
            "port": self.port,
            "busnum": self.text("busnum"),
            "devnum": self.text("devnum"),
            "hub": self._hub(),
            "name": self.name,
        }
        return {f"usb.{name}": value for name, value in found.items() if value}

    def _hub(self) -> str | None:
        above = self.syspath.rpartition("/")[0]
        return self._sysfs.place(above) if self._sysfs.is_usb_device(above) else None

    def node(self) -> KernelNode | None:
        """Return its own node."""
        return KernelNode.of(USB_NODE, self.syspath, self._sysfs)


def interface_variables(node: KernelNode, sysfs: SysfsTree) -> dict[str, str]:
    """Return what a node has of the interface that it is below, if any. Blocks."""
    path = sysfs.interface(node.syspath)
    number = None if path is None else sysfs.text(f"{path}/bInterfaceNumber")
    if number is None or not _HEX.fullmatch(number):
        return {}
    driver = sysfs.linked(f"{path}/driver")
    return {"usb.interface": str(int(number, 16)), **({"driver": driver} if driver else {})}


def mismatch(option: str, found: str | None, globs: Sequence[str]) -> str:
    """Say that an option does not match, and whether upper and lower case are why."""
    if found is None:
        return f"it has no {option}"
    text = f"{option} is {found!r}"
    lower = found.lower()
    near = next((glob for glob in globs if any_matches((glob.lower(),), lower)), None)
    return text if near is None else f"{text}: {LETTERS}"


class _MatchedUsb(MatchedDevice):
    """A USB device that matches."""

    def __init__(self, device: UsbDevice, options: Usb, readings: Readings) -> None:
        path, port = device.syspath, device.port
        unit = Unit(path, device.name, port, port, device.variables(), path)
        super().__init__(unit, members(readings, _ROOT).sysfs)
        self._device, self._readings = device, readings
        self._selected = {one.syspath: one for one in device.selected(options)}
        # Its own class selects it as a whole, unless some of its interfaces are of that class.
        self._whole = not self._selected or not options.by_interface

    def own_node(self, _choice: NodeChoice) -> KernelNode | None:
        """Return the node below /dev/bus/usb."""
        return self._device.node()

    def counts(self, syspath: str) -> bool:
        """Whether a node is below an interface that the options select."""
        return self._whole or self.sysfs.interface(syspath) in self._selected

    @property
    def grows(self) -> bool:
        """Whether several interfaces may have nodes."""
        return len(self._selected) > 1

    def why_none(self) -> str | None:
        """Name what is not authorized, or has no driver."""
        if self._device.text("authorized") == "0":
            return NOT_AUTHORIZED
        idle = next((one for one in self._selected.values() if one.driver is None), None)
        return f"no driver is bound to {idle.name} ({idle.code})" if idle else None

    def drivers(self) -> str | None:
        """Name those of the interfaces that count."""
        drivers = dict.fromkeys(one.driver for one in self._selected.values() if one.driver)
        verb = "its driver is" if len(drivers) == 1 else "its drivers are"
        return f"{verb} {', '.join(drivers)}" if drivers else None

    def describe(self, node: KernelNode) -> dict[str, str]:
        """Add the interface that the node is below."""
        return super().describe(node) | interface_variables(node, self.sysfs)

    def claims(self, node: KernelNode) -> frozenset[str]:
        """Libusb detaches drivers: who has the device's own node has all of its nodes."""
        if node.subsystem != USB_NODE:
            return frozenset()
        numbers = members(self._readings, _NUMBERS)
        path = self._device.syspath
        below = (one for _, one in numbers.below(path) if one != path)
        files = (numbers.sysfs.uevent(one).get("DEVNAME") for one in below)
        return frozenset(f"/dev/{file}" for file in files if file)


def _devices(reading: SubsystemReading) -> Sequence[UsbDevice]:
    return [
        UsbDevice(syspath, reading.sysfs, reading.members)
        for name, syspath in reading.members.items()
        if ":" not in name and reading.sysfs.text(f"{syspath}/idVendor") is not None
    ]


@immutable
class UsbFinder:
    """Finds USB devices and their nodes."""

    options: Usb
    mentioned: frozenset[str] = frozenset()

    @property
    def roots(self) -> tuple[Root, ...]:
        """Return the bus, the subsystems of the nodes, and /dev."""
        own = any(choice.subsystem == USB_NODE for choice in self.options.nodes)
        return (
            _ROOT,
            *hardware.roots_of(self.options.nodes, self.mentioned),
            *((_NUMBERS,) if own else ()),
        )

    def find(self, readings: Readings) -> Iterator[Match | Skipped]:
        """Yield the nodes of each device that matches."""
        nodes = Nodes(self.options.nodes, self.mentioned, readings, split=self.options.split)
        for device in self.devices(readings):
            if next(device.mismatches(self.options), None) is not None:
                continue
            if any(map(device.matches, self.options.exclude)):
                yield Skipped(device.name, "excluded")
                continue
            yield from nodes.of(_MatchedUsb(device, self.options, readings))

    def devices(self, readings: Readings) -> Sequence[UsbDevice]:
        """Return all USB devices."""
        return members(readings, _ROOT).once(_devices)

    @property
    def summary(self) -> str:
        """The source in words."""
        nodes = wording.nodes_in_words(self.options.nodes)
        return f"{wording.in_words('usb', self.options)}, {nodes}"

    def looked(self, readings: Readings) -> str:
        """Say how many devices there are."""
        devices = self.devices(readings)
        hubs = sum(1 for one in devices if one.is_hub)
        wanted = self.options.device
        parts = []
        if wanted is not None:
            parts.append(
                f"{sum(numbers_match(wanted, one.number) for one in devices)} of that number"
            )
        if hubs:
            parts.append(f"{hubs} hub{'s' if hubs > 1 else ''}")
        return f"{len(devices)} USB devices{': ' if parts else ''}{', '.join(parts)}"

    def left(self, readings: Readings) -> Iterator[tuple[str, tuple[str, ...]]]:
        """Yield the devices that match the main option and differ in another."""
        for device in self.devices(readings):
            reasons = tuple(device.mismatches(self.options))
            if reasons and not reasons[0].startswith(("device is ", "a hub")):
                yield device.name, reasons

    def hint(self, name: str, readings: Readings) -> str | None:
        """Say which driver is missing of a device that lacks a tty, if that is known."""
        device = next((one for one in self.devices(readings) if one.name == name), None)
        if device is None or all(one.subsystem != "tty" for one in self.options.nodes):
            return None
        idle = [one for one in device.interfaces() if one.driver is None]
        keys = (device.number[:4], *(one.code[:2] for one in idle))
        driver = next((_DRIVERS[key] for key in keys if key in _DRIVERS), None)
        if not idle or driver is None or device.text("authorized") == "0":
            return None
        return f"on this kind of host it would be {driver}: is the module there, and loaded?"

    def texts(self, readings: Readings) -> Iterator[tuple[Sequence[str], Mapping[str, str]]]:
        """Yield the numbers, the strings and the ports, where they are asked for."""
        devices = [one for one in self.devices(readings) if not one.is_hub]
        if (wanted := self.options.device) is not None:
            yield wanted, {one.name: one.number for one in devices}
        for option in ("manufacturer", "product", "serial", "port"):
            if (globs := getattr(self.options, option)) is not None:
                found = {one.name: one.variables().get(f"usb.{option}") for one in devices}
                yield globs, {name: text for name, text in found.items() if text is not None}

    def unmatched(self, readings: Readings) -> str:
        """Say how many devices there are, and what comes nearest."""
        return wording.unmatched(self, readings, "devhost devices --usb")

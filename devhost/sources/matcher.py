"""The options by which sources select devices of the kernel, compiled."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.hostfs.kernel_devices import SysfsDevice
from devhost.hostfs.sysfs import ancestor_devices
from devhost.model.hardware_sources import NUMBER_RANGE, UsbSelector
from devhost.model.pattern import matches_any
from devhost.model.values import ConfigModel, options_of

NO_INTERFACES: Final = "it has no interfaces, as when its `authorized` is 0"
_INTERFACE_OPTIONS: Final = frozenset({"class", "interface", "driver"})  # of one USB interface

ByOption = dict[str, Sequence[str]]
"""By option, its values as they are written, of which one has to match."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """Matches a device if all options do.

    Attributes:
        of_interface: The options that one and the same interface of a USB device has to match.
        parents: Matchers of devices above it, each of some device.
    """

    options: ByOption
    of_interface: ByOption = field(default_factory=dict)
    parents: tuple["Matcher", ...] = ()

    @classmethod
    def of_device(cls, selector: ConfigModel) -> "Matcher":
        """Compile the options of a source, or of a part of it."""
        options = ByOption()
        for option, values in options_of(selector).items():
            match values:
                case dict():  # by file or key
                    options |= {f"{option}.{name}": (glob,) for name, glob in values.items()}
                case (str() | int(), *_):
                    options[option] = [*map(str, values)]
        split = _INTERFACE_OPTIONS & options.keys() if isinstance(selector, UsbSelector) else ()
        of_interface = {option: options.pop(option) for option in split}
        parents = tuple(map(cls.of_device, getattr(selector, "parent", ())))
        return cls(options, of_interface, parents)

    def mismatches(self, device: SysfsDevice, aliases: ByOption | None = None) -> dict[str, str]:
        """Return the values of a device by the options that do not match. Blocks.

        Of some options it has `aliases`, too. An empty key has a sentence.
        """
        mismatches: dict[str, str] = {}
        for option, wanted in self.options.items():
            if mismatches and "." in option:  # files are read only where the rest matches
                break
            value = device.fact(option)
            is_alias = any(matches_any(text, wanted) for text in (aliases or {}).get(option, ()))
            if not (is_alias or _fits(option, wanted, value)):
                mismatches[option] = value
        mismatches |= self._interface_mismatches(device)
        if self.parents and not mismatches:
            sysfs, ancestors = device.sysfs, list[SysfsDevice]()
            for path in ancestor_devices(device.syspath, sysfs):
                driver = sysfs.link_name(f"{path}/driver") or ""  # not the nearest above it
                ancestors.append(SysfsDevice(path, sysfs, {"driver": driver}))
            if any(all(map(parent.mismatches, ancestors)) for parent in self.parents):
                mismatches["parent"] = ", ".join(ancestor.name for ancestor in ancestors)
        return mismatches

    def interfaces(self, device: SysfsDevice) -> Sequence[SysfsDevice]:
        """Return the interfaces of a USB device that match; none where any will do."""
        options = self.of_interface.items()
        return [
            interface
            for interface in device.interfaces
            if options and all(_fits(*option, interface.facts[option[0]]) for option in options)
        ]

    def _interface_mismatches(self, device: SysfsDevice) -> dict[str, str]:
        options = self.of_interface
        if not options or self.interfaces(device):
            return {}
        # The device's own class satisfies options that say nothing else of interfaces.
        if options.keys() == {"class"} and _fits("class", options["class"], device.facts["class"]):
            return {}
        if not device.interfaces:
            return {"": NO_INTERFACES}
        mismatches = {}
        for option, wanted in options.items():
            values = [interface.facts[option] for interface in device.interfaces]
            if not any(_fits(option, wanted, value) for value in values):
                mismatches[option] = ", ".join(dict.fromkeys(filter(None, values)))
        return mismatches or {"": "no one interface has all of class, interface and driver"}


def _fits(option: str, wanted: Sequence[str], value: str) -> bool:
    """Return whether a value is one of those that an option wants: empty for no value."""
    if not value:
        return "" in wanted or (option == "driver" and "none" in wanted)
    match option:
        case "class":
            return value.startswith(tuple(wanted))
        case "address" | "pf":  # as sysfs writes them: in lower case, with the first domain
            addresses = [text.lower() for text in wanted]
            return matches_any(value, (*addresses, *(f"0000:{text}" for text in addresses)))
        case "interface" | "vf":
            ranges = filter(None, map(NUMBER_RANGE.fullmatch, wanted))
            if any(int(limits[1]) <= int(value) <= int(limits[2]) for limits in ranges):
                return True
    return matches_any(value, wanted)

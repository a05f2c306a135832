"""The options by which sources select devices of the kernel, compiled."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from devhost.hostfs.sysfs import SysfsDevice, ancestor_devices
from devhost.model.hardware_sources import NUMBER_RANGE, UsbSelector
from devhost.model.pattern import matches_any
from devhost.model.values import ConfigModel, options_of

NO_INTERFACES: Final = "it has no interfaces, as when its `authorized` is 0"
_INTERFACE_OPTIONS: Final = frozenset({"class", "interface", "driver"})  # of one USB interface

ByOption = dict[str, Sequence[str]]
"""By option, globs of the fact that it is about, or its values."""


@dataclass(frozen=True, slots=True)
class Matcher:
    """Matches a device if all options do.

    Attributes:
        as_written: By option, its values as they are written; they are compared with other names.
        of_interface: The options that one and the same interface of a USB device has to match.
        parents: Matchers of devices above it, each of some device.
    """

    globs: ByOption
    as_written: ByOption = field(default_factory=dict)
    of_interface: ByOption = field(default_factory=dict)
    parents: tuple["Matcher", ...] = ()

    @classmethod
    def of_device(cls, selector: ConfigModel) -> "Matcher":
        """Compile the options of a source, or of a part of it."""
        globs, as_written = ByOption(), ByOption()
        for option, values in options_of(selector).items():
            match values:
                case dict():  # by file or key
                    globs |= {f"{option}.{name}": (glob,) for name, glob in values.items()}
                case (str() | int(), *_):
                    as_written[option] = [*map(str, values)]
                    globs[option] = [
                        glob for text in as_written[option] for glob in _globs(option, text)
                    ]
        split = _INTERFACE_OPTIONS & globs.keys() if isinstance(selector, UsbSelector) else ()
        of_interface = {option: globs.pop(option) for option in split}
        parents = tuple(map(cls.of_device, getattr(selector, "parent", ())))
        return cls(globs, as_written, of_interface, parents)

    def mismatches(self, device: SysfsDevice, aliases: ByOption | None = None) -> dict[str, str]:
        """Return the values of a device by the options that do not match. Blocks.

        Of some options it has `aliases`, too. An empty key has a sentence.
        """
        mismatches: dict[str, str] = {}
        for option, globs in self.globs.items():
            if mismatches and "." in option:  # files are read only where the rest matches
                break
            value, texts = device.fact(option), (aliases or {}).get(option, ())
            if not _fits(globs, value) and not any(
                _fits(self.as_written[option], text) for text in texts
            ):
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
        wanted = self.of_interface.items()
        return [
            interface
            for interface in device.interfaces
            if wanted and all(_fits(globs, interface.facts[option]) for option, globs in wanted)
        ]

    def _interface_mismatches(self, device: SysfsDevice) -> dict[str, str]:
        wanted = self.of_interface
        # The device's own class satisfies options that say nothing else of interfaces.
        only_class = wanted.keys() == {"class"} and _fits(wanted["class"], device.facts["class"])
        if not wanted or only_class or self.interfaces(device):
            return {}
        if not device.interfaces:
            return {"": NO_INTERFACES}
        mismatches = {}
        for option, globs in wanted.items():
            values = [interface.facts[option] for interface in device.interfaces]
            if not any(_fits(globs, value) for value in values):
                mismatches[option] = ", ".join(dict.fromkeys(filter(None, values)))
        return mismatches or {"": "no one interface has all of class, interface and driver"}


def _globs(option: str, value: str) -> Iterable[str]:
    """Return the globs of a fact that the value of an option stands for."""
    match option, value:
        case "class", _:
            return (f"{value}*",)
        case "driver", "none":
            return ("",)
        case "address" | "pf", _:  # as sysfs writes them: in lower case, with the first domain
            return (value.lower(), f"0000:{value.lower()}")
        case "interface" | "vf", _ if limits := NUMBER_RANGE.fullmatch(value):
            return _range_globs(int(limits[1]), int(limits[2]))
    return (value,)


def _range_globs(number: int, last: int) -> Iterator[str]:
    """Yield globs of the numbers in a range, each of as many as begin with the same digits."""
    while number <= last:
        digits = len(str(number)) - 1
        while number % 10**digits or number + 10**digits - 1 > last:
            digits -= 1
        yield str(number)[: len(str(number)) - digits] + "[0-9]" * digits
        number += 10**digits


def _fits(globs: Iterable[str], value: str) -> bool:
    """Return whether a glob matches a value; an empty one is matched by an empty glob alone."""
    return matches_any(value, globs) if value else "" in globs

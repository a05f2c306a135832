"""Sources that select devices by what the kernel knows of them: one class for each kind."""

import re
from collections.abc import Iterable
from typing import Annotated, Final, Self

from pydantic import BeforeValidator, Field, model_validator

from devhost.model.base import ConfigModel, shorthand
from devhost.model.class_codes import PCI_CLASSES, USB_CLASSES
from devhost.model.spelling import did_you_mean
from devhost.model.values import AsTuple, NotEmpty, main_option

USB_NODE: Final = "usb"
NO_NODE: Final = "none"
VFIO_NODE: Final = "vfio"
_ALONE: Final = (NO_NODE, VFIO_NODE)
_PAIR: Final = re.compile(r"([0-9a-f]{4}|\*):([0-9a-f]{4}|\*)")
_NEAR_PAIR: Final = re.compile(r"(?:0x)?[0-9a-f]{1,4}:(?:0x)?[0-9a-f]{1,4}", re.IGNORECASE)
_CODE: Final = re.compile(r"(?:[0-9a-f]{2}){1,3}")
_SUBSYSTEM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
# Reading them is slow, has effects, or gives no text.
_REFUSED_ATTRIBUTES: Final = re.compile(
    r"(.*/)?(config|rom|vpd|resource[^/]*|descriptors|eeprom|uevent|remove|rescan|reset)"
)


def vendor_product(value: object) -> str:
    """Return a pair of numbers in lower case.

    Raises:
        ValueError: It is not of that form.
    """
    if not isinstance(value, str):
        raise ValueError(  # noqa: TRY004 (pydantic collects ValueErrors)
            "should be vendor:product in hexadecimal, as lsusb and lspci -nn print it: 0403:6001, "
            "or 0403:* for all of a vendor"
        )
    text = value.lower()
    if _PAIR.fullmatch(text):
        return text
    if _NEAR_PAIR.fullmatch(text):
        halves = (half.removeprefix("0x").zfill(4) for half in text.split(":"))
        raise ValueError(
            f"{value!r}: four hexadecimal digits on each side, without 0x: {':'.join(halves)}"
        )
    raise ValueError(
        f"{value!r} should be vendor:product in hexadecimal, as lsusb and lspci -nn print it: "
        "0403:6001, or 0403:* for all of a vendor"
    )


def _class_of(known: dict[str, str]) -> BeforeValidator:
    def validate(value: object) -> object:
        if not isinstance(value, str):
            raise ValueError("should be a string")  # noqa: TRY004 (as above)
        text = value.lower()
        code = known.get(text, text)
        if not _CODE.fullmatch(code):
            raise ValueError(
                f"unknown class {value!r}{did_you_mean(text, known)} (known: "
                f"{', '.join(known)}; or 2, 4 or 6 hexadecimal digits in quotes)"
            )
        return code

    return shorthand(validate, str)


def _node(value: object) -> object:
    if not isinstance(value, str):
        return value
    if value.startswith("/"):
        raise ValueError(
            f"names a subsystem such as tty, not a path; for the path itself use the source {value}"
        )
    subsystem, slash, name = value.partition("/")
    return {"subsystem": subsystem, **({"name": name} if slash else {})}


def _subsystem(value: object) -> object:
    if isinstance(value, str) and not _SUBSYSTEM.fullmatch(value):
        raise ValueError(f"{value!r} is not the name of a subsystem, such as tty")
    return value


def _attributes(value: object) -> object:
    if isinstance(value, dict):
        for name in value:
            if not isinstance(name, str):
                continue
            if problem := attribute_problem(name):
                raise ValueError(problem)
    return value


def attribute_problem(name: str) -> str | None:
    """Return why a file of a device's directory is not read."""
    if name.startswith("/") or ".." in name.split("/"):
        return f"{name!r} leads out of the device: use another attribute"
    if _REFUSED_ATTRIBUTES.fullmatch(name):
        return f"reading {name!r} is slow, has effects or gives no text: use another attribute"
    return None


def _whole_number(value: object) -> object:
    if isinstance(value, str):
        raise ValueError(  # noqa: TRY004 (as above)
            f"{value!r} should be a whole number without quotes (sysfs writes 10 as 0a)"
        )
    return value


def _as_list(value: object) -> object:
    """Return a scalar as a list: a number too, of which the message says how to write it."""
    return value if isinstance(value, list | tuple | dict) else [value]


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, dict) else value


Globs = Annotated[tuple[str, ...], NotEmpty, shorthand(_as_list, str | list[str])]
Pairs = Annotated[
    tuple[Annotated[str, BeforeValidator(vendor_product)], ...],
    NotEmpty,
    shorthand(_as_list, str | list[str]),
]
UsbClasses = Annotated[
    tuple[Annotated[str, _class_of(USB_CLASSES)], ...],
    NotEmpty,
    shorthand(_as_list, str | list[str]),
]
PciClasses = Annotated[
    tuple[Annotated[str, _class_of(PCI_CLASSES)], ...],
    NotEmpty,
    shorthand(_as_list, str | list[str]),
]
InterfaceNumbers = Annotated[
    tuple[Annotated[int, Field(strict=True, ge=0, le=255), shorthand(_whole_number, int)], ...],
    NotEmpty,
    shorthand(_as_list, int | list[int]),
]
Subsystem = Annotated[str, BeforeValidator(_subsystem)]
Attributes = Annotated[dict[str, str], BeforeValidator(_attributes)]


class NodeChoice(ConfigModel):
    """Nodes of one subsystem."""

    subsystem: Subsystem
    """The subsystem, such as tty."""
    name: Globs | None = None
    """Globs of the kernel's names."""
    attr: Attributes = Field(default_factory=dict)
    """File of the node's directory in sysfs: a glob of what it holds."""
    optional: bool = False
    """Whether the device is complete without it."""


NodeChoices = Annotated[
    tuple[Annotated[NodeChoice, BeforeValidator(_node)], ...],
    NotEmpty,
    shorthand(
        lambda value: value if isinstance(value, list) else [value],
        str | NodeChoice | list[str | NodeChoice],
    ),
]


class UsbSelector(ConfigModel):
    """What a USB device has to be: all options match, of a list one."""

    device: Pairs | None = None
    """`vendor:product` as lsusb prints it, in hexadecimal; `*` for any."""
    manufacturer: Globs | None = None
    """Globs of the manufacturer that the device names."""
    product: Globs | None = None
    """Globs of the product that the device names."""
    serial: Globs | None = None
    """Globs of the serial number that the device has."""
    port: Globs | None = None
    """Globs of where it is plugged in, or of the kernel's name (1-1.4)."""
    class_: Annotated[UsbClasses | None, Field(alias="class")] = None
    """The class of the device or of an interface: a name, or 2, 4 or 6 hexadecimal digits."""
    interface: InterfaceNumbers | None = None
    """The numbers of interfaces."""
    driver: Globs | None = None
    """Globs of an interface's driver."""

    @property
    def selects(self) -> bool:
        """Whether any option is set."""
        return any(getattr(self, name) is not None for name in UsbSelector.model_fields)

    @property
    def by_interface(self) -> bool:
        """Whether it is about an interface."""
        return not (self.class_ is None and self.interface is None and self.driver is None)


def _excluded(value: object) -> object:
    return [*map(main_option("device"), value if isinstance(value, list) else [value])]


_OWN_NODE: Final = (NodeChoice(subsystem=USB_NODE),)


class Usb(UsbSelector):
    """Each USB device that matches, with all its nodes, is a device."""

    node: NodeChoices | None = None
    """Which nodes: subsystems such as tty; usb: the device's own node (default); none."""
    split: bool = False
    """Whether each node is a device of its own."""
    exclude: Annotated[
        tuple[UsbSelector, ...],
        AsTuple,
        shorthand(_excluded, str | UsbSelector | list[str | UsbSelector]),
    ] = ()
    """What is not offered: options as above."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.selects:
            raise ValueError(
                "selects every USB device: say which, by device, class or any other option"
            )
        _check_exclude(self.exclude)
        _check_nodes(self.nodes, VFIO_NODE, "pci", split=self.split)
        return self

    @property
    def nodes(self) -> tuple[NodeChoice, ...]:
        """Which nodes."""
        return _OWN_NODE if self.node is None else self.node


class PciSelector(ConfigModel):
    """What a PCI function has to be: all options match, of a list one."""

    device: Pairs | None = None
    """`vendor:device` as lspci -nn prints it, in hexadecimal; `*` for any."""
    subsystem: Pairs | None = None
    """`vendor:device` of the subsystem."""
    class_: Annotated[PciClasses | None, Field(alias="class")] = None
    """The class: a name, or 2, 4 or 6 hexadecimal digits."""
    driver: Globs | None = None
    """Globs of its driver; none: it has none."""
    address: Globs | None = None
    """Globs of its address, such as 0000:3b:00.0."""
    pf: Globs | None = None
    """Only virtual functions: globs of the address or network interface of the physical one."""

    @property
    def selects(self) -> bool:
        """Whether any option is set."""
        return any(getattr(self, name) is not None for name in PciSelector.model_fields)


class Pci(PciSelector):
    """Each PCI function that matches, with all its nodes, is a device."""

    node: NodeChoices | None = None
    """Which nodes: subsystems such as drm; vfio: that of its IOMMU group; none."""
    split: bool = False
    """Whether each node is a device of its own."""
    exclude: Annotated[
        tuple[PciSelector, ...],
        AsTuple,
        shorthand(_excluded, str | PciSelector | list[str | PciSelector]),
    ] = ()
    """What is not offered: options as above."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.node is None:
            raise ValueError("needs node: a subsystem such as drm or nvme, vfio, or none")
        if not self.selects:
            raise ValueError(
                "selects every PCI function: say which, by device, class or any other option"
            )
        _check_exclude(self.exclude)
        _check_nodes(self.node, USB_NODE, "usb", split=self.split)
        return self

    @property
    def nodes(self) -> tuple[NodeChoice, ...]:
        """Which nodes."""
        return self.node or ()  # there are some: else it is not valid


class ParentSelector(ConfigModel):
    """What a device above another one has to be."""

    subsystem: Globs | None = None
    """Globs of its subsystem."""
    name: Globs | None = None
    """Globs of the kernel's name."""
    driver: Globs | None = None
    """Globs of its driver."""
    attr: Attributes = Field(default_factory=dict)
    """File of its directory: a glob of what it holds."""
    uevent: dict[str, str] = Field(default_factory=dict)
    """Key of its uevent file: a glob of the value."""


class SysfsSelector(ConfigModel):
    """What a device of a subsystem has to be: all options match, of a list one."""

    name: Globs | None = None
    """Globs of the kernel's name."""
    driver: Globs | None = None
    """Globs of its driver, or of the nearest driver above it if it has none."""
    attr: Attributes = Field(default_factory=dict)
    """File of its directory: a glob of what it holds."""
    uevent: dict[str, str] = Field(default_factory=dict)
    """Key of its uevent file: a glob of the value."""
    parent: Annotated[
        tuple[ParentSelector, ...],
        AsTuple,
        shorthand(_one_or_more, ParentSelector | list[ParentSelector]),
    ] = ()
    """What one device above it has to be; of a list, each by some device above."""


class Sysfs(SysfsSelector):
    """Each device of a subsystem that matches is a device."""

    subsystem: Subsystem
    """A class or a bus, such as tpmrm."""
    exclude: Annotated[
        tuple[SysfsSelector, ...],
        AsTuple,
        shorthand(_one_or_more, SysfsSelector | list[SysfsSelector]),
    ] = ()
    """What is not offered: options as above."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_exclude(self.exclude)
        return self


def _check_exclude(selectors: Iterable[UsbSelector | PciSelector | SysfsSelector]) -> None:
    if any(one == type(one)() for one in selectors):
        raise ValueError("exclude: an entry without options excludes everything")


def _check_nodes(choices: tuple[NodeChoice, ...], foreign: str, other: str, *, split: bool) -> None:
    subsystems = [choice.subsystem for choice in choices]
    if foreign in subsystems:
        raise ValueError(f"node: {foreign} is there only in {other}")
    for one in _ALONE:
        if one in subsystems and len(subsystems) > 1:
            raise ValueError(f"node: {one} stands alone")
    if split and subsystems in ([USB_NODE], [NO_NODE], [VFIO_NODE]):
        raise ValueError(
            "split makes each node a device of its own, and node gives one at most: leave one of "
            "them out"
        )

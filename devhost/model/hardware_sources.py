"""Sources that select devices by what the kernel knows of them: one class for each kind."""

import re
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, Field, WithJsonSchema, model_validator

from devhost.model.values import (
    ConfigModel,
    OneOrMore,
    Several,
    fits,
    matching,
    refuses,
    shorthand,
)

USB_NODE: Final = "usb"
NO_NODE: Final = "none"
VFIO_NODE: Final = "vfio"


def _classes(text: str) -> dict[str, str]:
    return dict(name_and_code.split() for name_and_code in text.split(", "))


# Names of classes, as the beginnings of their numbers: from usb.ids and pci.ids.
USB_CLASSES: Final = _classes(
    "audio 01, cdc 02, hid 03, physical 05, image 06, printer 07, storage 08, hub 09, "
    "cdcdata 0a, smartcard 0b, video 0e, wireless e0, misc ef, application fe, vendor ff"
)
PCI_CLASSES: Final = _classes(
    "storage 01, nvme 010802, sata 0106, network 02, ethernet 0200, infiniband 0207, "
    "display 03, vga 0300, 3d 0302, multimedia 04, audio 0403, bridge 06, serial 0700, "
    "usb 0c03, wireless 0d, crypto 10, accelerator 12"
)
_ADDRESS: Final = re.compile(r"([0-9a-f]{4,}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_CODE: Final = re.compile(r"(?:[0-9a-f]{2}){1,3}")
NUMBER_RANGE: Final = re.compile("([0-9]{1,5})-([0-9]{1,5})")
_SUBSYSTEM: Final = "[A-Za-z0-9][A-Za-z0-9_.-]*"
_NVIDIA: Final = re.compile(r"(?=(nvidia)[*?[])([^/]+)")  # a glob of names of its nodes
# Reading them is slow, has effects, or gives no text.
_REFUSED_ATTRIBUTES: Final = re.compile(
    r"(.*/)?(config|rom|vpd|resource[^/]*|descriptors|eeprom|uevent|remove|rescan|reset)"
)


def vendor_product(text: str) -> str:
    """Return a pair of numbers in lower case; a `ValueError` if it is of another form."""
    if _ADDRESS.fullmatch(text.lower()):
        raise ValueError(f'an address, not vendor:device; write address: "{text}"')
    if not re.fullmatch(PAIR_PATTERN, text):
        raise ValueError(
            f"{text!r} should be vendor:product in hexadecimal, as lsusb and lspci -nn print it: "
            "0403:6001, or 0403:* for all of a vendor"
        )
    return text.lower()


def _class_of(codes: dict[str, str]) -> AfterValidator:
    def code_of(text: str) -> str:
        code = codes.get(text.lower(), text.lower())
        if not _CODE.fullmatch(code):
            raise ValueError(
                f"unknown class {text!r} (known: {', '.join(codes)}; "
                "or 2, 4 or 6 hexadecimal digits in quotes)"
            )
        return code

    return AfterValidator(code_of)


def _class_schema(codes: dict[str, str]) -> WithJsonSchema:
    pattern = f"^({'|'.join(codes)}|([0-9A-Fa-f]{{2}}){{1,3}})$"
    return matching(pattern, f"one of {', '.join(codes)}, or hexadecimal digits")


def _node(value: object) -> object:
    if not isinstance(value, str):
        return value
    parts = re.fullmatch("([^/]+)/(.+)", value) or _NVIDIA.fullmatch(value)
    return {"subsystem": parts[1], "name": parts[2]} if parts else {"subsystem": value}


def _numbers_problem(text: str) -> str | None:
    match = NUMBER_RANGE.fullmatch(text)
    if int(match[1]) <= int(match[2]) if match else re.fullmatch(_NUMBERS, text):
        return None
    return f"{text!r} should be a number, or a range such as 0-7"


def attribute_problem(name: str) -> str | None:
    """Return why a file of a device's directory is not read."""
    if name.startswith("/") or ".." in name.split("/"):
        return f"{name!r} leads out of the device: use another attribute"
    if _REFUSED_ATTRIBUTES.fullmatch(name):
        return f"reading {name!r} is slow, has effects or gives no text: use another attribute"
    return None


def _exclusion_problem(selector: ConfigModel) -> str | None:
    is_empty = selector == type(selector)()
    return "an entry without options excludes everything" if is_empty else None


def _check(source: Any) -> Any:
    """Refuse what selects everything, or nodes that cannot be there."""
    selector: type[ConfigModel] = PciSelector
    device, foreign, owner = "PCI function", USB_NODE, "usb"
    if isinstance(source, Usb):
        selector, device, foreign, owner = UsbSelector, "USB device", VFIO_NODE, "pci"
    if all(getattr(source, option) is None for option in selector.model_fields):
        raise ValueError(f"selects every {device}: say which, by device, class or any other option")
    subsystems = [choice.subsystem for choice in source.node]
    if foreign in subsystems:
        raise ValueError(f"node: {foreign} is there only in {owner}")
    for choice in (NO_NODE, VFIO_NODE):
        if choice in subsystems and len(subsystems) > 1:
            raise ValueError(f"node: {choice} stands alone")
    if source.split and subsystems in ([USB_NODE], [NO_NODE], [VFIO_NODE]):
        raise ValueError(f"split makes each node a device: {subsystems[0]} gives one at most")
    return source


_excluding: Final = refuses(_exclusion_problem)
Globs = OneOrMore[str]
_NUMBER: Final = r"([0-9A-Fa-f]{4}|\*)"
PAIR_PATTERN: Final = f"{_NUMBER}:{_NUMBER}"
_PAIR_SCHEMA: Final = matching(f"^{PAIR_PATTERN}$", "vendor:product, such as 0403:6001")
Pair = Annotated[str, AfterValidator(vendor_product), _PAIR_SCHEMA]
Pairs = OneOrMore[Pair]
UsbClasses = OneOrMore[Annotated[str, _class_of(USB_CLASSES), _class_schema(USB_CLASSES)]]
PciClasses = OneOrMore[Annotated[str, _class_of(PCI_CLASSES), _class_schema(PCI_CLASSES)]]
_NUMBERS: Final = "[0-9]{1,5}(-[0-9]{1,5})?|.*[*?[].*"
Numbers = OneOrMore[
    Annotated[
        str,
        shorthand(lambda value: str(value) if isinstance(value, int) else value, int | str),
        refuses(_numbers_problem),
    ]
]
_A_SUBSYSTEM: Final = "a subsystem, such as tty"
_NAME: Final = f"^{_SUBSYSTEM}$", _A_SUBSYSTEM
Subsystem = Annotated[str, fits(*_NAME), matching(*_NAME)]
_NodeText = Annotated[str, matching(rf"^({_SUBSYSTEM}(/.+)?|nvidia[*?\[][^/]*)$", _A_SUBSYSTEM)]
Attributes = dict[Annotated[str, refuses(attribute_problem)], str]


class _Facts(ConfigModel):
    name: Globs | None = None
    """Globs of the kernel's name."""
    place: Globs | None = None
    """Globs of where it is plugged in."""
    driver: Globs | None = None
    """Globs of its driver, or of the nearest driver above it if it has none."""
    attr: Attributes = Field(default_factory=dict)
    """File of its directory: a glob of what it holds."""
    uevent: dict[str, str] = Field(default_factory=dict)
    """Key of its uevent file: a glob of the value."""


class NodeChoice(_Facts):
    """Nodes of one subsystem."""

    subsystem: Subsystem
    """The subsystem, such as tty."""
    optional: bool = False
    """Whether the device is complete without it."""


NodeChoices = OneOrMore[Annotated[NodeChoice, shorthand(_node, _NodeText | NodeChoice)]]


class _Nodes(ConfigModel):
    split: bool = False
    """Whether each node is a device of its own."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""

    _checked = model_validator(mode="after")(_check)


class UsbSelector(ConfigModel):
    """Selects USB devices: all options match, of a list one of its items."""

    main = "device"
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
    hub: Globs | None = None
    """Globs of where the hub is plugged in that it is below."""
    class_: Annotated[UsbClasses | None, Field(alias="class")] = None
    """The class of the device or of an interface: a name, or 2, 4 or 6 hexadecimal digits."""
    interface: Numbers | None = None
    """The numbers of interfaces, or ranges of them."""
    driver: Globs | None = None
    """Globs of an interface's driver."""


class Usb(_Nodes, UsbSelector):
    """Each USB device that matches, with all its nodes, is a device."""

    node: NodeChoices = (NodeChoice(subsystem=USB_NODE),)
    """Which nodes: subsystems such as tty; usb: the device's own node; none."""
    exclude: Several[Annotated[UsbSelector, _excluding]] = ()
    """What is not offered: options as above."""


class PciSelector(ConfigModel):
    """Selects PCI functions: all options match, of a list one of its items."""

    main = "device"
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
    uuid: Globs | None = None
    """Globs of the UUID of a GPU of NVIDIA's driver."""
    model: Globs | None = None
    """Globs of the model of a GPU of NVIDIA's driver."""
    vf: Numbers | None = None
    """Only virtual functions: their numbers, or ranges of them."""


class Pci(_Nodes, PciSelector):
    """Each PCI function that matches, with all its nodes, is a device."""

    node: NodeChoices
    """Which nodes: subsystems such as drm; vfio: that of its IOMMU group; none."""
    exclude: Several[Annotated[PciSelector, _excluding]] = ()
    """What is not offered: options as above."""


class ParentSelector(_Facts):
    """Selects the devices above a device."""

    subsystem: Globs | None = None
    """Globs of its subsystem."""
    driver: Globs | None = None
    """Globs of its driver."""


class SysfsSelector(_Facts):
    """Selects devices of a subsystem: all options match, of a list one of its items."""

    parent: Several[ParentSelector] = ()
    """What one device above it has to be; of a list, each by some device above."""


class Sysfs(SysfsSelector):
    """Each device of a subsystem that matches is a device."""

    main = "subsystem"
    subsystem: Subsystem
    """A class or a bus, such as tpmrm."""
    node: Literal["none"] | None = None
    """none: offered whether or not it has a node; the container gets none."""
    exclude: Several[Annotated[SysfsSelector, _excluding]] = ()
    """What is not offered: options as above."""
    in_use: bool = False
    """Include block devices that are mounted, used for swap or part of another device."""

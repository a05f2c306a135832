"""Errors and warnings of sources that find devices in sysfs: usb, pci, sysfs."""

from collections.abc import Iterator, Sequence
from typing import Final

from devhost.loading.lookalikes import counted_of
from devhost.loading.yamltree import Finding, Path
from devhost.model.config import Resource
from devhost.model.hardware import (
    NO_NODE,
    USB_NODE,
    VFIO_NODE,
    NodeChoice,
    Pci,
    Sysfs,
    Usb,
    attribute_problem,
)
from devhost.model.sources import Source
from devhost.model.spelling import did_you_mean

_VARIABLES: Final = ("usb", "pci", "attr")  # prefixes of variables
_KNOWN: Final = (
    *("tty", "usbmisc", "hidraw", "input", "video4linux", "media", "sound", "dvb", "block", "net"),
    *("drm", "nvme", "gpio", "i2c-dev", "spidev", "vfio-dev", "accel", "infiniband", "uio", "ptp"),
    *("watchdog", "tpm", "tpmrm", "apex", "xdma", USB_NODE, VFIO_NODE, NO_NODE),
)
# What the kernel counts up, and another subsystem has.
_COUNTED: Final = {
    "ttyUSB": "tty/ttyUSB*",
    "ttyACM": "tty/ttyACM*",
    "ttyS": "tty/ttyS*",
    "video": "video4linux",
    "renderD": "drm/renderD*",
    "card": "drm/card*",
    "event": "input/event*",
    "gpiochip": "gpio",
    "spi": "spidev",
    "i2c": "i2c-dev",
}
_CHANGING: Final = {
    "usb.devnum": "a replug",
    "usb.busnum": "a reboot",
    "pci.group": "a reboot",
}
_STABLE: Final = {"usb.devnum": "usb.port", "usb.busnum": "usb.port", "pci.group": "pci.address"}


def check_hardware(path: Path, resource: Resource) -> Iterator[Finding]:
    """Yield what the options of these sources cannot mean, or surely do not."""
    for index, source in enumerate(resource.sources):
        where = (*path, "sources", index)
        match source.kind:
            case Usb() as kind:
                yield from _usb((*where, "usb"), kind)
                yield from _nodes(where, (*where, "usb"), source, kind.nodes)
                yield from _split((*where, "usb"), resource, split=kind.split)
            case Pci() as kind:
                yield from _nodes(where, (*where, "pci"), source, kind.nodes)
                yield from _split((*where, "pci"), resource, split=kind.split)
            case Sysfs() as kind:
                yield from _role(where, source)
                counted = counted_of(kind.subsystem, kind.name or ("*",))
                if counted is not None and resource.id is None and resource.group is None:
                    message = (
                        f"IDs such as '{counted}' depend on the order of discovery and may change; "
                        "set `id: ${place}`"
                    )
                    yield "warning", (*where, "sysfs"), message, False
    for name in sorted(one for one in resource.mentioned if one.startswith("attr.")):
        if problem := attribute_problem(name.removeprefix("attr.")):
            yield "error", path, f"${{{name}}}: {problem}", False
    for template_index, template in enumerate(resource.id or ()):
        for name in sorted(template.names & _CHANGING.keys()):
            message = (
                f"${{{name}}} is another one after {_CHANGING[name]}; ${{{_STABLE[name]}}} stays"
            )
            yield "warning", (*path, "id", template_index), message, False


def _usb(path: Path, kind: Usb) -> Iterator[Finding]:
    for at, product in enumerate(kind.product or ()):
        if len(product) == 4 and all(one in "0123456789abcdefABCDEF" for one in product):
            message = (
                "product is the name that the device gives itself; for its number write "
                f"device: 0403:{product.lower()}"
            )
            yield "warning", (*path, "product", at), message, False
    own = any(choice.subsystem == USB_NODE for choice in kind.nodes)
    if own and any(code.startswith("08") for code in kind.class_ or ()):
        message = (
            "a storage device's USB node gives access to the whole disk, whether or not the host "
            "uses it"
        )
        yield "warning", (*path, "class"), message, False
    if own and "*:*" in (kind.device or ()):
        message = "offers every USB device, also keyboards and what is built in"
        yield "warning", (*path, "device"), message, False


def _nodes(
    where: Path, path: Path, source: Source, choices: Sequence[NodeChoice]
) -> Iterator[Finding]:
    subsystems = [choice.subsystem for choice in choices]
    if source.role is not None and len(subsystems) > 1:
        own = ", ".join(f"${{{one}.path}}" for one in subsystems)
        message = (
            f"'as' names one node, but node has {' and '.join(subsystems)}: remove it; they are "
            f"{own}"
        )
        yield "error", (*where, "as"), message, True
    yield from _role(where, source)
    for at, choice in enumerate(choices):
        if choice.subsystem in _KNOWN:
            continue
        near = _COUNTED.get(choice.subsystem.rstrip("0123456789"))
        hint = f"; did you mean {near}?" if near else did_you_mean(choice.subsystem, _KNOWN)
        if hint:
            message = f"no subsystem '{choice.subsystem}' is known{hint}"
            yield "warning", (*path, "node", at), message, False


def _role(where: Path, source: Source) -> Iterator[Finding]:
    if source.role in _VARIABLES:
        message = f"{', '.join(_VARIABLES)} are names of variables already; choose another"
        yield "error", (*where, "as"), message, False


def _split(path: Path, resource: Resource, *, split: bool) -> Iterator[Finding]:
    if split and resource.group is not None:
        message = (
            "split makes each node a device of its own, and group joins nodes: remove one of them"
        )
        yield "error", (*path, "split"), message, True

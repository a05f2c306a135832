r"""A `HostTree` with hardware: USB devices, PCI functions and class devices, a line each.

Each line is ``SUBSYSTEM NAME …``; what is indented is below it. ``M:m`` is a device number, and
``key=value`` a file of the device's directory. Text is quoted as in a shell, and ``#`` begins a
comment. ``devname=`` is its path below /dev, where that is no usual one::

    pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd
      usb usb1 1d6b:0002 class=090001 bus=1 dev=1
        usb 1-2 0403:6001 bus=1 dev=5 manufacturer=FTDI product="FT232R USB UART" serial=A1
          if 1-2:1.0 ffffff ftdi_sio
            usb-serial ttyUSB0 driver=ftdi_sio port_number=0
              tty ttyUSB0 188:0
    link serial/by-id/usb-FTDI_FT232R_USB_UART_A1-if00-port0 ttyUSB0

``pci ADDRESS VENDOR:DEVICE`` also takes ``class=``, ``sub=`` (the subsystem's numbers),
``driver=``, ``group=`` (its IOMMU group) and ``numa=``; ``usb NAME VENDOR:PRODUCT`` takes
``bus=``, ``dev=``, ``class=``, ``rev=``, ``version=`` and ``authorized=``; ``if NAME CLASS
[DRIVER]`` is a USB interface. ``dir NAME`` is a plain directory; ``link A B`` links /dev/A to
/dev/B, and paths below /sys as they are; ``file PATH [TEXT]`` is a plain file, with ``\n`` for a line
feed, and ``char NAME M:m`` a node of which sysfs does not know.
"""

import os
import re
import shlex
import shutil
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import pytest

from devhost import testing
from devhost.watch import uevents

_BUSES: Final = frozenset(
    {
        *("acpi", "auxiliary", "dfl", "gpio", "hid", "i2c", "media", "mei", "mmc", "pci"),
        *("platform", "pnp", "scsi", "serial-base", "spi", "usb", "usb-serial", "virtio"),
    }
)
_NUMBER: Final = re.compile(r"([0-9]+):([0-9]+)")
_NODE: Final = re.compile(r"^DEVNAME=(\w.*)$", re.MULTILINE)  # none that is elsewhere
_LINKS: Final = ("sys/bus", "sys/class", "sys/dev", "sys/kernel", "dev")
# Directories below /dev of all nodes of a subsystem, and of some of misc.
_DIRECTORIES: Final = {
    "drm": "dri",
    "infiniband_verbs": "infiniband",
    "input": "input",
    "vfio": "vfio",
    "vfio-dev": "vfio/devices",
}
_MISC: Final = {"rdma_cm": "infiniband/rdma_cm", "tun": "net/tun"}
_SOUND: Final = ("control", "pcm", "hw", "midi", "timer")
# Words that are no files of their own.
_RESERVED: Final = frozenset(
    ("driver", "group", "class", "sub", "rev", "numa", "bus", "dev", "version", "authorized")
) | {"devname"}


@dataclass
class _Device:
    """A line, and what is above it."""

    subsystem: str
    name: str
    path: str
    parent: "_Device | None"
    words: list[str]
    options: dict[str, str] = field(default_factory=dict)

    def option(self, name: str, default: str) -> str:
        """Return the value of a word."""
        return self.options.get(name, default)


class HostTree(testing.HostTree):
    """The files of a host, with those of its hardware in sysfs."""

    def hardware(self, text: str) -> None:
        """Create the hardware that a text describes; raise `ValueError` for an invalid line."""
        for device in _devices(self, text):
            if not self.at(device.path).is_dir():
                _create(self, device)

    def unplug(self, name: str) -> None:
        """Remove a device (``1-2``) with all that is below it, and the nodes and links of these."""
        device = next((self.root / "sys/devices").rglob(name), None)
        if device is None:
            raise ValueError(f"no device {name!r} in sysfs")
        for uevent in device.rglob("uevent"):
            if match := _NODE.search(uevent.read_text()):
                (self.root / "dev" / match[1]).unlink(missing_ok=True)
        shutil.rmtree(device)
        links = (p for top in _LINKS for p in (self.root / top).rglob("*") if p.is_symlink())
        for link in [*links]:
            if not link.exists():
                link.unlink()

    def rename_interface(self, name: str, new: str) -> None:
        """Give a network interface another name, as udev has the kernel do it."""
        link = self.at(f"/sys/class/net/{name}")
        place = link.resolve()
        place.rename(place.with_name(new))
        link.unlink()
        target = place.with_name(new).relative_to(self.root)
        self.relative_link(f"/sys/class/net/{new}", f"/{target}")


class Kernel:
    """Sends events of a host that is a directory, to those who listen to the kernel meanwhile."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(uevents.Uevents.__init__, "__defaults__", (lambda: self,))
        self.ours, self._theirs = socket.socketpair(type=socket.SOCK_DGRAM)
        self.ours.setblocking(False)

    def send(self, action: str, subsystem: str) -> None:
        self._theirs.send(f"{action}@/devices/x\0ACTION={action}\0SUBSYSTEM={subsystem}\0".encode())

    def fileno(self) -> int:
        return self.ours.fileno()

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        return self.ours.recv(size), (0, 1)

    def close(self) -> None:
        self.ours.close()
        self._theirs.close()


def _devices(tree: HostTree, text: str) -> Iterator[_Device]:
    above: list[tuple[int, _Device]] = []
    for line in text.splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        if words[0] == "link":
            _link(tree, *words[1:])
            continue
        if words[0] == "char":
            major, _, minor = words[2].partition(":")
            tree.char(f"/dev/{words[1]}", int(major), int(minor))
            continue
        if words[0] == "file":
            tree.file(words[1], "".join(words[2:]).replace(r"\n", "\n"))
            continue
        if len(words) < 2:
            raise ValueError(f"{line.strip()!r} should be SUBSYSTEM NAME")
        indent = len(line) - len(line.lstrip())
        while above and above[-1][0] >= indent:
            above.pop()
        parent = above[-1][1] if above else None
        subsystem, name, *rest = words
        options = dict(word.split("=", 1) for word in rest if "=" in word)
        plain = [word for word in rest if "=" not in word]
        path = _path(subsystem, name, parent)
        device = _Device(subsystem, name, path, parent, plain, options)
        above.append((indent, device))
        yield device


def _path(subsystem: str, name: str, parent: _Device | None) -> str:
    if parent is None:
        root = f"/sys/devices/pci{name[:7]}" if subsystem == "pci" else "/sys/devices"
        return f"{root}/{name}"
    is_class = subsystem not in (*_BUSES, "dir", "if")
    below_class = parent.subsystem not in (*_BUSES, "dir", "if") and subsystem != "net"
    middle = f"/{subsystem}" if is_class and not below_class else ""
    return f"{parent.path}{middle}/{name}"


def _link(tree: HostTree, name: str, target: str) -> None:
    if not name.startswith("/"):
        name, target = f"/dev/{name}", f"/dev/{target}"
    if not tree.at(name).is_symlink():
        tree.relative_link(name, target)


def _create(tree: HostTree, device: _Device) -> None:
    tree.directory(device.path)
    options, above, code = device.options, os.path.dirname(device.path), device.option("class", "")
    files = {key: value for key, value in options.items() if key not in _RESERVED}
    if driver := options.get("driver"):
        files["driver"] = driver
    match device.subsystem:
        case "dir":
            return
        case "pci":
            sub_vendor, sub_device = device.option("sub", "0000:0000").split(":")
            files["subsystem_vendor"] = f"0x{sub_vendor}"
            files["subsystem_device"] = f"0x{sub_device}"
            files["class"] = f"0x{code or '000000'}"
            files["numa_node"] = device.option("numa", "-1")
            tree.pci(device.name, device.words[0], above, **files)
            if group := options.get("group"):
                tree.relative_link(
                    f"{device.path}/iommu_group", f"/sys/kernel/iommu_groups/{group}"
                )
        case "usb":
            files |= {"devnum": options["dev"], "bcdDevice": device.option("rev", "0100")}
            files["version"] = f" {device.option('version', '2.00')}"
            files["authorized"] = device.option("authorized", "1")
            tree.usb(device.name, device.words[0], above, **_codes("bDevice", code), **files)
        case "if":
            code, *drivers = device.words
            number = f"{int(device.name.rpartition('.')[2]):02x}"
            codes = {**_codes("bInterface", code), "driver": "".join(drivers)}
            tree.device(device.path, "bus/usb", bInterfaceNumber=number, **codes)
        case _:
            _plain(tree, device, files)


def _codes(prefix: str, code: str) -> dict[str, str]:
    parts = ("Class", "SubClass", "Protocol")
    return {f"{prefix}{part}": code[2 * at :][:2] or "00" for at, part in enumerate(parts)}


def _plain(tree: HostTree, device: _Device, files: dict[str, str]) -> None:
    above = device.parent
    if device.subsystem not in _BUSES and above is not None and above.subsystem != "dir":
        tree.relative_link(f"{device.path}/device", above.path)
    if number := "".join(device.words):
        if not _NUMBER.fullmatch(number):
            raise ValueError(f"{number!r} should be a device number such as 188:0")
        files["dev"] = number
    if device.subsystem == "net":
        files["uevent"] = f"INTERFACE={device.name}"
    if "DEVTYPE" in files or device.subsystem == "drm":
        files["uevent"] = f"DEVTYPE={files.pop('DEVTYPE', 'drm_minor')}"
    kind = "bus" if device.subsystem in _BUSES else "class"
    tree.device(device.path, f"{kind}/{device.subsystem}", _node_name(device), **files)


def _node_name(device: _Device) -> str:
    """Return where below /dev the node of a device is."""
    if "devname" in device.options:
        return device.options["devname"]
    name = device.name.replace("!", "/")
    match device.subsystem:
        case subsystem if directory := _DIRECTORIES.get(subsystem):
            return f"{directory}/{name}"
        case "misc":
            return _MISC.get(name, name)
        case "sound" if name.startswith(_SOUND):
            return f"snd/{name}"
        case "usbmisc" if name.startswith("lp"):
            return f"usb/{name}"
        case "dvb":
            adapter, _, rest = name.removeprefix("dvb").partition(".")
            return f"dvb/adapter{adapter}/{rest}"
    return name

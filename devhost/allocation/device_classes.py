"""What a device node gives to a container that has it, by what the kernel says of its number.

Never by its name: anybody who may create nodes chooses that. A class that is not known to be safe
needs ``--allow-device``. ``docs/devices.md`` has the same table, by `tests.trust.device_table`.
"""

from collections.abc import Iterator
from typing import Final

from devhost.hostfs.kernel_facts import KernelFacts
from devhost.hostfs.mounts import Number
from devhost.immutable import immutable
from devhost.model.device import FileKind


@immutable
class DeviceClass:
    """Devices that give the same.

    Attributes:
        name: For ``--allow-device``.
        gives: What a container that has such a device can do, or has.
        by: What it is known by: subsystems in sysfs, ``misc/NAME`` for a device of the subsystem
            misc, ``region/NAME`` in /proc/devices, and numbers that Linux assigns for good
            (``188``, ``4:0-63``), for devices that sysfs does not know.
        safe: Whether containers may be given it without a flag.
        when: What else must be true, for the documentation.
    """

    name: str
    gives: str
    by: tuple[str, ...] = ()
    safe: bool = False
    when: str = ""


def _safe(name: str, gives: str, *by: str, when: str = "") -> DeviceClass:
    return DeviceClass(name, gives, by or (() if when else (name,)), safe=True, when=when)


def _other(name: str, gives: str, *by: str, when: str = "") -> DeviceClass:
    return DeviceClass(name, gives, by or (() if when else (name,)), when=when)


# What more than the subsystem or the number decides about.
_TTY_USB: Final = _safe(
    "tty-usb",
    "a serial adapter or modem on USB",
    *("166", "188"),
    when="subsystem tty, below a USB device",
)
_TTY_SERIAL: Final = _other(
    "tty-serial",
    "a serial port of the board, which may be the node's console",
    *("4:64-255", "204"),
    when="subsystem tty, below other hardware",
)
_USB: Final = _safe(
    "usb", "control of a USB device, such as a camera, adapter or token", "usb", "189"
)
_USB_HUB: Final = _other(
    "usb-hub", "power and reset of all devices on a hub", when="usb, device class 09"
)
_USB_STORAGE: Final = _other(
    "usb-storage", "raw access to a disk", when="usb, with an interface of class 08"
)
_USB_NET: Final = _other(
    "usb-net",
    "the traffic of a network interface of the node",
    when="usb, with a network interface of the host",
)
_USB_INPUT: Final = _other(
    "usb-input",
    "what is typed at the node",
    when="usb, a keyboard or mouse with nothing but HID interfaces",
)
_FIDO: Final = _safe(
    "fido", "a security token", when="hidraw, where the report descriptor is only FIDO's"
)
_VFIO: Final = _safe(
    "vfio",
    "a device that was bound to VFIO, isolated by the IOMMU",
    *("vfio", "vfio-dev", "misc/vfio", "10:196"),
)
_NO_IOMMU: Final = _other(
    "vfio-noiommu",
    "all memory of the node: no IOMMU restricts the device",
    when="vfio, where the kernel's name begins with noiommu",
)
_XEN: Final = _other(
    "xen", "control of the hypervisor", when="misc, where the kernel's name begins with xen"
)
_TTY: Final = _other("tty", "a terminal of another kind", "tty", "5")
_TTY_CONSOLE: Final = _other(
    "tty-console",
    "the node's consoles: what they show and what is typed",
    *("vc", "4:0-63", "5:1", "7", "229"),
)
_PTY: Final = _other("pty", "terminal sessions of others", "2-3", "128-143")
_TERMINALS: Final = (_TTY_USB, _TTY_SERIAL, _TTY_CONSOLE, _PTY, _TTY)
_BLOCK: Final = _other("block", "the data of a disk", when="every block device")
MEMORY: Final = _other("memory", "all memory and I/O ports of the node", "1:1-2", "1:4")
UNKNOWN: Final = _other("unknown", "", when="all others")

SAFE: Final = (
    _safe("null", "nothing, zeros, random numbers", "1:3", "1:5", "1:7-9"),
    _TTY_USB,
    _USB,
    _safe("usbmisc", "control of a USB device, such as a modem, printer or instrument"),
    _FIDO,
    _safe("video4linux", "a camera, capture card, radio or codec", "video4linux", "81"),
    _safe("media", "the controller of a camera or codec"),
    _safe("cec", "the control line of HDMI: connected screens"),
    _safe("lirc", "an infrared receiver or transmitter"),
    _safe("dvb", "a television receiver", "dvb", "212"),
    _safe("sound", "a sound card: microphones, loudspeakers, MIDI", "sound", "116", "14"),
    _safe("drm", "a GPU; by a card node also what its screens show", "drm", "226"),
    _safe("kfd", "compute on AMD GPUs"),
    _safe("nvidia", "NVIDIA GPUs", "195", "region/nvidia-uvm"),
    _safe("accel", "a compute accelerator"),
    _safe("apex", "a Coral accelerator on PCIe"),
    _safe("hailo_chardev", "a Hailo accelerator on PCIe"),
    _safe("uacce", "an accelerator with shared virtual addressing"),
    _safe("infiniband_verbs", "RDMA by an adapter"),
    _safe("rdma_cm", "RDMA connections", "misc/rdma_cm"),
    _VFIO,
    _safe("gpio", "a GPIO controller: whatever its lines switch"),
    _safe("iio", "sensors and converters"),
    _safe("counter", "counters and encoders"),
    _safe("pps", "the pulses of a clock, to read"),
    _safe("gnss", "a satellite receiver"),
    _safe("wwan", "control of a cellular modem"),
    _safe("hw_random", "random numbers of the hardware", "misc/hw_random", "10:183"),
    _safe("kvm", "virtual machines", "misc/kvm", "10:232"),
    _safe("tun", "interfaces in the container's own network", "misc/tun", "10:200"),
    _safe("ppp", "PPP in the container's own network", "ppp", "108"),
    _safe("fuse", "file systems in the container", "misc/fuse", "10:229"),
    _safe("sgx_enclave", "SGX enclaves", "misc/sgx_enclave"),
)
OTHERS: Final = (
    # disks
    _BLOCK,
    _other("scsi_generic", "raw access to disks", "scsi_generic", "21"),
    _other("bsg", "raw access to disks"),
    _other("scsi_tape", "a tape", "scsi_tape", "9", "206"),
    _other("scsi_changer", "a tape library", "scsi_changer", "86"),
    _other(
        "nvme",
        "raw access to disks and their firmware",
        *("nvme", "nvme-generic", "nvme-subsystem", "misc/nvme-fabrics"),
    ),
    _other("mtd", "flash memory, often with the firmware", "mtd", "90"),
    _other("ubi", "flash memory", "ubi", "misc/ubi_ctrl"),
    _other("raw", "the data of a disk", "raw", "162"),
    _other("dax", "persistent memory", "dax", "nd", "ndctl", "dimmctl"),
    _other("device-mapper", "disks made of others", "misc/device-mapper", "10:236"),
    _other("loop-control", "disks made of files", "misc/loop-control", "10:237"),
    _other("btrfs-control", "the disks of btrfs", "misc/btrfs-control", "10:234"),
    _USB_STORAGE,
    # the machine
    MEMORY,
    _other("kmsg", "the kernel's log, to read and to write", "1:11"),
    _other("msr", "registers of the CPUs, and so the kernel", "msr", "202"),
    _other("cpuid", "the features of the CPUs", "cpuid", "203"),
    _other("nvram", "settings of the firmware", "misc/nvram", "10:144"),
    _other("ipmi", "the board's management: power, console, accounts"),
    _other("mei", "the platform's management engine"),
    _other("watchdog", "reset of the node", "watchdog", "misc/watchdog", "10:130"),
    _other("rtc", "wake-up alarms of the node", "rtc", "misc/rtc", "10:135"),
    _other("ptp", "a network card's clock, which may set the node's time"),
    _other("hpet", "registers of a timer", "misc/hpet", "10:228"),
    _other("tpm", "the machine's keys and measurements", "tpm", "tpmrm", "misc/tpm0", "10:224"),
    _other("i2c", "chips of the board: sensors, memory, voltages", "i2c-dev", "89"),
    _other("spidev", "chips of the board: converters, flash memory", "spidev", "153"),
    _other("uio", "registers of a device, and by its DMA all memory"),
    _NO_IOMMU,
    _other("iommu", "DMA of devices that were bound to VFIO", "misc/iommu"),
    _other("sgx_provision", "the machine's identity for attestation", "misc/sgx_provision"),
    _other("sev", "control of encrypted virtual machines", "misc/sev"),
    _other("nvidia-caps", "rights on NVIDIA GPUs, such as to partition them", "region/nvidia-caps"),
    _other("infiniband_mad", "management of the fabric"),
    _other("firewire", "all devices on FireWire, and memory of machines there"),
    _USB_HUB,
    _USB_NET,
    # who sits at the node
    _TTY_SERIAL,
    _TTY_CONSOLE,
    _PTY,
    _TTY,
    _other("graphics", "what the screens show", "graphics", "29"),
    _other("input", "what is typed and pointed at the node", "input", "13"),
    _USB_INPUT,
    _other("hidraw", "raw access to an input device, such as a keyboard"),
    _other("uinput", "keyboards and mice that type at the node", "misc/uinput", "10:223"),
    _other("uhid", "keyboards and mice that type at the node", "misc/uhid", "10:239"),
    _other("usbmon", "the traffic of all USB devices, such as keyboards"),
    # the kernel
    _other(
        "vhost-net", "network of virtual machines, inside the kernel", "misc/vhost-net", "10:238"
    ),
    _other("vhost-vsock", "sockets of virtual machines", "misc/vhost-vsock", "10:241"),
    _other("vhost-vdpa", "a network or storage device"),
    _other("virtio-ports", "channels to the hypervisor"),
    _XEN,
    _other("autofs", "what the node mounts on demand", "misc/autofs", "10:235"),
    _other("cuse", "devices with any name that a process provides", "cuse", "misc/cuse", "10:203"),
    _other("snapshot", "the node's memory, by hibernation", "misc/snapshot", "10:231"),
    _other("mcelog", "hardware errors, once for all readers", "misc/mcelog", "10:227"),
    UNKNOWN,
)

_BY: Final = {key: one for one in (*SAFE, *OTHERS) for key in one.by}
_MINORS: Final = 1 << 20


def _range(text: str) -> range:
    first, _, last = text.partition("-")
    return range(int(first), int(last or first) + 1)


def _numbers() -> dict[int, list[tuple[range, DeviceClass]]]:
    """Return the numbers in the table by major: minors, and their class."""
    numbers: dict[int, list[tuple[range, DeviceClass]]] = {}
    for key, found in _BY.items():
        if key[0].isdecimal():
            majors, _, minors = key.partition(":")
            for major in _range(majors):
                span = _range(minors) if minors else range(_MINORS)
                numbers.setdefault(major, []).append((span, found))
    for spans in numbers.values():  # single minors before all minors of a major
        spans.sort(key=lambda span: len(span[0]))
    return numbers


_NUMBERS: Final = _numbers()


def class_of(kind: FileKind, number: Number, facts: KernelFacts) -> DeviceClass:
    """Return the class of a device node."""
    if kind is FileKind.BLOCK:
        return _BLOCK
    assigned = _assigned(number)
    if assigned is MEMORY:
        return MEMORY
    match facts.subsystem:
        case "":
            return _BY.get(f"region/{facts.region}", assigned)
        case "mem":
            return assigned
        case "tty":
            return _terminal(assigned, facts)
        case "usb":
            return _usb(facts.interfaces)
        case "hidraw" if _is_only_fido(facts.report):
            return _FIDO
        case "vfio" | "vfio-dev" if facts.name.startswith("noiommu"):
            return _NO_IOMMU
        case "misc":
            key = f"misc/{facts.name}"
            return _XEN if facts.name.startswith("xen") else _BY.get(key) or _unlisted(key)
        case subsystem:
            return _BY.get(subsystem) or _unlisted(subsystem)


def _assigned(number: Number) -> DeviceClass:
    major, minor = number
    spans = _NUMBERS.get(major, ())
    return next((found for minors, found in spans if minor in minors), UNKNOWN)


def _unlisted(key: str) -> DeviceClass:
    return DeviceClass(key.replace("/", "-"), "not known to devhost")


def _terminal(assigned: DeviceClass, facts: KernelFacts) -> DeviceClass:
    if assigned in _TERMINALS:
        return assigned
    if not facts.above:
        return _TTY
    return _TTY_USB if "usb" in facts.above else _TTY_SERIAL


def _usb(interfaces: tuple[str, ...]) -> DeviceClass:
    own, *others = interfaces or ("",)
    if own == "09":
        return _USB_HUB
    if any(one.startswith("08") for one in others):
        return _USB_STORAGE
    if "net" in others:
        return _USB_NET
    keyboard_or_mouse = any(one in ("030101", "030102") for one in others)
    if keyboard_or_mouse and all(one.startswith("03") for one in others):
        return _USB_INPUT
    return _USB


# ── HID report descriptors: items of HID 1.11, section 6.2.2 ──

_FIDO_PAGE: Final = 0xF1D0  # of the HID usage tables
_USAGE_PAGE, _PUSH, _POP, _LONG = 0x04, 0xA4, 0xB4, 0xFC
_USAGE, _COLLECTION, _END_COLLECTION = 0x08, 0xA0, 0xC0
_MAIN: Final = (0x80, 0x90, 0xB0, _COLLECTION, _END_COLLECTION)


def _is_only_fido(report: bytes) -> bool:
    """Whether all top-level collections of a report descriptor are of FIDO's usage page."""
    page, depth = 0, 0
    usages: list[int] = []
    pages: set[int] = set()
    for item, size, value in _items(report):
        if item == _USAGE_PAGE:
            page = value
        elif item == _USAGE:
            usages.append(value >> 16 if size == 4 else page)
        elif item not in _MAIN:
            if item in (_PUSH, _POP, _LONG):  # FIDO tokens need none of these
                return False
        else:
            if item == _COLLECTION:
                if depth == 0:
                    pages.update(usages or [page])
                depth += 1
            elif item == _END_COLLECTION:
                depth -= 1
            usages = []
    return pages == {_FIDO_PAGE} and depth == 0


def _items(report: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield items without the bits of their size, the size, and the value."""
    at = 0
    while at < len(report):
        size = (0, 1, 2, 4)[report[at] & 3]
        yield report[at] & 0xFC, size, int.from_bytes(report[at + 1 : at + 1 + size], "little")
        at += 1 + size

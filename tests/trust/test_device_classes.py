"""What a device node gives is known by its number, and never by its name."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.allocation import device_classes
from devhost.allocation.device_classes import OTHERS, SAFE, class_of
from devhost.allocation.policy import Policy
from devhost.hostfs.files import HostFiles
from devhost.hostfs.kernel_facts import KernelFacts, KernelFactsReader
from devhost.model.device import FileKind
from tests.support.kernel import FIDO, KEYBOARD, interface, shows
from tests.trust import device_table
from tests.trust.attack import Victim, as_root

USB: Final = {"usb1": "usb", "1-1": "usb", "1-1:1.0": "usb"}
BOARD: Final = {"platform": "", "serial8250": "platform"}
HID: Final = {"1-1": "usb", "0003:1050:0120.0001": "hid"}
REPORT: Final = "../../report_descriptor"

# By class: what the kernel shows of a device of it, as (number, subsystem, name, more).
Shown = tuple[tuple[int, int], str, str, Mapping[str, Any]]
PASS: Final[Mapping[str, Shown]] = {
    "null": ((1, 9), "mem", "urandom", {}),
    "tty-usb": ((188, 0), "tty", "ttyUSB0", {"below": USB}),
    "tty-usb (ACM)": ((166, 3), "tty", "ttyACM3", {"below": USB}),
    "tty-usb (other)": ((240, 0), "tty", "ttyHS0", {"below": USB}),
    "usb": ((189, 1), "usb", "1-2", {"files": interface("1-2:1.0", "ffffff")}),
    "usb (security key)": (
        (189, 2),
        "usb",
        "1-3",
        {"files": interface("1-3:1.0", "030101") | interface("1-3:1.1", "0b0000")},
    ),
    "usbmisc": ((180, 0), "usbmisc", "cdc-wdm0", {}),
    "fido": ((240, 5), "hidraw", "hidraw5", {"below": HID, "files": {REPORT: FIDO}}),
    "video4linux": ((81, 0), "video4linux", "video0", {}),
    "media": ((241, 0), "media", "media0", {}),
    "dvb": ((212, 3), "dvb", "dvb0.frontend0", {}),
    "sound": ((116, 7), "sound", "controlC0", {}),
    "drm": ((226, 128), "drm", "renderD128", {}),
    "drm (card)": ((226, 0), "drm", "card0", {}),
    "kfd": ((242, 0), "kfd", "kfd", {}),
    "accel": ((261, 0), "accel", "accel0", {}),
    "apex": ((120, 0), "apex", "apex_0", {}),
    "infiniband_verbs": ((231, 192), "infiniband_verbs", "uverbs0", {}),
    "rdma_cm": ((10, 120), "misc", "rdma_cm", {}),
    "vfio": ((243, 27), "vfio", "27", {}),
    "vfio (container)": ((10, 196), "misc", "vfio", {}),
    "gpio": ((254, 0), "gpio", "gpiochip0", {}),
    "iio": ((244, 0), "iio", "iio:device0", {}),
    "kvm": ((10, 232), "misc", "kvm", {}),
    "tun": ((10, 200), "misc", "tun", {}),
    "fuse": ((10, 229), "misc", "fuse", {}),
    "ppp": ((108, 0), "ppp", "ppp", {}),
    "pps": ((250, 0), "pps", "pps0", {}),
}
NEED: Final[Mapping[str, Shown]] = {
    "scsi_generic": ((21, 0), "scsi_generic", "sg0", {}),
    "bsg": ((248, 0), "bsg", "0:0:0:0", {}),
    "nvme": ((245, 0), "nvme", "nvme0", {}),
    "nvme (generic)": ((246, 0), "nvme-generic", "ng0n1", {}),
    "mtd": ((90, 0), "mtd", "mtd0", {}),
    "ubi": ((247, 0), "ubi", "ubi0", {}),
    "scsi_tape": ((9, 0), "scsi_tape", "st0", {}),
    "raw": ((162, 0), "raw", "rawctl", {}),
    "device-mapper": ((10, 236), "misc", "device-mapper", {}),
    "loop-control": ((10, 237), "misc", "loop-control", {}),
    "kmsg": ((1, 11), "mem", "kmsg", {}),
    "unknown": ((1, 12), "mem", "oldmem", {}),
    "msr": ((202, 0), "msr", "msr0", {}),
    "cpuid": ((203, 0), "cpuid", "cpu0", {}),
    "ipmi": ((249, 0), "ipmi", "ipmi0", {}),
    "watchdog": ((10, 130), "misc", "watchdog", {}),
    "watchdog (1)": ((251, 1), "watchdog", "watchdog1", {}),
    "rtc": ((252, 0), "rtc", "rtc0", {}),
    "ptp": ((253, 0), "ptp", "ptp0", {}),
    "tpm": ((10, 224), "tpm", "tpm0", {}),
    "tpm (manager)": ((253, 65536), "tpmrm", "tpmrm0", {}),
    "i2c": ((89, 0), "i2c-dev", "i2c-0", {}),
    "spidev": ((153, 0), "spidev", "spidev0.0", {}),
    "uio": ((239, 0), "uio", "uio0", {}),
    "vfio-noiommu": ((243, 1), "vfio", "noiommu-1", {}),
    "vfio-noiommu (device)": ((238, 1), "vfio-dev", "noiommu-vfio0", {}),
    "input": ((13, 64), "input", "event0", {}),
    "hidraw": ((240, 1), "hidraw", "hidraw1", {"below": HID, "files": {REPORT: KEYBOARD}}),
    "hidraw (no report)": ((240, 2), "hidraw", "hidraw2", {}),
    "uinput": ((10, 223), "misc", "uinput", {}),
    "uhid": ((10, 239), "misc", "uhid", {}),
    "usb-hub": ((189, 0), "usb", "usb1", {"files": {"bDeviceClass": "09\n"}}),
    "usb-storage": ((189, 3), "usb", "1-4", {"files": interface("1-4:1.0", "080650")}),
    "usb-storage (one of several)": (
        (189, 4),
        "usb",
        "1-5",
        {"files": interface("1-5:1.0", "ff0000") | interface("1-5:1.1", "080650")},
    ),
    "usb-input": (
        (189, 5),
        "usb",
        "1-6",
        {"files": interface("1-6:1.0", "030101") | interface("1-6:1.1", "030000")},
    ),
    "usb-net": (
        (189, 6),
        "usb",
        "1-7",
        {"files": interface("1-7:1.0", "ff0000") | {"1-7:1.0/net/eth1/mtu": "1500\n"}},
    ),
    "tty-serial": ((4, 64), "tty", "ttyS0", {"below": BOARD}),
    "tty-serial (ARM)": ((204, 64), "tty", "ttyAMA0", {"below": BOARD}),
    "tty-serial (other)": ((237, 0), "tty", "ttyMSM0", {"below": BOARD}),
    "tty-console": ((4, 1), "tty", "tty1", {}),
    "tty-console (console)": ((5, 1), "tty", "console", {}),
    "tty-console (screen)": ((7, 129), "vc", "vcsa1", {}),
    "tty-console (hvc)": ((229, 0), "tty", "hvc0", {}),
    "tty": ((236, 0), "tty", "ttyprintk", {}),
    "vhost-net": ((10, 238), "misc", "vhost-net", {}),
    "vhost-vsock": ((10, 241), "misc", "vhost-vsock", {}),
    "xen": ((10, 121), "misc", "xen!privcmd", {}),
    "cuse": ((235, 0), "cuse", "tty0", {}),
    "usbmon": ((234, 0), "usbmon", "usbmon0", {}),
    "infiniband_mad": ((231, 0), "infiniband_mad", "umad0", {}),
    "mei": ((234, 1), "mei", "mei0", {}),
    "graphics": ((29, 0), "graphics", "fb0", {}),
    "homemade": ((234, 2), "homemade", "homemade0", {}),
    "misc-homemade": ((10, 122), "misc", "homemade", {}),
}


def of(cases: Mapping[str, Shown]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(
        ("name", "shown"), [(name.partition(" ")[0], one) for name, one in cases.items()], ids=cases
    )


def plug(node: Victim, path: str, shown: Shown) -> None:
    number, subsystem, name, more = shown
    node.node(path, number)
    shows(node.root, number, subsystem, name, **more)


@pytest.fixture
def bare(node: Victim) -> Victim:
    """A node whose sysfs shows no device: the machine's own is not looked at."""
    node.directory("/sys/dev/char")
    node.file("/proc/devices", "Character devices:\n  1 mem\n")
    return node


@as_root
@of(PASS)
def test_passes_without_a_flag(bare: Victim, name: str, shown: Shown) -> None:
    """What is known to be safe passes, also under the name of something that is not."""
    for path in ("/dev/thing", "/dev/sg0"):
        bare.node(path, shown[0])
    plug(bare, "/dev/mem2", shown)
    found = class_of(FileKind.CHAR, shown[0], KernelFactsReader(bare.files).of(shown[0]))
    assert (found.name, found.safe) == (name, True)
    for path in ("/dev/thing", "/dev/sg0", "/dev/mem2"):
        for outcome in bare.by_both_ways({"sources": [path]}):
            assert [one.host_path for one in outcome.only.devices] or outcome.spec


@as_root
@of(NEED)
def test_needs_a_flag_that_the_message_names(bare: Victim, name: str, shown: Shown) -> None:
    """Everything else is refused as a source and as an entry; the class or the path allows it."""
    plug(bare, "/dev/null", shown)
    bare.link("/dev/kvm", "null")
    named = name if name != "unknown" else "'/dev/null'"
    entry = {"sources": [{"static": 1}], "allocate": {"devices": ["/dev/kvm"]}}
    for resource in ({"sources": ["/dev/null"]}, {"sources": ["/dev/kvm"]}, entry):
        for outcome in bare.by_both_ways(resource):
            outcome.nothing(f"/dev/null is of class {name} (", f"it needs --allow-device {named}")
    facts = KernelFactsReader(bare.files).of(shown[0])
    for policy in (
        Policy(enforced=True, allow_devices=(named.strip("'"),)),
        Policy(enforced=True, allow_devices=("/dev/nul?",)),
        Policy(("/dev/nul?",), enforced=True),
    ):
        refusal = policy.refusal("/dev/null", FileKind.CHAR, shown[0], mount=False, facts=facts)
        assert refusal is None
    other = Policy(("/dev/zero",), enforced=True, allow_devices=("kvm", "/dev/nul"))
    assert other.refusal("/dev/null", FileKind.CHAR, shown[0], mount=False, facts=facts)


@as_root
def test_a_number_that_is_not_known_is_of_an_unknown_class(bare: Victim) -> None:
    """What neither sysfs nor the table knows is refused; the word unknown allows nothing."""
    bare.node("/dev/kvm", (240, 0))
    outcome = bare.attack({"sources": ["/dev/kvm"]})
    outcome.nothing("class unknown", "240:0", "--allow-device '/dev/kvm'")
    policy = Policy(enforced=True, allow_devices=("unknown",))
    assert policy.refusal("/dev/kvm", FileKind.CHAR, (240, 0), mount=False)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ((1, 1), "memory"),
        ((1, 3), "null"),
        ((4, 63), "tty-console"),
        ((4, 64), "tty-serial"),
        ((5, 0), "tty"),
        ((5, 1), "tty-console"),
        ((10, 130), "watchdog"),
        ((10, 232), "kvm"),
        ((10, 255), "unknown"),
        ((13, 0), "input"),
        ((21, 300), "scsi_generic"),
        ((128, 0), "pty"),
        ((136, 7), "pty"),
        ((143, 1 << 19), "pty"),
        ((144, 0), "unknown"),
        ((188, 511), "tty-usb"),
        ((189, 0), "usb"),
        ((195, 255), "nvidia"),
        ((226, 0), "drm"),
        ((254, 0), "unknown"),
    ],
)
def test_numbers_decide_where_sysfs_does_not_know(number: tuple[int, int], name: str) -> None:
    assert class_of(FileKind.CHAR, number, KernelFacts()).name == name


def test_sysfs_decides_before_the_numbers() -> None:
    """A driver may register numbers that Linux gives to another."""
    for subsystem in ("scsi_generic", "homemade"):
        facts = KernelFacts(subsystem, "x")
        assert class_of(FileKind.CHAR, (188, 0), facts).name == subsystem
    assert class_of(FileKind.CHAR, (14, 0), KernelFacts("tty", "x")).name == "tty"


def test_memory_is_known_by_its_numbers_whatever_sysfs_says() -> None:
    for number in ((1, 1), (1, 2), (1, 4)):
        assert class_of(FileKind.CHAR, number, KernelFacts("sound", "x")).name == "memory"


@as_root
def test_drivers_without_sysfs_are_known_by_their_region(bare: Victim) -> None:
    """NVIDIA's driver shows its nodes only in /proc/devices; block devices there do not count."""
    bare.file(
        "/proc/devices",
        "Character devices:\n  1 mem\n509 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n"
        "508 nvidia-uvm\n",
    )
    for major, name in ((511, "nvidia"), (509, "nvidia-caps"), (508, "unknown")):
        facts = KernelFactsReader(bare.files).of((major, 0))
        assert class_of(FileKind.CHAR, (major, 0), facts).name == name


@pytest.mark.parametrize(
    "report",
    [
        b"",
        b"\x06",
        FIDO[:-1],
        FIDO + KEYBOARD,
        KEYBOARD + FIDO,
        bytes.fromhex("06d0f1 0906 0501 0906 a101 c0"),
        bytes.fromhex("06d0f1 0901 0b06000100 a101 c0"),  # a second usage, with its own page
        bytes.fromhex("06d0f1 a4 0501 b4 0901 a101 c0"),
        bytes.fromhex("feff00") + FIDO,
        FIDO + b"\xc0",
    ],
)
def test_only_fido_is_fido(report: bytes) -> None:
    """A token that is a keyboard as well is none; nor is what cannot be read to the end."""
    facts = KernelFacts("hidraw", "hidraw0", report=report)
    assert class_of(FileKind.CHAR, (240, 0), facts).name == "hidraw"


def test_a_fido_token_s_own_report_descriptor() -> None:
    report = bytes.fromhex("06d0f10901a1010920150026ff007508954081020921150026ff00750895409102c0")
    facts = KernelFacts("hidraw", "hidraw0", report=report)
    assert class_of(FileKind.CHAR, (240, 0), facts).name == "fido"


def test_a_class_has_one_name_and_says_what_it_gives() -> None:
    classes = (*SAFE, *OTHERS)
    names = [one.name for one in classes]
    assert len(set(names)) == len(names)
    assert all(one.gives for one in classes if one is not device_classes.UNKNOWN)
    keys = [key for one in classes for key in one.by]
    assert len(set(keys)) == len(keys)


def test_this_machine_s_devices_are_as_expected() -> None:
    """By the real sysfs, where there is one."""
    reader = KernelFactsReader(HostFiles())
    for path in Path("/dev").iterdir():
        found = path.lstat()
        if stat.S_ISCHR(found.st_mode):
            number = (os.major(found.st_rdev), os.minor(found.st_rdev))
            name = class_of(FileKind.CHAR, number, reader.of(number)).name
            expected = {
                "null": "null",
                "zero": "null",
                "kvm": "kvm",
                "fuse": "fuse",
                "mem": "memory",
            }
            assert name == expected.get(path.name, name)


def test_each_number_is_read_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "sys/dev/char").mkdir(parents=True)
    reader = KernelFactsReader(HostFiles(str(tmp_path)))
    calls: list[tuple[int, int]] = []
    real = KernelFactsReader._read

    def counted(reader: KernelFactsReader, number: tuple[int, int]) -> KernelFacts:
        calls.append(number)
        return real(reader, number)

    monkeypatch.setattr(KernelFactsReader, "_read", counted)
    for _ in range(3):
        for minor in range(100):
            reader.of((240, minor))
    assert len(calls) == 100


def test_the_documentation_has_the_same_classes() -> None:
    """`python -m tests.trust.device_table` writes them."""
    text = device_table.PAGE.read_text(encoding="utf-8")
    assert text == device_table.written(text)
    assert all(f"| `{one.name}` |" in text for one in (*SAFE, *OTHERS))

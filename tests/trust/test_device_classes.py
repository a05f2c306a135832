"""What a device node gives is known by its number, and never by its name."""

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.allocation.policy import SAFE, SAFE_MISC, DeviceClass, DeviceClasses, Policy
from devhost.hostfs.files import HostFiles
from tests.support.kernel import shows
from tests.trust.attack import Victim, as_root

USB: Final = {"usb1": "usb", "1-1": "usb", "1-1:1.0": "usb"}
BOARD: Final = {"platform": "", "serial8250": "platform"}
PAGE: Final = Path(__file__).parents[2] / "docs" / "devices.md"

# By class: what the kernel shows of a device of it, as (number, subsystem, name, more).
Shown = tuple[tuple[int, int], str, str, Mapping[str, Any]]
PASS: Final[Mapping[str, Shown]] = {
    "null": ((1, 9), "mem", "urandom", {}),
    "tty-usb": ((188, 0), "tty", "ttyUSB0", {"below": USB}),
    "tty-usb (other)": ((240, 0), "tty", "ttyHS0", {"below": USB}),
    "video4linux": ((81, 0), "video4linux", "video0", {}),
    "sound": ((116, 7), "sound", "controlC0", {}),
    "drm": ((226, 0), "drm", "card0", {}),
    "infiniband_verbs": ((231, 192), "infiniband_verbs", "uverbs0", {}),
    "rdma_cm": ((10, 120), "misc", "rdma_cm", {}),
    "vfio": ((243, 27), "vfio", "27", {}),
    "vfio (container)": ((10, 196), "misc", "vfio", {}),
    "iio": ((244, 0), "iio", "iio:device0", {}),
    "kvm": ((10, 232), "misc", "kvm", {}),
}
NEED: Final[Mapping[str, Shown]] = {
    "usb": ((189, 1), "usb", "1-2", {}),
    "usbmisc": ((180, 96), "usbmisc", "hiddev0", {}),
    "hidraw": ((240, 1), "hidraw", "hidraw1", {}),
    "input": ((13, 64), "input", "event0", {}),
    "uinput": ((10, 223), "misc", "uinput", {}),
    "watchdog": ((10, 130), "misc", "watchdog", {}),
    "watchdog (1)": ((251, 1), "watchdog", "watchdog1", {}),
    "scsi_generic": ((21, 0), "scsi_generic", "sg0", {}),
    "kmsg": ((1, 11), "mem", "kmsg", {}),
    "tpmrm": ((253, 65536), "tpmrm", "tpmrm0", {}),
    "i2c-dev": ((89, 0), "i2c-dev", "i2c-0", {}),
    "vfio-noiommu": ((243, 1), "vfio", "noiommu-1", {}),
    "vfio-noiommu (device)": ((238, 1), "vfio-dev", "noiommu-vfio0", {}),
    "tty-serial": ((4, 64), "tty", "ttyS0", {"below": BOARD}),
    "tty": ((4, 1), "tty", "tty1", {}),
    "tty (pseudo-terminals)": ((5, 2), "tty", "ptmx", {}),
    "vc": ((7, 129), "vc", "vcsa1", {}),
    "homemade": ((234, 2), "homemade", "homemade0", {}),
    "sound (of the subsystem misc)": ((10, 122), "misc", "sound", {}),
    "scsi_generic (by another's number)": ((188, 0), "scsi_generic", "x", {}),
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
def test_a_safe_class_passes_without_a_flag(bare: Victim, name: str, shown: Shown) -> None:
    """Also under the name of something that is not safe."""
    for path in ("/dev/thing", "/dev/sg0"):
        bare.node(path, shown[0])
    plug(bare, "/dev/mem2", shown)
    found = DeviceClasses(bare.files).of(shown[0])
    assert (found.name, found.safe) == (name, True)
    for path in ("/dev/thing", "/dev/sg0", "/dev/mem2"):
        for outcome in bare.by_both_ways({"sources": [path]}):
            assert [one.host_path for one in outcome.only.devices] or outcome.spec


@as_root
@of(NEED)
def test_another_class_needs_the_flag_that_the_message_names(
    bare: Victim, name: str, shown: Shown
) -> None:
    """As a source and as an entry; the class or the path allows it, and a mount's flag does not."""
    plug(bare, "/dev/null", shown)
    bare.link("/dev/kvm", "null")
    entry = {"sources": [{"static": 1}], "allocate": {"devices": ["/dev/kvm"]}}
    for resource in ({"sources": ["/dev/null"]}, {"sources": ["/dev/kvm"]}, entry):
        for outcome in bare.by_both_ways(resource):
            outcome.nothing(f"/dev/null is of class {name}: it needs --allow-device {name}")
    found = DeviceClasses(bare.files).of(shown[0])
    for flags, refused in ((name,), False), (("/dev/nul?",), False), (("kvm", "/dev/nul"), True):
        policy = Policy(("*",), enforced=True, allow_devices=flags)
        assert (policy.refused_node("/dev/null", found) is not None) == refused


def test_a_number_that_sysfs_does_not_know_is_unknown(bare: Victim) -> None:
    """The word unknown allows nothing."""
    found = DeviceClasses(bare.files).of((240, 0))
    assert found == DeviceClass("unknown")
    refusal = Policy(enforced=True, allow_devices=("unknown",)).refused_node("/dev/kvm", found)
    assert refusal == "/dev/kvm is of class unknown: it needs --allow-device '/dev/kvm'"


@pytest.mark.parametrize(
    ("number", "name"),
    [
        ((195, 255), "nvidia"),
        ((188, 511), "tty-usb"),
        ((10, 232), "kvm"),
        ((10, 255), "unknown"),
        ((189, 0), "usb"),
        ((13, 64), "unknown"),
        ((1, 12), "memory"),
    ],
)
def test_numbers_that_linux_assigns_are_known_without_sysfs(
    bare: Victim, number: tuple[int, int], name: str
) -> None:
    assert DeviceClasses(bare.files).of(number).name == name


@pytest.mark.parametrize("number", [(1, 1), (1, 2), (1, 4)])
def test_memory_is_known_by_its_number_whatever_sysfs_says(
    bare: Victim, number: tuple[int, int]
) -> None:
    shows(bare.root, number, "sound", "x")
    assert DeviceClasses(bare.files).of(number) == DeviceClass("memory")


def test_nvidias_other_majors_are_known_by_proc_devices(bare: Victim) -> None:
    """Its driver has no class in sysfs; block devices in that file do not count."""
    bare.file(
        "/proc/devices",
        "Character devices:\n  1 mem\n509 nvidia-caps\n511 nvidia-uvm\n\nBlock devices:\n"
        "508 nvidia-uvm\n",
    )
    classes = DeviceClasses(bare.files)
    assert classes.of((511, 0)) == DeviceClass("nvidia", safe=True)
    assert classes.of((509, 1)) == DeviceClass("nvidia-caps")
    assert classes.of((508, 0)) == DeviceClass("unknown")


@as_root
@pytest.mark.parametrize(
    ("flag", "allowed"),
    [
        ("usb", True),
        ("10c4:ea60", True),
        ("10C4:EA60", True),
        ("10c4:*", True),
        ("10c4:ea61", False),
        ("0403:*", False),
        ("usbmisc", False),
    ],
)
def test_a_raw_usb_node_is_allowed_by_vendor_and_product(
    bare: Victim, flag: str, *, allowed: bool
) -> None:
    """It is control of the device: without a flag there is none, and the message names its kind."""
    number, path = (189, 4), "/dev/bus/usb/001/005"
    bare.node(path, number)
    files = {"idVendor": "10c4\n", "idProduct": "ea60\n", "bDeviceClass": "00\n"}
    shows(bare.root, number, "usb", "1-2", files=files)
    bare.attack({"sources": [path]}).nothing(
        f"{path} is of class usb: it needs --allow-device 10c4:ea60"
    )
    policy = Policy(enforced=True, allow_devices=(flag,))
    found = DeviceClasses(bare.files).of(number)
    assert (policy.refused_node(path, found) is None) == allowed
    serial = DeviceClass("usbmisc")
    assert (policy.refused_node("/dev/cdc-wdm0", serial) is None) == (flag == "usbmisc")


def test_this_machines_devices_are_as_expected() -> None:
    """By the real sysfs, where there is one."""
    classes = DeviceClasses(HostFiles())
    expected = {"null": "null", "zero": "null", "kvm": "kvm", "fuse": "fuse", "mem": "memory"}
    for path in Path("/dev").iterdir():
        found = path.lstat()
        if stat.S_ISCHR(found.st_mode):
            name = classes.of((os.major(found.st_rdev), os.minor(found.st_rdev))).name
            assert name == expected.get(path.name, name)


def test_the_documentation_has_the_safe_classes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("## Without a flag")[2].partition("## With a flag")[0]
    rows = {line.split("`")[1] for line in table.splitlines() if line.startswith("| `")}
    assert rows == SAFE | SAFE_MISC

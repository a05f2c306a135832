"""The number of a device node, never its name, says what it gives and which flags allow it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.hostfs.device_classes import BLOCK, SAFE_CLASSES, SAFE_MISC, DeviceClass, DeviceClasses
from devhost.hostfs.files import HostFiles
from devhost.model.device_node import FileKind
from tests.security.attack import KMEM, MEM, NULL, PORT, Victim, asks, config
from tests.support.command import process
from tests.support.hardware import HostTree
from tests.support.root import needs_root

STICK: Final = """
usb usb1 1d6b:0002 bus=1 dev=1
  usb 1-1 0403:6001 bus=1 dev=2
    if 1-1:1.0 ffffff
      tty ttyHS0 240:0
"""
BOARD: Final = """
platform serial8250
  tty ttyS0 4:64
"""
KVM: Final = (10, 232)
DRIVERS: Final = """Character devices:
  1 mem
509 nvidia-caps
511 nvidia-uvm

Block devices:
508 nvidia-uvm
"""

# By class: the number of a device of it, and what the kernel shows.
Shown = tuple[tuple[int, int], str]
PASS: Final[Mapping[str, Shown]] = {
    "null": ((1, 9), "mem urandom 1:9"),
    "tty-usb": ((240, 0), STICK),
    "sound": ((116, 7), "sound controlC0 116:7"),
    "infiniband_verbs": ((231, 192), "infiniband_verbs uverbs0 231:192"),
    "vfio": ((243, 27), "vfio 27 243:27"),
    "vfio (container)": ((10, 196), "misc vfio 10:196"),
    "kvm": (KVM, "misc kvm 10:232"),
}
NEED: Final[Mapping[str, Shown]] = {
    "hidraw": ((240, 1), "hidraw hidraw1 240:1"),
    "watchdog": ((10, 130), "misc watchdog 10:130"),
    "scsi_generic": ((21, 0), "scsi_generic sg0 21:0"),
    "kmsg": ((1, 11), "mem kmsg 1:11"),
    "vfio-noiommu": ((243, 1), "vfio noiommu-1 243:1"),
    "vfio-noiommu (device)": ((238, 1), "vfio-dev noiommu-vfio0 238:1"),
    "tty-serial": ((4, 64), BOARD),
    "tty": ((4, 1), "tty tty1 4:1"),
    "homemade": ((234, 2), "homemade homemade0 234:2"),
    "sound (of the subsystem misc)": ((10, 122), "misc sound 10:122"),
    "scsi_generic (by the number of a serial adapter)": ((188, 0), "scsi_generic x 188:0"),
}


def of(cases: Mapping[str, Shown]) -> pytest.MarkDecorator:
    rows = [(name.partition(" ")[0], shown) for name, shown in cases.items()]
    return pytest.mark.parametrize(("name", "shown"), rows, ids=cases)


def plug(node: Victim, path: str, shown: Shown) -> None:
    number, hardware = shown
    node.node(path, number)
    HostTree(node.root).hardware(hardware)


@pytest.fixture
def bare(node: Victim) -> Victim:
    """A node whose sysfs shows no device: the machine's own is not looked at."""
    HostTree(node.root).file("/proc/devices", "Character devices:\n  1 mem\n")
    return node


@needs_root
@of(PASS)
def test_node_of_a_safe_class_needs_no_flag(bare: Victim, name: str, shown: Shown) -> None:
    plug(bare, "/dev/mem2", shown)
    device_class = DeviceClasses(bare.files).of(shown[0])
    assert (device_class.name, device_class.safe) == (name, True)
    for outcome in bare.by_both_ways({"sources": ["/dev/mem2"]}):
        assert [device.host_path for device in outcome.only.devices] or outcome.spec


@needs_root
@of(NEED)
def test_node_of_another_class_needs_its_flag(bare: Victim, name: str, shown: Shown) -> None:
    """Named as a source and as an entry; a class or path allows it, and a mount's flag does not."""
    plug(bare, "/dev/null", shown)
    bare.link("/dev/kvm", "null")
    for resource in ({"sources": ["/dev/null"]}, asks("/dev/kvm")):
        bare.refuses(resource, why=f"/dev/null is of class {name}: it needs --allow-device {name}")
    device_class = DeviceClasses(bare.files).of(shown[0])
    for flags, refused in ((name,), False), (("/dev/nul?",), False), (("kvm", "/dev/nul"), True):
        policy = Policy(("*",), enforced=True, allow_devices=flags)
        assert (policy.node_problem("/dev/null", device_class) is not None) == refused


@pytest.mark.parametrize(
    ("number", "name"),
    [((195, 255), "nvidia"), ((511, 0), "nvidia"), ((509, 1), "nvidia-caps"), ((508, 0), "unknown"),
     ((188, 511), "tty-usb"), (KVM, "kvm"), ((10, 255), "unknown"), ((13, 64), "unknown"),
     ((1, 12), "memory"), (MEM, "memory"), (KMEM, "memory"), (PORT, "memory")],
)  # fmt: skip
def test_number_is_known_without_sysfs(bare: Victim, number: tuple[int, int], name: str) -> None:
    """Memory whatever sysfs says; that of a driver without a class there by /proc/devices."""
    bare.file("/proc/devices", DRIVERS)
    HostTree(bare.root).hardware("sound x1 1:1\nsound x2 1:2\nsound x4 1:4")
    safe = name in SAFE_CLASSES | SAFE_MISC
    assert DeviceClasses(bare.files).of(number) == DeviceClass(name, safe=safe)


def test_word_for_a_number_that_is_not_known_allows_nothing() -> None:
    policy = Policy(enforced=True, allow_devices=("unknown",))
    refusal = policy.node_problem("/dev/kvm", DeviceClass("unknown"))
    needed = "it needs --allow-device '/dev/kvm' (chart: allow.devices)"
    assert refusal == f"/dev/kvm is of class unknown: {needed}"


@needs_root
@pytest.mark.parametrize(
    ("flag", "allowed"),
    [("usb", True), ("10C4:EA60", True), ("10c4:*", True), ("0403:*", False), ("usbmisc", False)],
)
def test_raw_usb_node_is_allowed_by_product(bare: Victim, flag: str, *, allowed: bool) -> None:
    """Raw USB is control of the device: it always needs a flag, and the message names its kind."""
    number, path = (189, 4), "/dev/bus/usb/001/005"
    HostTree(bare.root).hardware("usb 1-2 10c4:ea60 bus=1 dev=5")
    refusal = f"{path} is of class usb: it needs --allow-device 10c4:ea60"
    bare.attack({"sources": [path]}).nothing(refusal)
    policy = Policy(enforced=True, allow_devices=(flag,))
    assert (policy.node_problem(path, DeviceClasses(bare.files).of(number)) is None) == allowed
    serial = DeviceClass("usbmisc")
    assert (policy.node_problem("/dev/cdc-wdm0", serial) is None) == (flag == "usbmisc")


def refused(policy: Policy, path: str, kind: FileKind, number: tuple[int, int]) -> bool:
    return HostPaths(HostFiles(), policy).policy_problem(path, kind, number) is not None


@pytest.mark.parametrize(
    ("glob", "path", "allowed"),
    [("/etc/colas/*", "/etc/colas/a/b", True), ("/etc/colas/*", "/etc/colas", False),
     ("/etc/colas/*", "/x/etc/colas/a", False), ("/etc/colas", "/etc/colas/a", False),
     ("/dev/sd?", "/dev/sda1", False), ("/dev/SDA", "/dev/sda", False)],
)  # fmt: skip
def test_glob_of_a_flag_matches_the_whole_path(glob: str, path: str, *, allowed: bool) -> None:
    """Its ``*`` goes over '/'; each flag allows the one and not the other."""
    mounts, nodes = Policy((glob,), enforced=True), Policy(enforced=True, allow_devices=(glob,))
    assert (mounts.file_problem(path, mount=True) is None) == allowed
    assert (nodes.node_problem(path, BLOCK) is None) == allowed
    assert nodes.file_problem(path, mount=True)
    assert mounts.node_problem(path, BLOCK)


@pytest.mark.parametrize(("kind", "number"), [(FileKind.CHAR, NULL), (FileKind.BLOCK, (8, 0))])
def test_node_outside_dev_needs_a_path_flag(kind: FileKind, number: tuple[int, int]) -> None:
    """A stick that is plugged in may have nodes of any number on its filesystem."""
    for allow in (
        Policy(("/media/usb/*", "*"), enforced=True, allow_devices=("block",)),
        Policy(enforced=True, allow_devices=("null", "block")),
        Policy(enforced=True, allow_devices=("/media/other/*",)),
    ):
        assert refused(allow, "/media/usb/x", kind, number)
    by_path = Policy(enforced=True, allow_devices=("/media/usb/*",))
    assert not refused(by_path, "/media/usb/x", kind, number)
    assert refused(by_path, "/media/usb/x", FileKind.CHAR, MEM)


@pytest.mark.parametrize("place", ["/dev/shm", "/dev/mqueue", "/dev/hugepages", "/dev/hugepages1G"])
def test_node_in_another_filesystem_below_dev_is_refused(place: str) -> None:
    """More than the kernel and udev make files there."""
    assert refused(Policy(enforced=True), f"{place}/null", FileKind.CHAR, NULL)


def test_memory_needs_a_flag_with_its_own_path_and_no_wildcard() -> None:
    for word in ("/dev/*", "/dev/me[m]", "/dev/m?m", "memory", "mem", "/dev//mem"):
        policy = Policy(("/dev/mem",), enforced=True, allow_devices=(word,))
        assert refused(policy, "/dev/mem", FileKind.CHAR, MEM), word
    assert not refused(Policy(allow_devices=("/dev/mem",)), "/dev/mem", FileKind.CHAR, MEM)
    odd = Policy(allow_devices=("/dev/me[m]",))
    assert refused(odd, "/dev/me[m]", FileKind.CHAR, MEM)


@pytest.mark.parametrize(
    ("glob", "warns"),
    [("/dev/*", True), ("*/*", True), ("/d*", True), ("/dev/[!s]*", True), ("/dev/?*", True),
     ("/dev/sd[b-z]", False), ("/dev/disk/*", False), ("/srv/*", False), ("/dev/???", False)],
)  # fmt: skip
def test_wildcard_over_all_of_dev_is_a_warning(glob: str, *, warns: bool) -> None:
    warnings = Policy(("*",), allow_devices=(glob, "tpm")).warnings
    assert len(warnings) == warns
    assert all(f"--allow-device '{glob}' covers all of /dev" in warning for warning in warnings)


def test_wildcard_over_all_of_dev_is_told_by_validate_and_run(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(config({"sources": [{"static": 1}]}))
    done = process("validate", file, "--allow-device", "/dev/*", "-o", "json")
    assert "warning: --allow-device '/dev/*' covers all of /dev" in done.stderr
    assert json.loads(done.stdout)["valid"]
    done = process("run", file, "--allow-device", "/dev/*", "--plugin-dir", tmp_path / "gone")
    assert "--allow-device '/dev/*' covers all of /dev" in done.stderr

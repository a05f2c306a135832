"""Rights that name a device's identity; devices in use by the host, which no wide right gives."""

from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest
from click.testing import CliRunner

from devhost.allocation.host_paths import HostPaths
from devhost.allocation.policy import Policy
from devhost.cli import main
from devhost.config.loader import loads
from devhost.devices.scan import Scanner
from devhost.hostfs.files import HostFiles
from devhost.model.device import Snapshot
from tests.security.attack import allocated
from tests.support.devices import reasons, skip_reasons
from tests.support.hardware import HostTree
from tests.support.root import needs_root
from tests.support.scanning import nobody, selected, snapshot_of

pytestmark = needs_root

KEY: Final = """
pci 0000:00:14.0 8086:06ed class=0c0330 driver=xhci_hcd
  usb usb1 1d6b:0002 class=090001 bus=1 dev=1
    usb 1-2 1050:0407 bus=1 dev=3 serial={}
      if 1-2:1.0 030000 usbhid
        hid 0003:1050:0407.0002
          hidraw hidraw1 240:1
"""
DISK: Final = """
pci 0000:00:17.0 8086:a352 class=010601 driver=ahci
  dir ata{0}
    dir host{0}
      scsi {0}:0:0:0
        block {1} 8:{2}
          block {1}1 8:{3} partition=1
          block {1}2 8:{4} partition=2
        scsi_generic sg{0} 21:{0}
"""
DISKS: Final = DISK.format(0, "sda", 0, 1, 2) + DISK.format(1, "sdb", 16, 17, 18)
BOARD: Final = """
platform fe201000.serial
  tty ttymxc1 207:17
platform fe201400.serial
  tty ttymxc2 207:18
platform fe340000.mmc
  mmc mmc2:0001
    block mmcblk2 179:0
      block mmcblk2p1 179:1 partition=1
      block mmcblk2p2 179:2 partition=2
      block mmcblk2boot0 179:8
    mmc_rpmb mmcblk2rpmb 236:0
platform fe350000.mmc
  mmc mmc1:aaaa
    block mmcblk1 179:16
    mmc_rpmb mmcblk1rpmb 236:1
"""
PCI: Final = """
pci 0000:01:00.0 144d:a808 class=010802 driver=nvme
  nvme nvme0 239:0
    block nvme0n1 259:0
    nvme-generic ng0n1 241:0
"""
STACK: Final = """
dir virtual
  block md0 9:0
    block md0p1 259:1 partition=1
  block dm-0 254:0
  block dm-1 254:1
"""


@pytest.fixture
def tree(tmp_path: Path) -> HostTree:
    tree = HostTree(tmp_path / "host")
    tree.hardware(KEY.format("K7Q1") + DISKS + BOARD + PCI)
    tree.link("/dev/disk/by-id/ata-ACME_1", "../../sda")
    tree.link("/dev/disk/by-id/ata-ACME_1-part1", "../../sda1")
    return tree


def problem(tree: HostTree, path: str, *rights: str) -> str | None:
    """Return why a node may not be given with these rights."""
    files = HostFiles(str(tree.root))
    state = files.stat(path)
    assert state is not None
    assert state.number is not None
    paths = HostPaths(files, Policy(enforced=True, allow_devices=rights))
    return paths.policy_problem(state.realpath, state.kind, state.number)


def mount(tree: HostTree, number: str, point: str = "/") -> None:
    tree.file("/proc/1/mountinfo", f"22 1 {number} / {point} rw shared:1 - ext4 /dev/root rw\n")


@pytest.mark.parametrize(
    ("right", "path"),
    [("1050:0407:K7Q1", "/dev/hidraw1"), ("1050:0407:K7Q1", "/dev/bus/usb/001/003"),
     ("1050:0407:*", "/dev/hidraw1"), ("1D6B:0002:*", "/dev/bus/usb/001/001"),
     ("1050:*:K?Q1", "/dev/hidraw1"), ("pci:8086:A352", "/dev/sda"), ("pci:8086:*", "/dev/sg1"),
     ("pci:0000:00:17.0", "/dev/sdb1"), ("pci:144d:a808", "/dev/nvme0"),
     ("place:platform-fe201000.serial", "/dev/ttymxc1"),
     ("place:platform-fe20?000.serial", "/dev/ttymxc1"),
     ("place:pci-0000:00:14.0-usbv2-0:2:1.0", "/dev/hidraw1"),
     ("/dev/disk/by-id/ata-ACME_1", "/dev/sda"),
     ("/dev/disk/by-id/ata-ACME_1-part1", "/dev/sda1")],
)  # fmt: skip
def test_right_names_a_device_by_what_it_is(tree: HostTree, right: str, path: str) -> None:
    assert problem(tree, path, right) is None


@pytest.mark.parametrize(
    ("right", "path"),
    [("1050:0407:K7Q", "/dev/hidraw1"), ("1050:0407:k7q1", "/dev/hidraw1"),
     ("1050:0406:K7Q1", "/dev/hidraw1"), ("1050:*", "/dev/hidraw1"),  # raw USB nodes alone
     ("*:*:*", "/dev/sda"), ("*:*:*", "/dev/ttymxc1"), ("pci:0000:00:17.1", "/dev/sda"),
     ("pci:8086:06ed", "/dev/hidraw1"),  # the controller is not the key
     ("place:platform-fe201400.serial", "/dev/ttymxc1"),
     ("place:platform-fe201000", "/dev/ttymxc1"), ("/dev/disk/by-id/ata-ACME_1", "/dev/sdb"),
     ("/dev/disk/by-id/ata-ACME_1", "/dev/sda1"), ("/dev/disk/by-id/ata-*", "/dev/sda"),
     ("/dev/disk/by-id/ata-GONE", "/dev/sda")],
)  # fmt: skip
def test_right_names_no_other_device(tree: HostTree, right: str, path: str) -> None:
    assert problem(tree, path, right)


def test_link_names_a_node_of_its_kind_alone(tree: HostTree) -> None:
    """Its number may also be that of a character device."""
    tree.hardware("char odd 8:0")
    assert problem(tree, "/dev/odd", "/dev/disk/by-id/ata-ACME_1")


@pytest.mark.parametrize("right", ["pci:8086:a352", "/dev/disk/by-id/ata-ACME_1"])
def test_right_names_no_node_outside_dev(tree: HostTree, right: str) -> None:
    tree.block("/srv/sda", 8, 0)
    assert "is not below /dev" in str(problem(tree, "/srv/sda", right))


def scanner_of(tree: HostTree, source: str, *rights: str) -> Scanner:
    policy = Policy(enforced=True, allow_devices=rights)
    text = f"version: v1\nresources: [{{name: example.com/a, sources: [{source}]}}]"
    (resource,) = loads(text, policy=policy).require().resources
    return Scanner(resource, HostFiles(str(tree.root)), policy, "node", settle_s=0.0)


def scan(scanner: Scanner) -> Snapshot:
    return snapshot_of(scanner, selected(scanner), Snapshot(), nobody, 1.0)


def test_other_device_with_the_same_node_is_refused_at_scan_and_allocate(tree: HostTree) -> None:
    """A device plugged in since the scan has the same port, path and number."""
    scanner = scanner_of(tree, "usb: {device: 1050:0407, node: hidraw}", "1050:0407:K7Q1")
    snapshot = scan(scanner)
    refusals, answers = allocated(scanner, snapshot)
    assert (len(answers), refusals) == (1, ())
    tree.unplug("1-2")
    tree.hardware(KEY.format("K7Q2"))
    refusals, answers = allocated(scanner, snapshot)
    assert not answers
    assert "/dev/hidraw1 is of class hidraw: it needs --allow-device hidraw" in refusals[0]
    (reason,) = reasons(scan(scanner)).values()
    assert refusals[0].endswith(f": {reason}")


def test_right_to_a_disk_follows_its_link(tree: HostTree) -> None:
    """A boot may find the disks in another order."""
    source, right = "{glob: '/dev/sd?'}", "/dev/disk/by-id/ata-ACME_1"
    scanner = scanner_of(tree, source, right)
    before = scan(scanner)
    assert [device.id for device in before.devices.values() if device.healthy] == ["sda"]
    tree.at("/dev/disk/by-id/ata-ACME_1").unlink()
    tree.link("/dev/disk/by-id/ata-ACME_1", "../../sdb")
    assert [device.id for device in scan(scanner).devices.values() if device.healthy] == ["sdb"]
    refusals, answers = allocated(scanner, replace(before, devices={"sda": before.devices["sda"]}))
    assert not answers
    assert "/dev/sda is of class block" in refusals[0]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("/proc/consoles", "tty0     -WU (EC  p  )    4:7\nttymxc1  -W- (EC p a)  207:17\n"),
        ("/proc/consoles", "mxc      -W- (EC p a)  207:17\n"),
        ("/proc/consoles", "ttymxc1  -W- (EC p a)\n"),
        ("/sys/class/tty/console/active", "tty0 ttymxc1\n"),
    ],
)
def test_console_needs_its_own_path_or_place(tree: HostTree, file: str, text: str) -> None:
    tree.file(file, text)
    use = "/dev/ttymxc1 is in use by the host (a console): it needs --allow-device '/dev/ttymxc1'"
    for right in ("tty-serial", "/dev/ttymxc*", "/dev/*", "place:platform-*", "/dev/ttymxc2"):
        reason = problem(tree, "/dev/ttymxc1", right)
        assert str(reason).startswith(use), right
    assert problem(tree, "/dev/ttymxc2", "tty-serial") is None
    for right in ("/dev/ttymxc1", "place:platform-fe201000.serial"):
        assert problem(tree, "/dev/ttymxc1", right) is None


def test_console_on_usb_or_behind_dev_console_is_not_given_without_a_right(tree: HostTree) -> None:
    adapter = """
      if 1-2:1.1 ffffff ftdi_sio
        usb-serial ttyUSB0 driver=ftdi_sio port_number=0
          tty ttyUSB0 188:0
    """
    tree.hardware(KEY.format("K7Q1").rstrip() + adapter + "\ndir virtual\n  tty console 5:1\n")
    assert problem(tree, "/dev/ttyUSB0") is None
    tree.file("/proc/consoles", "ttyUSB0 -W- (EC p a) 188:0\n")
    assert "(a console)" in str(problem(tree, "/dev/ttyUSB0", "/dev/ttyUSB*", "pci:8086:06ed"))
    assert "(a console)" in str(problem(tree, "/dev/console", "tty"))
    assert problem(tree, "/dev/ttyUSB0", "1050:0407:K7Q1") is None
    tree.file("/sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/serial", "*\n")
    assert "(a console)" in str(problem(tree, "/dev/ttyUSB0", "1050:0407:*"))


def test_console_on_a_pci_function_is_not_named_by_it(tree: HostTree) -> None:
    """The function may have more ports."""
    tree.hardware("pci 0000:05:00.0 1415:c158 class=070002\n  tty ttyS4 4:68")
    tree.file("/proc/consoles", "ttyS4 -W- (EC p a) 4:68\n")
    for right in ("pci:0000:05:00.0", "pci:1415:c158", "place:pci-0000:05:00.0"):
        assert "(a console)" in str(problem(tree, "/dev/ttyS4", right))


SYSTEM: Final = "is in use by the host (the system's disk): it needs --allow-device"


@pytest.mark.parametrize("path", ["p1", "p2", "boot0", "rpmb"])
def test_system_card_needs_the_path_of_the_node(tree: HostTree, path: str) -> None:
    """The card includes unmounted partitions, boot partitions and the protected memory."""
    node = f"/dev/mmcblk2{path}"
    assert problem(tree, node, "/dev/mmcblk*") is None
    mount(tree, "179:2")
    for right in ("/dev/mmcblk*", "block", "mmc_rpmb", "place:platform-*", "/dev/mmcblk2"):
        assert str(problem(tree, node, right)).startswith(f"{node} {SYSTEM} '{node}'"), right
    assert problem(tree, node, node) is None
    removable = "/dev/mmcblk1rpmb" if path == "rpmb" else "/dev/mmcblk1"
    assert problem(tree, removable, "/dev/mmcblk*") is None


def test_system_card_is_left_out_of_what_a_glob_finds(tree: HostTree) -> None:
    mount(tree, "179:2")
    scanner = scanner_of(tree, "{glob: '/dev/mmcblk*'}", "/dev/mmcblk*")
    snapshot = scan(scanner)
    healthy = [device.id for device in snapshot.devices.values() if device.healthy]
    assert healthy == ["mmcblk1", "mmcblk1rpmb"]
    assert skip_reasons(snapshot.skipped)["/dev/mmcblk2boot0"] == "in use: the system's disk"


@pytest.mark.parametrize(
    ("root", "system", "free"),
    [
        ("8:2", "sda sda1 sg0", "sdb sdb1 sg1 nvme0"),
        ("8:1", "sda2", "sdb2"),
        ("259:0", "nvme0n1 nvme0 ng0n1", "sda sg0"),
        ("254:0", "dm-0 dm-1 sda1 sdb1 sg0 sg1", "nvme0n1"),  # LVM on a partition of a RAID
    ],
)
def test_system_disk_is_refused_whole(tree: HostTree, root: str, system: str, free: str) -> None:
    """Through a volume, too, and by the nodes for its commands."""
    tree.hardware(STACK)
    block = "/sys/devices/virtual/block"
    for upper in ("dm-0", "dm-1"):
        tree.link(f"{block}/{upper}/slaves/md0p1", f"{block}/md0/md0p1")
    for number, name in ((0, "sda"), (1, "sdb")):
        disk = f"/sys/devices/pci0000:00/0000:00:17.0/ata{number}/host{number}/{number}:0:0:0/block"
        tree.link(f"{block}/md0/slaves/{name}2", f"{disk}/{name}/{name}2")
    mount(tree, root)
    for name in system.split():
        assert SYSTEM in str(problem(tree, f"/dev/{name}", "/dev/*", "pci:*:*")), name
    for name in free.split():
        assert problem(tree, f"/dev/{name}", "/dev/*") is None, name


@pytest.mark.parametrize(
    ("source", "system", "doubtful", "rest"),
    [
        ("btrfs /dev/sda2", "sda sda1 sg0 sdb sdb2 sg1", "", "nvme0n1 nvme0 dm-0"),
        ("btrfs /dev/root", "", "sda sdb2 sg0 nvme0n1 nvme0", "dm-0 hidraw1"),
        ("zfs rpool/ROOT", "", "sda sdb2 sg0 nvme0n1 nvme0", "dm-0 hidraw1"),
        ("overlay overlay", "", "", "sda sdb2 sg0 nvme0n1 nvme0 dm-0 hidraw1"),
    ],
)
def test_filesystem_of_several_disks_gives_none_of_them_by_a_wildcard(
    tree: HostTree, source: str, system: str, doubtful: str, rest: str
) -> None:
    """One that does not tell its disks makes a disk of the system of each."""
    tree.hardware(STACK)
    for name in ("sda", "sdb") if system else ():
        (disk,) = tree.at("/sys/devices").rglob(f"{name}2")
        tree.link(f"/sys/fs/btrfs/uuid/devices/{name}2", f"/{disk.relative_to(tree.root)}")
    tree.file("/proc/1/mountinfo", f"22 1 0:30 / / rw - {source} rw\n")
    perhaps = SYSTEM.replace("the system", "perhaps the system").partition(")")[0]
    for names, expected in ((system, SYSTEM), (doubtful, perhaps), (rest, "None")):
        for name in names.split():
            refusal = str(problem(tree, f"/dev/{name}", "/dev/*", "pci:*:*"))
            assert expected in refusal, name
            assert problem(tree, f"/dev/{name}", f"/dev/{name}") is None


@pytest.mark.parametrize("point", ["/boot", "/var", "/srv"])
def test_disk_of_the_system_is_that_of_more_than_the_root(tree: HostTree, point: str) -> None:
    """The root may be in memory, or read-only."""
    mount(tree, "8:1", point)
    assert (SYSTEM in str(problem(tree, "/dev/sda2", "block"))) == (point != "/srv")


def test_disk_of_the_system_on_usb_is_also_its_usb_node(tree: HostTree) -> None:
    stick = """
      if 1-2:1.1 080650 usb-storage
        scsi 5:0:0:0
          block sdc 8:32
    """
    tree.hardware(KEY.format("K7Q1").rstrip() + stick)
    mount(tree, "8:32")
    for name in ("sdc", "bus/usb/001/003"):
        for right in ("usb", "1050:0407:*", "pci:*:*", "/dev/*"):
            assert SYSTEM in str(problem(tree, f"/dev/{name}", right))
        assert problem(tree, f"/dev/{name}", "1050:0407:K7Q1") is None
    assert problem(tree, "/dev/bus/usb/001/001", "usb") is None


@pytest.mark.parametrize(
    ("source", "right"),
    [("1-2", "1050:0407:K7Q1"), ("hidraw1", "1050:0407:K7Q1"), ("nvme0", "pci:144d:a808"),
     ("ttymxc1", "place:platform-fe201000.serial"), ("sda", "/dev/disk/by-id/ata-ACME_1")],
)  # fmt: skip
def test_written_right_is_the_source_identity(tree: HostTree, source: str, right: str) -> None:
    result = CliRunner().invoke(main, ["init", source, "--root", str(tree.root)])
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith(f"\n# --allow-device {right}\n")

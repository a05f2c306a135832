"""Disks that the host uses, wherever the configuration has them from."""

import stat
from typing import Any

import pytest

from devhost.errors import PreStartError
from tests.security.attack import Victim, allocated, asks, stepped
from tests.support.root import needs_root

pytestmark = needs_root

DISK, PARTITION = (240, 0), (240, 1)
ROOT_DISK = "22 1 240:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"

ENTRY: dict[str, Any] = asks("/dev/vda")
SOURCE: dict[str, Any] = {"sources": [{"glob": {"paths": "/dev/vda", "inUse": True}}]}
LINK: dict[str, Any] = {"sources": [{"glob": {"paths": "/dev/disk/by-id/*", "inUse": True}}]}
DIRECTORY: dict[str, Any] = asks("/dev/disks")


@pytest.fixture
def disk(node: Victim) -> Victim:
    """A node with a disk that has one partition."""
    node.node("/dev/vda", DISK, stat.S_IFBLK)
    node.node("/dev/disks/any", DISK, stat.S_IFBLK)
    node.link("/dev/disk/by-id/virtio-1", "../../vda")
    node.link("/dev/disk/by-label/virtio-1", "../../vda")  # of what is written on it
    node.file("/sys/dev/block/240:0/vda1/partition", "1\n")
    node.file("/sys/dev/block/240:0/vda1/dev", "240:1\n")
    node.directory("/sys/dev/char")
    return node


@pytest.mark.parametrize(
    ("resource", "allow"),
    [(ENTRY, "/dev/*"), (SOURCE, "/dev/*"), (SOURCE, "block"), (LINK, "/dev/[v]da"),
     (DIRECTORY, "/dev/*")],
)  # fmt: skip
def test_disk_in_use_needs_its_own_path(disk: Victim, resource: dict[str, Any], allow: str) -> None:
    disk.file("/proc/1/mountinfo", ROOT_DISK)
    disk.refuses(resource, allow, why="is in use by the host")


@pytest.mark.parametrize("resource", [ENTRY, SOURCE, LINK])
def test_disk_in_use_is_allowed_by_path_or_link(disk: Victim, resource: dict[str, Any]) -> None:
    disk.file("/proc/1/mountinfo", ROOT_DISK)
    for allow in ("/dev/vda", "/dev/disk/by-id/virtio-1"):
        for outcome in disk.by_both_ways(resource, allow):
            assert not outcome.refusals
    disk.refuses(resource, "/dev/disk/by-label/virtio-1", why="/dev/vda")


@pytest.mark.parametrize(
    ("use", "resource"),
    [("mounted", ENTRY), ("mounted", {"sources": ["/dev/vda"]}), ("swap", SOURCE),
     ("partition held", ENTRY)],
)  # fmt: skip
def test_disk_used_since_scan_is_refused(disk: Victim, resource: dict[str, Any], use: str) -> None:
    scanner = disk.scanner(resource, "/dev/*")
    snapshot = disk.scan(scanner)
    refusals, answers = allocated(scanner, snapshot)
    assert (len(answers), refusals) == (1, ())
    match use:
        case "mounted":
            disk.file("/proc/1/mountinfo", ROOT_DISK)
        case "swap":
            swap = "/dev/vda partition 1 0 -2\n"
            disk.file("/proc/swaps", f"Filename Type Size Used Priority\n{swap}")
        case "partition held":
            disk.directory("/sys/dev/block/240:0/vda1/holders/md0")
    refusals, answers = allocated(scanner, snapshot)
    assert not answers
    assert "/dev/vda is in use by the host" in refusals[0]
    again = disk.scan(scanner, snapshot)
    assert not any(device.healthy for device in again.devices.values())


async def test_disk_in_use_keeps_its_mode(disk: Victim) -> None:
    (device,) = disk.found(SOURCE["sources"][0], "/dev/*").values()
    disk.file("/proc/1/mountinfo", ROOT_DISK)
    with pytest.raises(PreStartError, match="is in use by the host"):
        await stepped(disk, device, {"mode": "0666"}, "/dev/*")


@pytest.mark.parametrize("use", ["mounted", "held"])
def test_partition_of_a_disk_used_as_a_whole_is_not_handed_out(disk: Victim, use: str) -> None:
    """Like a RAID's disk, of which the kernel shows the partitions as well."""
    disk.node("/dev/vda1", PARTITION, stat.S_IFBLK)
    disk.link("/sys/dev/block/240:1", "240:0/vda1")
    disk.file("/sys/dev/block/240:0/dev", "240:0\n")
    for outcome in disk.by_both_ways(asks("/dev/vda1"), "/dev/vd*"):
        assert not outcome.refusals
    if use == "mounted":
        disk.file("/proc/1/mountinfo", ROOT_DISK.replace("240:1", "240:0").replace("vda1", "vda"))
    else:
        disk.directory("/sys/dev/block/240:0/holders/md127")
    disk.refuses(asks("/dev/vda1"), "/dev/vd*", why="its disk 240:0 is ")

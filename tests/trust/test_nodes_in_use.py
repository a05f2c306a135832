"""Disks that the host uses, wherever the configuration has them from."""

import stat
from typing import Any

import pytest

from devhost.errors import PreStartError
from tests.trust.attack import Victim, allocated, as_root, written
from tests.trust.test_steps_and_checks import stepped

pytestmark = as_root

DISK, PARTITION = (240, 0), (240, 1)
ROOT_DISK = "22 1 240:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw\n"

ENTRY: dict[str, Any] = {"sources": [{"static": 1}], "allocate": {"devices": ["/dev/vda"]}}
SOURCE: dict[str, Any] = {"sources": [{"glob": {"paths": "/dev/vda", "inUse": True}}]}
LINK: dict[str, Any] = {"sources": [{"glob": {"paths": "/dev/disk/by-id/*", "inUse": True}}]}
DIRECTORY: dict[str, Any] = {"sources": [{"static": 1}], "allocate": {"devices": ["/dev/disks"]}}


@pytest.fixture
def disk(node: Victim) -> Victim:
    """A node with a disk that has one partition."""
    node.node("/dev/vda", DISK, stat.S_IFBLK)
    node.node("/dev/disks/any", DISK, stat.S_IFBLK)
    node.link("/dev/disk/by-id/virtio-1", "../../vda")
    node.file("/sys/dev/block/240:0/vda1/partition", "1\n")
    node.file("/sys/dev/block/240:0/vda1/dev", "240:1\n")
    node.directory("/sys/dev/char")
    return node


@pytest.mark.parametrize("resource", [ENTRY, SOURCE, LINK, DIRECTORY])
@pytest.mark.parametrize(
    "allow", ["/dev/*", "/dev/?d?", "*", "/dev/[v]da", "block", "/dev/disks/*"]
)
def test_a_disk_that_the_host_uses_is_not_handed_out(
    disk: Victim, resource: dict[str, Any], allow: str
) -> None:
    """By no wildcard and no class: as a source with inUse, an entry, a link, or in a directory."""
    disk.file("/proc/1/mountinfo", ROOT_DISK)
    for outcome in disk.by_both_ways(resource, allow):
        outcome.nothing()
        assert "is in use by the host" in str(outcome.refusals) or allow != "/dev/*"


@pytest.mark.parametrize("resource", [ENTRY, SOURCE, LINK])
def test_its_own_path_as_a_flag_allows_it(disk: Victim, resource: dict[str, Any]) -> None:
    disk.file("/proc/1/mountinfo", ROOT_DISK)
    for outcome in disk.by_both_ways(resource, "/dev/vda"):
        assert not outcome.refusals
    for outcome in disk.by_both_ways(resource, "/dev/disk/by-id/virtio-1"):
        outcome.nothing("/dev/vda")


@pytest.mark.parametrize("use", ["mounted", "swap", "held", "partition held", "btrfs"])
@pytest.mark.parametrize("resource", [ENTRY, SOURCE, {"sources": ["/dev/vda"]}])
def test_a_disk_that_comes_to_be_used_after_the_scan_is_refused_at_allocate(
    disk: Victim, resource: dict[str, Any], use: str
) -> None:
    scanner = disk.scanner(resource, "/dev/*")
    snapshot = disk.scan(scanner)
    refusals, answers = allocated(scanner, snapshot)
    assert (len(answers), refusals) == (1, ())
    match use:
        case "mounted":
            disk.file("/proc/1/mountinfo", ROOT_DISK)
        case "swap":
            disk.file(
                "/proc/swaps", "Filename Type Size Used Priority\n/dev/vda partition 1 0 -2\n"
            )
        case "held":
            disk.directory("/sys/dev/block/240:0/holders/dm-0")
        case "partition held":
            disk.directory("/sys/dev/block/240:0/vda1/holders/md0")
        case "btrfs":
            disk.file("/sys/fs/btrfs/1234/devices/vda/dev", "240:0\n")
    refusals, answers = allocated(scanner, snapshot)
    assert not answers
    assert "/dev/vda is in use by the host" in refusals[0]
    again = disk.scan(scanner, snapshot)
    assert not any(device.healthy for device in again.devices.values())


def test_it_does_not_get_into_a_cdi_spec(disk: Victim) -> None:
    disk.file("/proc/1/mountinfo", ROOT_DISK)
    scanner = disk.scanner({**SOURCE, "inject": "cdi"}, "/dev/*")
    assert "vda" not in written(scanner, disk.scan(scanner))


async def test_its_mode_is_not_changed(disk: Victim) -> None:
    """Nor is it opened to the users of the node by a step."""
    scanner = disk.scanner({**SOURCE, "allocate": {"devices": []}}, "/dev/*")
    snapshot = disk.scan(scanner)
    disk.file("/proc/1/mountinfo", ROOT_DISK)
    with pytest.raises(PreStartError, match="is in use by the host"):
        await stepped(disk, snapshot, {"mode": "0666"}, "/dev/*")


@pytest.mark.parametrize("use", ["mounted", "held"])
def test_a_partition_of_a_disk_that_is_used_as_a_whole_is_not_handed_out(
    disk: Victim, use: str
) -> None:
    """As of a RAID's: the kernel shows the partitions of its disks as well."""
    disk.node("/dev/vda1", PARTITION, stat.S_IFBLK)
    disk.link("/sys/dev/block/240:1", "240:0/vda1")
    disk.file("/sys/dev/block/240:0/dev", "240:0\n")
    partition = {"sources": [{"static": 1}], "allocate": {"devices": ["/dev/vda1"]}}
    for outcome in disk.by_both_ways(partition, "/dev/vd*"):
        assert not outcome.refusals
    if use == "mounted":
        disk.file("/proc/1/mountinfo", ROOT_DISK.replace("240:1", "240:0").replace("vda1", "vda"))
    else:
        disk.directory("/sys/dev/block/240:0/holders/md127")
    for outcome in disk.by_both_ways(partition, "/dev/vd*"):
        outcome.nothing("its disk 240:0 is ")

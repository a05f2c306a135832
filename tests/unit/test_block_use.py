"""Which block devices are not offered, because the machine itself uses them."""

import os
from pathlib import Path

import pytest

from devhost.hostfs.mounts import read_mounts, read_swaps
from tests.support.root import needs_root
from tests.support.scanning import look

pytestmark = needs_root

VDA, VDB = (240, 0), (240, 16)  # of a major for local use
# The kernel escapes blanks, tabs, line feeds and backslashes alone.
ODD = ["a\fb", "a\rb", "a\vb", "a\x1cb", "a\x85b", "a\u2028b", os.fsdecode(b"\xff")]
MOUNTED = "31 1 240:0 / /mnt rw shared:1 - ext4 /dev/vda rw\n"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("dev", "proc/1", "sys/dev/block", "sys/fs/btrfs"):
        (tmp_path / name).mkdir(parents=True)
    for name, number in (("vda", VDA), ("vdb", VDB)):
        os.mknod(tmp_path / "dev" / name, 0o060660, os.makedev(*number))
    return tmp_path


def mounted(root: Path, text: str) -> None:
    (root / "proc/1/mountinfo").write_bytes(os.fsencode(text))


def free(root: Path) -> list[str]:
    found = look(root, "dev: 'vd[a-z]'")
    assert not found.failed_sources
    return [node.name for node in found.nodes]


@pytest.mark.parametrize("name", ODD)
def test_block_use_mountinfo_with_an_odd_name_is_one_line(root: Path, name: str) -> None:
    """What stands behind the name, what was mounted there, counts."""
    mounted(root, rf"30 1 0:44 /{name}\040c /home/{name}\040d rw - btrfs /dev/vda rw" + "\n")
    assert free(root) == ["vdb"]


@pytest.mark.parametrize("line", ["", "x", "1 2", "1 2 x:y / /a rw - ext4 /dev/vdb rw", "1 2 3 4"])
def test_block_use_malformed_mountinfo_line_is_ignored(root: Path, line: str) -> None:
    mounted(root, f"{line}\n{MOUNTED}{line}")
    assert free(root) == ["vdb"]


def test_mounts_are_unescaped_and_missing_file_is_empty(tmp_path: Path) -> None:
    at = tmp_path / "mountinfo"
    at.write_text(
        "9 1 0:5 / /dev\\040x rw,nosuid shared:2 master:1 - ext4 /dev/a\\134x20b ro,x=y\n"
    )
    assert list(read_mounts(str(at))) == [((0, 5), "/dev x", r"/dev/a\x20b")]
    assert not list(read_mounts(str(tmp_path / "none")))


def test_block_use_swap_is_in_use(root: Path) -> None:
    head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    swaps = root / "proc/swaps"
    swaps.write_text(f"{head}/a\fb\\040c     file\t8\t0\t-2\n/dev/vdb      partition\t8\t0\t-2\n")
    assert list(read_swaps(str(swaps))) == ["/a\fb c", "/dev/vdb"]
    assert free(root) == ["vda"]


def test_block_use_mount_source_that_cannot_be_resolved_is_ignored(root: Path) -> None:
    """Who mounts says what its source is called, also with more than the kernel looks up."""
    mounted(root, f"30 1 0:99 / /x rw - fuse /dev/{'x' * 300} rw\n{MOUNTED}")
    assert free(root) == ["vdb"]


@pytest.mark.parametrize("dev", [None, "", "x"])
def test_block_use_partition_unplugged_meanwhile_is_ignored(root: Path, dev: str | None) -> None:
    """Its disk is being unplugged; the other one is well."""
    mounted(root, MOUNTED)
    partition = root / "sys/dev/block/240:16/vdb1"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("1\n")
    if dev is not None:
        (partition / "dev").write_text(dev)
    assert free(root) == ["vdb"]


@pytest.mark.parametrize("place", ["240:16/holders/dm-0", "240:16/vdb1/holders/dm-0"])
def test_block_use_held_disk_is_in_use(root: Path, place: str) -> None:
    (root / "sys/dev/block" / place).mkdir(parents=True)
    if "vdb1" in place:
        (root / "sys/dev/block/240:16/vdb1/partition").write_text("1\n")
        (root / "sys/dev/block/240:16/vdb1/dev").write_text("240:17\n")
    assert free(root) == ["vda"]


def test_block_use_all_devices_of_a_btrfs_are_in_use(root: Path) -> None:
    """Its mount names the first of them alone."""
    mounted(root, "30 1 0:44 / /data rw shared:1 - btrfs /dev/vda rw\n")
    devices = root / "sys/fs/btrfs/0000-uuid/devices"
    (devices / "gone").mkdir(parents=True)
    (devices / "vdb").mkdir()
    (devices / "vdb/dev").write_text("240:16\n")
    (root / "sys/fs/btrfs/features").mkdir()
    assert free(root) == []


def test_block_use_below_a_root_with_sysfs_ignores_the_mounts_of_this_machine(root: Path) -> None:
    os.mknod(root / "dev/vdc", 0o060660, (root / "dev").stat().st_dev)
    assert free(root) == ["vda", "vdb", "vdc"]
    (root / "sys/dev/block").rmdir()
    (root / "sys/dev").rmdir()  # as where a container has nothing of the host's sysfs
    assert free(root) == ["vda", "vdb"]

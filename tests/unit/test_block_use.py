"""Which block devices are not offered, because the machine itself uses them."""

import os
from pathlib import Path

import pytest

from devhost.discovery.selection import Selection
from devhost.hostfs.files import HostFiles
from devhost.hostfs.mounts import BlockUse, mounts, swapped
from devhost.loading.loader import loads
from tests.support.mounts import bound, tmpfs
from tests.support.root import needs_root
from tests.support.scanning import survey

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


def look(root: Path) -> Selection:
    text = "version: v1\nresources: [{name: a.b/c, sources: [dev: 'vd[a-z]']}]"
    return survey(loads(text).require().resources[0], HostFiles(str(root)))


def free(root: Path) -> list[str]:
    found = look(root)
    assert not found.failed
    return [node.name for node in found.nodes]


@pytest.mark.parametrize("name", ODD)
def test_a_mount_with_an_odd_name_is_one_line(root: Path, name: str) -> None:
    """What stands behind the name, what was mounted there, counts."""
    mounted(root, rf"30 1 0:44 /{name}\040c /home/{name}\040d rw - btrfs /dev/vda rw" + "\n")
    assert free(root) == ["vdb"]


@pytest.mark.parametrize("name", ODD[:-1])
def test_a_real_mount_with_an_odd_name(tmp_path: Path, name: str) -> None:
    """As a pod's subPath makes one."""
    with tmpfs(tmp_path / "volume"):
        source = tmp_path / "volume" / name
        source.mkdir()
        (tmp_path / "target").mkdir()
        with bound(source, tmp_path / "target"):
            assert BlockUse(HostFiles()).used


@pytest.mark.parametrize("line", ["", "x", "1 2", "1 2 x:y / /a rw - ext4 /dev/vdb rw", "1 2 3 4"])
def test_a_line_that_says_nothing_is_passed_over(root: Path, line: str) -> None:
    mounted(root, f"{line}\n{MOUNTED}{line}")
    assert free(root) == ["vdb"]


def test_what_is_mounted_is_told_as_it_is(tmp_path: Path) -> None:
    at = tmp_path / "mountinfo"
    at.write_text(
        "9 1 0:5 / /dev\\040x rw,nosuid shared:2 master:1 - ext4 /dev/a\\134x20b ro,x=y\n"
    )
    assert list(mounts(str(at))) == [((0, 5), "/dev x", r"/dev/a\x20b")]
    assert not list(mounts(str(tmp_path / "none")))


def test_what_is_swapped_on_is_in_use(root: Path) -> None:
    head = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    swaps = root / "proc/swaps"
    swaps.write_text(f"{head}/a\fb\\040c     file\t8\t0\t-2\n/dev/vdb      partition\t8\t0\t-2\n")
    assert list(swapped(str(swaps))) == ["/a\fb c", "/dev/vdb"]
    assert free(root) == ["vda"]


def test_a_source_that_cannot_be_looked_at_holds_up_nothing(root: Path) -> None:
    """Who mounts says what its source is called, also with more than the kernel looks up."""
    mounted(root, f"30 1 0:99 / /x rw - fuse /dev/{'x' * 300} rw\n{MOUNTED}")
    assert free(root) == ["vdb"]


@pytest.mark.parametrize("dev", [None, "", "x"])
def test_a_partition_that_goes_at_this_moment_fails_nothing(root: Path, dev: str | None) -> None:
    """Its disk is being unplugged; the other one is well."""
    mounted(root, MOUNTED)
    partition = root / "sys/dev/block/240:16/vdb1"
    partition.mkdir(parents=True)
    (partition / "partition").write_text("1\n")
    if dev is not None:
        (partition / "dev").write_text(dev)
    assert free(root) == ["vdb"]


def test_holders_that_go_at_this_moment_fail_nothing(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (root / "sys/dev/block/240:0/holders").mkdir(parents=True)
    listdir = os.listdir

    def gone(path: str) -> object:
        if path.endswith("/holders"):
            raise FileNotFoundError(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", gone)
    assert free(root) == ["vda", "vdb"]


@pytest.mark.parametrize("place", ["240:16/holders/dm-0", "240:16/vdb1/holders/dm-0"])
def test_what_is_held_is_in_use(root: Path, place: str) -> None:
    (root / "sys/dev/block" / place).mkdir(parents=True)
    if "vdb1" in place:
        (root / "sys/dev/block/240:16/vdb1/partition").touch()
        (root / "sys/dev/block/240:16/vdb1/dev").write_text("240:17\n")
    assert free(root) == ["vda"]


def test_all_devices_of_a_btrfs_are_in_use(root: Path) -> None:
    """Its mount names the first of them alone."""
    mounted(root, "30 1 0:44 / /data rw shared:1 - btrfs /dev/vda rw\n")
    devices = root / "sys/fs/btrfs/0000-uuid/devices"
    (devices / "gone").mkdir(parents=True)
    (devices / "vdb").mkdir()
    (devices / "vdb/dev").write_text("240:16\n")
    (root / "sys/fs/btrfs/features").mkdir()
    assert free(root) == []


def test_a_copy_of_another_machine_is_not_judged_by_the_mounts_of_this_one(root: Path) -> None:
    os.mknod(root / "dev/vdc", 0o060660, (root / "dev").stat().st_dev)
    assert free(root) == ["vda", "vdb", "vdc"]
    (root / "sys/dev/block").rmdir()
    (root / "sys/dev").rmdir()  # as where a container has nothing of the host's sysfs
    assert free(root) == ["vda", "vdb"]

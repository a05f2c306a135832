"""An archive of `devhost capture` stands for the machine that it was made of."""

import gzip
import io
import json
import os
import stat
import tarfile
from pathlib import Path
from typing import Final

import pytest

from devhost.drafts import capture
from devhost.hostfs.files import HostFiles, node_text
from devhost.model.device_node import FileKind
from devhost.testing import HostTree
from tests.support import hardware
from tests.support.command import called

MACHINES: Final = Path(__file__).with_name("machines")
UUID: Final = "1b4f8a0e-58ad-4c11-9f5e-0a8d2f6c7e31"
SECRETS: Final = (
    *("5bi", "c0:ff", "c0ffee", UUID, UUID[:8], "s62bnj", "pf2a", "content"),
    *("00:1a:7d", "dc:2c:26", "10.9.8", "5000c5"),
)
ENTRY: Final = "version: v1\nresources: [{name: example.com/any, sources: [dev: .*]}]\n"


def archive(tree: HostTree, *flags: str) -> Path:
    file = tree.root.with_suffix(".tar")
    assert called("capture", "-o", file, "--root", tree.root, *flags).returncode == 0
    return file


@pytest.mark.parametrize("name", ["homelab", "server"])
def test_commands_say_the_same_of_a_machine_and_its_archive(name: str, tmp_path: Path) -> None:
    tree = hardware.HostTree(tmp_path / "host")
    tree.hardware(MACHINES.joinpath(f"{name}.tree").read_text())
    tree.file("/proc/1/mountinfo", "25 1 259:1 / / rw - ext4 /dev/nvme0n1p1 rw\n26 25 0:9 / /x\n")
    tree.file("/proc/swaps", "Filename Type\n/dev/nvme0n1p2 partition\n")
    tree.file("/proc/consoles", "ttyS0 -W- (EC p a) 4:64\n")
    tree.pci("0000:f0:00.0", "10de:2330", driver="nvidia", **{"class": "0x030200"})
    tree.char("/dev/nvidia7", 195, 7)
    tree.device("/sys/devices/virtual/dma_heap/system", "class/dma_heap", dev="252:0")
    tree.file("/proc/driver/nvidia/gpus/0000:f0:00.0/information", "Device Minor: 7\n")
    tree.file("/usr/local/nvidia/lib64/libcuda.so.1")
    (tmp_path / "any.yaml").write_text(ENTRY)
    roots = [tree.root, archive(tree), HostTree.of(archive(tree), tmp_path / "again").root]
    for command in (
        ["devices", "--all", "-o", "json"],
        ["init", "--yes"],
        ["plan", tmp_path / "any.yaml", "-o", "json", "--explain"],
    ):
        first, *archived = [called(*command, "--root", root).stdout for root in roots]
        assert len(first) > 1000
        assert archived == [first, first]


def test_archive_of_this_machine_shows_its_devices(tmp_path: Path) -> None:
    called("capture", "-o", tmp_path / "node.tar")
    shown = [
        called("devices", "--all", "-o", "json", "--root", root).stdout
        for root in ("/", tmp_path / "node.tar")
    ]
    assert shown[0] == shown[1]


def test_anonymous_archive_has_other_numbers_in_each_place(tmp_path: Path) -> None:
    tree = HostTree(tmp_path / "host")
    stick = tree.usb("1-2", "0403:6001", driver="ftdi_sio", nodes=["tty/ttyUSB0"])
    tree.file(f"{stick}/serial", "A5028 5BI/x\n")
    tree.file("/sys/devices/pci0000:00/0000:00:14.0/usb1/serial", "0000:00:14.0\n")
    tree.usb("1-3", "0403:6001", serial="00000001")
    keyboard = tree.device(f"{stick}/input/input7", "class/input", phys="00:1a:7d:da:71:13")
    tree.file(f"{keyboard}/uevent", 'UNIQ="dc:2c:26:00:11:22" 10.9.8.7\n')
    tree.file(f"{stick}/sas_address", "0x5000c500a1b2c3d4\n")
    tree.relative_link("/dev/serial/by-id/usb-X_A5028_5BI_x-if00", "/dev/ttyUSB0")
    tree.relative_link("/dev/modem", "/dev/serial/by-id/usb-X_A5028_5BI_x-if00")
    tree.file("/sys/devices/virtual/dmi/id/product_serial", "PF2ABCDE", 0o400)  # of root alone
    tree.file("/dev/kmsg", "content")
    net = tree.device(f"{stick}/net/enx02c0ffee0001", "class/net", address="02:c0:ff:ee:00:01")
    tree.file(f"{net}/device_name", "02c0ffee0001")
    tree.file("/proc/driver/nvidia/gpus/0000:06:00.0/information", f"GPU UUID: GPU-{UUID}\n")
    tree.file("/etc/cdi/nvidia.yaml", f"devices: [{{name: GPU-{UUID}}}]\n")
    by_path = "by-path/pci-0x5000c500a1b2c3d4"
    for name in ("by-id/ata-Samsung_S62BNJ0R123456", f"by-uuid/{UUID}", by_path):
        tree.relative_link(f"/dev/disk/{name}", "/dev/ttyUSB0")
    file = archive(tree, "--anonymous")
    content = gzip.decompress(file.read_bytes()).lower()
    for secret in SECRETS:
        assert secret.encode() not in content, secret
    shown = json.loads(called("devices", "--all", "-o", "json", "--root", file).stdout)["usb"]
    assert [(device["usb"], device["serial"], device["nodes"]) for device in shown] == [
        ("1-2", "00000000004", ["enx000000000005", "/dev/ttyUSB0"]),
        ("1-3", "00000001", []),
        ("usb1", "0000:00:14.0", []),
    ]
    again = HostTree.of(file, tmp_path / "again")
    assert again.at("/sys/devices/pci0000:00/0000:00:14.0/usb1/1-2/1-2:1.0/uevent").is_file()
    assert again.at("/dev/modem").resolve() == again.at("/dev/ttyUSB0")
    assert {path.name for path in again.at("/dev").rglob("*") if path.is_symlink()} == {
        "modem",
        f"{3:036}",
        f"pci-{2:018}",
        "usb-X_00000000004-if00",
    }


def packed(*members: tarfile.TarInfo, content: bytes = b"evil") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for member in members:
            member.size = len(content) if member.isreg() else 0
            tar.addfile(member, io.BytesIO(content))
    return raw.getvalue()


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, 0o660
    return info


@pytest.mark.parametrize(
    "members",
    [
        [member("../outside/x")],
        [member("{outside}/x")],
        [member("a", tarfile.SYMTYPE, "../../outside"), member("a/x")],
        [member("a", tarfile.SYMTYPE, "{outside}"), member("b", tarfile.SYMTYPE, "a/x")],
        [member("a", tarfile.SYMTYPE, "b/.."), member("b", tarfile.SYMTYPE, "../../../outside")],
        [member("a", tarfile.LNKTYPE, "{outside}/secret")],
        [
            member("a", tarfile.SYMTYPE, "."),
            member("a/b/c", tarfile.SYMTYPE, "/outside"),
            member("b/c/x"),
        ],
    ],
)
def test_archive_never_leaves_its_directory(members: list[tarfile.TarInfo], tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "secret").write_text("mine")
    for info in members:
        info.name = info.name.format(outside=outside)
        info.linkname = info.linkname.format(outside=outside)
    file = tmp_path / "evil.tar"
    file.write_bytes(packed(*members))
    try:
        capture.unpack(file, root)
    except ValueError as error:
        assert str(file) in str(error)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    for path in root.rglob("*"):
        assert path.resolve().is_relative_to(root), path


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"version: v1\n", "no archive of `devhost capture`"),
        (b"\x1f\x8b\x08 no more", "no archive of `devhost capture`"),
        (packed(member("x"), content=b"x" * 20000), "more than 16,384 bytes"),
        (gzip.compress(packed(member("x"), content=b"x" * 20000)), "more than 16,384 bytes"),
        (packed(member("x", tarfile.CHRTYPE)), "'x' is no file or link"),
        (packed(member("a/" * 2000)), "no archive of `devhost capture`"),
    ],
)
def test_no_archive_is_refused(
    content: bytes, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capture, "ARCHIVE_MAX", 16384)
    (tmp_path / "node.tar").write_bytes(content)
    done = called("devices", "--root", tmp_path / "node.tar")
    assert done.returncode == 2
    assert problem in done.stderr


def test_capture_beyond_its_bound_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capture, "ARCHIVE_MAX", 16384)
    tree = HostTree(tmp_path / "host")
    for minor in range(20):
        tree.char(f"/dev/tty{minor}")
    done = called("capture", "-o", tmp_path / "node.tar", "--root", tree.root)
    assert (done.returncode, (tmp_path / "node.tar").exists()) == (1, False)


def test_file_stands_for_a_node_in_a_copy_of_a_machine_alone(tmp_path: Path) -> None:
    members = [member("./dev/x"), member("./sys/devices", tarfile.DIRTYPE)]
    text = node_text(stat.S_IFCHR | 0o660, os.makedev(188, 3), 7, 20)
    (tmp_path / "node.tar").write_bytes(packed(*members, content=text))
    files = HostFiles(str(HostTree.of(tmp_path / "node.tar", tmp_path / "root").root))
    status = files.lstat("/dev/x")
    assert (stat.S_ISCHR(status.st_mode), status.st_uid, status.st_gid) == (True, 7, 20)
    state = files.stat("/dev/x")
    assert state is not None
    assert (state.number, state.mode) == ((188, 3), 0o660)
    Path(f"{files.root}/sys").rename(tmp_path / "sys")
    state = files.stat("/dev/x")
    assert state is not None
    assert state.kind is FileKind.FILE


def test_devices_says_why_a_host_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("devhost.hostfs.files.ENTRIES_MAX", 3)
    tree = HostTree(tmp_path)
    for minor in range(4):
        tree.char(f"/dev/tty{minor}")
    done = called("devices", "--root", tree.root)
    assert (done.returncode, "more than 3 entries: '/dev'" in done.stderr) == (1, True)

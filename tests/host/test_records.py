"""The file of what was handed out: shared by instances, and whatever has become of it."""

from dataclasses import replace
from pathlib import Path

import pytest

from devhost.host import state_files
from devhost.host.ownership.record_store import RecordFile
from devhost.host.ownership.records import Owner, Record, boot_id, keys_of, thing_of
from devhost.model.device import FileKind, FileState, Hardware, Node

BOOT = boot_id()


def record(device: str = "a", resource: str = "example.com/a", **more: object) -> Record:
    one = Record(Owner(resource, device, shared=False), "char 4:64", "/dev/link", "/dev/x", BOOT)
    return replace(one, **more)  # type: ignore[arg-type]


def node(kind: FileKind, number: tuple[int, int] | None = None, inode: int = 1) -> Node:
    return Node("/dev/x", FileState("/dev/x", kind, number, (5, inode, 9), modified=7), 0, "x")


def test_what_one_instance_writes_another_reads(tmp_path: Path) -> None:
    one, two = RecordFile(tmp_path), RecordFile(tmp_path)
    other = record("b", thing="char 4:65", key="/dev/y", path="/dev/y")
    assert one.update([record()], (), ()) == ([record()], [])
    assert two.update([other], (), ()) == ([record(), other], [])
    assert one.update([], {record().place}, ()) == ([other], [])


@pytest.mark.parametrize(
    "late",
    [
        pytest.param(record(resource="example.com/b"), id="by number"),
        pytest.param(record("b", path="/dev/other", key="/dev/other"), id="by another path"),
    ],
)
def test_two_instances_do_not_both_hand_out_a_thing(tmp_path: Path, late: Record) -> None:
    """Who comes second sees the first one's record when it would write its own."""
    one, two = RecordFile(tmp_path), RecordFile(tmp_path)
    one.update([record()], (), ())
    assert two.update([late], (), ()) == ([record()], [late])
    assert one.update([late], (), {record().place}) == ([record(), late], [])  # it has judged


def test_the_same_device_and_a_shared_node_are_not_refused(tmp_path: Path) -> None:
    shared = record(overlap=True)
    also = record(resource="example.com/b", overlap=True)
    RecordFile(tmp_path).update([shared], (), ())
    assert RecordFile(tmp_path).update([shared, also], (), ()) == ([shared, also], [])


@pytest.mark.parametrize(
    "content", [b"", b"[", b"null", b"1", b'[{"thing": "x"}]', b"\xff", b"[" * 9999, b" " * 99]
)
def test_a_damaged_file_is_moved_aside(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
) -> None:
    """Also one that is larger than any that devhost writes; what is recorded then is in a new one."""
    monkeypatch.setattr(state_files, "STATE_BYTES_MAX", 98)
    file = RecordFile(tmp_path)
    file.path.write_bytes(content)
    assert file.update([record()], (), ()) == ([record()], [])
    aside = file.path.with_name("allocated.json.damaged")
    assert f"moved to {aside}" in caplog.text
    assert aside.read_bytes() == content
    monkeypatch.undo()
    assert RecordFile(tmp_path).update([], (), ()) == ([record()], [])


def test_without_a_record_there_is_no_file(tmp_path: Path) -> None:
    assert RecordFile(tmp_path).update([], (), ()) == ([], [])
    assert not list(tmp_path.iterdir())


def test_a_thing_is_a_number_a_file_or_a_place_in_the_kernel() -> None:
    """A block device is another one than a character device of its number."""
    char, block = node(FileKind.CHAR, (7, 0)), node(FileKind.BLOCK, (7, 0))
    assert [thing_of(char), thing_of(block)] == ["char 7:0", "block 7:0"]
    assert thing_of(node(FileKind.CHAR, (7, 0), inode=2)) == thing_of(char)
    assert thing_of(node(FileKind.FILE)) == "file 5 1 7"
    place = "/sys/devices/pci0000:00/net/eth0"
    interface = Node("", None, 0, "eth0", hardware=Hardware(place, "eth0", place, None, "net", ""))
    assert keys_of(interface) == {place, ""}
    owner = Owner("example.com/a", "a", shared=False)
    assert Record(owner, place, "", place, BOOT).keys("another boot") == {place}


def test_after_a_boot_the_path_tells() -> None:
    """Numbers and inodes are others then, and the kubelet's answers name paths."""
    assert record().keys(BOOT) == {"char 4:64"}
    assert record().keys("another") == {"/dev/x", "/dev/link"}
    assert record(thing="file 5 1 7").keys(BOOT) == {"file 5 1 7", "/dev/x"}

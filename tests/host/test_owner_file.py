"""The journal of who has which node: shared by instances, and through torn and full files."""

import errno
from dataclasses import replace
from pathlib import Path

import pytest

from devhost.host.ownership import owner_file
from devhost.host.ownership.owner_file import Journal, Owner, OwnerRecord, boot_id

BOOT = boot_id()


def record(
    device: str = "a", resource: str = "example.com/a", inode: int = 1, **more: object
) -> OwnerRecord:
    one = OwnerRecord(
        Owner(resource, device, shared=False), "/dev/link", f"/dev/{inode}", (4, 64, 5, inode), BOOT
    )
    return replace(one, **more)  # type: ignore[arg-type]


def test_what_one_instance_writes_another_reads_once(tmp_path: Path) -> None:
    one, two = Journal(tmp_path), Journal(tmp_path)
    assert one.exchange([record()]) == ([], [], None)
    assert two.exchange([]) == ([record()], [], None)
    assert two.exchange([]) == ([], [], None)
    other = record("b", inode=2)
    assert two.exchange([other]) == ([], [], None)
    assert one.exchange([]) == ([other], [], None)
    assert Journal(tmp_path).exchange([]) == ([record(), other], [], None)


def test_two_instances_do_not_both_get_a_node(tmp_path: Path) -> None:
    """Who comes second sees the first one's line in the moment in which it would write its own."""
    one, two = Journal(tmp_path), Journal(tmp_path)
    two.exchange([])
    one.exchange([record()])
    late = record(resource="example.com/b")
    assert two.exchange([late]) == ([record()], [late], None)
    assert Journal(tmp_path).exchange([]) == ([record()], [], None)


def test_the_same_device_and_shared_nodes_are_nobodys_in_particular(tmp_path: Path) -> None:
    one, two = Journal(tmp_path), Journal(tmp_path)
    shared = record(overlap=True)
    one.exchange([shared])
    also = record(resource="example.com/b", overlap=True)
    assert two.exchange([shared, also]) == ([shared], [], None)


def test_a_dropped_node_is_free(tmp_path: Path) -> None:
    one, two = Journal(tmp_path), Journal(tmp_path)
    dropped = record(dropped=True)
    one.exchange([record()])
    one.exchange([dropped])
    other = record(resource="example.com/b")
    assert two.exchange([other]) == ([record(), dropped], [], None)


@pytest.mark.parametrize(
    "torn", [b'{"owner":["a', b"null\n", b'{"owner":1}\n', b"\xff\n", b"[" * 9999]
)
def test_lines_that_cannot_be_read_are_said_and_written_over(tmp_path: Path, torn: bytes) -> None:
    one = Journal(tmp_path)
    one.exchange([record()])
    with one.path.open("ab") as stream:
        stream.write(torn)
    after = record("b", inode=2)
    others, refused, problem = Journal(tmp_path).exchange([after])
    assert (others, refused) == ([record()], [])
    assert problem == f"{one.path}: 1 unreadable lines are ignored"
    assert Journal(tmp_path).exchange([]) == ([record(), after], [], None)


def test_the_file_stays_small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other instances go on with the new one."""
    monkeypatch.setattr(owner_file, "_OBSOLETE_LINES", 10)
    one, two = Journal(tmp_path), Journal(tmp_path)
    two.exchange([])
    kept = record("kept", inode=99)
    one.exchange([kept])
    for _ in range(100):
        one.exchange([record()])
        one.exchange([record(dropped=True)])
    assert len(one.path.read_bytes().splitlines()) < 50
    others, _, problem = two.exchange([])
    assert problem is None
    assert {other.place: other for other in others}[kept.place] == kept


@pytest.mark.parametrize("own", [[], [record(resource="example.com/b")]])
def test_what_was_read_is_known_although_the_file_cannot_be_rewritten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: list[OwnerRecord]
) -> None:
    """Else the node of a pod would be offered under another name."""
    one = Journal(tmp_path)
    one.exchange([record()])
    with one.path.open("ab") as stream:
        stream.write(b"torn when the disk was full")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as still:
        still.setattr(owner_file, "write_atomically", full)
        others, refused, problem = Journal(tmp_path).exchange(own)
    assert (others, refused) == ([record()], own)
    assert problem == f"{one.path}: 1 unreadable lines are ignored"
    assert Journal(tmp_path).exchange([])[0] == [record()]


def test_a_node_in_this_boot_and_in_another() -> None:
    """Its inode tells it from the next node with its path; after a boot only the path is left."""
    tty = record()
    assert tty.keys(BOOT) == ((4, 64, 5, 1),)
    assert tty.keys("other") == ("/dev/1", "/dev/link")
    file = record(identity=(5, 1, 1234))
    assert file.keys(BOOT) == ((5, 1, 1234), "/dev/1")


def test_without_nodes_there_is_no_file(tmp_path: Path) -> None:
    """Tokens need none."""
    assert Journal(tmp_path).exchange([]) == ([], [], None)
    assert not list(tmp_path.iterdir())

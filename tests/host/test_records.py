"""The file of what was allocated and prepared: shared by instances, whatever has become of it."""

import asyncio
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from devhost.host import records, state_files
from devhost.host.records import FILE, Allocated, Mark, Owner, Records, boot_id
from devhost.model.device import FileKind, Hardware
from tests.support.devices import node, token

BOOT = boot_id()
PLACE = "/sys/devices/pci0000:00/net/eth0"


def record(device: str = "a", number: int = 64, **more: Any) -> Allocated:
    keys = {"key": f"char 4:{number}", "names": frozenset({f"/dev/{number}"}), "boot": BOOT}
    owner = Owner("example.com/a", device, shared=False)._asdict()
    return Allocated.model_validate({**owner, **keys, "overlap": False, **more})


def mark(one: str = "a", *, prepared: bool = False) -> Mark:
    return Mark(resource="example.com/a", id=one, prepared=prepared)


def opened(state: Path, elsewhere: Callable[[str], bool] = lambda _: False) -> Records:
    return Records(state, elsewhere)


async def put(who: Records, *entries: Allocated | Mark) -> None:
    who.put(entries)
    assert await who.sync(10) is None


async def test_records_that_one_instance_writes_another_reads(tmp_path: Path) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    await put(one, record(), mark())
    other = record("b", 65)
    await put(two, other)
    assert two.allocated == [other, record()]
    assert two.marks("example.com/a") == {"a": mark()}
    two.drop([record()])
    assert await two.sync(10) is None
    third = opened(tmp_path)
    assert await third.sync(10) is None
    assert third.allocated == [other]


async def test_mark_is_what_the_file_says_and_node_what_the_process_knows(
    tmp_path: Path,
) -> None:
    one, two = opened(tmp_path), opened(tmp_path)
    await put(one, record(), mark())
    await put(two, mark(prepared=True))
    assert await one.sync(10) is None
    assert one.marks("example.com/a") == {"a": mark(prepared=True)}
    (tmp_path / FILE).unlink()
    assert await one.sync(10) is None
    assert one.allocated == [record()]
    assert one.marks("example.com/a") == {}
    after_restart = opened(tmp_path)
    assert await after_restart.sync(10) is None
    assert after_restart.allocated == [record()]


async def test_node_that_the_file_has_lost_is_forgotten_if_another_instance_serves_it(
    tmp_path: Path,
) -> None:
    """That one has dropped it, because no pod has it any longer."""
    read: list[Allocated] = []
    one, two = opened(tmp_path), Records(tmp_path, lambda _: True, read.extend)
    await put(one, record())
    assert await two.sync(10) is None
    one.drop([record()])
    assert await one.sync(10) is None
    assert await two.sync(10) is None
    assert (two.allocated, read) == ([], [record(), record()])


async def test_mark_of_what_another_instance_serves_now_is_left_as_it_is(tmp_path: Path) -> None:
    """This process has set it when it served the resource, and writes it late."""
    one, two, elsewhere = opened(tmp_path), opened(tmp_path, lambda _: True), [mark("b")]
    await put(one, mark(prepared=True))
    await put(two, mark(), *elsewhere, record())
    assert two.marks("example.com/a") == {"a": mark(prepared=True)}
    two.drop([mark(prepared=True)])
    assert await two.sync(10) is None
    assert await one.sync(10) is None
    assert one.marks("example.com/a") == {"a": mark(prepared=True)}
    assert one.allocated == [record()]


async def test_record_dropped_while_it_is_written_does_not_stay_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered, go_on, update = threading.Event(), threading.Event(), records._update

    def slow(*arguments: Any) -> Any:
        entered.set()
        assert go_on.wait(60)
        return update(*arguments)

    monkeypatch.setattr(records, "_update", slow)
    one = opened(tmp_path)
    one.put([record()])
    assert await asyncio.to_thread(entered.wait, 60)
    one.drop([record()])
    go_on.set()
    await one.close()
    two = opened(tmp_path)
    assert await two.sync(10) is None
    assert two.allocated == []


@pytest.mark.parametrize("content", [b"", b"null", b'{"key": "x"}', b"\xff", b"[" * 9999])
async def test_state_file_that_is_damaged_is_moved_aside(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
) -> None:
    """Also one that is larger than any that devhost writes."""
    monkeypatch.setattr(state_files, "STATE_BYTES_MAX", 998)
    path, who = tmp_path / FILE, opened(tmp_path)
    path.write_bytes(content)
    await put(who, record())
    aside = path.with_name("state.json.damaged")
    assert who.lost is not None
    assert who.lost.endswith(f": moved to {aside}")
    assert who.lost in caplog.messages
    assert aside.read_bytes() == content
    again = opened(tmp_path)
    assert await again.sync(10) is None
    assert (again.allocated, again.lost) == ([record()], None)


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param({"resource": "example.com/a", "claim": "1f-9"}, id="kind"),
        pytest.param({"resource": "example.com/b", "id": "b", "prepared": "twice"}, id="value"),
        pytest.param("a text", id="text"),
    ],
)
async def test_what_a_newer_version_has_written_is_kept_and_the_rest_is_used(
    tmp_path: Path, foreign: object
) -> None:
    path, newer = tmp_path / FILE, {**record().model_dump(mode="json"), "claim": "1f-9"}
    path.write_text(json.dumps([foreign, newer]))
    who = opened(tmp_path)
    await put(who, record("b", 65), mark())
    assert [each.device for each in who.at(["char 4:64"])] == ["a"]
    assert (who.lost, path.with_name("state.json.damaged").exists()) == (None, False)
    who.drop([record("b", 65), mark()])
    assert await who.sync(10) is None
    assert json.loads(path.read_text()) == [foreign, newer]


async def test_state_file_does_not_grow_beyond_what_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    who = opened(tmp_path)
    await put(who, record())
    monkeypatch.setattr(state_files, "STATE_BYTES_MAX", 400)
    who.put([record(str(number), number) for number in range(9)])
    assert await who.sync(10) is None  # it was read
    assert "File too large" in str(who.problem)
    assert len(json.loads((tmp_path / FILE).read_text())) == 1


async def test_mark_that_cannot_be_written_is_as_it_was_and_node_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    who, again = opened(tmp_path), opened(tmp_path)
    assert await who.save([mark("b", prepared=True)], 10) is None
    with monkeypatch.context() as full:
        full.setattr(records, "write_atomically", fail)
        problem = await who.save([record(), mark(), mark("b")], 10)
        assert problem == who.problem == f"{tmp_path / FILE}: No space left on device"
    assert await who.sync(60) is None  # as `Owners.run` does it
    assert await again.sync(60) is None
    marks = {"b": mark("b", prepared=True)}
    for one in (who, again):
        assert (one.allocated, one.marks("example.com/a")) == ([record()], marks)


async def test_mark_that_a_slow_disk_does_not_have_in_time_is_written_later_if_it_replaces_none(
    tmp_path: Path,
) -> None:
    """Or the next process would take the former pod's for it."""
    who = opened(tmp_path)
    assert await who.save([mark("b", prepared=True)], 10) is None
    new = [mark("a"), mark("b")]
    for _ in range(2):  # as for a second container of the pod
        assert await who.save(new, 0) == records.NO_ANSWER
        assert [who.has(one) for one in new] == [True, False]
    assert await who.sync(10) is None
    assert await who.save(new, 10) is None
    await who.close()
    assert set(json.loads((tmp_path / FILE).read_text())[0]) == {"resource", "id", "prepared"}


async def test_state_directory_that_hangs_is_written_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    answers, update = threading.Event(), records._update

    def hanging(*arguments: Any) -> Any:
        assert answers.wait(60)
        return update(*arguments)

    monkeypatch.setattr(records, "_update", hanging)
    monkeypatch.setattr(records, "PATIENCE_S", 0.01)
    who = opened(tmp_path)
    who.put([record()])
    for _ in range(9):
        assert await who.sync(0.01) == records.NO_ANSWER
    assert who.problem == f"{tmp_path / FILE}: no answer in 0.01 s"
    who.put([record("b", 65)])  # while the first attempt has not returned
    answers.set()
    assert await who.sync(10) is None
    again = opened(tmp_path)
    assert await again.sync(10) is None
    assert again.allocated == [record(), record("b", 65)]
    assert caplog.messages == [
        f"cannot save allocated devices: {who._path}: no answer in 0.01 s",
        "allocated devices saved again",
    ]


async def test_state_file_without_a_record_is_not_made(tmp_path: Path) -> None:
    state = tmp_path / "state"
    who = opened(state)
    who.drop([record()])
    assert await who.sync(10) is None
    assert not state.exists()


async def test_node_with_a_name_that_is_not_utf_8_is_recorded(tmp_path: Path) -> None:
    odd = node("", None, realpath="/d/\udcff")
    one = record(key=odd.id.entity, names=odd.id.names)
    await put(opened(tmp_path), one)
    who = opened(tmp_path)
    assert await who.sync(10) is None
    assert who.at(odd.id.keys) == [one]


def test_key_of_a_node_is_its_number_file_or_place_in_sysfs() -> None:
    """A block device is another one than a character device of its number."""
    assert [node("/dev/x", kind=kind).id.entity for kind in (FileKind.CHAR, FileKind.BLOCK)] == [
        "char 4:64",
        "block 4:64",
    ]
    assert node("/d/x", None).id.entity == "file 5 1 0"
    interface = token("eth0", Hardware(PLACE, "eth0", PLACE, None, "net", ""))
    assert (interface.id.entity, interface.id.names) == (PLACE, frozenset({PLACE}))


async def test_file_is_known_by_its_inode_and_by_its_path(tmp_path: Path) -> None:
    """Whether it was renamed, or another one has taken its place."""
    who = opened(tmp_path)
    first, moved, replaced, other = (
        node(path, None, inode=inode).id for inode in (1, 2) for path in ("/d/x", "/d/y")
    )
    one = record(key=first.entity, names=first.names, boot=who.boot)
    await put(who, one)
    assert who.at(moved.keys) == who.at(replaced.keys) == [one]
    assert who.at(other.keys) == []

"""The file of what pods were given: shared by instances, whatever has become of it."""

import asyncio
import json
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from devhost.backends.resource_lock import LockState
from devhost.custody import record_files, record_store, state_dir
from devhost.custody.record_files import RecordFiles, boot_id
from devhost.custody.record_store import RecordStore
from devhost.custody.record_table import Holding, holdings
from devhost.errors import AllocationError
from devhost.model.device_node import FileKind, Hardware, NodeId
from devhost.model.records import Handout, Record, RecordedNode, Steps
from devhost.watch import watcher
from devhost.watch.watcher import Watcher
from tests.support.daemon import until
from tests.support.devices import node, token

A = "example.com/a"
FILE = "records/example.com_a.json"
BOOT = boot_id()
NO_SPACE = OSError(28, "No space left on device")
CARD = "/sys/devices/pci0000:00/0000:00:03.0"


def handout(device: str = "a", number: int = 64, steps: Steps = "none", **keys: Any) -> Handout:
    nodes = (RecordedNode.of(NodeId(f"char 4:{number}", frozenset({f"/dev/{number}"})), BOOT),)
    fields = {"resource": A, "id": device, "device": device, "nodes": nodes}
    return Handout.model_validate({**fields, "overlap": False, "steps": steps, **keys})


def of_node(node_id: NodeId) -> Handout:
    return handout(nodes=(RecordedNode.of(node_id, BOOT),))


def opened(state: Path, lock: LockState = "ours") -> RecordFiles:
    return RecordFiles(state, lambda _: lock)


async def put(file: RecordFiles, *handouts: Handout) -> None:
    file.set({handout.key: handout for handout in handouts})
    assert await file.sync(10) is None


async def end(file: RecordFiles, *ended: Handout) -> None:
    file.set({handout.key: None for handout in ended})
    assert await file.sync(10) is None


async def read(state: Path) -> set[Handout]:
    file = opened(state)
    assert await file.sync(10) is None
    return set(file.table)


def held(file: RecordFiles, node_id: NodeId) -> set[Holding]:
    return {holding for key in node_id.keys for holding in file.table.index.by_node.get(key, ())}


async def test_handouts_that_one_instance_writes_another_reads(tmp_path: Path) -> None:
    first, second, later = opened(tmp_path), opened(tmp_path), handout("b", 65)
    await put(first, handout())
    await put(second, later)
    assert set(second.table) == {later, handout()}
    await end(second, handout())
    assert await read(tmp_path) == {later}


async def test_steps_are_of_the_file_and_nodes_of_the_process(tmp_path: Path) -> None:
    """A file that was lost is written again, and whether the steps are done is not known."""
    first, second = opened(tmp_path), opened(tmp_path)
    await put(first, handout(steps="pending"))
    await put(second, handout(steps="done"))
    assert await first.sync(10) is None
    assert set(first.table) == {handout(steps="done")}
    (tmp_path / FILE).unlink()
    assert await first.sync(10) is None
    assert set(first.table) == await read(tmp_path) == {handout()}


async def test_handout_lost_in_the_file_of_another_instance_is_forgotten(tmp_path: Path) -> None:
    """The other instance has ended it, because no pod has it any longer."""
    seen: list[Record] = []
    first, second = opened(tmp_path), opened(tmp_path, "other")
    second.on_change = seen.extend
    await put(first, handout())
    assert await second.sync(10) is None
    await end(first, handout())
    assert await second.sync(10) is None
    assert (set(second.table), seen) == (set(), [handout(), handout()])


async def test_what_another_instance_serves_now_only_that_one_writes(tmp_path: Path) -> None:
    """This process has recorded it when it served the resource, and writes that late."""
    first, second = opened(tmp_path), opened(tmp_path, "other")
    await put(first, handout(steps="done"))
    await put(second, handout(number=65, steps="pending"), handout("b", 66, "pending"))
    assert set(second.table) == await read(tmp_path) == {handout(steps="done")}


async def test_files_of_others_are_reread(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "_POLL_S", 3600.0)
    ours = RecordFiles(tmp_path, lambda resource: "ours" if resource == A else "other")
    rival = RecordFiles(tmp_path, lambda resource: "other" if resource == A else "ours")
    first, second = handout(), handout("b", resource="example.com/b")
    await put(ours, first)
    await put(rival, second)
    async with Watcher() as watching:
        following = asyncio.create_task(ours.follow(watching))
        await until(lambda: second in ours.table)
        await end(rival, second)
        await until(lambda: second not in ours.table)
        following.cancel()


@pytest.mark.parametrize(("lock", "number"), [("free", 64), ("other", 64), ("free", 65)])
async def test_ended_handout_is_not_rewritten(tmp_path: Path, lock: LockState, number: int) -> None:
    """Nobody serves the resource any longer: it was renamed; its device may have moved just now."""
    first, second = opened(tmp_path, "free"), opened(tmp_path, lock)
    await put(first, handout())
    assert await second.sync(10) is None
    await end(first, handout())
    second.set({handout().key: handout(number=number)})
    for _ in range(3):
        assert await second.sync(10) is None
        assert await first.sync(10) is None
    assert (set(first.table), set(second.table)) == (set(), set())


@pytest.mark.parametrize("reads", [False, True])
async def test_of_two_for_one_node_the_second_writes_nothing(tmp_path: Path, reads: bool) -> None:
    """The second sees the first's record: under the lock, or by a reading between its checks."""
    first, second = opened(tmp_path), opened(tmp_path)
    await put(first, handout())
    if reads:
        second.sync_soon()
        await asyncio.sleep(0)  # it has begun, and the table has its result after the first check
    late = handout("b", resource="example.com/b")

    def check() -> Sequence[Record]:
        if handout() in second.table:
            raise AllocationError("taken")
        return [late]

    with pytest.raises(AllocationError, match="taken"):
        await second.give(check, 10)
    assert set(second.table) == {handout()}
    assert await read(tmp_path) == {handout()}


async def test_late_refusal_is_recorded(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = opened(tmp_path), opened(tmp_path)
    await put(first, handout("z", 99))
    assert await second.sync(10) is None

    late = handout("b", resource="example.com/b")

    def check() -> Sequence[Record]:
        if A in {
            holding.name.resource for holding in second.table.index.by_node.get("char 4:64", ())
        }:
            raise AllocationError("taken")
        return [late]

    with state_dir.directory_lock(tmp_path):
        assert await second.give(check, 0.3) == record_files.NO_ANSWER
        path = tmp_path / FILE
        path.write_text(path.read_text().replace('"z"', '"a"').replace("4:99", "4:64"))
    assert await second.sync(10) is None
    assert await second.sync(10) is None
    assert {record.resource for record in await read(tmp_path)} == {A, "example.com/b"}
    assert "taken: it was given all the same, as the disk was slow" in caplog.messages


async def test_unwritable_is_written_later(tmp_path: Path) -> None:
    file = opened(tmp_path)
    await put(file, handout(steps="done"))
    (tmp_path / FILE).unlink()
    with patch.object(record_store, "write_atomically", side_effect=NO_SPACE):
        for _ in range(2):
            assert await file.sync(10) is None
            assert set(file.table) == {handout()}
    assert await file.sync(10) is None
    assert await read(tmp_path) == {handout()}


async def test_ended_handout_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, go_on, update = threading.Event(), threading.Event(), RecordStore.update

    def slow(*arguments: Any) -> Any:
        entered.set()
        return go_on.wait(60) and update(*arguments)

    monkeypatch.setattr(RecordStore, "update", slow)
    file = opened(tmp_path)
    file.set({handout().key: handout()})
    assert await asyncio.to_thread(entered.wait, 60)
    file.set({handout().key: None})
    go_on.set()
    await file.close()
    assert await read(tmp_path) == set()


@pytest.mark.parametrize("content", [b"", b"null", b'{"key": "x"}', b"\xff", b"[" * 9999])
async def test_state_file_that_is_damaged_is_moved_aside(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    content: bytes,
) -> None:
    """So is a file that is larger than any that devhost writes."""
    monkeypatch.setattr(state_dir, "STATE_BYTES_MAX", 998)
    path, file = tmp_path / FILE, opened(tmp_path)
    path.parent.mkdir()
    path.write_bytes(content)
    await put(file, handout())
    aside = path.with_name(f"{path.name}.damaged")
    assert file.damage is not None
    assert file.damage.endswith(f": moved to {aside}")
    assert file.damage in caplog.messages
    assert aside.read_bytes() == content
    again = opened(tmp_path)
    assert await again.sync(10) is None
    assert (set(again.table), again.damage) == ({handout()}, None)


async def test_damaged_file_of_another_instance_is_left_to_it(tmp_path: Path) -> None:
    first, second = opened(tmp_path), opened(tmp_path, "other")
    await put(first, handout())
    assert await second.sync(10) is None
    (tmp_path / FILE).write_bytes(b"{")
    assert await second.sync(10) is None
    assert (set(second.table), (tmp_path / FILE).read_bytes()) == ({handout()}, b"{")


@pytest.mark.parametrize(
    "foreign",
    [
        pytest.param({"resource": A, "claim": "1f-9"}, id="kind"),
        pytest.param({**handout().model_dump(mode="json"), "steps": "twice"}, id="value"),
        pytest.param("a text", id="text"),
    ],
)
async def test_records_of_a_newer_version_are_kept(tmp_path: Path, foreign: object) -> None:
    path, newer = tmp_path / FILE, {**handout().model_dump(mode="json"), "claim": "1f-9"}
    path.parent.mkdir()
    path.write_text(json.dumps({"resource": A, "records": [foreign, newer]}))
    file, second = opened(tmp_path), handout("b", 65)
    await put(file, second)
    assert [holding.name.device for holding in file.table.index.by_node["char 4:64"]] == ["a"]
    assert (file.damage, path.with_name(f"{path.name}.damaged").exists()) == (None, False)
    await end(file, second)
    assert json.loads(path.read_text())["records"] == [newer, foreign]


async def test_state_file_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = opened(tmp_path)
    await put(file, handout())
    monkeypatch.setattr(state_dir, "STATE_BYTES_MAX", 800)
    await put(file, *(handout(str(number), number) for number in range(9)))  # it was read
    assert "File too large" in str(file.problem)
    assert len(json.loads((tmp_path / FILE).read_text())["records"]) == 1


async def test_steps_unwritable_stay_and_nodes_are_written_later(tmp_path: Path) -> None:
    file, done, without = opened(tmp_path), handout("b", steps="done"), handout("c", 65)
    assert await file.give(lambda: [done], 10) is None
    with patch.object(record_store, "write_atomically", side_effect=NO_SPACE):
        pending = [handout(steps="pending"), handout("b", steps="pending")]
        problem = await file.give(lambda: [*pending, without], 10)
        assert problem == file.problem == f"{tmp_path}: No space left on device"
        # What it was is not written yet, either.
        assert await file.give(lambda: [without.with_steps("pending")], 10) == problem
    assert await file.sync(60) is None  # as `Claims.run` does it
    assert set(file.table) == await read(tmp_path) == {done, without}


async def test_steps_on_a_slow_disk_are_written_later_if_they_replace_none(tmp_path: Path) -> None:
    """The next process would take a former pod's steps for them."""
    file, pending = opened(tmp_path), [handout(steps="pending"), handout("b", steps="pending")]
    assert await file.give(lambda: [handout("b", steps="done")], 10) is None
    for _ in range(2):  # as for a second container of the pod
        assert await file.give(lambda: pending, 0) == record_files.NO_ANSWER
        assert [record in file.table for record in pending] == [True, False]
    assert await file.sync(10) is None
    assert await file.give(lambda: pending, 10) is None
    await file.close()
    assert await read(tmp_path) == set(pending)


async def test_state_directory_that_hangs_is_written_when_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    answers, update = threading.Event(), RecordStore.update
    monkeypatch.setattr(RecordStore, "update", lambda *args: answers.wait(60) and update(*args))
    monkeypatch.setattr(record_files, "PATIENCE_S", 0.01)
    file, second = opened(tmp_path), handout("b", 65)
    file.set({handout().key: handout()})
    for _ in range(9):
        assert await file.sync(0.01) == record_files.NO_ANSWER
    assert file.problem == f"{tmp_path}: no answer in 0.01 s"
    monkeypatch.setattr(record_files, "PATIENCE_S", 60.0)
    file.set({second.key: second})  # while the first attempt has not returned
    answers.set()
    assert await file.sync(10) is None
    assert await read(tmp_path) == {handout(), second}
    assert caplog.messages == [
        f"cannot save allocated devices: {tmp_path}: no answer in 0.01 s",
        "allocated devices saved again",
    ]


async def test_state_file_without_a_record_is_not_made(tmp_path: Path) -> None:
    state = tmp_path / "state"
    await end(opened(state), handout())
    assert not state.exists()


async def test_node_with_a_name_that_is_not_utf_8_is_recorded(tmp_path: Path) -> None:
    odd = node("", None, realpath="/d/\udcff").id
    await put(opened(tmp_path), of_node(odd))
    file = opened(tmp_path)
    assert await file.sync(10) is None
    assert held(file, odd) == {*holdings(of_node(odd))}


def test_key_of_a_node_is_its_number_file_or_place_in_sysfs() -> None:
    """A block device is another one than a character device of its number."""
    assert node("/dev/x", kind=FileKind.CHAR).id.entity == "char 4:64"
    assert node("/dev/x", kind=FileKind.BLOCK).id.entity == "block 4:64"
    assert node("/d/x", None).id.entity == "file 5 1 0"
    place, entity = f"{CARD}/net 0", f"{CARD}/net 2"
    at = Hardware(CARD, "eth0", f"{CARD}/net/eth0", place, entity, None, "net", CARD)
    assert token("eth0", at).id == NodeId(entity, frozenset({place}))


async def test_file_is_known_by_its_inode_and_by_its_path(tmp_path: Path) -> None:
    """The file may have been renamed, or another may have taken its place."""
    file = opened(tmp_path)
    first, moved, replaced, stranger = (
        node(path, None, inode=inode).id for inode in (1, 2) for path in ("/d/x", "/d/y")
    )
    await put(file, of_node(first))
    expected = {*holdings(of_node(first))}
    assert held(file, moved) == held(file, replaced) == expected
    assert not held(file, stranger)

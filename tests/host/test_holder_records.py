"""The records of who holds what: kept, and never wrong towards wiping."""

import asyncio
import errno
import fcntl
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from devhost.errors import PreStartError
from devhost.host.prestart import holder_records
from devhost.host.prestart.holder_records import Fresh, Holder, HolderRecords
from devhost.host.state_files import write_atomically

NAME: Final = "example.com/disk"
POD: Final = "ns/pod-0"


def file_of(state: Path) -> Path:
    return state / "holders" / f"{hashlib.sha256(NAME.encode()).hexdigest()[:16]}.json"


async def short(records: HolderRecords) -> dict[str, str]:
    """Each ID's record in a word; what was given up may still be writing."""
    while records._calls.hanging:
        await asyncio.sleep(0.01)
    return {
        one: "fresh" if isinstance(record, Fresh) else record.pod
        for one, record in (await records.read()).items()
    }


async def settle(records: HolderRecords, *ids: str, pod: str = POD) -> None:
    found = await records.read()
    fresh = {one: record for one in ids if isinstance(record := found[one], Fresh)}
    assert set(fresh) == set(ids)
    await records.assign(fresh, pod)


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """Another instance does not let go of the records, and nobody waits for it for long."""
    (state / "holders").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(state / "holders", os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holder_records, "_PATIENCE_S", 0.1)
            patch.setattr(holder_records, "PATIENCE_S", 0.1)
            yield
    finally:
        os.close(descriptor)


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(holder_records, "_PATIENCE_S", 30.0)


@pytest.mark.parametrize("durable", [True, False])
async def test_an_allocated_device_is_fresh_until_it_is_settled(
    tmp_path: Path, *, durable: bool
) -> None:
    records = HolderRecords(NAME, tmp_path if durable else None)
    assert records.durable is durable
    assert await short(records) == {}
    await records.mark_fresh(["a", "b"])
    assert await short(records) == {"a": "fresh", "b": "fresh"}
    await settle(records, "a")
    assert await short(records) == {"a": POD, "b": "fresh"}
    await records.mark_fresh(["a"])
    assert await short(records) == {"a": "fresh", "b": "fresh"}


async def test_records_outlive_the_process(tmp_path: Path) -> None:
    before = HolderRecords(NAME, tmp_path)
    await before.mark_fresh(["a", "b"])
    await settle(before, "a")
    assert await short(HolderRecords(NAME, tmp_path)) == {"a": POD, "b": "fresh"}
    assert await short(HolderRecords("example.com/other", tmp_path)) == {}
    assert await short(HolderRecords(NAME, None)) == {}


async def test_the_file_is_what_is_documented(tmp_path: Path) -> None:
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a", "b"])
    await settle(records, "a")
    content = json.loads(file_of(tmp_path).read_text())
    marks = [content["devices"][one].pop("mark") for one in "ab"]
    assert content == {
        "resource": NAME,
        "devices": {"a": {"holder": POD}, "b": {"fresh": True}},
    }
    assert len(set(marks)) == 2


async def test_a_file_without_marks_counts(tmp_path: Path) -> None:
    write(tmp_path, {"a": {"holder": POD}, "b": {"fresh": True}})
    records = HolderRecords(NAME, tmp_path)
    assert await records.read() == {"a": Holder(POD, ""), "b": Fresh("")}
    await settle(records, "b")
    assert await short(records) == {"a": POD, "b": POD}


def write(state: Path, devices: Any, resource: str = NAME) -> None:
    file_of(state).parent.mkdir(exist_ok=True)
    file_of(state).write_text(json.dumps({"resource": resource, "devices": devices}))


async def test_what_another_instance_wrote_wins_over_memory(tmp_path: Path) -> None:
    ours, theirs = HolderRecords(NAME, tmp_path), HolderRecords(NAME, tmp_path)
    await ours.mark_fresh(["a", "b"])
    await settle(theirs, "a")
    assert await short(ours) == {"a": POD, "b": "fresh"}
    await theirs.mark_fresh(["c"])
    await ours.mark_fresh(["d"])
    assert await short(theirs) == {"a": POD, "b": "fresh", "c": "fresh", "d": "fresh"}


async def test_where_the_file_is_gone_a_holder_is_remembered_but_no_mark(tmp_path: Path) -> None:
    """Another instance may have prepared the device since, in the file that is lost."""
    records = HolderRecords(NAME, tmp_path / "state")
    await records.mark_fresh(["a", "b"])
    await settle(records, "a")
    file_of(tmp_path / "state").unlink()
    (tmp_path / "state/holders").rmdir()
    (tmp_path / "state").rmdir()
    assert await short(records) == {"a": POD}
    await records.mark_fresh(["c"])
    assert await short(HolderRecords(NAME, tmp_path / "state")) == {"a": POD, "c": "fresh"}


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        '"x"',
        "\udcff",
        json.dumps({"devices": {"a": {"fresh": True}}}),
        json.dumps({"resource": NAME}),
        json.dumps({"resource": NAME, "devices": ["a"]}),
        json.dumps({"resource": NAME, "devices": {"a": True}}),
        json.dumps({"resource": NAME, "devices": {"a": {}}}),
        json.dumps({"resource": NAME, "devices": {"a": {"fresh": "true"}}}),
        json.dumps({"resource": NAME, "devices": {"a": {"fresh": 1}}}),
        json.dumps({"resource": NAME, "devices": {"a": {"fresh": True, "holder": POD}}}),
        json.dumps({"resource": NAME, "devices": {"a": {"fresh": True}, "b": {"holder": 1}}}),
        json.dumps({"resource": "example.com/other", "devices": {"a": {"fresh": True}}}),
    ],
)
async def test_a_corrupt_file_is_no_record_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    """Also for a process that knew better: another instance may have used the devices."""
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a"])
    file_of(tmp_path).write_bytes(content.encode("utf-8", "surrogateescape"))
    assert await short(records) == {}
    assert await short(records) == {}
    assert caplog.text.count("ignored") == 1
    await records.mark_fresh(["b"])
    assert await short(records) == {"b": "fresh"}


# ── a sick state directory ──


async def test_a_mark_that_cannot_be_written_is_kept_and_written_later(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a"])
    await settle(records, "a")
    with locked(tmp_path):
        await records.mark_fresh(["a"])
        await records.mark_fresh(["a", "b"])
        with pytest.raises(TimeoutError, match=r"no answer in 0\.1 s"):
            await records.read()
    assert caplog.text.count("cannot save which devices were allocated") == 1
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert await short(records) == {"a": "fresh", "b": "fresh"}
    assert await short(HolderRecords(NAME, tmp_path)) == {"a": "fresh", "b": "fresh"}
    await settle(records, "a")
    assert await short(records) == {"a": POD, "b": "fresh"}


async def test_who_has_not_answered_is_not_waited_for_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or each edit and each Allocate would be late while the state directory hangs."""
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a"])
    with locked(tmp_path):
        await records.mark_fresh(["a"])
        monkeypatch.setattr(holder_records, "_PATIENCE_S", 600.0)
        await records.mark_fresh(["b"])
        await records.forget()
    await records.mark_fresh(["c"])
    assert await short(records) == {"c": "fresh"}


async def test_a_mark_that_cannot_be_written_at_once_does_not_fail(tmp_path: Path) -> None:
    (tmp_path / "holders").write_text("no directory")
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a"])
    with pytest.raises(OSError, match="holders"):
        await records.read()
    (tmp_path / "holders").unlink()
    assert await short(records) == {"a": "fresh"}


async def test_a_mark_that_was_written_though_it_failed_is_no_other_instances(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one, which could not be written at all, still counts."""
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a"])
    writes = [write_atomically]

    def fail(path: Path, raw: bytes) -> None:
        for write in writes:
            write(path, raw)
        writes.clear()
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as broken:
        broken.setattr(holder_records, "write_atomically", fail)
        await records.mark_fresh(["a"])
        await records.mark_fresh(["a"])
    assert await short(records) == {"a": "fresh"}


async def test_a_late_mark_gives_way_to_another_instances(tmp_path: Path) -> None:
    """Which of the two Allocates came last cannot be told: neither counts as fresh."""
    ours, theirs = HolderRecords(NAME, tmp_path), HolderRecords(NAME, tmp_path)
    await ours.mark_fresh(["a", "b"])
    with locked(tmp_path):
        await ours.mark_fresh(["a", "b"])
    await theirs.mark_fresh(["a"])
    await settle(theirs, "a")
    assert await short(ours) == {"b": "fresh"}


async def test_a_late_mark_counts_for_nothing_beside_a_corrupt_file(tmp_path: Path) -> None:
    """Whether another instance has used the device since cannot be told."""
    records = HolderRecords(NAME, tmp_path)
    with locked(tmp_path):
        await records.mark_fresh(["a"])
    file_of(tmp_path).write_text("{")
    assert await short(records) == {}
    file_of(tmp_path).unlink()
    assert await short(records) == {}


async def test_a_use_that_is_late_changes_nothing(tmp_path: Path) -> None:
    """A process that was stopped meanwhile must not undo what another has settled."""
    ours, theirs = HolderRecords(NAME, tmp_path), HolderRecords(NAME, tmp_path)
    with locked(tmp_path):
        await ours.mark_fresh(["a"])  # given up; its thread still waits
    await theirs.mark_fresh(["a"])
    await settle(theirs, "a")
    while ours._calls.hanging:
        await asyncio.sleep(0.01)
    assert await short(theirs) == {"a": POD}
    assert await short(ours) == {}


@pytest.mark.parametrize("what", ["temporary", "rename"])
async def test_what_cannot_be_settled_stays_fresh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a"])

    def fail(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        if what == "temporary":
            patch.setattr("tempfile.mkstemp", fail)
        else:
            patch.setattr(Path, "replace", fail)
        with pytest.raises(OSError, match="No space left"):
            await settle(records, "a")
    assert await short(records) == {"a": "fresh"}
    assert [file.name for file in (tmp_path / "holders").iterdir()] == [file_of(tmp_path).name]


async def test_an_allocation_during_the_preparation_is_not_settled(tmp_path: Path) -> None:
    """The pod that was prepared for is gone, and the next has the device."""
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a", "b"])
    seen = {one: r for one, r in (await records.read()).items() if isinstance(r, Fresh)}
    await records.mark_fresh(["b"])
    with pytest.raises(PreStartError, match="device b was allocated again"):
        await records.assign(seen, POD)
    assert await short(records) == {"a": "fresh", "b": "fresh"}


async def test_a_caller_that_gives_up_leaves_whole_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, update = asyncio.get_running_loop(), holder_records._update
    begun, given_up = asyncio.Event(), threading.Event()

    def slow(*arguments: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        given_up.wait()
        return update(*arguments)

    monkeypatch.setattr(holder_records, "_PATIENCE_S", 60.0)
    monkeypatch.setattr(holder_records, "_update", slow)
    records = HolderRecords(NAME, tmp_path)
    marking = asyncio.ensure_future(records.mark_fresh(["a"]))
    await begun.wait()
    marking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await marking
    given_up.set()
    assert await short(records) == {"a": "fresh"}


# ── forgetting ──


@pytest.mark.parametrize("durable", [True, False])
async def test_nothing_is_known_after_forgetting(tmp_path: Path, *, durable: bool) -> None:
    records = HolderRecords(NAME, tmp_path if durable else None)
    await records.mark_fresh(["a", "b"])
    await settle(records, "a")
    await records.forget()
    assert await short(records) == {}
    assert await short(HolderRecords(NAME, tmp_path)) == {}


async def test_forgetting_touches_no_directory_where_nothing_was_kept(tmp_path: Path) -> None:
    await HolderRecords(NAME, tmp_path / "state").forget()
    assert not (tmp_path / "state").exists()


async def test_forgetting_is_made_up_for(tmp_path: Path) -> None:
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a", "b"])
    with locked(tmp_path):
        await records.forget()
        await records.mark_fresh(["b"])
    for _ in range(2):
        assert await short(records) == {"b": "fresh"}
    assert await short(HolderRecords(NAME, tmp_path)) == {"b": "fresh"}


async def test_a_full_disk_does_not_hide_what_was_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A mark that cannot be written keeps no other pod's container from starting again."""
    records = HolderRecords(NAME, tmp_path)
    await records.mark_fresh(["a"])
    await settle(records, "a")

    def full(path: Path, _raw: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patch:
        patch.setattr(holder_records, "write_atomically", full)
        await records.mark_fresh(["b"])
        assert await short(records) == {"a": POD, "b": "fresh"}
        with pytest.raises(OSError, match="No space left"):
            await settle(records, "b")
        assert "cannot save which devices were allocated" in caplog.text
    assert await short(HolderRecords(NAME, tmp_path)) == {"a": POD}
    await settle(records, "b")
    assert await short(HolderRecords(NAME, tmp_path)) == {"a": POD, "b": POD}

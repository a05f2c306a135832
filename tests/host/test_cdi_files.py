"""CDI files on a disk: whole, readable, and only ours removed."""

import asyncio
import errno
import gc
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice
from devhost.host.cdi import files as cdi_files
from devhost.host.cdi.files import CdiFiles
from tests.support.mounts import hung, read_only, tmpfs

T, U = "example.com/t", "example.com/u"


def content(resource: str, value: str = "1") -> bytes:
    made = cdi.serialize(resource, [CdiDevice("a", envs={"A": value})])
    assert made is not None
    return made


def nobody(resource_hash: str) -> bool:
    return False


def everybody(resource_hash: str) -> bool:
    return True


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def files(tmp_path: Path) -> CdiFiles:
    return CdiFiles(tmp_path)


# ── writing ────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
async def test_a_file_is_written_whole_and_for_all_to_read(files: CdiFiles, tmp_path: Path) -> None:
    assert await files.write(T, content(T))
    assert listing(tmp_path) == [cdi.file_name(T)]
    path = tmp_path / cdi.file_name(T)
    assert path.read_bytes() == content(T)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


async def test_a_file_with_the_same_content_is_left_alone(files: CdiFiles, tmp_path: Path) -> None:
    """Runtimes read all files again whenever one is renamed."""
    await files.write(T, content(T))
    before = (tmp_path / cdi.file_name(T)).stat()
    assert not await files.write(T, content(T))
    after = (tmp_path / cdi.file_name(T)).stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


async def test_another_content_replaces_the_file(files: CdiFiles, tmp_path: Path) -> None:
    await files.write(T, content(T))
    with (tmp_path / cdi.file_name(T)).open("rb") as reader:
        assert await files.write(T, content(T, "2"))
        assert reader.read() == content(T), "who reads has the former one, whole"
    assert (tmp_path / cdi.file_name(T)).read_bytes() == content(T, "2")


async def test_no_moment_shows_an_unfinished_file(
    files: CdiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.extend(listing(tmp_path)))
    await files.write(T, content(T))
    [unfinished] = seen
    assert not unfinished.endswith((".json", ".yaml"))


async def test_the_directory_is_made(tmp_path: Path) -> None:
    await CdiFiles(tmp_path / "run" / "cdi").write(T, content(T))
    assert listing(tmp_path / "run" / "cdi") == [cdi.file_name(T)]


async def test_no_content_removes_the_file(files: CdiFiles, tmp_path: Path) -> None:
    await files.write(T, content(T))
    assert await files.write(T, None)
    assert not await files.write(T, None)
    assert listing(tmp_path) == []


async def test_nothing_to_remove_makes_no_directory(tmp_path: Path) -> None:
    assert not await CdiFiles(tmp_path / "cdi").write(T, None)
    assert listing(tmp_path) == []


async def test_a_directory_that_cannot_be_written_to_is_the_caller_s_to_tell(
    tmp_path: Path,
) -> None:
    (tmp_path / "cdi").write_text("a file, which holds off root too")
    with pytest.raises(OSError, match="cdi"):
        await CdiFiles(tmp_path / "cdi").write(T, content(T))


async def test_a_directory_that_turns_read_only_is_told_until_it_is_writable(
    tmp_path: Path,
) -> None:
    with tmpfs(tmp_path):
        files = CdiFiles(tmp_path)
        await files.write(T, content(T))
        read_only(tmp_path, on=True)
        with pytest.raises(OSError, match="Read-only"):
            await files.write(T, content(T, "2"))
        assert not await files.write(T, content(T)), "there is nothing to write"
        assert await files.remove_stale([], nobody) == [], "nothing can be removed"
        read_only(tmp_path, on=False)
        assert await files.write(T, content(T, "2"))


async def test_a_full_disk_leaves_the_former_file_and_nothing_else(tmp_path: Path) -> None:
    with tmpfs(tmp_path, "size=64k"):
        files = CdiFiles(tmp_path)
        await files.write(T, content(T))
        with pytest.raises(OSError, match="No space left"):
            await files.write(T, content(T, "long" * 65536))
        assert listing(tmp_path) == [cdi.file_name(T)]
        assert (tmp_path / cdi.file_name(T)).read_bytes() == content(T)


async def test_a_directory_that_does_not_answer_holds_up_nobody(
    files: CdiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cdi_files, "PATIENCE_S", 0.1)
    with hung(tmp_path):
        with pytest.raises(TimeoutError, match="no answer") as caught:
            await files.write(T, content(T))
        assert caught.value.filename == str(tmp_path)
        monkeypatch.setattr(cdi_files, "PATIENCE_S", 600.0)  # it is waited for only once
        with pytest.raises(TimeoutError, match="no answer"):
            await files.remove_stale([], nobody)
        names = [thread.name for thread in threading.enumerate()]
        assert names.count("cdi files") == 1, "one thread waits, not one a call"
    monkeypatch.setattr(cdi_files, "PATIENCE_S", 10.0)
    assert await files.write(T, content(T, "2"))
    assert listing(tmp_path) == [cdi.file_name(T)]
    assert (tmp_path / cdi.file_name(T)).read_bytes() == content(T, "2")


async def test_a_write_that_is_late_does_not_undo_a_later_one(
    files: CdiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()
    with monkeypatch.context() as slow:
        slow.setattr(cdi_files, "PATIENCE_S", 0.1)
        slow.setattr(os, "fsync", lambda descriptor: answers.wait(60))
        with pytest.raises(TimeoutError):
            await files.write(T, content(T))
    later = asyncio.create_task(files.write(T, content(T, "2")))
    await asyncio.sleep(0.05)
    answers.set()
    assert await later
    assert (tmp_path / cdi.file_name(T)).read_bytes() == content(T, "2")


async def test_many_at_once(files: CdiFiles, tmp_path: Path) -> None:
    resources = [f"example.com/r{number}" for number in range(20)]
    await asyncio.gather(*(files.write(one, content(one)) for one in resources))
    assert listing(tmp_path) == sorted(map(cdi.file_name, resources))


# ── removing what is stale ─────────────────────────────────────────────────────────────


async def test_a_file_of_a_resource_that_is_gone_is_removed(
    files: CdiFiles, tmp_path: Path
) -> None:
    await files.write(T, content(T))
    await files.write(U, content(U))
    assert await files.remove_stale([T], nobody) == [cdi.file_name(U)]
    assert listing(tmp_path) == [cdi.file_name(T)]


async def test_a_file_that_another_one_serves_stays(files: CdiFiles, tmp_path: Path) -> None:
    await files.write(T, content(T))
    await files.write(U, content(U))
    removed = await files.remove_stale([], lambda resource: resource == cdi.resource_hash(T))
    assert removed == [cdi.file_name(U)]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("nvidia.json", '{"kind": "devhost.example.com/t"}'),
        (cdi.file_name(T), '{"kind": "example.com/t"}'),
        (cdi.file_name(T), '{"kind": 1}'),
        (cdi.file_name(T), "[]"),
        (cdi.file_name(T), "{"),
        (cdi.file_name(T), "[" * 100_000),
        ("devhost_notes.txt", ""),
        ("devhost.json", '{"kind": "devhost.example.com/t"}'),
        (".nvidia.tmp", ""),
        (".devhost_.tmp", ""),
    ],
)
async def test_nobody_else_s_file_is_touched(
    files: CdiFiles, tmp_path: Path, name: str, text: str
) -> None:
    (tmp_path / name).write_text(text)
    assert await files.remove_stale([], nobody) == []
    assert listing(tmp_path) == [name]


async def test_a_deep_file_leaves_room_for_other_objects_finalizers(
    files: CdiFiles, tmp_path: Path
) -> None:
    """Python may finalize anything whenever it makes an object, such as a list in a list."""
    (tmp_path / cdi.file_name(T)).write_text("[" * 100_000)
    depths: list[int] = []

    def finalize(*_: object, room: int = 50) -> None:
        if room:
            finalize(room=room - 1)
        else:
            depths.append(room)

    before = gc.get_threshold()
    gc.callbacks.append(finalize)
    gc.set_threshold(1)
    try:
        assert await files.remove_stale([], nobody) == []
    finally:
        gc.set_threshold(*before)
        gc.callbacks.remove(finalize)
    assert depths, "no finalizer was run"


async def test_only_plain_files_are_ours(files: CdiFiles, tmp_path: Path) -> None:
    directory = tmp_path / "cdi"
    directory.mkdir()
    (tmp_path / "target").write_bytes(content(T))
    (directory / cdi.file_name(T)).symlink_to(tmp_path / "target")
    (directory / cdi.file_name(U)).mkdir()
    os.mkfifo(directory / cdi.file_name("example.com/v"))
    assert await CdiFiles(directory).remove_stale([], nobody) == []
    assert len(listing(directory)) == 3


async def test_what_a_killed_one_left_unfinished_is_removed(
    files: CdiFiles, tmp_path: Path
) -> None:
    left = f".devhost_{cdi.resource_hash(T)}.abc.tmp"
    (tmp_path / left).write_text("{")
    assert await files.remove_stale([T], everybody) == [], "another one may be at it"
    assert await files.remove_stale([T], nobody) == [left]


async def test_a_real_unfinished_file_is_recognized(
    files: CdiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.extend(listing(tmp_path)))
    await files.write(T, content(T))
    (tmp_path / seen[0]).write_text("{")  # as if it had been killed there
    assert await files.remove_stale([T], nobody) == seen


async def test_one_file_that_cannot_be_removed_does_not_keep_the_others(
    files: CdiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await files.write(T, content(T))
    await files.write(U, content(U))
    unlink = Path.unlink

    def sticky(path: Path, missing_ok: bool = False) -> None:
        if path.name == cdi.file_name(T):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", sticky)
    assert await files.remove_stale([], nobody) == [cdi.file_name(U)]


async def test_a_missing_directory_has_nothing_stale(tmp_path: Path) -> None:
    assert await CdiFiles(tmp_path / "none").remove_stale([], nobody) == []


async def test_a_directory_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("")
    with pytest.raises(NotADirectoryError):
        await CdiFiles(tmp_path / "cdi").remove_stale([], nobody)


async def test_a_file_that_cannot_be_read_is_told(files: CdiFiles, tmp_path: Path) -> None:
    """Else the entries that containers may need again would be missing in the next one."""
    assert await files.entries(T) == {}
    (tmp_path / cdi.file_name(T)).mkdir()
    with pytest.raises(IsADirectoryError):
        await files.entries(T)

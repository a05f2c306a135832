"""CDI files on a disk: whole, readable, and only ours removed."""

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.allocation import cdi
from devhost.allocation.cdi import CdiDevice
from devhost.host.cdi import CdiFiles
from tests.support.mounts import read_only, tmpfs

T, U = "example.com/t", "example.com/u"


def content(resource: str, value: str = "1") -> bytes:
    made = cdi.serialize(resource, [CdiDevice("a", {"env": [f"A={value}"]})])
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
async def test_cdi_file_is_written_whole_and_for_all_to_read(tmp_path: Path) -> None:
    files = CdiFiles(tmp_path / "run" / "cdi")
    files.write(T, None)
    path = files.directory / cdi.file_name(T)
    assert not path.parent.exists()
    files.write(T, content(T))
    with path.open("rb") as reader:
        files.write(T, content(T, "2"))
        assert reader.read() == content(T), "who reads has the former one, whole"
    assert listing(path.parent) == [path.name]
    assert path.read_bytes() == content(T, "2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    files.write(T, None)
    assert listing(path.parent) == []


async def test_cdi_file_with_the_same_content_is_left_alone(
    files: CdiFiles, tmp_path: Path
) -> None:
    """Runtimes read all files again whenever one is renamed."""
    files.write(T, content(T))
    before = (tmp_path / cdi.file_name(T)).stat()
    files.write(T, content(T))
    assert files.writes == 1
    after = (tmp_path / cdi.file_name(T)).stat()
    assert (after.st_ino, after.st_ctime_ns) == (before.st_ino, before.st_ctime_ns)


async def test_cdi_file_that_is_not_finished_has_no_name_that_runtimes_read(
    files: CdiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.extend(listing(tmp_path)))
    files.write(T, content(T))
    [unfinished] = seen
    assert not unfinished.endswith((".json", ".yaml"))


async def test_cdi_file_that_cannot_be_written_leaves_the_former_one(tmp_path: Path) -> None:
    with tmpfs(tmp_path, "size=64k"):
        files = CdiFiles(tmp_path)
        files.write(T, content(T))
        with pytest.raises(OSError, match="No space left"):
            files.write(T, content(T, "long" * 65536))
        read_only(tmp_path, on=True)
        with pytest.raises(OSError, match="Read-only"):
            files.write(T, content(T, "2"))
        files.write(T, content(T))  # there is nothing to write
        assert await files.remove_stale([], nobody) == [], "nothing can be removed"
        assert listing(tmp_path) == [cdi.file_name(T)]
        assert (tmp_path / cdi.file_name(T)).read_bytes() == content(T)
        read_only(tmp_path, on=False)
        files.write(T, content(T, "2"))


# ── removing what is stale ─────────────────────────────────────────────────────────────


async def test_stale_cdi_files_are_those_of_resources_that_nobody_serves(files: CdiFiles) -> None:
    others = "example.com/served-by-another-instance"
    for one in (T, U, others):
        files.write(one, content(one))
    served = cdi.resource_hash(others)
    removed = await files.remove_stale([T], lambda resource: resource == served)
    assert removed == [cdi.file_name(U)]
    assert len(listing(files.directory)) == 2


async def test_files_that_are_not_cdi_specs_of_ours_are_not_removed(
    files: CdiFiles, tmp_path: Path
) -> None:
    """By their names, or because they are no plain files."""
    for name in (
        "nvidia.json",
        "devhost_notes.txt",
        "devhost.json",
        ".nvidia.tmp",
        ".devhost_.tmp",
    ):
        (tmp_path / name).touch()
    (tmp_path / cdi.file_name(T)).symlink_to(tmp_path / "nvidia.json")
    (tmp_path / cdi.file_name(U)).mkdir()
    os.mkfifo(tmp_path / cdi.file_name("example.com/v"))
    assert await files.remove_stale([], nobody) == []
    assert len(listing(tmp_path)) == 8


async def test_stale_cdi_files_left_unfinished_are_removed_with_the_resource(
    files: CdiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: seen.extend(listing(tmp_path)))
    files.write(T, content(T))
    (tmp_path / seen[0]).write_text("{")  # as if it had been killed there
    assert await files.remove_stale([], everybody) == []
    assert await files.remove_stale([], nobody) == sorted([seen[0], cdi.file_name(T)])


async def test_stale_cdi_file_that_cannot_be_removed_does_not_keep_the_others(
    files: CdiFiles, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write(T, content(T))
    files.write(U, content(U))
    unlink = Path.unlink

    def sticky(path: Path, missing_ok: bool = False) -> None:
        if path.name == cdi.file_name(T):
            raise PermissionError(errno.EPERM, "Operation not permitted")
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", sticky)
    assert await files.remove_stale([], nobody) == [cdi.file_name(U)]


async def test_cdi_directory_that_cannot_be_read_raises(tmp_path: Path) -> None:
    files = CdiFiles(tmp_path / "cdi")
    assert await files.remove_stale([], nobody) == []  # it does not exist
    files.directory.write_text("")
    with pytest.raises(NotADirectoryError):
        await files.remove_stale([], nobody)

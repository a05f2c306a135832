"""CDI files on a disk: whole, readable, and nothing else is there."""

import os
import stat
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from devhost.allocation import cdi
from devhost.node.cdi_files import CdiFiles
from tests.support.mounts import tmpfs

T = "example.com/t"


def content(resource: str, value: str = "1") -> bytes:
    made = cdi.serialize(resource, {"a": {"env": [f"A={value}"]}})
    assert made is not None
    return made


def listing(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


@pytest.fixture
def files(tmp_path: Path) -> CdiFiles:
    return CdiFiles(tmp_path)


@pytest.fixture
def strict_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.usefixtures("strict_umask")
async def test_cdi_file_is_written_whole_and_for_all_to_read(tmp_path: Path) -> None:
    files = CdiFiles(tmp_path / "run" / "cdi")
    files.write(cdi.file_name(T), None)
    path = files.directory / cdi.file_name(T)
    assert not path.parent.exists()
    files.write(cdi.file_name(T), content(T))
    with path.open("rb") as reader:
        files.write(cdi.file_name(T), content(T, "2"))
        assert reader.read() == content(T), "who reads has the former one, whole"
    assert listing(path.parent) == [path.name]
    assert path.read_bytes() == content(T, "2")
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    written = path.stat()
    files.write(
        cdi.file_name(T), content(T, "2")
    )  # runtimes read all files again whenever one is renamed
    assert (path.stat().st_ino, path.stat().st_ctime_ns) == (written.st_ino, written.st_ctime_ns)
    assert files.writes == 2
    files.write(cdi.file_name(T), None)
    assert listing(path.parent) == []


async def test_cdi_file_that_cannot_be_written_leaves_the_former_one(tmp_path: Path) -> None:
    with tmpfs(tmp_path, "size=64k"):
        files = CdiFiles(tmp_path)
        files.write(cdi.file_name(T), content(T))
        with pytest.raises(OSError, match="No space left"):
            files.write(cdi.file_name(T), content(T, "long" * 65536))
        assert listing(tmp_path) == [cdi.file_name(T)]
        assert (tmp_path / cdi.file_name(T)).read_bytes() == content(T)


def test_cdi_file_that_two_instances_write_at_a_time_is_whole(tmp_path: Path) -> None:
    """Each has a temporary file of its own; what a killed process has left of one is removed."""
    unfinished, recent = (tmp_path / f".x.json.0000000{number}.tmp" for number in range(2))
    unfinished.touch()
    os.utime(unfinished, (0, 0))
    recent.touch()
    instances, together = [CdiFiles(tmp_path) for _ in range(2)], Barrier(2)

    def write(files: CdiFiles, round_number: int) -> None:
        together.wait()
        files.write(cdi.file_name(T), content(T, f"{round_number}{id(files)}"))

    with ThreadPoolExecutor(2) as threads:
        for number in range(60):
            for work in [threads.submit(write, files, number) for files in instances]:
                work.result()
    assert listing(tmp_path) == sorted([recent.name, cdi.file_name(T)])

"""Files that are replaced atomically, also by two instances."""

import asyncio
import os
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from devhost.custody import state_dir
from devhost.custody.record_files import RecordFiles
from devhost.custody.state_dir import directory_lock, write_atomically
from devhost.model.records import Handout
from devhost.node.config_file import LastGoodConfig
from devhost.watch.threads import run_in_time
from tests.support.daemon import PATIENCE


def test_state_file_written_by_two_instances_at_a_time_is_whole(tmp_path: Path) -> None:
    """No instance removes another's unfinished file."""
    together = Barrier(2)

    def keep(number: int) -> None:
        together.wait()
        LastGoodConfig(tmp_path).write(f"version: {number}".encode())

    with ThreadPoolExecutor(2) as instances:
        for number in range(50):
            for work in [instances.submit(keep, number) for _ in range(2)]:
                work.result()
    assert {path.name for path in tmp_path.iterdir()} == {"last-good.yaml", "lock"}


def test_state_file_left_unfinished_by_a_killed_process_is_removed(tmp_path: Path) -> None:
    """Nobody writes it any more; and nothing else is."""
    (tmp_path / ".c.yaml.tmp").touch()
    (tmp_path / ".other").touch()
    with directory_lock(tmp_path):
        write_atomically(tmp_path / "c.yaml", b"x")
    assert {path.name for path in tmp_path.iterdir()} == {"c.yaml", ".other", "lock"}


def test_state_file_that_is_too_large_is_moved_aside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_dir, "STATE_BYTES_MAX", 100)
    good = LastGoodConfig(tmp_path)
    good.path.write_bytes(b"x" * 100)
    assert good.read() == b"x" * 100
    good.path.write_bytes(b"x" * 101)
    assert good.read() is None
    aside = Path(f"{good.path}.damaged")
    assert aside.stat().st_size == 101
    assert f"{good.path} was damaged (larger than 100 bytes): moved to {aside}" in caplog.messages


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir], ids=["a pipe", "a directory"])
def test_state_file_irregular_is_refused(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Opening a pipe would wait for a writer, with the lock of the directory."""
    good = LastGoodConfig(tmp_path)
    make(good.path)
    with pytest.raises(OSError, match=r"regular file|directory"):
        run_in_time(good.read, PATIENCE)


def test_state_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    """Another user who can open the lock can hold it, and then nothing is recorded."""
    record = Handout(resource="a.b/c", id="d", device="d", nodes=(), overlap=False)

    async def give() -> str | None:
        return await RecordFiles(tmp_path, lambda _: "ours").give(lambda: [record], PATIENCE)

    assert asyncio.run(give()) is None
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"lock": 0o600, "records": 0o700, "a.b_c.json": 0o600}

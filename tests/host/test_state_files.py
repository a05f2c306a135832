"""Files that are replaced atomically and kept up to date, also by two instances."""

import asyncio
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from devhost.host import state_files
from devhost.host.state_files import LastGood, StateWriter, locked, write_atomically


def test_two_instances_keep_the_same_at_the_same_time(tmp_path: Path) -> None:
    """Neither takes the other's unfinished file away."""
    together = Barrier(2)

    def keep(number: int) -> None:
        together.wait()
        LastGood(tmp_path).write(f"version: {number}".encode())

    with ThreadPoolExecutor(2) as instances:
        for number in range(50):
            for work in [instances.submit(keep, number) for _ in range(2)]:
                work.result()
    assert [path.name for path in tmp_path.iterdir()] == ["last-good.yaml"]


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """Nobody writes it any more; and nothing else is."""
    (tmp_path / ".c.yaml.left").touch()
    (tmp_path / ".other").touch()
    with locked(tmp_path):
        write_atomically(tmp_path / "c.yaml", b"x")
    assert {path.name for path in tmp_path.iterdir()} == {"c.yaml", ".other"}


def test_a_file_that_is_too_large_is_moved_aside_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_files, "STATE_BYTES_MAX", 100)
    good = LastGood(tmp_path)
    good.path.write_bytes(b"x" * 100)
    assert good.read() == b"x" * 100
    good.path.write_bytes(b"x" * 101)
    assert good.read() is None
    aside = Path(f"{good.path}.damaged")
    assert aside.stat().st_size == 101
    assert f"{good.path} was larger than 0 MiB: moved to {aside}" in caplog.messages


# ── a file that is kept up to date ──


class File:
    """A file of which the test decides whether it can be written."""

    def __init__(self) -> None:
        self.failure: OSError | None = None
        self.writes = 0
        self.may_end = asyncio.Event()
        self.may_end.set()
        self.writer = StateWriter("numbers", Path("/state"), self.write)

    async def write(self) -> None:
        self.writes += 1
        await self.may_end.wait()
        if self.failure is not None:
            raise self.failure


async def test_a_change_is_written_before_it_counts_as_tried() -> None:
    file = File()
    for count in (1, 2):
        file.writer.changed()
        assert await file.writer.tried(10)
        assert file.writes == count
    file.may_end.clear()
    file.writer.changed()
    while file.writes < 3:
        await asyncio.sleep(0)
    file.writer.changed()  # is not part of the write that runs
    tried = asyncio.create_task(file.writer.tried(10))
    file.may_end.set()
    assert await tried
    assert file.writes == 4


async def test_a_failure_is_said_once_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_files, "RETRY_S", 0.001)
    caplog.set_level(logging.INFO)
    file = File()
    file.failure = OSError(28, "No space left on device")
    file.writer.changed()
    await file.writer.tried(10)
    while file.writes < 4:
        await asyncio.sleep(0.001)
    assert file.writer.problem == "/state: No space left on device"
    file.failure = None
    while file.writer.problem is not None:
        await asyncio.sleep(0.001)
    assert caplog.messages == [
        "cannot save numbers: /state: No space left on device",
        "numbers saved again",
    ]


async def test_a_write_that_hangs_is_said_and_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(state_files, "PATIENCE_S", 0.01)
    file = File()
    file.may_end.clear()
    file.writer.changed()
    assert not await file.writer.tried(0.1)
    assert file.writer.problem == "/state: no answer in 0.01 s"
    assert file.writes == 1
    file.may_end.set()
    while file.writer.problem is not None:
        await asyncio.sleep(0)
    await file.writer.close()


async def test_what_has_changed_is_written_before_the_end() -> None:
    file = File()
    file.may_end.clear()
    file.writer.changed()
    closed = asyncio.create_task(file.writer.close())
    while not file.writes:
        await asyncio.sleep(0)
    file.writer.changed()
    file.may_end.set()
    await closed
    assert file.writes == 2


async def test_what_has_failed_is_tried_once_more_before_the_end(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is not lost by an end within the pause; where it fails again, the end does not wait."""
    for failure, problem in ((None, None), (OSError(5, "I/O"), "/state: I/O")):
        file = File()
        file.failure = OSError(5, "I/O")
        file.writer.changed()
        await file.writer.tried(10)
        assert file.writes == 1
        file.failure = failure
        await file.writer.close()
        assert file.writes == 2
        assert file.writer.problem == problem
    assert "no answer" not in caplog.text


async def test_a_write_that_hangs_does_not_delay_the_end_for_long(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(state_files, "CLOSE_S", 0.01)
    file = File()
    file.may_end.clear()
    file.writer.changed()
    await file.writer.close()
    assert caplog.messages == ["cannot save numbers: /state: no answer"]

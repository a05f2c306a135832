"""A configuration file that cannot be read, while it is followed."""

import asyncio
import contextlib
import errno
import logging
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from devhost.allocation.policy import Policy
from devhost.errors import Problem
from devhost.host import config_source
from devhost.host.config_source import ConfigSource
from devhost.host.state_files import LastGood
from devhost.loading import loader
from devhost.model.config import Config
from devhost.observe import logs
from devhost.watch import threads
from devhost.watch.watcher import Inotify, Watcher

GOOD = "version: v1\nresources: [{name: a.b/c, sources: [static: 1]}]\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigSource:
    """A source whose file was good when it was read for the first time."""
    monkeypatch.setattr(config_source, "_SETTLE_GONE_S", 0.01)
    place = tmp_path / "etc"
    place.mkdir()
    (place / "config.yaml").write_text(GOOD)
    found = ConfigSource(str(place / "config.yaml"), Policy(), LastGood(tmp_path / "state"))
    assert found.first()[0].config is not None
    return found


def write(source: ConfigSource, text: str) -> None:
    Path(source.file).write_text(text)


def remove(source: ConfigSource) -> None:
    Path(source.file).unlink()


@contextlib.asynccontextmanager
async def followed(
    source: ConfigSource, apply: Callable[[Config], object] = lambda _config: None
) -> AsyncIterator[asyncio.Task[None]]:
    async with Watcher() as watcher:
        task = asyncio.create_task(source.run(watcher, apply))
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def until(source: ConfigSource, says: str) -> None:
    """Wait until the status gives one reason why the file cannot be used."""
    while [says in one.message for one in source.status.problems] != [True]:
        await asyncio.sleep(0.005)


@pytest.mark.parametrize("number", [errno.EACCES, errno.ESTALE, errno.EIO])
async def test_a_directory_that_cannot_be_looked_at(
    source: ConfigSource,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """The status says so, the log in a line; and it heals."""
    place = os.path.dirname(source.file) + "/"

    def sick(real: Callable[..., Any]) -> Callable[..., Any]:
        def look(path: Any, *args: Any, **options: Any) -> Any:
            if str(path).startswith(place):
                raise OSError(number, os.strerror(number), str(path))
            return real(path, *args, **options)

        return look

    async with followed(source):
        with monkeypatch.context() as broken:
            for name in ("lstat", "stat"):
                broken.setattr(os, name, sick(getattr(os, name)))
            source.reload_soon()
            await until(source, f"cannot be read: {os.strerror(number)}")
        source.reload_soon()
        while source.status.problems:
            await asyncio.sleep(0.005)
    assert not any(record.exc_info for record in caplog.records)


async def test_a_link_that_cannot_be_read(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where to watch is not known then; the file is read nevertheless."""

    def unknown(_file: str) -> Any:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(config_source, "_watch_targets", unknown)
    async with followed(source):
        write(source, "version: v2\n")
        source.reload_soon()
        while not source.status.problems:
            await asyncio.sleep(0.005)
    assert not any(record.exc_info for record in caplog.records)


async def test_another_reason_is_told(source: ConfigSource) -> None:
    """A file that is gone, and then a pipe: two failures, each with its own reason."""
    async with followed(source):
        remove(source)
        await until(source, "cannot be read: No such file or directory")
        os.mkfifo(source.file)
        await until(source, "is not a regular file")
    assert source.status.failures == 2


async def test_an_edit_while_the_file_cannot_be_opened(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is followed when the file can be opened again, without another event."""
    numbers = (errno.EMFILE, errno.ENFILE, errno.EIO, errno.EACCES, errno.ESTALE)
    for count, number in enumerate(numbers, 2):
        edited = GOOD.replace("static: 1", f"static: {count}")

        def sick(file: str, number: int = number) -> bytes:
            raise OSError(number, os.strerror(number), file)

        applied: list[Config] = []
        async with followed(source, applied.append):
            with monkeypatch.context() as broken:
                broken.setattr(config_source, "read", sick)
                write(source, edited)
                await until(source, reason := f"cannot be read: {os.strerror(number)}")
                assert source.status.unreadable == reason
            while not applied:
                await asyncio.sleep(0.005)
            assert source.status.unreadable is None
    texts = [record.getMessage() for record in caplog.records]
    unread = [text for text in texts if text.startswith("configuration file cannot be read; still")]
    assert len(unread) == 5
    assert not any("invalid" in text for text in texts)


async def test_the_content_in_force_comes_back(
    source: ConfigSource, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is applied: nothing has changed."""
    caplog.set_level("INFO")
    applied: list[Config] = []
    async with followed(source, applied.append), asyncio.timeout(60):
        write(source, "version: v2\n")
        while not source.status.problems:
            await asyncio.sleep(0.005)
        write(source, GOOD)
        while source.status.problems:
            await asyncio.sleep(0.005)
    assert (applied, source.status.reloads, source.status.failures) == ([], 0, 1)
    texts = [record.getMessage() for record in caplog.records]
    assert texts[-1] == "configuration file valid again, the same as in force"


async def test_a_file_that_is_still_being_written_is_read_until_it_stays_the_same(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of it would be valid by itself."""
    parts = [GOOD.replace("static: 1", f"static: {count}").encode() for count in (2, 3, 4, 5)]
    applied: list[Config] = []

    def read() -> tuple[bytes, str]:
        return (parts.pop(0) if len(parts) > 1 else parts[0]), ""

    monkeypatch.setattr(source, "_read", read)
    async with followed(source, applied.append):
        source.reload_soon()
        while not applied:
            await asyncio.sleep(0.005)
    (config,) = applied
    assert '"count":5' in config.model_dump_json(by_alias=True)


async def test_who_asks_gets_an_answer(
    source: ConfigSource, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    async with followed(source), asyncio.timeout(60):
        source.reload_asked()
        while "configuration file unchanged" not in caplog.messages:
            await asyncio.sleep(0.005)
        write(source, "version: v2\n")
        while not source.status.problems:
            await asyncio.sleep(0.005)
        source.reload_asked()
        while "configuration file unchanged, still invalid" not in caplog.messages:
            await asyncio.sleep(0.005)


async def test_what_is_in_force_is_saved_before_the_end(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a start with an invalid file would go back to the configuration before."""
    begun, may_write, write_copy = asyncio.Event(), threading.Event(), LastGood.write
    loop = asyncio.get_running_loop()

    def slow(self: LastGood, raw: bytes) -> None:
        loop.call_soon_threadsafe(begun.set)
        may_write.wait()
        write_copy(self, raw)

    monkeypatch.setattr(LastGood, "write", slow)
    async with followed(source) as task:
        await begun.wait()
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        may_write.set()
        await asyncio.wait({task})
    assert source._last_good is not None
    assert source._last_good.read() == GOOD.encode()


async def test_what_could_not_be_saved_is_tried_once_more_at_the_end(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_self: LastGood, _raw: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    async with followed(source) as task:
        with monkeypatch.context() as state:
            state.setattr(LastGood, "write", full)
            while source.unsaved is None:
                await asyncio.sleep(0.005)
        task.cancel()
        await asyncio.wait({task})
    assert source._last_good is not None
    assert source._last_good.read() == GOOD.encode()


async def test_a_file_that_does_not_answer(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is said, however often it is asked one thread waits, and the edit is followed later."""
    release, reads = threading.Event(), 0
    real = loader.read
    monkeypatch.setattr(config_source, "PATIENCE_S", 0.01)
    monkeypatch.setattr(config_source, "RETRY_S", 0.01)

    def hanging(file: str) -> bytes:
        nonlocal reads
        reads += 1
        release.wait(60)
        return real(file)

    monkeypatch.setattr(config_source, "read", hanging)
    applied: list[Config] = []
    try:
        async with followed(source, applied.append):
            write(source, GOOD.replace("static: 1", "static: 2"))
            await until(source, "cannot be read: no answer in 0.01 s")
            for _ in range(3):
                source.reload_soon()
                await asyncio.sleep(0.05)
            assert reads == 1
            release.set()
            while not applied:
                await asyncio.sleep(0.005)
    finally:
        release.set()


async def test_no_thread_can_be_had(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The host goes on, and the copy is kept as soon as it can be."""

    def none(_call: Callable[[], None]) -> None:
        raise OSError(errno.EAGAIN, "no thread can be started")

    copy = tmp_path / "state" / "last-good.yaml"
    async with followed(source) as task, asyncio.timeout(60):
        with monkeypatch.context() as exhausted:
            exhausted.setattr(threads._POOL, "submit", none)
            await until(source, "cannot be read: no thread can be started")
            while source.unsaved is None:
                await asyncio.sleep(0.005)
            assert source.unsaved == f"{copy}: no thread can be started"
        while not copy.exists():
            assert not task.done()
            source.reload_soon()
            await asyncio.sleep(0.005)
        while source.unsaved is not None:
            await asyncio.sleep(0.005)


def test_the_log_as_text_names_the_resource_too() -> None:
    shown: list[str] = []
    with logs.shown_by(shown.append):
        for resource in ("example.com/a", ""):
            problem = Problem("warning", "c.yaml", 4, 2, "a.b", "is odd", resource)
            config_source.log_problems([problem])
    assert shown[0].endswith("c.yaml:4:2: warning: a.b: is odd  resource=example.com/a")
    assert shown[1].endswith("c.yaml:4:2: warning: a.b: is odd")


def test_the_log_as_text_shows_no_fields_without_a_value() -> None:
    shown: list[str] = []
    given = {"a": (), "b": ("/x", "/y"), "c": None, "d": False, "e": ""}
    with logs.shown_by(shown.append):
        logging.getLogger("devhost").warning("is odd", extra={"fields": given})
    assert shown[0].endswith("is odd  b=/x,/y d=False")


async def test_an_edit_after_one_at_which_watching_failed(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is watched again soon: the next edit does not wait for the regular look."""
    monkeypatch.setattr(config_source, "POLL_S", 3600.0)
    monkeypatch.setattr(config_source, "RETRY_S", 0.01)
    applied: asyncio.Queue[Config] = asyncio.Queue()

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async with asyncio.timeout(60), followed(source, applied.put_nowait):
        write(source, GOOD.replace("static: 1", "static: 2"))
        await applied.get()  # it is watched
        with monkeypatch.context() as short:
            short.setattr(Inotify, "add", fail)
            write(source, GOOD)
            await applied.get()
        write(source, GOOD.replace("static: 1", "static: 3"))
        await applied.get()


def test_a_last_good_copy_that_cannot_be_read_is_told(source: ConfigSource, tmp_path: Path) -> None:
    write(source, "version: v2\n")
    last_good = LastGood(tmp_path / "state")
    last_good.path.mkdir(parents=True)
    loaded, copy = ConfigSource(source.file, Policy(), last_good).first()
    assert loaded.config is None
    assert copy is not None
    assert [one.message for one in copy.problems] == ["cannot be read: Is a directory"]


def test_a_load_that_fails_by_a_bug_leaves_the_last_good_copy(
    source: ConfigSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("oops")

    monkeypatch.setattr(config_source, "load_bytes", fail)
    loaded, _ = source.first()
    assert loaded.config is None
    assert "because of a bug: ZeroDivisionError('oops')" in loaded.problems[0].message

"""The configuration file: each way to edit it is followed, and what cannot be used changes nothing."""

import asyncio
import contextlib
import errno
import os
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.config import loader
from devhost.model.config import Config
from devhost.node import config_file
from devhost.node.config_file import ConfigFile, LastGoodConfig
from devhost.watch.inotify import Inotify
from devhost.watch.watcher import Watcher
from tests.support.daemon import until

GOOD = "version: v1\nresources: [{name: a.b/c, sources: [static: 1]}]\n"


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigFile:
    """A source whose file was good when it was read for the first time."""
    monkeypatch.setattr(config_file, "_SETTLE_GONE_S", 0.01)
    place = tmp_path / "etc"
    place.mkdir()
    (place / "config.yaml").write_text(GOOD)
    file = ConfigFile(str(place / "config.yaml"), Policy(), LastGoodConfig(tmp_path / "state"))
    assert file.load_first()[0].config is not None
    return file


def path_of(source: ConfigFile) -> Path:
    return Path(source.file)


def write(source: ConfigFile, text: str) -> None:
    path_of(source).write_text(text)


@contextlib.asynccontextmanager
async def followed(
    source: ConfigFile, apply: Callable[[Config], object] = lambda _config: None
) -> AsyncIterator[asyncio.Task[None]]:
    async with Watcher() as watcher:
        task = asyncio.create_task(source.run(watcher, apply))
        try:
            yield task
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def refused(source: ConfigFile, says: str) -> None:
    """Wait until the status gives one reason why the file cannot be used."""
    await until(lambda: [says in p.message for p in source.status.problems] == [True], says)


def counts(config: Config) -> list[int | None]:
    return [resource.sources[0].kind.count for resource in config.resources]  # type: ignore[union-attr]


def tokens(count: int) -> str:
    return GOOD.replace("static: 1", f"static: {count}")


async def test_config_source_is_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each by its event: the regular look is far away."""
    monkeypatch.setattr(config_file, "POLL_S", 3600.0)
    mount = tmp_path / "etc"
    mount.mkdir()

    def publish(version: int) -> None:
        """Do as kubelet's AtomicWriter: a new directory, and one rename of ..data."""
        fresh = mount / f"..v{version}"
        fresh.mkdir()
        (fresh / "config.yaml").write_text(tokens(version))
        (mount / "..data_tmp").symlink_to(fresh.name)
        (mount / "..data_tmp").rename(mount / "..data")

    publish(1)
    (mount / "config.yaml").symlink_to("..data/config.yaml")
    link, second, new = tmp_path / "link.yaml", tmp_path / "other.yaml", tmp_path / "new"
    link.symlink_to(mount / "config.yaml")
    source = ConfigFile(str(link), Policy())
    source.load_first()
    applied: asyncio.Queue[Config] = asyncio.Queue()
    async with asyncio.timeout(60), followed(source, applied.put_nowait):
        source.reload_requested()
        while source._requested:  # it is watched from then on
            await asyncio.sleep(0.005)
        for version in (2, 3):
            publish(version)
            assert counts(await applied.get()) == [version]
        second.write_text(tokens(4))
        new.symlink_to(second)
        new.rename(link)
        assert counts(await applied.get()) == [4]
        second.write_text(tokens(5))
        assert counts(await applied.get()) == [5]
        new.write_text(tokens(6))
        new.rename(second)
        assert counts(await applied.get()) == [6]
        with second.open("a") as stream:
            stream.write("# a comment\n")
        assert counts(await applied.get()) == [6]


async def test_config_source_that_is_no_file_is_a_failure(source: ConfigFile) -> None:
    path = path_of(source)
    async with followed(source):
        path.unlink()
        await refused(source, "cannot be read: No such file or directory")
        os.mkfifo(path)
        await refused(source, "is not a regular file")
        assert source.status.failures == 2
        path.unlink()
        path.mkdir()
        await refused(source, "cannot be read: Is a directory")
        path.rmdir()
        path.symlink_to("/proc/self/mem")
        await refused(source, "cannot be read: Input/output error")


@pytest.mark.parametrize("number", [errno.EMFILE, errno.EIO, errno.EACCES, errno.ESTALE])
async def test_config_source_edit_of_a_file_that_cannot_be_opened_is_followed_later(
    source: ConfigFile,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    number: int,
) -> None:
    """No other event is needed, and the file is not called invalid."""

    def sick(file: str) -> bytes:
        raise OSError(number, os.strerror(number), file)

    applied: list[Config] = []
    async with followed(source, applied.append):
        with monkeypatch.context() as broken:
            broken.setattr(config_file, "read", sick)
            write(source, tokens(2))
            await refused(source, reason := f"cannot be read: {os.strerror(number)}")
            assert source.status.unreadable == reason
        await until(lambda: applied)
        assert source.status.unreadable is None
    assert "configuration file cannot be read; still" in caplog.text
    assert "invalid" not in caplog.text


async def test_config_source_reloaded(source: ConfigFile, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    async with followed(source), asyncio.timeout(60):
        source.reload_requested()
        await until(lambda: "configuration file unchanged" in caplog.messages)
        write(source, "version: v2\n")
        await until(lambda: source.status.problems)
        source.reload_requested()
        await until(lambda: "configuration file unchanged, still invalid" in caplog.messages)
        write(source, GOOD)
        await until(lambda: not source.status.problems)
    assert (source.status.reloads, source.status.failures) == (1, 1)
    assert caplog.messages[-1] == "configuration in force"


async def test_config_source_file_that_is_being_written_is_read_until_it_stays_the_same(
    source: ConfigFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part of it would be valid by itself."""
    parts = [tokens(count).encode() for count in (2, 3, 4, 5)]
    applied: list[Config] = []

    def read(_file: str) -> bytes:
        return parts.pop(0) if len(parts) > 1 else parts[0]

    monkeypatch.setattr(config_file, "read", read)
    async with followed(source, applied.append):
        source.reload_soon()
        await until(lambda: applied)
    (config,) = applied
    assert '"count":5' in config.model_dump_json(by_alias=True)


async def test_config_source_is_saved(source: ConfigFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """A start with an invalid file uses the copy; also of a configuration that came meanwhile."""
    begun, may_write, write_copy = asyncio.Event(), threading.Event(), LastGoodConfig.write
    loop, applied = asyncio.get_running_loop(), asyncio.Queue[Config]()

    def slow(self: LastGoodConfig, raw: bytes) -> None:
        loop.call_soon_threadsafe(begun.set)
        may_write.wait()
        write_copy(self, raw)

    monkeypatch.setattr(LastGoodConfig, "write", slow)
    async with followed(source, applied.put_nowait) as task:
        await begun.wait()
        write(source, tokens(2))
        await applied.get()
        task.cancel()
        for _ in range(20):
            await asyncio.sleep(0)
        assert not task.done()
        may_write.set()
        await asyncio.wait({task})
    assert source.last_good is not None
    assert source.last_good.read() == tokens(2).encode()


async def test_config_source_may_hang(source: ConfigFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The status says so, one thread waits however often it is asked, the edit follows later."""
    release, reads = threading.Event(), 0
    real = loader.read
    monkeypatch.setattr(config_file, "PATIENCE_S", 0.01)
    monkeypatch.setattr(config_file, "RETRY_S", 0.01)

    def hanging(file: str) -> bytes:
        nonlocal reads
        reads += 1
        release.wait(60)
        return real(file)

    monkeypatch.setattr(config_file, "read", hanging)
    applied: list[Config] = []
    try:
        async with followed(source, applied.append):
            write(source, tokens(2))
            await refused(source, "cannot be read: no answer in 0.01 s")
            for _ in range(3):
                source.reload_soon()
                await asyncio.sleep(0.05)
            assert reads == 1
            release.set()
            await until(lambda: applied)
    finally:
        release.set()


async def test_config_source_unwatched(source: ConfigFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next edit does not wait for the regular look."""
    monkeypatch.setattr(config_file, "POLL_S", 3600.0)
    monkeypatch.setattr(config_file, "RETRY_S", 0.01)
    applied: asyncio.Queue[Config] = asyncio.Queue()

    def fail(*_: object, **__: object) -> int:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    async with asyncio.timeout(60), followed(source, applied.put_nowait):
        write(source, tokens(2))
        await applied.get()  # it is watched
        with monkeypatch.context() as short:
            short.setattr(Inotify, "add", fail)
            write(source, GOOD)
            await applied.get()
        write(source, tokens(3))
        await applied.get()

"""The child process that loads the configuration, whatever it comes to."""

import asyncio
import errno
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from io import BytesIO
from pathlib import Path

import pytest

from devhost.allocation.policy import Policy
from devhost.host.config import child, loading
from devhost.host.config.child import LoadingChild
from devhost.host.config.last_good import LastGood
from devhost.host.config.loading import ChildLoader
from devhost.host.config.source import ConfigSource
from devhost.loading.loaded import Loaded
from devhost.model.config import Config
from devhost.standin.kubelet import SimulatedKubelet
from devhost.watch.watcher import Watcher
from tests.support.daemon import Daemon, at_rest, numbers, tokens

A, B = "example.com/a", "example.com/b"
GOOD = b"version: v1\nresources: [{name: a.b/c, sources: [static: 1]}]\n"


def instead(work: str) -> str:
    """Return the program of a child that does something else in place of loading."""
    begin, end = child._PROGRAM.rsplit("main()\n", 1)
    return f"{begin}from devhost.loading import loader, child\n{textwrap.dedent(work)}main()\n{end}"


def loads(work: str) -> str:
    return instead(f"    import os\n    loader.load_bytes = lambda *_: {work}\n")


def load(raw: bytes = GOOD) -> Loaded:
    return ChildLoader(Policy()).load(LoadingChild(), raw, "f.yaml")


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (loads("bytearray(1 << 40)"), "takes more than 192 MiB of memory to load"),
        (
            instead("    child.CPU_S = 1\n    loader.load_bytes = lambda *_: all(iter(int, 1)) or 0\n")
            .replace("iter(int, 1)", "[0] for _ in iter(int, 1)"),
            "takes more than 30 s of CPU time to load",
        ),
        (loads("1 / 0"), "because of a bug: ZeroDivisionError: division by zero"),
    ],
)  # fmt: skip
def test_a_content_that_cannot_be_loaded(
    monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    """It is one error of the file."""
    monkeypatch.setattr(child, "_PROGRAM", program)
    loaded = load()
    assert loaded.config is None
    assert [message in str(one) for one in loaded.problems] == [True], loaded.problems


@pytest.mark.parametrize(
    ("program", "message"),
    [
        (loads("os.kill(os.getpid(), 9)"), "signal 9 ended it, maybe for lack of memory"),
        (loads("os._exit(7)"), "the process for it exited with 7"),
        (loads("os.listdir('/proc/0')"), "No such file or directory"),
        (loads("__import__('nothing')"), "No module named 'nothing'"),
        ("x = (", "the process for it exited with 1"),
    ],
)
def test_a_child_that_fails_whatever_the_content(
    monkeypatch: pytest.MonkeyPatch, program: str, message: str
) -> None:
    monkeypatch.setattr(child, "_PROGRAM", program)
    with pytest.raises(OSError, match=message):
        load()


def test_a_child_that_does_not_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_PROGRAM", loads("__import__('time').sleep(1000)"))
    monkeypatch.setattr(child, "PATIENCE_S", 0.1)
    with pytest.raises(TimeoutError, match="no answer in"):
        load()


def test_an_answer_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "OUTPUT_MAX", 10)
    assert "too large" in str(load().problems)


@pytest.mark.parametrize("value", [os.system, child.LoadingChild, ConfigSource, print])
def test_an_answer_can_only_have_values(value: object) -> None:
    with pytest.raises(pickle.UnpicklingError, match="is no value"):
        loading._Values(BytesIO(pickle.dumps(value))).load()


def test_a_load_can_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(child, "_PROGRAM", loads("__import__('time').sleep(1000)"))
    one = LoadingChild()
    with ThreadPoolExecutor() as threads:
        loading = threads.submit(ChildLoader(Policy()).load, one, GOOD, "f.yaml")
        one.close()
        with pytest.raises(OSError, match="signal 9 ended it"):
            loading.result(60)


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM])
async def test_no_process_can_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """What is in force stays, the reason is reported once, and the edit is applied when it can be."""
    file = tmp_path / "config.yaml"
    file.write_bytes(GOOD)
    source = ConfigSource(str(file), Policy())
    assert source.first()[0].config is not None
    monkeypatch.setattr("devhost.host.config.source.RETRY_S", 0.01)
    applied: list[Config] = []

    def none(*_args: object, **_options: object) -> None:
        raise OSError(number, os.strerror(number))

    async with Watcher() as watcher, asyncio.timeout(60):
        with monkeypatch.context() as full:
            full.setattr(subprocess, "Popen", none)
            file.write_bytes(GOOD.replace(b"static: 1", b"static: 2"))
            task = asyncio.create_task(source.run(watcher, applied.append))
            while source.status.unreadable is None:
                await asyncio.sleep(0.005)
            reason = f"cannot be loaded: no process can be started: {os.strerror(number)}"
            assert source.status.unreadable == reason
            await asyncio.sleep(0.1)  # tried again
            assert source.status.failures == 1
            assert not applied
        while not applied:
            await asyncio.sleep(0.005)
        assert source.status.unreadable is None
        task.cancel()
        await asyncio.wait({task})


async def test_no_process_can_be_had_at_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last good copy serves until one can be had: then the file is loaded."""
    file = tmp_path / "config.yaml"
    file.write_bytes(GOOD)
    last_good = LastGood(tmp_path / "state")
    last_good.write(GOOD.replace(b"static: 1", b"static: 2"))
    with monkeypatch.context() as one:
        one.setattr(child, "_PROGRAM", "x = (")
        broken = LoadingChild()
    source = ConfigSource(str(file), Policy(), last_good, broken)
    loaded, copy = source.first()
    assert loaded.config is None
    assert copy is not None
    assert copy.config is not None
    assert "cannot be loaded" in (source.status.unreadable or "")
    applied: asyncio.Future[Config] = asyncio.get_running_loop().create_future()
    async with Watcher() as watcher, asyncio.timeout(60):
        task = asyncio.create_task(source.run(watcher, applied.set_result))
        assert (await applied).resources[0].sources == load().require().resources[0].sources
        task.cancel()
        await asyncio.wait({task})
    assert last_good.read() == GOOD
    assert source.status.unreadable is None


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(one) for path in found for one in path.read_text().split()]


STARTS = """
from devhost.host.config import child
child._PROGRAM = {program!r}
from devhost.cli import main
main({arguments!r})
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_the_host_ends_while_its_first_file_is_loaded(tmp_path: Path, number: int) -> None:
    """So does the child."""
    (tmp_path / "p").mkdir()
    file, mark = tmp_path / "config.yaml", tmp_path / "mark"
    file.write_bytes(GOOD)
    os.mkfifo(mark)
    program = loads(f"(open({str(mark)!r}, 'w').close(), __import__('time').sleep(1000))")
    arguments = ["run", str(file), "--plugin-dir", str(tmp_path / "p")]
    host = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STARTS.format(program=program, arguments=arguments),
        stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    async with asyncio.timeout(60):
        await asyncio.to_thread(mark.read_bytes)  # it is loading
        (one,) = children(host.pid)
        os.kill(host.pid, number)
        assert await host.wait() == (0 if number != signal.SIGKILL else -number)
        while state(one) != "Z":
            await asyncio.sleep(0.005)


def state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "Z"


async def test_a_host_has_nothing_of_what_only_a_load_needs(
    standin: SimulatedKubelet, daemon: Daemon
) -> None:
    """Neither after the start nor after a reload, a valid or an invalid one."""

    def check() -> None:
        assert not children(daemon.pid)
        libraries = Path(f"/proc/{daemon.pid}/maps").read_text()
        assert "grpc" in libraries
        for name in ("pydantic_core", "yaml", "re2"):
            assert name not in libraries

    await daemon.start(tokens(a=1))
    await at_rest(standin, daemon, {A: numbers(1)})
    check()
    daemon.write(tokens(a=1, b=1))
    await at_rest(standin, daemon, {A: numbers(1), B: numbers(1)})
    check()
    daemon.write("version: [")
    await daemon.logged("still serving")
    check()
    assert await daemon.stop() == 0


def test_a_valid_file_is_loaded_without_pydantic() -> None:
    """Which takes longer to import than all else that a load needs."""
    examples = Path(__file__).parents[2] / "config" / "examples"
    program = f"""
        import sys
        from pathlib import Path
        from devhost.loading.loader import load
        for file in Path({str(examples)!r}).glob("*.yaml"):
            assert load(str(file)).config is not None, file
            assert "pydantic" not in sys.modules, file
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)

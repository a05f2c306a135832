"""A log that nobody reads, or that is read slowly, stops nothing."""

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from devhost.fake_kubelet.kubelet import SimulatedKubelet
from tests.support.asking import Samples, get
from tests.support.daemon import Daemon, directories, tokens, until
from tests.support.hosting import Kubelet
from tests.support.pipes import fill

A = "example.com/a"
COUNT = 40
SMALL_QUEUE: dict[str, float] = {"observe.logs.QUEUE_MAX": 20}


def free_ports(count: int) -> list[int]:
    """Ports that nobody has now: the log cannot say which ones were taken."""
    with contextlib.ExitStack() as stack:
        bound = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [listener.getsockname()[1] for listener in bound]


class Unread:
    """A pipe that is full, for a process to log to."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self._filled = fill(self.writer)
        os.set_blocking(self.reader, False)
        self._text = b""

    def lines(self) -> list[dict[str, object]]:
        """Read what is there; return the log up to now."""
        try:
            while got := os.read(self.reader, 1 << 16):
                self._text += got
        except BlockingIOError:
            pass
        return [json.loads(line) for line in self._text[self._filled :].split(b"\n")[:-1]]

    def close(self) -> None:
        for descriptor in (self.reader, self.writer):
            os.close(descriptor)


@pytest.fixture
def unread(daemon: Daemon) -> Iterator[Unread]:
    """The process's log, which nobody reads."""
    unread = Unread()
    daemon.stderr = unread.writer
    yield unread
    unread.close()


async def test_log_that_nobody_reads_stops_nothing(
    started: Kubelet, daemon: Daemon, unread: Unread, directory: Path
) -> None:
    """The process registers, hands out, takes devices on, survives restarts of kubelet, ends at SIGTERM."""
    (directory / "d").mkdir()
    (port,) = free_ports(1)
    daemon.flags = ["--listen", f"127.0.0.1:{port}"]
    resources = tokens(**{f"r{number}": 2 for number in range(COUNT)}).partition("resources:")[2]
    await daemon.start(directories(directory, "d") + resources.lstrip("\n"))
    for number in range(COUNT):
        await started.wait(f"example.com/r{number}", 2, 2)
    (directory / "d" / "cherry").touch()
    await started.wait("example.com/d", 1, 1)
    await started.restart()
    for number in range(COUNT):
        await started.wait(f"example.com/r{number}", 2, 2)
    answer = await started.admit("pod", {"app": {"example.com/r7": 2}})
    assert answer["app"]["deviceIds"] == {"example.com/r7": ["0", "1"]}
    assert (await get(port, "/healthz")).status == 200
    assert await daemon.stop() == 0
    assert daemon.sockets() == set()


async def test_log_lines_that_are_dropped_are_a_metric_and_a_trouble(
    standin: SimulatedKubelet, daemon: Daemon, unread: Unread, directory: Path
) -> None:
    """Metrics and status say what the log cannot; the trouble ends with its cause."""
    daemon.constants = SMALL_QUEUE
    metrics, port = free_ports(2)
    daemon.flags = ["--listen", f"127.0.0.1:{metrics}", "--status-listen", f"127.0.0.1:{port}"]
    await daemon.start(tokens(**{f"r{number}": 1 for number in range(COUNT)}))
    for number in range(COUNT):
        await standin.wait(f"example.com/r{number}", 1, 1)
    status = (await get(port, "/status")).json()
    assert status["log"]["dropping"]
    assert status["log"]["dropped"] > 0
    assert any("log" in trouble for trouble in status["troubles"])
    samples = Samples((await get(metrics, "/metrics")).body.decode())
    assert samples.value("devhost_log_lines_dropped_total") >= status["log"]["dropped"]
    await until(lambda: any("dropped" in str(line["msg"]) for line in unread.lines()), "read")
    # The rest of a start may fill the pipe once more before it is read.
    while (after := (await get(port, "/status")).json())["log"]["dropping"]:
        unread.lines()
    assert after["troubles"] == []


CRASH = """
import threading, warnings
import devhost.node.node
async def run(self):
    warnings.warn("an old way")
    thread = threading.Thread(target=lambda: 1 / 0)
    thread.start()
    thread.join()
    raise RuntimeError("broken")
devhost.node.node.Host.run = run
"""


async def test_crash_is_in_the_log_with_its_traceback(daemon: Daemon) -> None:
    """With its traceback, as JSON; so is what Python itself would write to stderr."""
    daemon.code = CRASH
    await daemon.start(tokens(a=1))
    assert await daemon.ended() == 1
    assert [line["level"] for line in daemon.lines] == ["info", "warning", "error", "critical"]
    _, warning, thread, crash = daemon.lines
    assert "an old way" in warning["msg"]
    assert "ZeroDivisionError" in thread["traceback"]
    assert crash["traceback"].endswith("RuntimeError: broken")


async def test_crash_whose_log_nobody_reads_ends_the_process(
    daemon: Daemon, unread: Unread
) -> None:
    """The process ends all the same: one that has crashed must not look alive."""
    daemon.code = CRASH
    await daemon.start(tokens(a=1))
    assert await daemon.ended() == 1


async def test_process_without_stderr_works(daemon: Daemon, standin: SimulatedKubelet) -> None:
    """There is no log, and the rest works."""
    daemon.wrapper = ("sh", "-c", 'exec "$0" "$@" 2>&-')
    await daemon.start(tokens(a=1))
    await standin.wait(A, 1, 1)
    assert await daemon.stop() == 0

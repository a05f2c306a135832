"""The log's writer: in order, bounded, and never in the way of who logs."""

import json
import logging
import os
from collections.abc import Callable, Iterator

import pytest

from devhost.observe import logs
from devhost.observe.logs import LogQueue
from tests.support.daemon import until
from tests.support.pipes import fill

Log = Callable[[str], None]

_LOGGER = logging.getLogger(__name__)
_LOGGER.propagate = False


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def logging_to(writer: LogQueue) -> Log:
    _LOGGER.handlers[:] = [writer]
    return _LOGGER.warning


def read(descriptor: int, until: str) -> list[str]:
    """Read lines until one is found."""
    lines = []
    with os.fdopen(os.dup(descriptor)) as stream:
        for line in stream:
            lines.append(line.rstrip("\n"))
            if until in line:
                return lines
    raise AssertionError(f"ended without {until!r}")


def drain(descriptor: int, size: int) -> None:
    while size:
        size -= len(os.read(descriptor, size))


async def test_log_drops_lines(pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "QUEUE_MAX", 50)
    writer = LogQueue(pipe[1])
    writer.setFormatter(Formatter())
    log, size = logging_to(writer), fill(pipe[1])
    log("0")
    await until(writer.queue.empty, "the thread has the line, and waits for the reader")
    for number in range(1, 200):
        log(str(number))
    dropped = writer.dropped
    assert dropped == 200 - 50 - 1
    drain(pipe[0], size)
    *lines, last = [json.loads(line) for line in read(pipe[0], "count")]
    assert [int(entry["msg"]) for entry in lines] == list(range(200 - dropped))
    assert last["count"] == dropped
    writer.flush()
    log("end")
    assert json.loads(read(pipe[0], "end")[-1]) == {"msg": "end"}
    assert writer.dropped == dropped


class Formatter(logging.Formatter):
    """The message and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"msg": record.getMessage(), **getattr(record, "fields", {})})


def test_log_that_cannot_be_written_stops_nothing(pipe: tuple[int, int]) -> None:
    """A full disk: the log goes on when there is room."""
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        writer = LogQueue(full)
        log = logging_to(writer)
        log("one")
        writer.flush()
        os.dup2(pipe[1], full)
        log("two")
        assert read(pipe[0], "two") == ["two"]
    finally:
        os.close(full)


def test_log_in_text_has_a_traceback_below_its_line() -> None:
    lines = list[str]()
    with logs.redirect_to(lines.append):
        logging.getLogger("devhost.node").error("it failed", exc_info=LookupError("not there"))
    assert "ERROR   it failed" in lines[0]
    assert lines[-1] == "LookupError: not there"

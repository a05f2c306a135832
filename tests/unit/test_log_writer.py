"""The log's writer: in order, bounded, and never in the way of who logs."""

import json
import logging
import os
import threading
from collections.abc import Callable, Iterator

import pytest

from devhost.observe import log_writer
from devhost.observe.log_writer import LogWriter
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


def logging_to(writer: LogWriter) -> Log:
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


def test_lines_are_written_in_order(pipe: tuple[int, int]) -> None:
    """Whatever thread they come from, a line follows those that were logged before it."""
    log = logging_to(LogWriter(pipe[1]))
    for number in range(1000):
        if number % 2:
            log(str(number))
        else:
            thread = threading.Thread(target=log, args=(str(number),))
            thread.start()
            thread.join()
    log("end")
    assert read(pipe[0], "end") == [*map(str, range(1000)), "end"]


@pytest.mark.parametrize("lines", [200, 5000])
def test_what_does_not_fit_is_dropped_and_counted(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, lines: int
) -> None:
    """The numbers that arrive grow, and with the counts in between they are all there."""
    monkeypatch.setattr(log_writer, "QUEUE_BYTES_MAX", 2000)
    writer = LogWriter(pipe[1])
    writer.setFormatter(Formatter())
    log, size = logging_to(writer), fill(pipe[1])
    for number in range(lines):
        log(f"{number:04}")
    assert writer.dropping
    before = writer.dropped
    assert before > 0
    drain(pipe[0], size)
    seen = [json.loads(line) for line in read(pipe[0], "count")]
    expected = 0
    for one in seen:
        expected += one.get("count", 1)
        assert "count" in one or int(one["msg"]) == expected - 1
    assert (expected, seen[-1]["count"]) == (lines, before)
    assert not writer.dropping
    log("end")
    assert json.loads(read(pipe[0], "end")[-1]) == {"msg": "end"}
    assert writer.dropped == before


class Formatter(logging.Formatter):
    """The message and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps({"msg": record.getMessage(), **getattr(record, "fields", {})})


def test_who_logs_does_not_wait_and_the_end_waits_for_a_bounded_time(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a line nor a flush hangs while nobody reads; nothing is lost if one does later."""
    monkeypatch.setattr(log_writer, "FLUSH_S", 0.01)
    writer, size = LogWriter(pipe[1]), fill(pipe[1])
    logging_to(writer)("one")
    writer.flush()
    drain(pipe[0], size)
    assert read(pipe[0], "one") == ["one"]


def test_a_flush_waits_for_the_last_line(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_writer, "FLUSH_S", 60.0)
    writer = LogWriter(pipe[1])
    log = logging_to(writer)
    for number in range(1000):
        log(str(number))
    writer.flush()
    os.set_blocking(pipe[0], False)
    assert os.read(pipe[0], 1 << 16).endswith(b"\n999\n")


def test_a_descriptor_that_does_not_block(pipe: tuple[int, int]) -> None:
    """Who shares it may have made it so: nothing is lost."""
    size = fill(pipe[1])
    os.set_blocking(pipe[1], False)
    log = logging_to(LogWriter(pipe[1]))
    log("one")
    log("two")
    drain(pipe[0], size)
    assert read(pipe[0], "two") == ["one", "two"]


def test_lines_that_cannot_be_written_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a full disk; the log goes on with the count when there is room."""
    monkeypatch.setattr(log_writer, "FLUSH_S", 60.0)
    full = os.open("/dev/full", os.O_WRONLY)
    ours, theirs = os.pipe()
    try:
        writer = LogWriter(full)
        writer.setFormatter(Formatter())
        log = logging_to(writer)
        log("one")
        log("two")
        writer.flush()
        assert writer.dropped == 2
        os.dup2(theirs, full)
        log("three")
        one, two = map(json.loads, read(ours, "three"))
        assert (one["count"], two["msg"]) == (2, "three")
    finally:
        for descriptor in (full, ours, theirs):
            os.close(descriptor)


def test_a_wrong_log_call_is_a_line(pipe: tuple[int, int]) -> None:
    """And no error on stderr, nor in who logged."""
    _LOGGER.handlers[:] = [LogWriter(pipe[1])]
    _LOGGER.warning("%d devices", "no")
    (line,) = read(pipe[0], "devices")
    assert "cannot format" in line

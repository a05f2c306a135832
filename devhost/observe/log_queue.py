"""Writes log lines in a separate thread: a log that is not read must not block the process."""

import contextlib
import logging
import os
import queue
import select
from logging.handlers import QueueHandler, QueueListener
from typing import Final

LINES_MAX: Final = 1000
FLUSH_S: Final = 1.0  # at exit; writing to a pipe that is read takes milliseconds


class LogQueue(QueueHandler):
    """Queues formatted lines for a thread that writes them to a file descriptor.

    When the queue is full, lines are dropped; when it is written, a line says how many.

    Attributes:
        dropped: The number of lines that were dropped.
        missing: How many of them no line has said yet.
    """

    queue: "queue.Queue[bytes]"

    def __init__(self, descriptor: int) -> None:
        super().__init__(queue.Queue(LINES_MAX))
        self.dropped = self.missing = 0
        _Writer(self, descriptor).start()

    def prepare(self, record: logging.LogRecord) -> bytes:
        """Return the line."""
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 (a faulty log call must not fail its caller)
            message = f"cannot format log line: {record.msg!r}: {error!r}"
            text = self.format(
                logging.LogRecord(record.name, logging.ERROR, "", 0, message, None, None)
            )
        return f"{text}\n".encode("utf-8", "backslashreplace")

    def enqueue(self, line: bytes) -> None:  # type: ignore[override]
        """Queue a line, or drop it."""
        try:
            self.queue.put_nowait(line)
        except queue.Full:
            self.drop()

    def drop(self) -> None:
        """Count a line that is dropped."""
        self.dropped += 1
        self.missing += 1

    def flush(self) -> None:
        """Wait up to `FLUSH_S` until all lines are written; called by `logging` at exit."""
        with self.queue.all_tasks_done:
            self.queue.all_tasks_done.wait_for(lambda: not self.queue.unfinished_tasks, FLUSH_S)


class _Writer(QueueListener):
    def __init__(self, lines: LogQueue, descriptor: int) -> None:
        super().__init__(lines.queue)
        self._lines, self._descriptor = lines, descriptor

    def handle(self, line: bytes) -> None:  # type: ignore[override]
        try:
            _write(self._descriptor, line)
        except OSError:  # such as a closed pipe or a full disk
            self._lines.drop()
        else:
            if (
                self._lines.missing and self._lines.queue.empty()
            ):  # what was dropped came after the rest
                self._say_missing()

    def _say_missing(self) -> None:
        text = "log lines dropped: the log was not read fast enough"
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None)
        missing, record.fields = self._lines.missing, {"count": self._lines.missing}
        try:
            _write(self._descriptor, self._lines.prepare(record))
        except OSError:
            return
        with self._lines.lock or contextlib.nullcontext():
            self._lines.missing -= missing


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # a process that shares the descriptor made it non-blocking
            select.select([], [descriptor], [])

"""Writes log lines in a separate thread: a log that is not read must not block the process.

`logging.handlers.QueueHandler` and `QueueListener` cannot be used: with a full queue the former
writes an error to stderr, which blocks, and `QueueListener.stop` waits without a limit.
"""

import contextlib
import logging
import os
import select
import threading
from collections import deque
from typing import Final

QUEUE_BYTES_MAX: Final = 1024 * 1024
FLUSH_S: Final = 1.0  # at exit; writing to a pipe that is read takes milliseconds


class LogWriter(logging.Handler):
    """Queues formatted lines for a thread that writes them to a file descriptor.

    When the queue is full, lines are dropped until half of it is written; a line in their place
    has their number.

    Attributes:
        dropped: The number of lines that were dropped.
        dropping: Whether lines are being dropped now.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.dropped = 0
        self.dropping = False
        self._descriptor = descriptor
        self._queue: deque[bytes | int] = deque()  # an int is a number of dropped lines
        self._queued_bytes = 0
        self._writing = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a line, without blocking."""
        line = self._encoded(record)
        with self._changed:
            self.dropping = self.dropping or self._queued_bytes >= QUEUE_BYTES_MAX
            if not self.dropping:
                self._queue.append(line)
                self._queued_bytes += len(line)
            elif isinstance(count := self._queue[-1], int):
                self._queue[-1] = count + 1
            else:
                self._queue.append(1)
            self.dropped += self.dropping
            self._start()
            self._changed.notify_all()

    def flush(self) -> None:
        """Wait up to `FLUSH_S` until all lines are written; called by `logging` at exit."""
        with self._changed:
            self._changed.wait_for(lambda: not self._queue and not self._writing, FLUSH_S)

    def _start(self) -> None:
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="log writer", daemon=True)
            with contextlib.suppress(
                RuntimeError
            ):  # no thread can be started: the next line tries again
                thread.start()
                self._thread = thread

    def _run(self) -> None:
        missing = 0  # lines dropped since the last one that was written
        while True:
            item = self._next()
            line = item if isinstance(item, bytes) else b""
            missing += item if isinstance(item, int) else 0
            try:
                _write(self._descriptor, self._notice(missing) + line)
                missing = 0
            except (OSError, MemoryError):  # such as a closed pipe or a full disk
                missing += bool(line)
                with self._changed:
                    self.dropped += bool(line)

    def _next(self) -> bytes | int:
        with self._changed:
            self._writing = False
            self._changed.notify_all()
            self._changed.wait_for(lambda: self._queue)
            self._writing = True
            item = self._queue.popleft()
            if isinstance(item, bytes):
                self._queued_bytes -= len(item)
            if self._queued_bytes <= QUEUE_BYTES_MAX // 2:
                self.dropping = False
            return item

    def _notice(self, missing: int) -> bytes:
        if not missing:
            return b""
        text = "log lines dropped: the log was not read fast enough"
        record = logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None)
        record.fields = {"count": missing}
        return self._encoded(record)

    def _encoded(self, record: logging.LogRecord) -> bytes:
        try:
            text = self.format(record)
        except Exception as error:  # noqa: BLE001 (a faulty log call must not fail its caller)
            message = f"cannot format log line: {record.msg!r}: {error!r}"
            text = self.format(
                logging.LogRecord(record.name, logging.ERROR, "", 0, message, None, None)
            )
        return f"{text}\n".encode("utf-8", "backslashreplace")


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        try:
            rest = rest[os.write(descriptor, rest) :]
        except BlockingIOError:  # a process that shares the descriptor made it non-blocking
            select.select([], [descriptor], [])

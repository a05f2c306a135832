"""Logs on stderr, as JSON or text: a short message, and fields.

A thread writes them, so that a log that nobody reads does not block the process.
"""

import contextlib
import json
import logging
import os
import queue
import select
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Final, NoReturn

from devhost.model.names import printable

QUEUE_MAX: Final = 4000  # an edit of all of 1,000 resources logs several lines of each
FLUSH_S: Final = 1.0  # at exit; writing to a pipe that is read takes milliseconds
_ENCODER: Final = json.JSONEncoder(default=str)
_LEVELS: Final = {
    "asyncio": logging.WARNING,
    "grpc": logging.WARNING,
    # These log each malformed request; its sender gets an error anyway.
    "uvicorn": logging.ERROR,
    "grpc._common": logging.CRITICAL,
}
# The loggers of which a person at the terminal sees more than warnings.
_SHOWN: Final = ("devhost.node.config_file", "devhost.node.node")
_NOTHING: Final[tuple[object, ...]] = (None, "", (), [])  # values that text does not show
_LOG: Final = logging.getLogger(__name__)


class LogQueue(logging.Handler):
    """Queues records for a thread that formats them and writes them to a file descriptor.

    When the queue is full, they are dropped; when it is written, a line says how many.
    """

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self.queue: queue.SimpleQueue[logging.LogRecord | threading.Event] = queue.SimpleQueue()
        self._descriptor = descriptor
        self.dropped = 0
        threading.Thread(target=self._write_all, name="log", daemon=True).start()

    @property
    def full(self) -> bool:
        """Whether there is no room."""
        return self.queue.qsize() >= QUEUE_MAX

    def emit(self, record: logging.LogRecord) -> None:
        """Queue a record, or drop it."""
        if self.full:
            self.dropped += 1
        else:
            self.queue.put(record)

    def flush(self) -> None:
        """Wait up to `FLUSH_S` seconds until all is written; `logging` calls it at exit."""
        written = threading.Event()
        self.queue.put(written)
        written.wait(FLUSH_S)

    def _write_all(self) -> None:
        reported = 0
        while True:
            record = self.queue.get()
            if isinstance(record, threading.Event):
                record.set()
                continue
            self._write(record)
            # Dropped records came after those in the queue.
            if (count := self.dropped - reported) and self.queue.empty():
                reported += count
                text = "log lines dropped: the log was not read fast enough"
                notice = logging.LogRecord(__name__, logging.WARNING, "", 0, text, None, None)
                notice.fields = {"count": count}
                self._write(notice)

    def _write(self, record: logging.LogRecord) -> None:
        try:
            line = f"{self.format(record)}\n".encode("utf-8", "backslashreplace")
            while line:
                select.select([], [self._descriptor], [])  # another process may not let it block
                line = line[os.write(self._descriptor, line) :]
        except Exception:  # noqa: BLE001 (a closed pipe, a full disk, a faulty log call)
            self.dropped += 1


def set_up(level: str, log_format: str | None) -> None:
    """Send all logs to stderr, as text on a terminal and else JSON, unless there is a `log_format`.

    Crashes and Python's warnings go there, too.
    """
    stderr = sys.__stderr__  # None if the process was started without it
    handler = LogQueue(stderr.fileno()) if stderr else logging.NullHandler()
    text = log_format == "text" or (log_format is None and stderr is not None and stderr.isatty())
    handler.setFormatter(_Text() if text else _Json())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name, least in _LEVELS.items():
        logging.getLogger(name).setLevel(least)
    logging.getLogger("grpc._cython.cygrpc").addFilter(_without_decode_traceback)
    # Python itself would write these to stderr, and block if it is not read.
    logging.captureWarnings(capture=True)
    sys.excepthook = lambda *crash: _LOG.critical("unexpected error, exiting", exc_info=crash)
    sys.unraisablehook = lambda ignored: _LOG.error(
        "unexpected error ignored in %r", ignored.object, exc_info=ignored.exc_value
    )
    threading.excepthook = lambda crash: _LOG.error(
        "unexpected error in a thread", exc_info=crash.exc_value
    )


@contextlib.contextmanager
def redirect_to(show: Callable[[str], None]) -> Iterator[None]:
    """Show warnings, and changes of the configuration, by a function instead of on stderr."""
    handler = _Shown(show)
    handler.setFormatter(_Text())
    handler.addFilter(lambda record: record.levelno >= logging.WARNING or record.name in _SHOWN)
    root = logging.getLogger()
    before, root.handlers[:] = root.handlers[:], [handler]
    try:
        yield
    finally:
        root.handlers[:] = before


def exit_with_error(message: str) -> NoReturn:
    """Log an error, and exit with status 1."""
    _LOG.error(message)
    sys.exit(1)


def dropped_lines() -> tuple[int, bool]:
    """Return how many lines were dropped because the log was not read, and whether more are."""
    queues = [queue for queue in logging.getLogger().handlers if isinstance(queue, LogQueue)]
    return sum(queue.dropped for queue in queues), any(queue.full for queue in queues)


def _without_decode_traceback(record: logging.LogRecord) -> bool:
    """Log a message that cannot be parsed without a traceback: the client is at fault."""
    if record.exc_info and type(record.exc_info[1]).__name__ == "DecodeError":
        record.exc_info = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Shown(logging.Handler):
    def __init__(self, show: Callable[[str], None]) -> None:
        super().__init__()
        self._show = show

    def emit(self, record: logging.LogRecord) -> None:
        for line in self.format(record).splitlines():
            self._show(line)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "logger": record.name,
            **getattr(record, "details", {}),  # in text they are in the message
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return _ENCODER.encode(shown)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        words = [f"{_time(record)[11:-1]} {record.levelname:<7} {record.getMessage()} "]
        for key, value in getattr(record, "fields", {}).items():
            text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            words += [f"{key}={text}"] if value not in _NOTHING else []
        lines = [" ".join(words)]
        if record.exc_info:
            lines += self.formatException(record.exc_info).split("\n")
        return "\n".join(printable(line.rstrip()) for line in lines)

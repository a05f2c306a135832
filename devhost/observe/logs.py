"""Logs on stderr: JSON for machines, lines for people; a phrase, and fields."""

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Final

_ENCODER: Final = json.JSONEncoder(default=str)


def set_up(level: str, form: str | None) -> None:
    """Send all logs to stderr.

    Args:
        level: debug, info, warning or error.
        form: ``json`` or ``text``; ``None`` for text where a person looks, else json.
    """
    # No line tells of these, and finding them out takes a fifth of its time.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    logging._srcfile = None  # noqa: SLF001 (as the library's documentation on optimization says)
    handler = logging.StreamHandler(sys.stderr)
    chosen = form or ("text" if sys.stderr.isatty() else "json")
    handler.setFormatter(_Json() if chosen == "json" else _Text())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("watchdog", "asyncio", "grpc"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _fields(record: logging.LogRecord) -> dict[str, object]:
    fields: dict[str, object] = getattr(record, "fields", {})
    return fields


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        shown: dict[str, object] = {
            "ts": _time(record),
            "level": record.levelname.lower(),
            "msg": record.getMessage(),
            "logger": record.name,
            **_fields(record),
        }
        if record.exc_info:
            shown["traceback"] = self.formatException(record.exc_info)
        return _ENCODER.encode(shown)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(f"{key}={value!s}" for key, value in _fields(record).items())
        line = f"{_time(record)[11:-1]} {record.levelname:<7} {record.getMessage()}  {fields}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line.rstrip()

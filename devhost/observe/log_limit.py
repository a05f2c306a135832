"""Bounds the log lines of each resource: what happens in a directory may happen all the time."""

import logging
import time
from typing import Final

from devhost.limits import LOG_LINES_BURST, LOG_LINES_PER_S
from devhost.token_bucket import TokenBucket

_EXEMPT: Final = "devhost.kubelet.call_log"  # who was given what; requests have bounds of their own
_KEYS_MAX: Final = 10_000
_SAID_S: Final = 10.0  # between the beginning of a flood and how much of it was suppressed


class LogLimit(logging.Filter):
    """Drops what is beyond the limits, and says so.

    Attributes:
        suppressed: How many lines were dropped.
    """

    def __init__(self, handler: logging.Handler) -> None:
        super().__init__()
        self._handler = handler
        self._buckets: dict[tuple[str, str], TokenBucket] = {}
        self._missing: dict[tuple[str, str], int] = {}
        self._said: dict[tuple[str, str], float] = {}
        self.suppressed = 0

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether a line may be logged."""
        resource = getattr(record, "fields", {}).get("resource")
        if resource is None or record.levelno >= logging.ERROR or record.name == _EXEMPT:
            return True
        key = (resource, record.name)
        bucket = self._buckets.get(key)
        if bucket is None:
            if len(self._buckets) >= _KEYS_MAX:  # of resources that were removed, mostly
                self._buckets.clear()
                self._missing.clear()
                self._said.clear()
            bucket = self._buckets[key] = TokenBucket(LOG_LINES_BURST, LOG_LINES_PER_S)
        now = time.monotonic()
        if bucket.take(now):
            if key not in self._missing:
                self._say("too many messages of a resource: suppressing more", record)
                self._said[key] = now
            self._missing[key] = self._missing.get(key, 0) + 1
            self.suppressed += 1
            return False
        if key in self._missing and now - self._said[key] >= _SAID_S:
            self._say(f"suppressed {self._missing.pop(key)} messages", record)
        return True

    def _say(self, text: str, of: logging.LogRecord) -> None:
        record = logging.LogRecord(of.name, logging.WARNING, "", 0, text, None, None)
        record.fields = {"resource": getattr(of, "fields", {})["resource"]}
        self._handler.emit(record)

"""Bounds the log lines of each resource: what happens in a directory may happen all the time."""

import contextlib
import logging
import threading
import time
from typing import Final

from devhost.limits import LOG_LINES_BURST, LOG_LINES_PER_S
from devhost.token_bucket import TokenBucket

_EXEMPT: Final = "devhost.kubelet.call_log"  # who was given what; requests have bounds of their own
_KEYS_MAX: Final = 10_000
_SAID_S: Final = 10.0  # from the first line that is suppressed to how many were


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
        self._timer: threading.Timer | None = None
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
            bucket = self._buckets[key] = TokenBucket(LOG_LINES_BURST, LOG_LINES_PER_S)
        if not bucket.take(time.monotonic()):
            return True
        if key not in self._missing:
            self._say("too many messages of a resource: suppressing more", key)
        self._missing[key] = self._missing.get(key, 0) + 1
        self.suppressed += 1
        self._sum_up_later()
        return False

    def _sum_up_later(self) -> None:
        """Say how much was suppressed, also where no more lines come."""
        if self._timer is None:
            timer = threading.Timer(_SAID_S, self._sum_up)
            timer.daemon = True
            with contextlib.suppress(RuntimeError):  # no thread: the next line tries again
                timer.start()
                self._timer = timer

    def _sum_up(self) -> None:
        self._timer = None
        missing, self._missing = self._missing, {}
        for key, count in missing.items():
            self._say(f"suppressed {count} messages", key)

    def _say(self, text: str, key: tuple[str, str]) -> None:
        resource, logger = key
        record = logging.LogRecord(logger, logging.WARNING, "", 0, text, None, None)
        record.fields = {"resource": resource}
        self._handler.emit(record)

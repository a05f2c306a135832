"""Signals during the start of ``devhost run``: the process exits immediately and silently."""

import os
import signal
import sys


def handle_signals() -> None:
    """Exit with 0 on SIGTERM and SIGINT until `until_signal` handles them.

    The handlers do not raise: an import that is interrupted by an exception may replace or ignore
    it. Handlers are needed because process 1 ignores SIGTERM by default. SIGHUP is ignored: its
    default action ends the process, and the file has yet to be read anyway.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(_number: int, _frame: object) -> None:
    if logging := sys.modules.get("logging"):
        getattr(logging, "shutdown", lambda: None)()
    os._exit(0)

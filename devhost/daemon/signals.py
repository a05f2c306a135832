"""Signals before all else is imported; so it imports next to nothing."""

import os
import signal
import sys


def exit_on_signals() -> None:
    """Exit with 0 on SIGTERM and SIGINT until `wait_for_signal` handles them.

    The handlers do not raise: an import that is interrupted by an exception may replace or ignore
    it. Handlers are needed because process 1 ignores SIGTERM by default. SIGHUP is ignored: its
    default action ends the process, and the file has yet to be read anyway.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(_number: int, _frame: object) -> None:
    shutdown = getattr(sys.modules.get("logging"), "shutdown", None)
    if shutdown is not None:
        shutdown()
    os._exit(0)

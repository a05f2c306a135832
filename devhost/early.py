"""Signals of a ``devhost run`` that has not begun: it ends at once, and in silence."""

import os
import signal
import sys


def handle_signals() -> None:
    """Let SIGTERM and SIGINT end the process with 0 until `until_signal` takes them over.

    An exception from a handler may come out of the middle of an import as another one, or be
    ignored there. A process 1 has no default actions, so without a handler SIGTERM does nothing.
    SIGHUP would end the process; the file is read later anyway.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _end)


def _end(_number: int, _frame: object) -> None:
    if logging := sys.modules.get("logging"):
        getattr(logging, "shutdown", lambda: None)()
    os._exit(0)

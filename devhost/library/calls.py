"""Calls a plugin's methods, and logs exceptions and timeouts once."""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from devhost.errors import DevhostError
from devhost.model.names import printable

T = TypeVar("T")

UNRETURNED_MAX: Final = 8  # timed-out calls of one method, each of which occupies a thread
_TEXT_MAX: Final = 500
_LOG: Final = logging.getLogger(__name__)


class CallError(DevhostError):
    """A method raised, returned an invalid result, or timed out; the message says which."""


class Calls:
    """The calls of one plugin's methods, with time limits; may be used from any thread."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._late: Counter[str] = Counter()  # calls that have timed out and still run
        self._logged: dict[str, str] = {}  # the last error, by method

    def running(self, method: str) -> bool:
        """Whether a call is still running."""
        return self._running[method] > 0

    def call_here(self, method: str, work: Callable[[], T]) -> T:
        """Call a method in this thread.

        Raises:
            CallError: It raised an exception, which is logged with its traceback, once.
        """
        with self._lock:
            self._running[method] += 1
        try:
            result = work()
        except CallError as error:
            self._log(method, str(error), None)
            raise
        except BaseException as error:  # noqa: BLE001 (also SystemExit: the plugin must not end the process)
            text = f"{method}() raised {one_line(error)}"
            self._log(method, text, error)
            raise CallError(text) from None
        else:
            self._logged.pop(method, None)
            return result
        finally:
            with self._lock:
                self._running[method] -= 1

    def call(self, method: str, work: Callable[[], T], within: float) -> T:
        """Call a method in a separate thread, and wait for it.

        Args:
            method: The name of the method.
            work: The call.
            within: The timeout in seconds; the call itself is not stopped.

        Raises:
            CallError: It raised or timed out, or too many calls have timed out and still run.
        """
        if self._late[method] >= UNRETURNED_MAX:
            raise CallError(
                f"{method}() not called: {UNRETURNED_MAX} earlier calls have not returned"
            )
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(self.call_here(method, work))
            except CallError as error:
                answer.set_exception(error)

        name = f"{method} {self._resource}"
        threading.Thread(target=run, name=name, daemon=True).start()
        try:
            return answer.result(max(within, 0.0))
        except TimeoutError:
            with self._lock:
                self._late[method] += 1
            answer.add_done_callback(lambda _: self._returned(method))
            text = f"{method}() did not return within {within:.3g} s"
            self._log(method, text, None)
            raise CallError(text) from None

    def _returned(self, method: str) -> None:
        with self._lock:
            self._late[method] -= 1

    def _log(self, method: str, text: str, error: BaseException | None) -> None:
        repeated = self._logged.get(method) == text
        self._logged[method] = text
        fields = {"resource": self._resource, "reason": text}
        level = logging.DEBUG if repeated else logging.ERROR
        _LOG.log(level, "plugin failed", exc_info=error, extra={"fields": fields})


def one_line(error: BaseException) -> str:
    """Return an exception as one line of limited length."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (a plugin's class may raise anything)
        text = ""
    name = type(error).__name__
    return brief(f"{name}: {text}" if text else name)


def brief(text: str) -> str:
    """Return a text as one line of limited length."""
    return printable(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…")

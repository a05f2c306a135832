"""Calls an author's methods: what they raise, or that they hang, is said once, in one line."""

import logging
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, TypeVar

from devhost.errors import DevhostError
from devhost.model.names import printable

T = TypeVar("T")

UNRETURNED_MAX: Final = 8  # late calls of one method; each is a thread
_TEXT_MAX: Final = 500
_LOG: Final = logging.getLogger(__name__)


class CallError(DevhostError):
    """A method raised, returned what it may not, or did not return; the text says which."""


class Calls:
    """The calls to one plugin's methods, each bounded; may be used from any thread."""

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._late: Counter[str] = Counter()  # those of them that nobody waits for any more
        self._said: dict[str, str] = {}

    def running(self, method: str) -> bool:
        """Whether a call has not returned yet."""
        return self._running[method] > 0

    def here(self, method: str, work: Callable[[], T]) -> T:
        """Call in this thread.

        Raises:
            CallError: It raised; that is logged with its traceback, the first of equal ones.
        """
        with self._lock:
            self._running[method] += 1
        try:
            result = work()
        except CallError as error:
            self._log(method, str(error), None)
            raise
        except BaseException as error:  # noqa: BLE001 (whatever it is, it ends here)
            text = f"{method}() raised {said(error)}"
            self._log(method, text, error)
            raise CallError(text) from None
        else:
            self._said.pop(method, None)
            return result
        finally:
            with self._lock:
                self._running[method] -= 1

    def call(self, method: str, work: Callable[[], T], within: float) -> T:
        """Call in a thread of its own, and wait.

        Args:
            method: Its name.
            work: The call.
            within: Seconds to wait; a call that takes longer goes on, for nobody.

        Raises:
            CallError: As of `here`; it did not return in time, or too many late ones have not yet.
        """
        if self._late[method] >= UNRETURNED_MAX:
            raise CallError(f"{method}() has not returned from the last {UNRETURNED_MAX} calls")
        answer: Future[T] = Future()

        def run() -> None:
            try:
                answer.set_result(self.here(method, work))
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
            text = f"{method}() did not return in {within:.3g} s"
            self._log(method, text, None)
            raise CallError(text) from None

    def _returned(self, method: str) -> None:
        with self._lock:
            self._late[method] -= 1

    def _log(self, method: str, text: str, error: BaseException | None) -> None:
        repeated = self._said.get(method) == text
        self._said[method] = text
        fields = {"resource": self._resource, "reason": text}
        level = logging.DEBUG if repeated else logging.ERROR
        _LOG.log(level, "the plugin's code failed", exc_info=error, extra={"fields": fields})


def said(error: BaseException) -> str:
    """Return an exception as one line of bearable length."""
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 (an author's class may do anything)
        text = ""
    name = type(error).__name__
    return brief(f"{name}: {text}" if text else name)


def brief(text: str) -> str:
    """Return any text as one line of bearable length."""
    return printable(text if len(text) <= _TEXT_MAX else f"{text[:_TEXT_MAX]}…")

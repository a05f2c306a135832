"""A bound that many users share, and of which each may always have a few."""

import threading
from typing import Final


class Budget:
    """How much all users may have together.

    Args:
        what: The name of the things, for the text of a refusal.
        each: How many one user may have.
        total: How many all may have together.
        few: How many each may have however many the others have.
    """

    def __init__(self, what: str, *, each: int, total: int, few: int) -> None:
        self.what, self.each, self.total, self.few = what, each, total, few
        self.used = 0
        self.lock: Final = threading.Lock()

    def share(self) -> "Share":
        """Return what is for another user."""
        return Share(self)


class Share:
    """What one user of a budget has; may be used in any thread.

    Attributes:
        used: How many that is.
    """

    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self._closed = False
        self.used = 0

    def refusal(self, count: int) -> str | None:
        """Take so many, unless there are more already; or return why that may not be."""
        budget = self._budget
        with budget.lock:
            if count > budget.each:
                return f"more than {budget.each:,} {budget.what}"
            others = budget.used - self.used
            if count > max(self.used, budget.few) and others + count > budget.total:
                return f"more than {budget.total:,} {budget.what} in all"
            if count > self.used:
                self._set(count)
            return None

    def settle(self, count: int) -> None:
        """Set how many there are after all."""
        with self._budget.lock:
            self._set(count)

    def close(self) -> None:
        """Have none from now on, whatever a thread that still runs takes."""
        with self._budget.lock:
            self._set(0)
            self._closed = True

    def _set(self, count: int) -> None:
        if not self._closed:
            self._budget.used += count - self.used
            self.used = count

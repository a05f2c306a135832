"""The state of one resource, told once: kept, and logged when it changes."""

import logging
from collections import Counter
from typing import Final

from devhost.model.state import State, Status

_REPEATS_MAX: Final = 3  # of one state with one reason, until registered again
_LOG: Final = logging.getLogger(__name__)


class Standing:
    """What a resource's registration says of itself, and what covers it.

    Attributes:
        status: What is shown.
        registered_once: The kubelet had it at least once.
    """

    def __init__(self, resource: str) -> None:
        self._resource = resource
        self._told: Counter[tuple[State, str | None]] = Counter()
        self._below: Status | None = None
        self.status = Status()
        self.registered_once = False

    def tell(self, state: State, reason: str | None = None) -> None:
        """Set the state; while another one covers it, it is only kept for later."""
        self.registered_once = self.registered_once or state is State.REGISTERED
        if self._below is not None:
            self._below = Status(state, reason)
        else:
            self._show(state, reason)

    def cover(self, state: State, reason: str) -> None:
        """Show a state whatever is told, until `uncover`."""
        self._below = self._below or self.status
        self._show(state, reason)

    def uncover(self) -> None:
        """Show again what was told."""
        below, self._below = self._below, None
        if below is not None:
            self._show(below.state, below.reason)

    def _show(self, state: State, reason: str | None) -> None:
        if (state, reason) == (self.status.state, self.status.reason):
            return
        self.status = Status(state, reason)
        if state is State.REGISTERED:
            self._told.clear()
        self._told[state, reason] += 1
        level = logging.WARNING if state is State.BACKING_OFF else logging.INFO
        passing = state in (State.SERVING, State.STOPPED)
        if passing or self._told[state, reason] > _REPEATS_MAX:
            level = logging.DEBUG
        fields = {"resource": self._resource, "state": state}
        if reason:
            fields["reason"] = reason
        _LOG.log(level, "state", extra={"fields": fields})
